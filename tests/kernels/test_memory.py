"""Memory for the KV cache: zeros of a shape, each tensor its own, wherever it comes from."""

import mmap

import pytest
import torch

from pagedlab.kernels import memory

CPU = torch.device("cpu")


@pytest.mark.parametrize("huge", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_that_can_be_written_one_by_one(huge, dtype, monkeypatch):
    if not huge:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    made = memory.zeros(3, (5, 2, 3, 7), dtype, CPU)
    assert [(tensor.shape, tensor.dtype, tensor.is_contiguous()) for tensor in made] == [
        ((5, 2, 3, 7), dtype, True)
    ] * 3
    assert not any(tensor.any() for tensor in made)
    made[1].fill_(1)
    assert [int(tensor.sum()) for tensor in made] == [0, 5 * 2 * 3 * 7, 0]


def test_more_than_there_is_an_error_of_memory():
    with pytest.raises((MemoryError, RuntimeError)):
        memory.zeros(1, (1 << 50,), torch.float32, CPU)


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no huge pages on this system")
def test_it_begins_on_a_huge_page_and_outlives_what_made_it():
    (made,) = memory.zeros(1, (1 << 20,), torch.float32, CPU)
    assert made.data_ptr() % (2 << 20) == 0
    kept = made[-4:]
    del made
    kept.fill_(2)
    assert kept.tolist() == [2.0] * 4
