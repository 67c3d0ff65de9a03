"""Packed products: what float64 says, rounded once, for any number of rows and columns; a row's result is its own."""

import numpy as np
import pytest
import torch

from pagedlab.kernels.product import Product

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 2**-8}  # and the rounding of a result, relative


def draw(dtype, *shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 11, 12, 13, 25, 65])
@pytest.mark.parametrize(("columns", "outs"), [(2, 1), (7, 33), (64, 96), (577, 31), (576, 960)])
def test_a_product_with_a_bias(dtype, rows, columns, outs):
    weight, bias, x = draw(dtype, outs, columns), draw(dtype, outs, seed=1), draw(dtype, rows, columns, seed=2)
    for added in (None, bias):
        out = Product(weight, added)(x[None])
        truth = x.double() @ weight.double().T + (0 if added is None else added.double())
        scale = x.double().abs() @ weight.double().abs().T + 1
        assert out.shape == (1, rows, outs)
        assert out.dtype is dtype
        allowed = DTYPES[dtype] * truth.abs() + 1e-6 * scale
        assert bool(((out[0].double() - truth).abs() <= allowed).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("outs", [96, 384, 960, 3200])
def test_a_row_does_not_depend_on_its_batch(dtype, outs):
    """Bit by bit: a request gets the same numbers whoever it runs beside. Of few rows several strips are computed at a
    time, and some are left over."""
    product, x = Product(draw(dtype, outs, 576), None), draw(dtype, 40, 576, seed=1)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in (2, 3, 4, 5, 12, 13, 25, 40):
        assert torch.equal(product(x[:rows]), alone[:rows])


def test_threads_change_nothing():
    product, x = Product(draw(torch.bfloat16, 320, 576), None), draw(torch.bfloat16, 30, 576, seed=1)
    threads, outs = torch.get_num_threads(), []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        outs.append(product(x))
    torch.set_num_threads(threads)
    assert all(torch.equal(outs[0], out) for out in outs)


def test_nan_stays_in_its_row_and_large_numbers_become_infinite():
    x = torch.ones(3, 64, dtype=torch.bfloat16)
    x[1, 5], x[2, 5] = float("nan"), 3e38
    out = Product(torch.full((32, 64), 2.0, dtype=torch.bfloat16), None)(x)
    assert bool((out[0] == 128).all())
    assert bool(out[1].isnan().all())
    assert bool(out[2].isinf().all())


def test_numbers_of_another_kind_are_refused():
    with pytest.raises(TypeError, match=r"x is torch.float32, the weight torch.bfloat16: expected the same"):
        Product(torch.ones(32, 64, dtype=torch.bfloat16), None)(torch.ones(1, 64))
