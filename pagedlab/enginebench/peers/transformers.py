"""transformers' `generate` over static batches of 16, padded on the left: what a script without an engine does. A batch
goes on until the longest answer in it is done."""

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

BATCH = 16


def load(work):
    torch.set_num_threads(work["threads"])
    model = AutoModelForCausalLM.from_pretrained(
        work["model"], dtype=getattr(torch, work["dtype"]), local_files_only=True, trust_remote_code=False
    ).eval()
    model.generation_config.eos_token_id = None

    def serve(requests):
        outputs = []
        for first in range(0, len(requests), BATCH):
            batch = requests[first : first + BATCH]
            width = max(len(r["prompt"]) for r in batch)
            ids = torch.tensor([[0] * (width - len(r["prompt"])) + r["prompt"] for r in batch])
            mask = torch.tensor([[0] * (width - len(r["prompt"])) + [1] * len(r["prompt"]) for r in batch])
            longest = max(r["output_tokens"] for r in batch)
            config = GenerationConfig(
                max_new_tokens=longest, min_new_tokens=longest, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            with torch.inference_mode():
                out = model.generate(ids, attention_mask=mask, generation_config=config)
            rows = out[:, width:].tolist()
            outputs += [row[: r["output_tokens"]] for row, r in zip(rows, batch)]  # noqa: B905
        return outputs

    return serve
