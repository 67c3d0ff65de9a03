"""The element-wise parts of a layer in one pass: what float64 says, rounded once, whatever the strides and the size."""

import numpy as np
import pytest
import torch

from pagedlab.kernels.elementwise import Elementwise

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 2**-8}  # and the largest error of a number, relative


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def ops(request):
    return Elementwise(request.param), request.param


def draw(dtype, *shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * 3).to(dtype)


def close(out, expected, dtype):
    assert out.dtype is dtype
    assert out.shape == expected.shape
    error = (out.double() - expected).abs()
    assert bool((error <= DTYPES[dtype] * (expected.abs() + 1e-2)).all()), error.max()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 7), (17, 64), (200, 577)])
def test_a_norm(ops, rows, columns):
    ops, dtype = ops
    x, weight = draw(dtype, rows, columns), draw(dtype, columns, seed=1)
    truth = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    eps = torch.tensor([1e-5])
    close(ops.norm(x, weight, eps), truth, dtype)
    close(ops.norm(x[None], weight, eps), truth[None], dtype)
    wide = draw(dtype, rows, columns + 5)
    wide[:, :columns] = x
    close(ops.norm(wide[:, :columns], weight, eps), truth, dtype)
    close(ops.norm(x.T.contiguous().T, weight, eps), truth, dtype)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 7), (90, 1536)])
def test_a_gate(ops, rows, columns):
    ops, dtype = ops
    both = draw(dtype, rows, 2 * columns)
    gate, up = both.double().split(columns, dim=-1)
    close(ops.gate(both), gate * torch.sigmoid(gate) * up, dtype)
    wide = torch.full((1, rows, 2 * columns + 3), float("nan"), dtype=dtype)
    wide[0, :, : 2 * columns] = both
    close(ops.gate(wide[..., : 2 * columns]), (gate * torch.sigmoid(gate) * up)[None], dtype)
    close(ops.gate(both.T.contiguous().T), gate * torch.sigmoid(gate) * up, dtype)


def test_a_gate_at_the_ends_of_its_range(ops):
    ops, dtype = ops
    ends = torch.tensor([0.0, -0.0, 100.0, -100.0, 3e38, -3e38, float("inf"), float("nan")])
    out = ops.gate(torch.cat([ends, torch.ones(8)]).to(dtype)).float()
    assert out[:2].tolist() == [0, 0]
    assert out[2] == 100
    assert abs(float(out[3])) < 1e-30
    assert torch.isnan(out[7])
    assert out[6] == float("inf")
    assert abs(float(out[5])) < 10  # the true value is 0, its exponential no fp32: e ** -87 in its place


@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "dim"), [(1, 1, 1, 2), (5, 4, 2, 16), (70, 9, 3, 64)])
def test_a_rotary_embedding(ops, tokens, heads, kv_heads, dim):
    """Of columns of one product, as merged queries and keys lie in memory."""
    ops, dtype = ops
    merged = draw(dtype, tokens, (heads + kv_heads) * dim)
    query, key = (
        part.view(1, tokens, -1, dim).transpose(1, 2) for part in merged.split([heads * dim, kv_heads * dim], 1)
    )
    cos, sin = draw(dtype, 1, tokens, dim, seed=1) / 3, draw(dtype, 1, tokens, dim, seed=2) / 3
    for out, x in zip(ops.rotate(query, key, cos, sin), (query.double(), key.double()), strict=True):
        left, right = x.split(dim // 2, dim=-1)
        truth = x * cos.double()[:, None] + torch.cat([-right, left], dim=-1) * sin.double()[:, None]
        scale = (x.abs() * cos.double()[:, None].abs()).max()
        assert float((out.double() - truth).abs().max()) <= DTYPES[dtype] * float(scale) * 2


def test_bf16_is_rounded_to_nearest_even():
    """Ones times a weight: what torch makes of the same numbers in fp32."""
    ops = Elementwise(torch.bfloat16)
    both = draw(torch.bfloat16, 400, 2)
    gate, up = both[:, 0].float(), both[:, 1].float()
    expected = (gate.double() * torch.sigmoid(gate.double()) * up.double()).to(torch.bfloat16)
    same = (ops.gate(both)[:, 0] == expected).float().mean()
    assert same > 0.99  # one ulp of fp32 before the rounding may decide a tie


def test_threads_change_nothing(ops):
    ops, dtype = ops
    both = draw(dtype, 300, 2 * 512)
    threads = torch.get_num_threads()
    outs = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        outs.append(ops.gate(both))
    torch.set_num_threads(threads)
    assert all(torch.equal(outs[0], out) for out in outs)
