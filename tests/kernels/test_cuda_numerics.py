"""kernels/cuda/*.cu run on the CPU, launched by kernel=cupy's own host code, against float64. And mutants, caught."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import cycle, product
from pathlib import Path

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.cupy import CupyKernel, _head_tiles, _reciprocal, _runs
from tests.kernels.cuda_emulation import big_pool
from tests.kernels.cuda_emulation.emulation import (
    TYPES,
    EmulatedKernel,
    Library,
    Variant,
    attention,
    skip_without_tools,
)
from tests.kernels.cuda_emulation.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
COPIES = tuple(
    ("cache.cu", f"{kernel}<{unit}>")
    for kernel in ("write_kv", "copy_blocks")
    for unit in ("uint4", "uint2", "unsigned int", "unsigned short")
)

# Every dtype with every head size; group, block size and split size go round, at periods that do not divide each other.
CASES = [
    (dtype, head_dim, group, block_size, split)
    for (dtype, head_dim), group, block_size, split in zip(
        product(TYPES, (64, 80, 96, 128)),
        cycle((1, 3, 4, 8, 3, 8, 1, 4)),
        cycle((8, 1, 16, 32, 128)),
        cycle((64, None, 37)),
        strict=False,
    )
]
# Groups that no case above has: shared out over two warps unevenly, and over two CTAs.
MORE_GROUPS = (5, 11)

SMALL = attention(torch.float32, 64, 3)
# Missing barriers are not here but in test_cuda_races: whether numbers go wrong is up to the scheduler.
MUTANTS = {
    "the tail of a decode is not masked": (
        SMALL[:2],
        (("decode.cu", "seen[u] = position < end;", "seen[u] = true;"),),
    ),
    "masked scores still weigh": (
        SMALL[:2],
        (
            (
                "decode.cu",
                "seen[u] ? power_of_two(weight[h][u] - highest) : 0.f",
                "power_of_two(weight[h][u] - highest)",
            ),
        ),
    ),
    "heads in turn instead of in groups": (
        SMALL[:2],
        (("decode.cu", "kv_head * GROUP + first_of_warp + h;", "kv_head + (first_of_warp + h) * kv_heads;"),),
    ),
    "splits overlap": (
        SMALL[:2],
        (("decode.cu", "begin + split_tokens, context", "begin + split_tokens + 1, context"),),
    ),
    "splits that hold nothing are merged": (
        SMALL[:2],
        (("decode.cu", "smaller((visible + split_tokens - 1) / split_tokens, splits)", "splits"),),
    ),
    "a decode's window one too wide": (SMALL[:2], (("decode.cu", "context - window, 0", "context - window - 1, 0"),)),
    "a prefill's window one too wide": (
        SMALL[2:],
        (("prefill.cu", "key > position[r] - window", "key >= position[r] - window"),),
    ),
    "prefills see the future": (SMALL[2:], (("prefill.cu", "key <= position[r] && ", ""),)),
    "a chunk at the start of its context": (SMALL[2:], (("prefill.cu", "cached = context - tokens", "cached = 0"),)),
    "the tail of a prefill is read": (SMALL[2:], (("prefill.cu", "if (position < end) {", "{"),)),
}


def mutant(name: str) -> Variant:
    return Variant(name, *MUTANTS[name])


@pytest.fixture(scope="session")
def library() -> Library:
    skip_without_tools()
    kernels = [kernel for dtype, head_dim, group, *_ in CASES for kernel in attention(dtype, head_dim, group)]
    kernels += [kernel for group in MORE_GROUPS for kernel in attention(torch.float16, 64, group)]
    kernels += [*SMALL, *COPIES]
    return Library.of(Variant("sound", tuple(dict.fromkeys(kernels))), *map(mutant, MUTANTS))


def lengths(block_size: int) -> list[int]:
    return sorted({1, max(1, block_size - 1), block_size, block_size + 1, 37, 130})


@pytest.mark.parametrize(("dtype", "head_dim", "group", "block_size", "split"), CASES)
def test_decode(library, dtype, head_dim, group, block_size, split):
    """With a split size, all but the longest sequences have splits without a token."""
    shape = {"dtype": dtype, "head_dim": head_dim, "group": group, "block_size": block_size}
    problem = Problem(lengths(block_size), kv_heads=2 if group < 8 else 1, **shape)
    kernel = EmulatedKernel(library, split_tokens=split)
    assert problem.error(kernel) <= 1
    assert [name for name, _ in kernel.launched] == (["decode"] if split is None else ["decode", "merge"])


@pytest.mark.parametrize(("dtype", "head_dim", "group", "block_size"), [case[:4] for case in CASES])
def test_prefill(library, dtype, head_dim, group, block_size):
    """A whole prompt, chunks after cached context (one of them a single token), and a decode before them."""
    shape = {"dtype": dtype, "head_dim": head_dim, "group": group, "block_size": block_size}
    prefills = (37, 37), (130, 5), (block_size + 9, 9), (2, 1), (1, 1)
    assert Problem((), prefills, kv_heads=2 if group < 8 else 1, **shape).error(EmulatedKernel(library)) <= 1


@pytest.mark.parametrize("group", MORE_GROUPS)
def test_groups_that_no_power_of_two_divides(library, group):
    problem = Problem((9, 70), ((20, 6),), dtype=torch.float16, group=group, kv_heads=2)
    assert problem.error(EmulatedKernel(library, split_tokens=32)) <= 1


@pytest.mark.parametrize("window", [1, 8, 33, 1000])
def test_a_window(library, window):
    problem = Problem((1, 7, 9, 70), ((40, 40), (33, 9), (70, 2)), window=window)
    assert problem.error(EmulatedKernel(library, split_tokens=16)) <= 1


def test_the_plan_of_the_host_splits_long_contexts(library):
    """One multiprocessor: a CTA or a few would do, so splits are as long as the longest context and the cap allow."""
    problem = Problem((1500, 300, 3), kv_heads=1, dtype=torch.float32, block_size=16)
    kernel = EmulatedKernel(library)
    assert problem.error(kernel) <= 1
    assert kernel.launched == [("decode", (3, 1, 6)), ("merge", (9, 1, 1))]
    assert EmulatedKernel(library)._plan(problem.batch, 200, 1, torch.device("cpu")) == (1, 256)


def test_layers_of_a_step_share_the_plan_unless_the_window_differs(library):
    problem = Problem((70,), window=None)
    for window in (None, 5, None):
        problem.window = window
        assert problem.error(EmulatedKernel(library)) <= 1
    assert len(problem.batch.scratch) == 2


def test_queries_need_not_lie_together(library):
    """Rows of a fused projection: queries, keys and values side by side; then at an address that 16 does not divide."""
    for offset in (0, 1):
        problem = Problem((9, 20), kv_heads=1)
        wide = torch.full((2, 5, 64), float("nan")).flatten()
        wide = torch.cat([torch.zeros(offset), wide])[offset:].view(2, 5, 64)
        wide[:, :3] = torch.cat(problem.queries)
        out = EmulatedKernel(library).decode(
            wide[:, :3], problem.k_cache, problem.v_cache, problem.batch, problem.scale
        )
        torch.testing.assert_close(out.double(), problem.truth(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(
    ("dtype", "head_dim", "kv_heads"),
    [
        (torch.bfloat16, 80, 3),
        (torch.float32, 64, 2),
        (torch.float16, 4, 1),
        (torch.float16, 2, 1),
        (torch.float16, 1, 1),
    ],
)
def test_write_kv(library, dtype, head_dim, kv_heads, block_size):
    """Slot -1 is skipped, even with NaN in the row; keys and values are rows of one wider tensor."""
    tokens, slots = 40, torch.randperm(50 * block_size)[:40]
    slots[::7] = -1
    k_cache, v_cache = torch.randn(2, 50, block_size, kv_heads, head_dim).to(dtype)
    both = torch.randn(tokens, 2 * kv_heads, head_dim).to(dtype)
    both[::7] = float("nan")
    key, value = both[:, :kv_heads], both[:, kv_heads:]
    expected = k_cache.clone(), v_cache.clone()
    for cache, new in zip(expected, (key, value), strict=True):
        cache.view(-1, kv_heads, head_dim)[slots[slots >= 0]] = new[slots >= 0]
    EmulatedKernel(library).write_kv(key, value, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float16, (9, 16, 3, 80)), (torch.float16, (9, 1, 1, 1))])
def test_copy_blocks(library, dtype, shape):
    caches = [torch.randn(shape).to(dtype) for _ in range(6)]
    expected = [cache.clone() for cache in caches]
    pairs = torch.tensor([[0, 8], [0, 3], [5, 1]])
    for cache in expected:
        cache[pairs[:, 1]] = cache[pairs[:, 0]]
    kernel = EmulatedKernel(library)
    kernel.copy_blocks(caches[:3], caches[3:], pairs)
    kernel.copy_blocks(caches[:3], caches[3:], torch.zeros((0, 2), dtype=torch.int64))
    assert all(map(torch.equal, caches, expected))
    assert len(kernel.launched) == 1


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("block_size", [4, 128])
def test_swap_blocks(library, monkeypatch, pinned, block_size):
    """Small blocks of page-locked memory go by one kernel, others by copies; the pools differ in size."""
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: pinned)
    gpu = [torch.randn(7, block_size, 2, 64) for _ in range(4)]
    host = [torch.zeros(11, block_size, 2, 64) for _ in range(4)]
    pairs = torch.tensor([[2, 9], [3, 10], [6, 0]])
    kernel = EmulatedKernel(library)
    kernel.swap_blocks(gpu, host, pairs)
    for a, b in zip(gpu, host, strict=True):
        assert torch.equal(a[pairs[:, 0]], b[pairs[:, 1]])
        assert not b[1:9].any()
    assert len(kernel.launched) == (pinned and block_size == 4)


def test_neighbouring_blocks_are_copied_together():
    assert _runs(torch.tensor([[2, 9], [3, 10], [4, 12], [5, 13], [6, 13]])) == [(2, 9, 2), (4, 12, 2), (6, 13, 1)]


def test_the_reciprocal_divides_exactly():
    """Where a quotient steps up is where it could be off: the first and the last steps, and some between."""
    for divisor in (*range(1, 258), 1000, 2**20 - 1):
        multiplier, shift = map(int, _reciprocal(divisor))
        assert multiplier < 2**32
        steps = (2**31 - 1) // divisor
        for step in {1, 2, steps, *range(3, steps, steps // 50 + 1)}:
            for n in (step * divisor - 1, step * divisor):
                assert (n * multiplier) >> shift == n // divisor


def test_a_group_is_covered_by_its_tiles():
    assert [_head_tiles(group) for group in (1, 4, 5, 7, 8, 9, 16, 17)] == [1, 1, 1, 1, 1, 2, 2, 3]


def test_what_is_missing_is_said_in_a_line():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match=r"^kernel=cupy: .*pip install 'pagedlab\[gpu\]'") as caught:
        CupyKernel()
    assert "\n" not in str(caught.value)


# ---- the comparison can fail ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(library, name):
    """All find something to read, and NaN, in block 0: what lies beyond a table's end must not end the process. A tile
    of 64 keys goes on for 8 blocks at most."""
    parts = {file for file, _ in MUTANTS[name][0]}
    decodes = (3, 9, 30, 70) if "decode.cu" in parts else ()
    prefills = ((40, 40), (33, 9)) if "prefill.cu" in parts else ()
    problem = Problem(decodes, prefills, window=9 if "window" in name else None, garbage=(0,), beyond=16)
    assert problem.error(EmulatedKernel(library, split_tokens=32)) <= 1
    assert problem.error(EmulatedKernel(library, name, split_tokens=32)) > 1


@pytest.mark.parametrize(("variant", "passes"), [("sound", True), *((name, False) for name in big_pool.NARROW)])
def test_a_pool_beyond_2_to_the_31_elements(variant, passes):
    """In a process of its own: 32-bit offsets read and write where nothing is."""
    skip_without_tools()
    command = [sys.executable, "-m", "tests.kernels.cuda_emulation.big_pool", variant]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0) == passes, done.stderr
    assert passes or done.returncode in (1, -signal.SIGSEGV, -signal.SIGBUS), done.stderr
