"""kernel=cpu beyond the conformance suite: every way a tile, a pass or a thread can end, and how it is installed."""

import builtins
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels import cpu as cpu_kernel
from pagedlab.kernels import threads as kernel_threads
from pagedlab.kernels.base import KERNELS, PagedBatch

ROOT = Path(__file__).resolve().parents[2]
NAN = float("nan")


@pytest.fixture(scope="module")
def kernel():
    return KERNELS["cpu"]()


def decode_case(kernel, contexts, block_size=16, kv_heads=2, group=3, dim=64, dtype=torch.float32, window=None):
    """The largest error against float64. NaN lies wherever no token does, nonsense where a table has ended; the last
    sequence shares the first one's blocks, the others' are permuted, so its context must not be the longer one."""
    random = torch.Generator().manual_seed(0)
    blocks = [-(-context // block_size) for context in contexts]
    ids = torch.randperm(sum(blocks) + 2, generator=random).tolist()
    tables = torch.full((len(contexts), max(blocks) + 3), -(2**31), dtype=torch.int32)
    k_cache, v_cache = (
        torch.full((sum(blocks) + 2, block_size, kv_heads, dim), NAN, dtype=torch.float32) for _ in range(2)
    )
    for s, context in enumerate(contexts):
        shared = s == len(contexts) - 1 and s > 0 and contexts[0] >= context
        own = tables[0, : blocks[s]].tolist() if shared else [ids.pop() for _ in range(blocks[s])]
        tables[s, : blocks[s]] = torch.tensor(own)
        for p in range(0 if not shared else context, context):
            for cache in (k_cache, v_cache):
                cache[own[p // block_size], p % block_size] = torch.randn(kv_heads, dim, generator=random)
    k_cache, v_cache = k_cache.to(dtype), v_cache.to(dtype)
    query = torch.randn(len(contexts), kv_heads * group, dim, generator=random).to(dtype)
    starts = list(range(len(contexts) + 1))
    batch = PagedBatch(
        torch.full((len(contexts),), -1), tables, torch.tensor(contexts), torch.tensor(starts), len(contexts), starts,
        list(contexts),
    )  # fmt: skip
    scale = 3 * dim**-0.5
    out = kernel.decode(query, k_cache, v_cache, batch, scale, window)
    assert out.dtype == dtype
    worst = 0.0
    for s, context in enumerate(contexts):
        first = 0 if window is None else max(0, context - window)
        slots = [(int(tables[s, p // block_size]), p % block_size) for p in range(first, context)]
        keys, values = (torch.stack([c[place] for place in slots]).double() for c in (k_cache, v_cache))
        grouped = query[s].double().view(kv_heads, group, dim)
        weights = torch.softmax(torch.einsum("hgd,lhd->hgl", grouped, keys) * scale, dim=-1)
        truth = torch.einsum("hgl,lhd->hgd", weights, values).reshape(-1, dim)
        error = (out[s].double() - truth).abs() / (1 + truth.abs())
        worst = max(worst, math.inf if error.isnan().any() else float(error.max()))
    return worst


# Rounding of the output in bf16; in fp32 sums of some hundred products.
LIMIT = {torch.float32: 3e-6, torch.bfloat16: 2**-8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 128])
def test_contexts_that_end_around_the_ends_of_blocks_and_tiles(kernel, dtype, block_size):
    contexts = sorted({1, 15, 16, 17, 33, block_size + 1, 2 * block_size, 3 * block_size - 1}, reverse=True)
    assert decode_case(kernel, contexts, block_size, dtype=dtype) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [5, 8, 24, 64, 80, 96, 128])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8])
def test_every_group_and_head_size(kernel, dtype, dim, group):
    """Passes of four query heads and what is left; columns in fours of vectors, in vectors, one by one."""
    assert decode_case(kernel, (37, 16, 5), group=group, dim=dim, dtype=dtype) < LIMIT[dtype]


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 300, 1000])
def test_windows_begin_inside_blocks(kernel, window):
    assert decode_case(kernel, (700, 41, 16, 1), window=window) < LIMIT[torch.float32]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("contexts", [(1,), (257,), (1000,), (2000, 3), (700, 600, 1, 513), (300,) * 7])
def test_long_contexts_are_cut_among_threads(kernel, monkeypatch, threads, contexts):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert decode_case(kernel, contexts) < LIMIT[torch.float32]


def test_the_pieces_cover_each_context_once_and_none_is_empty():
    for threads in (1, 2, 7, 64):
        for contexts in ([1], [256], [257], [4097, 1, 300], [5000] * 3, [100] * 40):
            for window in (None, 1, 255, 3000):
                work = cpu_kernel.divide(contexts, window, threads, 16)
                seen = {s: [] for s in range(len(contexts))}
                for s, begin, end, _ in sorted(work.items.tolist()):
                    assert begin < end
                    seen[s] += range(begin, end)
                for s, context in enumerate(contexts):
                    assert seen[s] == list(range(0 if window is None else max(0, context - window), context))
                outputs = sorted(row for *_, row in work.items.tolist()) + [row for row, *_ in work.merges.tolist()]
                assert sorted(outputs) == list(range(work.rows))


def test_threads_of_its_own_where_torch_has_no_openmp(kernel, monkeypatch):
    monkeypatch.setattr(kernel_threads, "_openmp", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert decode_case(kernel, (900, 40, 17)) < LIMIT[torch.float32]


def test_large_scores_neither_overflow_nor_lose_the_rest(kernel):
    """Weights that differ by e^200: one token gets all, whichever tile it is in."""
    k_cache = torch.zeros(4, 16, 1, 8)
    v_cache = torch.arange(64.0).view(4, 16, 1, 1).expand(4, 16, 1, 8).contiguous()
    for winner in (0, 20, 63):
        k_cache.zero_()
        k_cache.view(64, 8)[winner] = 1
        batch = PagedBatch(
            torch.tensor([-1]), torch.arange(4).int()[None], torch.tensor([64]), torch.tensor([0, 1]), 1, [0, 1], [64]
        )
        for sign, expected in ((1, float(winner)), (-1, (64 * 63 / 2 - winner) / 63)):
            out = kernel.decode(torch.full((1, 1, 8), 25.0 * sign), k_cache, v_cache, batch, 1.0)
            torch.testing.assert_close(out, torch.full((1, 1, 8), expected))


def test_a_nan_of_the_model_stays_one(kernel):
    k_cache, v_cache = torch.zeros(1, 16, 1, 64), torch.ones(1, 16, 1, 64)
    k_cache[0, 3, 0, 7] = NAN
    batch = PagedBatch(
        torch.tensor([-1]), torch.zeros(1, 1).int(), torch.tensor([9]), torch.tensor([0, 1]), 1, [0, 1], [9]
    )
    assert kernel.decode(torch.ones(1, 1, 64), k_cache, v_cache, batch, 1.0).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 64, 65, 700])
def test_writes_skip_slot_minus_one(kernel, dtype, tokens):
    random = torch.Generator().manual_seed(tokens)
    k_cache, v_cache = (torch.full((100, 8, 3, 24), NAN, dtype=dtype) for _ in range(2))
    key, value = (torch.randn(tokens, 3, 24, generator=random).to(dtype) for _ in range(2))
    slots = torch.randperm(800, generator=random)[:tokens]
    slots[::3] = -1
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    expected_k.view(800, 3, 24)[slots[slots >= 0]] = key[slots >= 0]
    expected_v.view(800, 3, 24)[slots[slots >= 0]] = value[slots >= 0]
    kernel.write_kv(key, value, k_cache, v_cache, slots)
    torch.testing.assert_close(k_cache, expected_k, atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(v_cache, expected_v, atol=0, rtol=0, equal_nan=True)


def test_blocks_are_copied_and_swapped(kernel):
    caches = [torch.randn(6, 4, 2, 8) for _ in range(4)]
    before = [cache.clone() for cache in caches]
    kernel.copy_blocks(caches[:2], caches[2:], torch.tensor([[0, 3], [1, 5]]))
    for cache, old in zip(caches, before, strict=True):
        assert torch.equal(cache, old[[0, 1, 2, 0, 4, 1]])
    host = [torch.zeros(2, 4, 2, 8) for _ in range(4)]
    kernel.swap_blocks(caches, host, torch.tensor([[5, 0], [2, 1]]))
    for cache, copy in zip(caches, host, strict=True):
        assert torch.equal(copy, cache[[5, 2]])


BIG = """
import torch
from pagedlab.kernels.base import KERNELS, PagedBatch
kernel = KERNELS["cpu"]()
blocks = 2**31 // (16 * 2 * 64) + 5
cache = torch.empty(blocks, 16, 2, 64, dtype=torch.bfloat16)
key = torch.randn(20, 2, 64).bfloat16()
table = [blocks - 1, blocks - 4]
slots = torch.tensor([table[p // 16] * 16 + p % 16 for p in range(20)])
kernel.write_kv(key, key, cache, cache, slots)
batch = PagedBatch(slots[-1:], torch.tensor([table]).int(), torch.tensor([20]), torch.tensor([0, 1]), 1, [0, 1], [20])
query = torch.randn(1, 6, 64).bfloat16()
out = kernel.decode(query, cache, cache, batch, 0.125).double()
weights = torch.softmax(torch.einsum("hgd,lhd->hgl", query.double().view(2, 3, 64), key.double()) * 0.125, -1)
truth = torch.einsum("hgl,lhd->hgd", weights, key.double()).view(1, 6, 64)
print(float((out - truth).abs().max()))
"""


def test_a_pool_of_more_than_two_to_the_31_elements():
    """In a process of its own: an offset of 32 bits would end it."""
    if psutil.virtual_memory().available < 6 * 2**30:
        pytest.skip("needs 6 GiB of free memory")
    done = subprocess.run([sys.executable, "-c", BIG], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2**-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_other_types_are_refused_with_those_it_can(kernel, dtype):
    with pytest.raises(ConfigError, match=r"kernel=cpu.*expected one of float32, bfloat16"):
        kernel.check(dtype, torch.device("cpu"), 64, 16)


def test_without_numba_one_line_says_so(monkeypatch):
    real = builtins.__import__

    def no_numba(name, globals=None, locals=None, fromlist=(), level=0):
        if name.startswith("numba") or "cpu_compiled" in (fromlist or ()):
            raise ModuleNotFoundError("No module named 'numba'")
        return real(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", no_numba)
    with pytest.raises(ConfigError, match=r"^kernel=cpu: needs numba \(No module named 'numba'\), expected[^\n]*$"):
        KERNELS["cpu"]()


COMPILE = """
from pagedlab.kernels.cpu_compiled import merge_body
print(merge_body().cache_hits, bool(merge_body().address))
"""


def test_where_the_package_cannot_be_written_its_machine_code_is_kept_for_the_user(tmp_path):
    """A file stands where __pycache__ should be: a folder without write bits would not stop root."""
    shutil.copytree(ROOT / "pagedlab", tmp_path / "pagedlab", ignore=shutil.ignore_patterns("__pycache__", "data"))
    kernels = tmp_path / "pagedlab" / "kernels"
    shutil.copytree(ROOT / "kernels", kernels, ignore=shutil.ignore_patterns("__pycache__"))
    (kernels / "__pycache__").touch()

    def compile_in(cache):
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        environment |= {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", COMPILE]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    cache = tmp_path / "cache"
    assert compile_in(cache) == ["0", "True"]
    kept = {path.name.partition(".")[0] for path in cache.rglob("*.nb[ic]")}
    assert kept == {"cpu_compiled"}
    assert compile_in(cache) == ["1", "True"]
    assert compile_in(kernels / "__pycache__" / "nowhere") == ["0", "True"]  # compiled in every process


def test_an_engine_run_generates_the_tokens_of_the_reference(tmp_path):
    """Greedy, fp32: prompts in chunks, decodes in ragged batches, the pool tight enough to preempt."""
    import pyarrow.parquet as pq

    words = ["executor=torch", "model=tiny_llama", "model.dtype=float32", "workload=synthetic", "kv_num_blocks=24"]
    words += ["workload.num_requests=6", "workload.prompt.high=60", "workload.output.high=30", "max_model_len=128"]
    tokens = {}
    for name in ("reference", "cpu"):
        folder = tmp_path / name
        command = [sys.executable, "-m", "experiments.serve", *words, f"kernel={name}", f"hydra.run.dir={folder}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        tokens[name] = pq.read_table(folder / "requests.parquet").column("output_token_ids").to_pylist()
    assert tokens["cpu"] == tokens["reference"]
    assert sum(map(len, tokens["cpu"])) > 20
