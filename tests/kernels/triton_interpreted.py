"""The Triton kernels' arithmetic without a GPU, in Triton's interpreter. `test_triton.py` runs this file, in processes
of its own with TRITON_INTERPRET=1: one process cannot both interpret and compile.

The truth is float64 over plain tensors. The cache is NaN in every slot that no token owns, block tables are -1 beyond
a sequence's blocks, and memory that a launcher allocates is NaN until a kernel writes it. bf16 is not here: the
interpreter computes on its bit patterns as integers. A case costs some 15 ms a program and tile.

`python triton_interpreted.py [mutation]` is the pool of more than 2^31 elements: 64-bit offsets, or death.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.base import KERNELS, PagedBatch

NAN = float("nan")
TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3}  # fp16: weights and result rounded to 2^-11


class Problem:
    """A batch as plain tensors a sequence, and paged into shuffled blocks. decodes: contexts; prefills: (context,
    queries). `write` puts the new tokens in their slots, those before them are there."""

    def __init__(self, decodes=(), prefills=(), page=16, kv_heads=2, group=3, dim=64, dtype=torch.float32, window=None):
        random = torch.Generator().manual_seed(0)

        def draw(*shape):
            return torch.randn(shape, generator=random).to(dtype)

        lengths = [(context, 1) for context in decodes] + list(prefills)
        self.window, self.dtype, self.decodes = window, dtype, len(decodes)
        self.scale = 3 * dim**-0.5  # scores of deviation 3: to lose one token shows
        self.queries = [draw(n, kv_heads * group, dim) for _, n in lengths]
        self.keys = [draw(context, kv_heads, dim) for context, _ in lengths]
        self.values = [draw(context, kv_heads, dim) for context, _ in lengths]
        held = [-(-context // page) for context, _ in lengths]
        ids = torch.randperm(sum(held) + 2, generator=random)
        tables = torch.full((len(lengths), max(held) + 2), -1, dtype=torch.int32)
        self.k_cache = torch.full((len(ids), page, kv_heads, dim), NAN, dtype=dtype)
        self.v_cache = self.k_cache.clone()
        self.slots, starts = [], [0]
        for s, (context, n) in enumerate(lengths):
            tables[s, : held[s]], ids = ids[: held[s]].int(), ids[held[s] :]
            position = torch.arange(context)
            self.slots.append(tables[s, position // page].long() * page + position % page)
            old = self.slots[s][: context - n]
            self.k_cache.view(-1, kv_heads, dim)[old] = self.keys[s][: context - n]
            self.v_cache.view(-1, kv_heads, dim)[old] = self.values[s][: context - n]
            starts.append(starts[-1] + n)
        contexts = [context for context, _ in lengths]
        self.batch = PagedBatch(
            slot_mapping=torch.cat([slots[-n:] for slots, (_, n) in zip(self.slots, lengths, strict=True)]),
            block_tables=tables,
            context_lens=torch.tensor(contexts),
            query_start=torch.tensor(starts),
            num_decodes=len(decodes),
            starts=starts,
            contexts=contexts,
        )

    def new(self, tensors):
        return torch.cat([x[-len(q) :] for x, q in zip(tensors, self.queries, strict=True)])

    def attend(self, kernel):
        kernel.write_kv(self.new(self.keys), self.new(self.values), self.k_cache, self.v_cache, self.batch.slot_mapping)
        query, d = torch.cat(self.queries), self.decodes
        shared = self.k_cache, self.v_cache, self.batch, self.scale, self.window
        parts = [kernel.decode(query[:d], *shared)] if d else []
        parts += [kernel.prefill(query[d:], *shared)] if d < len(self.queries) else []
        return torch.cat(parts)

    def truth(self):
        return torch.cat([self._exact(*qkv) for qkv in zip(self.queries, self.keys, self.values, strict=True)])

    def _exact(self, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
        position, token = torch.arange(len(k) - len(q), len(k))[:, None], torch.arange(len(k))
        seen = (token <= position) & (token > position - (self.window or len(k) + 1))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * self.scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def check(self, kernel):
        out, tolerance = self.attend(kernel), TOLERANCE[self.dtype]
        assert out.dtype == self.dtype
        torch.testing.assert_close(out.double(), self.truth(), atol=tolerance, rtol=tolerance)


@pytest.fixture(autouse=True)
def memory_as_allocated_is_nan(monkeypatch):
    def allocate(*shape, **options):
        return torch.full(shape[0] if isinstance(shape[0], tuple) else shape, NAN, **options)

    monkeypatch.setattr(torch, "empty", allocate)


def edges(page):
    return sorted({1, max(1, page - 1), page, page + 1, 130})


# ---- attention ----------------------------------------------------------------------------------------------------

f16, f32 = torch.float16, torch.float32


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(
    ("page", "kv_heads", "group", "dim", "dtype"),
    [
        (1, 1, 3, 64, f32),
        (8, 2, 4, 80, f16),
        (16, 2, 3, 64, f16),
        (32, 1, 8, 128, f32),
        (48, 2, 1, 96, f32),
        (128, 1, 1, 64, f32),
        (64, 1, 20, 64, f32),
        (16, 1, 2, 256, f16),
    ],
)
def test_decodes_that_end_around_a_block_edge(page, kv_heads, group, dim, dtype, splits):
    """Of four splits, the shortest contexts leave all but one empty."""
    Problem(edges(page), (), page, kv_heads, group, dim, dtype).check(KERNELS["triton"](splits=splits))


@pytest.mark.parametrize(
    ("page", "kv_heads", "group", "dim", "dtype"),
    [(1, 1, 3, 64, f16), (8, 1, 8, 80, f32), (16, 2, 3, 64, f16), (32, 1, 1, 128, f32), (128, 2, 4, 128, f16)],
)
def test_prompts_and_chunks_of_prompts(page, kv_heads, group, dim, dtype):
    """Whole prompts, chunks after a cached context, one token, more rows than a block: several sequences a grid."""
    prefills = [(page + 1, page + 1), (1, 1), (130, 40), (130, 1), (max(2, page), 2)]
    Problem((), prefills, page, kv_heads, group, dim, dtype).check(KERNELS["triton"]())


@pytest.mark.parametrize(("window", "page"), [(1, 8), (7, 16), (64, 16), (65, 128), (1000, 16)])
def test_windows(window, page):
    """Blocks that a window has left behind may be someone else's: they are NaN here."""
    problem = Problem((1, 66, 130), ((130, 70), (9, 9)), page, 1, 2, window=window)
    for s, (context, query) in enumerate(zip(problem.batch.contexts, problem.queries, strict=True)):
        left = problem.slots[s][: max(0, context - len(query) + 1 - window)]
        problem.k_cache.view(-1, 1, 64)[left], problem.v_cache.view(-1, 1, 64)[left] = NAN, NAN
        problem.batch.block_tables[s, : (len(left) // page)] = -1
    problem.check(KERNELS["triton"](splits=3))


def test_a_step_of_decodes_and_prefills_with_launches_of_its_own_choice():
    Problem((70, 3), ((20, 20), (40, 5)), 16, 3, 3).check(KERNELS["triton"]())


def test_the_window_and_the_contexts_of_a_replay_may_differ_from_those_captured():
    """As in a CUDA graph: the number of splits stays, the tensors' contents change."""
    kernel = KERNELS["triton"](splits=4)
    problem = Problem((130, 17), (), 16, 1, 3)
    problem.check(kernel)
    problem.batch.context_lens[:] = torch.tensor([65, 5])
    for held in (problem.keys, problem.values):
        held[0], held[1] = held[0][:65], held[1][:5]
    problem.batch.slot_mapping[:] = torch.stack([problem.slots[0][64], problem.slots[1][4]])
    problem.check(kernel)


# ---- moving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [8, 80, 64])
def test_slot_minus_one_writes_nothing_and_rows_may_have_strides(dim):
    cache = torch.randn(2, 3, 4, 3, dim)
    expected = cache.clone()
    rows = torch.randn(5, 6, dim)
    rows[1] = NAN
    key, value, slots = rows[:, :3], rows[:, 3:], [7, -1, 11, 0, 3]
    for t, slot in enumerate(slots):
        if slot >= 0:
            expected[0, slot // 4, slot % 4], expected[1, slot // 4, slot % 4] = key[t], value[t]
    KERNELS["triton"]().write_kv(key, value, cache[0], cache[1], torch.tensor(slots))
    assert torch.equal(cache, expected)


@pytest.mark.parametrize(("dtype", "dim"), [(torch.bfloat16, 16), (f16, 80), (f32, 3)])
def test_blocks_are_copied_in_every_layer(dtype, dim):
    """fp32 of size 3: blocks that 16-byte accesses do not divide go another way."""
    layers = [torch.randn(6, 2, 3, dim).to(dtype) for _ in range(4)]
    before = [layer.clone() for layer in layers]
    kernel = KERNELS["triton"]()
    kernel.copy_blocks(layers[:2], layers[2:], torch.tensor([[0, 5], [1, 2], [0, 3]]))
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer, old[[0, 1, 1, 0, 4, 0]])
    kernel.copy_blocks(layers[:2], layers[2:], torch.zeros(0, 2, dtype=torch.int64))


@pytest.mark.parametrize("by_kernel", [False, True])
def test_blocks_are_swapped_in_every_layer(by_kernel, monkeypatch):
    kernel = KERNELS["triton"]()
    monkeypatch.setattr(kernel._cache, "small", lambda *_: by_kernel)
    sources = [torch.randn(6, 2, 1, 16) for _ in range(3)]
    destinations = [torch.zeros(9, 2, 1, 16) for _ in range(3)]
    kernel.swap_blocks(sources, destinations, torch.tensor([[1, 7], [2, 8], [3, 0], [5, 1], [0, 4]]))
    for source, destination in zip(sources, destinations, strict=True):
        assert torch.equal(destination[[7, 8, 0, 1, 4]], source[[1, 2, 3, 5, 0]])
        assert not destination[[2, 3, 5, 6]].any()


def test_copies_of_blocks_in_a_row_are_joined():
    runs = importlib.import_module("pagedlab.kernels.triton_cache").runs
    assert runs([[1, 7], [2, 8], [3, 0], [4, 1], [5, 3]]) == [(1, 7, 2), (3, 0, 2), (5, 3, 1)]
    assert runs([]) == []


# ---- choices ------------------------------------------------------------------------------------------------------


def test_few_sequences_are_split_until_the_device_is_full():
    choose = importlib.import_module("pagedlab.kernels.triton_decode").choose_splits
    assert choose(programs=264, longest=4096, tile=64, wanted=264) == 1
    assert choose(programs=3, longest=65536, tile=64, wanted=264) == 88
    assert choose(programs=3, longest=512, tile=64, wanted=264) == 4  # two tiles each
    assert choose(programs=1, longest=2**20, tile=64, wanted=264) == 128
    assert choose(programs=500, longest=1, tile=64, wanted=264) == 1


def test_what_is_not_supported_is_refused_with_what_is():
    kernel = KERNELS["triton"]()
    kernel.check(torch.bfloat16, torch.device("cuda"), 80, 7)
    for dtype, device, dim in ((torch.float64, "cuda", 64), (f16, "cpu", 64), (f16, "cuda", 72)):
        with pytest.raises(ConfigError, match=r"kernel=triton: .* unsupported, expected one of .*"):
            kernel.check(dtype, torch.device(device), dim, 16)


def test_keys_and_values_of_different_layouts_are_refused():
    problem = Problem((5,))
    problem.v_cache = problem.v_cache.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(ValueError, match="expected the same"):
        problem.attend(KERNELS["triton"]())


# ---- the comparison can fail --------------------------------------------------------------------------------------

DECODE = {"decodes": (1, 17, 130), "kv_heads": 2}
CHUNK = {"prefills": ((130, 40), (9, 9)), "kv_heads": 1}
WINDOW = {"decodes": (70,), "prefills": ((130, 40),), "kv_heads": 1, "window": 20}

# What is broken: in which module, what is replaced by what, and a problem that must notice.
MUTATIONS = {
    "no score mask": ("attend", 'scores = tl.where(seen, scores, float("-inf"))', "scores = scores", DECODE),
    "no score mask, prefill": ("attend", 'scores = tl.where(seen, scores, float("-inf"))', "scores = scores", CHUNK),
    "no value mask": (
        "attend",
        "v = tl.load(v_head + offsets, mask=valid,",
        "v = tl.load(v_head + offsets, mask=d<D,",
        DECODE,
    ),
    "window one too wide": ("attend", "> position[:, None] - window", ">= position[:, None] - window", WINDOW),
    "old peak not scaled": ("attend", "total = total * shrink", "total = total", DECODE),
    "heads in turn": ("decode", "head = kv_head * GROUP + r", "head = kv_head + r * KV_HEADS", DECODE),
    "splits overlap": ("decode", "begin = first + split * share", "begin = tl.maximum(split * share - 1, 0)", DECODE),
    "empty splits read": ("decode", "used = split < tl.cdiv(end - first, share)", "used = split < splits", DECODE),
    "splits unweighted": (
        "decode",
        "weights = tl.math.exp2(log_sum - tl.max(log_sum, 0))",
        "weights = used * 1.0",
        DECODE,
    ),
    "chunk at the start": ("prefill", "position = context - count + tl.minimum", "position = tl.minimum", CHUNK),
    "unmasked too far": ("prefill", "(earliest + 1) // TILE, first)", "tl.cdiv(latest + 1, TILE), first)", CHUNK),
    "unmasked in windows": ("prefill", "first * TILE > latest - window", "first >= 0", WINDOW),
    "another sequence": ("prefill", "first_row // ROWS + middle <= block", "first_row // ROWS + middle < block", CHUNK),
}


def broken(name: str, old: str, new: str, folder: Path):
    """The module pagedlab.kernels.triton_<name> with a line changed: from a file, for Triton reads the source."""
    source = Path(importlib.import_module(f"pagedlab.kernels.triton_{name}").__file__).read_text()
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in triton_{name}.py"
    path = folder / f"broken_{name}.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_kernel_is_noticed(name, monkeypatch, tmp_path):
    where, old, new, shape = MUTATIONS[name]
    kernel = KERNELS["triton"](splits=4)
    module = broken(where, old, new, tmp_path)
    if where == "attend":
        monkeypatch.setattr(kernel._decode, "attend", module.attend)
        monkeypatch.setattr(kernel._prefill, "attend", module.attend)
    else:
        monkeypatch.setattr(kernel, f"_{where}", module)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        Problem(group=3, **shape).check(kernel)


# ---- a pool of more than 2^31 elements ----------------------------------------------------------------------------

# One line without its cast to int64, in each way that a page is looked up.
NARROW = {
    "page": ("PAGE).to(tl.int64)\n            row = page ", "PAGE)\n            row = page "),
    "pages": ("other=0).to(tl.int64)", "other=0)"),
}


def large_pool(mutation: str | None, folder: Path) -> None:
    """The last blocks of 4 GiB, of which all but some pages are never touched. One tensor is both caches."""
    for page in (16, 128):
        cache = torch.empty((2**31 // (page * 2 * 64) + 5, page, 2, 64), dtype=torch.float16)
        assert cache.numel() > 2**31
        problem = Problem((100,), ((100, 30),), page, dtype=torch.float16)
        problem.values = problem.keys
        used = problem.batch.block_tables >= 0
        first = len(cache) - len(problem.k_cache)
        cache[first:] = problem.k_cache
        problem.batch.block_tables[used] += first
        problem.batch.slot_mapping += first * page
        problem.k_cache = problem.v_cache = cache
        kernel = KERNELS["triton"]()
        if mutation:
            module = broken("attend", *NARROW[mutation], folder)
            kernel._decode.attend = kernel._prefill.attend = module.attend
        problem.check(kernel)
        pairs = torch.tensor([[len(cache) - 1, first], [len(cache) - 2, 0]])
        kernel.copy_blocks([cache], [], pairs)
        assert torch.equal(cache[pairs[:, 1]].nan_to_num(), cache[pairs[:, 0]].nan_to_num())


if __name__ == "__main__":
    large_pool(sys.argv[2] if len(sys.argv) > 2 else None, Path(sys.argv[1]))
    print("as in float64")
