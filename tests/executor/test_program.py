"""Decode steps as one program: the tokens of the modules that it was read off, or the modules themselves and why.

In fp32 its tokens are those of transformers' `generate`; whatever the scheduler does between two steps, the program
reads the step's own numbers.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from pagedlab.executor import program
from pagedlab.executor.optimize import optimize
from pagedlab.executor.program import HEAD, NORM, PRODUCT, DecodeProgram
from pagedlab.executor.program_trial import decode_step
from pagedlab.kernels import cpu
from pagedlab.model.load import load_model
from tests.torch_lab import load, make_torch_executor, outputs, run_model, sampling, small_model, with_answers

KINDS = {
    "llama": small_model("llama"),
    "llama with biases": small_model("llama", attention_bias=True, mlp_bias=True),
    "one KV head": small_model("llama", num_key_value_heads=1),
    "group of three, heads of 80": small_model("llama", hidden_size=480, num_attention_heads=6, head_dim=80),
    "qwen2": small_model("qwen2", use_sliding_window=False),
    "mistral": small_model("mistral", sliding_window=None),
}
SIZES = [(17, 30), (1, 25), (58, 38), (33, 20), (40, 24), (8, 60)]


def optimized(kind: str):
    served = with_answers(*load(KINDS[kind]), SIZES)
    optimize(served.model)
    return served


@pytest.fixture
def steps(monkeypatch):
    """Batch sizes of the steps that ran as a program."""
    sizes = []
    plain = DecodeProgram.run
    monkeypatch.setattr(DecodeProgram, "run", lambda self, step: sizes.append(step.num_decodes) or plain(self, step))
    return sizes


@pytest.mark.parametrize("kind", KINDS)
def test_fp32_tokens_stay(kind, steps):
    served = optimized(kind)
    recorder = run_model(served.model, served.shape, served.requests, 30, tokens=24, kernel="cpu", program=True)
    assert outputs(recorder) == served.outputs
    assert recorder.preemptions  # rows and tables moved
    assert len(set(steps)) >= 3
    assert sum(steps) > 80


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_block_sizes(block_size):
    served = optimized("llama")
    blocks = 300 // block_size
    recorder = run_model(served.model, served.shape, served.requests, blocks, block_size, kernel="cpu", program=True)
    assert outputs(recorder) == served.outputs


def test_long_sequences_in_pieces(monkeypatch):
    """Cut as among many threads, merged again."""
    cuts, divide = [], cpu.divide

    def cut(*args):
        work = divide(*args)
        cuts.append(len(work.merges))
        return work

    monkeypatch.setattr(cpu, "SPLIT", 16)
    monkeypatch.setattr("pagedlab.executor.program.divide", cut)
    served = optimized("llama")
    recorder = run_model(served.model, served.shape, served.requests, 90, kernel="cpu", program=True)
    assert outputs(recorder) == served.outputs
    assert max(cuts) > 0


def test_several_outputs_and_samples_are_those_of_the_modules():
    served = optimized("llama")
    for params in ({"temperature": 0.8, "n": 3}, {"beam_width": 3}, {"temperature": 1.0, "top_p": 0.9}):
        requests = sampling(served.requests, **params)
        runs = [
            run_model(served.model, served.shape, requests, 120, kernel="cpu", max_num_seqs=20, program=program)
            for program in (False, True)
        ]
        assert outputs(runs[0]) == outputs(runs[1])


def test_in_bf16_logits_are_as_near_to_fp32_as_those_of_the_modules():
    settings = deepcopy(KINDS["llama"])
    truth = _forced(load_model(settings, None, "cpu"), settings, program=False)
    settings.dtype = "bfloat16"
    plain = _forced(load_model(settings, None, "cpu"), settings, program=False)
    model = load_model(settings, None, "cpu")
    optimize(model)
    ours = _forced(model, settings, program=True)
    plain_error, error = ((logits - truth).pow(2).mean().sqrt() for logits in (plain, ours))
    assert 0 < error <= 1.1 * plain_error


def _forced(model, settings, program: bool) -> torch.Tensor:
    """Logits of 40 decode steps of three sequences that are fed the same tokens in every run."""
    executor = make_torch_executor(model, load(settings)[1], 12, 16, "cpu", 3, program=program)
    random, logits = np.random.default_rng(0), []
    with torch.inference_mode():
        for position in range(40):
            tables = np.array([[0, 3, 6], [2, 1, 7], [8, 5, 4]], dtype=np.int32)
            step = decode_step(random.integers(512, size=3), np.full(3, position), tables, 16)
            logits.append(executor._forward(step).float().clone())
    executor.close()
    return torch.cat(logits)


@pytest.mark.parametrize(
    ("settings", "kernel", "why"),
    [
        (small_model("qwen3", head_dim=16), "cpu", "Qwen3Attention has other parts (k_norm, q_norm)"),
        (
            small_model("mixtral", num_local_experts=4, num_experts_per_tok=2), "cpu",
            "MixtralDecoderLayer.mlp is MixtralSparseMoeBlock",
        ),
        (small_model("llama", hidden_size=72, head_dim=16), "cpu",
         "LlamaDecoderLayer's sizes are not multiples of a vector's"),
        (small_model("mistral", sliding_window=32), "cpu", "it attends in windows"),
        (small_model("llama"), "torch", "kernel=torch"),
        (small_model("granite", residual_multiplier=0.5), "cpu", "layer 0 computes something else"),
        (small_model("granite", embedding_multiplier=3.0), "cpu",
         "the first layer is fed something else than embeddings"),
        (small_model("granite", logits_scaling=2.0), "cpu", "the head computes something else"),
    ],
)  # fmt: skip
def test_what_it_does_not_know_goes_through_the_modules(settings, kernel, why):
    served = with_answers(*load(settings), SIZES[:2])
    optimize(served.model)
    executor = make_torch_executor(served.model, served.shape, 20, 4, kernel)
    said = executor.make_program()
    assert said == f"through the modules: {why}"
    assert executor.program is None
    executor.close()
    recorder = run_model(served.model, served.shape, served.requests, 60, kernel=kernel)
    assert outputs(recorder) == served.outputs


@pytest.mark.parametrize(("rows", "block_size"), [(16, 4), (16, 1), (1, 16)])
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (small_model("smollm3", no_rope_layers=[1, 0]), "layer 1 computes something else"),  # it does not rotate
        (small_model("ernie4_5", head_dim=16), "Ernie4_5Attention is of an unknown kind"),  # it rotates neighbours
        (
            small_model("ministral3", head_dim=16, sliding_window=None, rope_parameters={
                "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 2.0,
                "original_max_position_embeddings": 90,
            }),
            "layer 0 computes something else",  # from position 90 on
        ),
    ],
    ids=["no rope", "interleaved", "scaled far out"],
)  # fmt: skip
def test_what_a_model_does_at_some_positions_is_seen_whatever_the_pool(settings, why, rows, block_size):
    model, shape = load(settings)
    optimize(model)
    executor = make_torch_executor(model, shape, 60, block_size, "cpu", max_num_seqs=rows)
    assert executor.make_program() == f"through the modules: {why}"
    executor.close()


def test_angles_that_depend_on_the_longest_position_are_not_written_down():
    model, shape = load(KINDS["llama"])
    rotary = model.model.rotary_emb
    plain = rotary.forward

    def stretched(x, position_ids):
        return plain(x, position_ids * position_ids.max())

    rotary.forward = stretched
    optimize(model)
    executor = make_torch_executor(model, shape, 60, 4, "cpu")
    assert executor.make_program() == (
        "through the modules: LlamaRotaryEmbedding's angles depend on the longest position"
    )


def test_what_happens_between_layers_is_seen():
    model, shape = load(KINDS["llama"])
    optimize(model)
    model.model.layers[1].register_forward_pre_hook(lambda layer, args: (args[0] * 2, *args[1:]))
    executor = make_torch_executor(model, shape, 60, 4, "cpu")
    assert executor.make_program() == "through the modules: something happens between its layers"


def test_a_model_that_was_not_optimized_has_none():
    model, shape = load(KINDS["llama"])
    executor = make_torch_executor(model, shape, 20, 4, "cpu")
    assert executor.make_program() == "through the modules: LlamaForCausalLM.lm_head is Linear"


@pytest.mark.parametrize("what", ["a weight", "an eps", "the scale", "the angles"])
def test_a_program_that_computes_something_else_is_refused(what, monkeypatch):
    """The trial sees what reading the modules did not."""
    model, shape = load(KINDS["llama"])
    optimize(model)
    executor = make_torch_executor(model, shape, 20, 4, "cpu")
    layer = model.model.layers[1]
    if what == "a weight":  # the modules compute with another one than the program
        layer.mlp.forward = lambda x, plain=layer.mlp.forward: plain(x) * 1.05
    elif what == "an eps":
        layer.input_layernorm.forward = lambda x, plain=layer.input_layernorm.forward: plain(x) * 0.9
    elif what == "the scale":
        attention = layer.self_attn
        attention.register_forward_pre_hook(lambda *of: setattr(attention, "scaling", attention.scaling / 2))
        attention.register_forward_hook(lambda *of: setattr(attention, "scaling", attention.scaling * 2))
    else:
        plain_angles = program.angles_of
        monkeypatch.setattr(program, "angles_of", lambda *of: (plain_angles(*of)[0], -plain_angles(*of)[1]))
    assert executor.make_program() in (
        "through the modules: layer 1 computes something else",
        "through the modules: layer 0 computes something else",
    )


def test_bodies_can_be_left_out_to_see_what_a_step_takes_without_them():
    model, shape = load(KINDS["llama"])
    optimize(model)
    executor = make_torch_executor(model, shape, 4, 4, "cpu", program=True)
    program = executor.program
    step = decode_step(np.array([7, 9]), np.array([0, 1]), np.array([[2], [0]], dtype=np.int32), 4)
    for cache in executor.k_cache + executor.v_cache:
        cache.fill_(0.5)
    with torch.inference_mode():
        whole = program.run(step).clone()
        program.logits.fill_(7)
        program.leave_out(frozenset({PRODUCT, HEAD}))
        assert bool((program.run(step) == 7).all())  # nobody wrote them
        program.leave_out(frozenset())
        before = program.ticks()
        assert torch.equal(program.run(step), whole)
        assert {NORM, PRODUCT, HEAD, "attention, decode"} < set(program.ticks() - before)


def test_the_trial_leaves_the_cache_clean():
    served = optimized("llama")
    executor = make_torch_executor(served.model, served.shape, 3, 4, "cpu")
    executor.make_program()
    assert all(not cache.any() for cache in executor.k_cache + executor.v_cache)
