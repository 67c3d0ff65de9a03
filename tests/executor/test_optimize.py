"""`model.optimize=auto` changes how a model computes, not what.

In fp32 its tokens are those of transformers' `generate` on the model as it was, in bf16 it is as near to fp32 as that.
"""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from pagedlab.executor.optimize import optimize
from pagedlab.executor.packed import PackedLinear, Part, Shared
from pagedlab.model.load import load_model
from tests.torch_lab import load, outputs, run_model, small_model, with_answers

NO_FFN = ("intermediate_size", "num_key_value_heads", "initializer_range")
KINDS = {
    "llama": small_model("llama"),
    "llama of odd sizes": small_model("llama", intermediate_size=99, vocab_size=521),
    "llama with biases": small_model("llama", attention_bias=True, mlp_bias=True),
    "qwen2": small_model("qwen2"),
    "qwen3": small_model("qwen3", head_dim=16),
    "opt": small_model("opt", NO_FFN, ffn_dim=96, word_embed_proj_dim=64, init_std=0.2),
    "mixtral": small_model("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "gemma2": small_model("gemma2", head_dim=16, attn_logit_softcapping=None, sliding_window=512),
    "gpt2": small_model(
        "gpt2",
        ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "max_position_embeddings"),
        n_embd=64, n_layer=2, n_head=4, n_positions=512,
    ),
}  # fmt: skip
SIZES = [(17, 30), (1, 25), (58, 38), (33, 20), (40, 24)]


@pytest.mark.parametrize("kind", KINDS)
def test_fp32_tokens_stay(kind):
    served = with_answers(*load(KINDS[kind]), SIZES)
    optimize(served.model)
    # A small pool and short steps: chunks of prompts, decodes of all batch sizes, preemptions.
    recorder = run_model(served.model, served.shape, served.requests, 30, tokens=24, kernel="cpu")
    assert outputs(recorder) == served.outputs


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_is_as_near_to_fp32_as_before(kind):
    settings = deepcopy(KINDS[kind])
    truth = load_model(settings, None, "cpu")
    settings.dtype = "bfloat16"
    plain, optimized = load_model(settings, None, "cpu"), load_model(settings, None, "cpu")
    optimize(optimized)
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 512, size=(1, 150)))

    def error(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(ids, use_cache=False).logits.float() - expected).pow(2).mean().sqrt())

    with torch.no_grad():
        expected = truth(ids, use_cache=False).logits
    assert error(optimized) <= 1.1 * error(plain)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("llama", "5 norms fused, 2 gated feed-forwards fused, 2 queries, keys and values merged, "
                  "2 rotary embeddings fused, 9 weights packed"),
        ("opt", "2 queries, keys and values merged, 9 weights packed"),
        ("mixtral", "5 norms fused, 2 queries, keys and values merged, 2 rotary embeddings fused, 5 weights packed; as "
                    "they were: 2 MixtralTopKRouter, 2 MixtralExperts"),
        ("gemma2", "2 queries, keys and values merged, 2 rotary embeddings fused, 11 weights packed; as they were: "
                   "9 Gemma2RMSNorm, 2 Gemma2MLP"),
        ("gpt2", "1 weights packed; as they were: 8 Conv1D"),
    ],
)  # fmt: skip
def test_it_says_what_it_did_and_what_it_left(kind, said):
    assert optimize(load_model(KINDS[kind], None, "cpu")) == said


def test_what_is_no_kind_of_number_it_knows_is_left_alone():
    settings = deepcopy(KINDS["llama"])
    settings.dtype = "float64"
    model = load_model(settings, None, "cpu")
    before = [type(module) for module in model.modules()]
    assert optimize(model) == "nothing: no such code for float64"
    assert [type(module) for module in model.modules()] == before


def test_without_numba_the_model_is_left_alone(monkeypatch):
    from pagedlab.core.errors import ConfigError

    def missing(dtype):
        raise ConfigError("element-wise parts on a CPU: need numba")

    monkeypatch.setattr("pagedlab.executor.optimize.Elementwise", missing)
    served = with_answers(*load(KINDS["llama"]), SIZES[:2])
    assert optimize(served.model) == "nothing: element-wise parts on a CPU: need numba"
    assert outputs(run_model(served.model, served.shape, served.requests, 60)) == served.outputs


def test_a_module_that_computes_something_else_stays():
    """One of these norms adds one to its weight, under a name and with fields as the others have."""

    class OddRMSNorm(nn.Module):
        def __init__(self, plain: nn.Module):
            super().__init__()
            self.weight, self.variance_epsilon, self._plain = plain.weight, plain.variance_epsilon, plain

        def forward(self, x):
            return self._plain(x) + x

    model = load_model(KINDS["llama"], None, "cpu")
    model.model.norm = OddRMSNorm(model.model.norm)
    said = optimize(model)
    assert type(model.model.norm) is OddRMSNorm
    assert said.endswith("as they were: 1 OddRMSNorm")


@pytest.mark.parametrize("rows", [1, 2, 16, 65])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_is_the_product(rows, bias):
    linear = nn.Linear(30, 50, bias=bias).requires_grad_(False)
    x = torch.randn(1, rows, 30)
    packed = PackedLinear(linear.weight, linear.bias)
    torch.testing.assert_close(packed(x), linear(x), rtol=1e-5, atol=1e-5)


def test_parts_of_a_product_follow_what_they_are_asked():
    """Each is right in any order and for any tensor; asked in turn for the same one, they compute it once."""
    calls = []
    linear = nn.Linear(4, 6, bias=False).requires_grad_(False)
    linear.register_forward_hook(lambda *of: calls.append(1))
    shared = Shared(linear, 3)
    parts = [Part(linear, shared, slice(2 * i, 2 * i + 2), owner=i == 0) for i in range(3)]
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    whole = {id(x): x @ linear.weight.T for x in (a, b)}
    for part, x in [(0, a), (1, a), (2, a), (0, b), (2, b), (1, b), (2, a), (0, b), (1, a), (1, b), (2, b)]:
        torch.testing.assert_close(parts[part](x), whole[id(x)][:, 2 * part : 2 * part + 2])
    calls.clear()
    for part in parts:
        part(a)
    assert len(calls) == 1
