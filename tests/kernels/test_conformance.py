"""Every variant against attention written out in float64 over plain contiguous tensors: no blocks, no tables, no batch.

The cache is poisoned: NaN in every slot that no token of the batch owns (the tails of last blocks included), garbage in
every block-table entry beyond a sequence's own blocks. One value read from there and the output is NaN, or an index
error is raised. The last section bends the truth, and breaks the variants, to see that the comparison would notice.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import pagedlab.kernels.torch as torch_kernel
from pagedlab.core.errors import ConfigError
from pagedlab.kernels import problems
from pagedlab.kernels.base import KERNELS, make_kernel
from pagedlab.kernels.problems import NAN, TOLERANCE, attention


def runs_here(name):
    """Those that need a GPU, and find none, have suites of their own."""
    try:
        KERNELS[name]()
    except ConfigError:
        return False
    return True


VARIANTS = [name for name in KERNELS if runs_here(name)]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


class Problem(problems.Problem):
    """The library's, with comparisons that say what differs."""

    def compare(self, out, truth):
        assert out.dtype == self.dtype
        tolerance = TOLERANCE[self.dtype]
        torch.testing.assert_close(out.double().cpu(), truth, atol=tolerance, rtol=tolerance)

    def check(self, kernel):
        """The whole step, and that it changed nothing but the slots it was told to."""
        self.write(kernel)
        same(self.k_cache, self.written_k)
        same(self.v_cache, self.written_v)
        self.compare(self.attend(kernel), self.truth())
        same(self.k_cache, self.written_k)
        same(self.v_cache, self.written_v)


def same(left, right):
    torch.testing.assert_close(left, right, atol=0, rtol=0, equal_nan=True)


@pytest.fixture(params=VARIANTS)
def variant(request):
    return KERNELS[request.param]()


@pytest.fixture(params=DEVICES)
def device(request, variant):
    if request.param not in variant.devices:
        pytest.skip(f"kernel={variant.name} does not run on {request.param}")
    return request.param


def serves(kernel, dtype, device):
    """Whether this variant takes such a cache; when not, it must say so itself."""
    if dtype in kernel.dtypes:
        kernel.check(dtype, torch.device(device), 64, 16)
        return True
    with pytest.raises(ConfigError, match=f"kernel={kernel.name}.*unsupported"):
        kernel.check(dtype, torch.device(device), 64, 16)
    return False


def edges(block_size):
    """Context lengths around the ends of blocks."""
    return sorted({1, max(1, block_size - 1), block_size, block_size + 1, 3 * block_size + 2})


# ---- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 8, 16, 128])
def test_contexts_that_end_around_a_block_edge(variant, device, dtype, block_size):
    """Decodes, whole prompts, and chunks that begin before, at and after an edge: all in one batch."""
    if not serves(variant, dtype, device):
        return
    long = 3 * block_size + 2
    whole = [(length, length) for length in edges(block_size)]
    chunks = [(long, 2), (long, block_size + 2), (long, long - 1), (2 * block_size + 1, block_size), (2, 1)]
    Problem(edges(block_size), whole + chunks, block_size, 2, 2, dtype=dtype, device=device).check(variant)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_query_heads_read_the_key_value_head_of_their_group(variant, device, dtype, group, head_dim):
    if not serves(variant, dtype, device):
        return
    Problem((1, 9, 21), ((7, 7), (20, 6)), 8, 2, group, head_dim, dtype, device).check(variant)


@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (1, 8), (3, 1), (3, 3), (5, 4)])
def test_any_number_of_key_value_heads(variant, device, kv_heads, group):
    Problem((3, 12), ((9, 9), (11, 4)), 4, kv_heads, group, device=device).check(variant)


@pytest.mark.parametrize("block_size", [1, 8])
@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 30, 1000])
def test_a_window_shows_a_token_itself_and_those_just_before_it(variant, device, window, block_size):
    contexts, prefills = (1, 7, 8, 9, 10, 33), ((5, 5), (33, 33), (33, 2), (12, 8), (26, 25))
    Problem(contexts, prefills, block_size, device=device, window=window).check(variant)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_window_in_half_precision(variant, device, dtype):
    if serves(variant, dtype, device):
        Problem((40, 3), ((40, 40), (33, 9)), 16, dtype=dtype, device=device, window=17).check(variant)


@pytest.mark.parametrize(
    ("decodes", "prefills"),
    [
        ((1,), ()),
        ((30,), ()),
        ((), ((1, 1),)),
        ((), ((30, 30),)),
        ((), ((30, 1),)),
        ((5, 6, 7), ()),
        ((), ((4, 4),) * 3),
    ],
)
def test_a_batch_of_one_and_batches_of_one_kind(variant, device, decodes, prefills):
    Problem(decodes, prefills, device=device).check(variant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sequences_of_very_different_lengths(variant, device, dtype):
    if not serves(variant, dtype, device):
        return
    decodes = (1, 700, 2, 3, 300, 17, 64, 1, 290, 16)
    Problem(decodes, ((500, 3), (1, 1), (2, 2), (150, 150)), 16, dtype=dtype, device=device).check(variant)


@pytest.mark.parametrize("more_columns", [0, 1, 40])
def test_block_tables_as_wide_as_the_longest_sequence_or_wider(variant, device, more_columns):
    Problem((1, 17, 16), ((33, 33), (9, 2)), device=device, more_columns=more_columns).check(variant)


@pytest.mark.parametrize("poison", [NAN, float("inf"), -float("inf"), 3e4])
def test_what_lies_in_slots_of_nobody_does_not_matter(variant, device, poison):
    Problem((1, 7, 9, 30), ((3, 3), (13, 5)), device=device, poison=poison).check(variant)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_any_batch(data):
    contexts = st.integers(1, 40)
    prefills = contexts.flatmap(lambda context: st.tuples(st.just(context), st.integers(1, context)))
    decodes = data.draw(st.lists(contexts, max_size=6))
    prefills = data.draw(st.lists(prefills, min_size=0 if decodes else 1, max_size=3))
    shape = {
        "block_size": data.draw(st.sampled_from([1, 2, 3, 8, 16])),
        "kv_heads": data.draw(st.integers(1, 3)),
        "group": data.draw(st.integers(1, 4)),
        "head_dim": data.draw(st.sampled_from([8, 24, 64])),
        "window": data.draw(st.none() | st.integers(1, 41)),
        "more_columns": data.draw(st.integers(0, 3)),
        "seed": data.draw(st.integers(0, 99)),
    }
    for name in VARIANTS:
        for device in set(DEVICES) & set(KERNELS[name].devices):
            Problem(decodes, prefills, device=device, **shape).check(KERNELS[name]())


# ---- many layers, one batch ---------------------------------------------------------------------------------------


def test_layers_of_one_step_share_a_batch_and_differ_in_data_and_window(variant, device):
    """What a variant keeps in the batch's scratch must fit the layer that finds it there."""
    sizes = (3, 11, 30), ((6, 6), (21, 4))
    shared = Problem(*sizes, device=device).batch
    for layer, window in enumerate((None, 4, None, 9, 4)):
        problem = Problem(*sizes, device=device, window=window, seed=layer)
        assert torch.equal(problem.batch.slot_mapping, shared.slot_mapping)
        problem.batch = shared
        problem.check(variant)


def test_the_torch_variant_works_out_once_a_step_what_no_layer_changes(monkeypatch):
    """On a GPU the host would wait for the answer, layer after layer."""
    made = []

    def counted(name, work_out):
        return lambda *arguments: (made.append(name), work_out(*arguments))[1]

    for name in ("_written", "_causal_mask", "_buckets"):
        monkeypatch.setattr(torch_kernel, name, counted(name, getattr(torch_kernel, name)))
    problem = Problem((3, 11), ((6, 6), (21, 4), (30, 7)))
    for _ in range(3):
        problem.check(KERNELS["torch"]())
    assert sorted(made) == ["_buckets", "_causal_mask", "_causal_mask", "_written"]


# ---- writing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("nowhere", [(), (0,), (2, 3), (0, 1, 2, 3, 4)])
def test_slot_minus_one_writes_nothing_even_from_a_row_of_nan(variant, device, dtype, nowhere):
    if not serves(variant, dtype, device):
        return
    random = torch.Generator().manual_seed(1)
    k_cache, v_cache, key, value = (
        torch.randn(shape, generator=random).to(device, dtype) for shape in ((3, 4, 2, 8),) * 2 + ((5, 2, 8),) * 2
    )
    slots = [7, 0, 11, 3, 8]
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    for t, slot in enumerate(slots):
        if t in nowhere:
            key[t], value[t] = NAN, NAN
            slots[t] = -1
        else:
            expected_k[slot // 4, slot % 4], expected_v[slot // 4, slot % 4] = key[t], value[t]
    variant.write_kv(key, value, k_cache, v_cache, torch.tensor(slots, device=device))
    same(k_cache, expected_k)
    same(v_cache, expected_v)


def test_a_pool_of_more_than_two_to_the_31_elements(variant, device):
    """Offsets in 64 bits: the last block of 4 GiB. The memory is asked for and, but for a few pages, never touched."""
    if not serves(variant, torch.float16, device):
        return
    problem = Problem((21,), ((19, 19),), 16, dtype=torch.float16, device=device)
    try:
        problem.move_to_the_end_of(2**31 // (16 * 2 * 64) + 10)
    except RuntimeError:
        pytest.skip("needs 4 GiB of address space, or of the device's memory")
    assert problem.k_cache.numel() > 2**31
    problem.write(variant)
    assert problem.untouched()
    problem.compare(problem.attend(variant), problem.truth())


# ---- what is not supported ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.complex64], ids=str)
def test_a_dtype_it_cannot_serve_is_refused_with_those_it_can(variant, dtype):
    with pytest.raises(ConfigError) as caught:
        variant.check(dtype, torch.device(variant.devices[0]), 64, 16)
    name = str(dtype).removeprefix("torch.")
    assert f"kernel={variant.name}: model.dtype={name} unsupported, expected one of " in str(caught.value)
    for supported in variant.dtypes:
        assert str(supported).removeprefix("torch.") in str(caught.value).split("expected")[1]


@pytest.mark.parametrize("device", ["meta", "mps", "xpu:1"])
def test_a_device_it_cannot_serve_is_refused_with_those_it_can(variant, device):
    with pytest.raises(ConfigError) as caught:
        variant.check(variant.dtypes[0], torch.device(device), 64, 16)
    said, kind = ", ".join(variant.devices), device.partition(":")[0]
    assert str(caught.value) == f"kernel={variant.name}: executor.device={kind} unsupported, expected one of {said}"


class Picky(KERNELS["reference"]):
    name = "picky"
    head_dims = frozenset({64, 128})
    block_sizes = frozenset({16})


@pytest.mark.parametrize(
    ("head_dim", "block_size", "line"),
    [
        (80, 16, "kernel=picky: head size=80 unsupported, expected one of 64, 128"),
        (64, 8, "kernel=picky: block_size=8 unsupported, expected one of 16"),
    ],
)
def test_a_size_it_cannot_serve_is_refused_with_those_it_can(head_dim, block_size, line):
    with pytest.raises(ConfigError) as caught:
        Picky().check(torch.float32, torch.device("cpu"), head_dim, block_size)
    assert str(caught.value) == line
    Picky().check(torch.float32, torch.device("cpu"), 128, 16)


def test_auto_is_the_fastest_that_can_serve():
    cpu = torch.device("cpu")
    assert make_kernel("auto", torch.bfloat16, cpu, 64, 16).name == "cpu"
    assert make_kernel("auto", torch.float64, cpu, 64, 16).name == "torch"  # which cpu cannot
    assert make_kernel("reference", torch.bfloat16, cpu, 64, 16).name == "reference"
    with pytest.raises(ConfigError, match=r"kernel=cpu: model\.dtype=float64 unsupported"):
        make_kernel("cpu", torch.float64, cpu, 64, 16)


def test_blocks_are_copied_in_every_layer_and_swapped_to_another_pool_and_back(variant):
    torch.manual_seed(0)
    dtype = variant.dtypes[0]
    k, v = ([torch.randn(6, 4, 2, 64, dtype=dtype) for _ in range(2)] for _ in range(2))
    before = [cache.clone() for cache in (*k, *v)]
    variant.copy_blocks(k, v, torch.tensor([[0, 3], [5, 1]]))
    for cache, old in zip((*k, *v), before, strict=True):
        assert torch.equal(cache[[3, 1]], old[[0, 5]])
        assert torch.equal(cache[[0, 2, 4, 5]], old[[0, 2, 4, 5]])
    host = [torch.zeros(3, 4, 2, 64, dtype=dtype) for _ in range(4)]
    device = [*k, *v]
    kept = [cache[[2, 4]].clone() for cache in device]
    variant.swap_blocks(device, host, torch.tensor([[2, 0], [4, 2]]))
    for cache in device:
        cache[[2, 4]] = 0
    variant.swap_blocks(host, device, torch.tensor([[0, 2], [2, 4]]))
    assert all(torch.equal(cache[[2, 4]], blocks) for cache, blocks in zip(device, kept, strict=True))


def test_what_it_supports_passes_the_check(variant):
    for dtype in variant.dtypes:
        for device in variant.devices:
            variant.check(dtype, torch.device(device), 64, 16)


# ---- the comparison can fail --------------------------------------------------------------------------------------


BENT = {
    "prefills see the future": {"causal": False},
    "a window one too wide": {"window": 7},
    "a window one too narrow": {"window": 5},
    "no window": {"window": None},
    "another scale": {"scale": 0.3},
    "heads in turn instead of in groups": {"kv_head": lambda h: h % 2},
}


@pytest.mark.parametrize("bend", BENT)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bent_truth_is_not_met(variant, device, bend, dtype):
    if not serves(variant, dtype, device):
        return
    problem = Problem((3, 11, 30), ((6, 6), (21, 4)), group=3, dtype=dtype, device=device, window=6)
    problem.check(variant)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        problem.compare(problem.attend(variant), problem.truth(**BENT[bend]))


def a_token_too_many(problem):
    problem.batch.contexts = [context + 1 for context in problem.batch.contexts]
    problem.batch.context_lens += 1


def a_token_too_few(problem):
    problem.batch.contexts = [context - 1 for context in problem.batch.contexts]
    problem.batch.context_lens -= 1


def a_block_read_twice(problem):
    problem.batch.block_tables[:, 1] = problem.batch.block_tables[:, 0]


def tables_of_the_neighbour(problem):
    problem.batch.block_tables = problem.batch.block_tables.roll(1, 0)


def slots_in_another_order(problem):
    problem.batch.slot_mapping = problem.batch.slot_mapping.roll(1)


@pytest.mark.parametrize(
    "fault", [a_token_too_many, a_token_too_few, a_block_read_twice, tables_of_the_neighbour, slots_in_another_order]
)
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_a_faulty_batch_is_noticed(variant, device, fault, kind):
    """All contexts end inside their third block, so that every fault has something to read."""
    decodes, prefills = ((19, 20, 21), ()) if kind == "decode" else ((), ((19, 3), (20, 20), (21, 7)))
    problem = Problem(decodes, prefills, device=device)
    fault(problem)
    problem.write(variant)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        problem.compare(problem.attend(variant), problem.truth())


def no_zeroing(monkeypatch):
    def gather(cache, bucket):
        return cache[bucket.tables].flatten(1, 2).transpose(1, 2)

    monkeypatch.setattr(torch_kernel, "_gather", gather)


def no_decode_mask(monkeypatch):
    buckets = torch_kernel._buckets

    def open_masks(*arguments):
        found = buckets(*arguments)
        for bucket in found:
            bucket.mask = torch.ones_like(bucket.mask)
        return found

    monkeypatch.setattr(torch_kernel, "_buckets", open_masks)


def no_chunk_mask(monkeypatch):
    def mask(queries, context, window, device):
        return torch.ones(queries, context, dtype=torch.bool, device=device)

    monkeypatch.setattr(torch_kernel, "_causal_mask", mask)


def a_chunk_at_the_start_of_its_context(monkeypatch):
    def mask(queries, context, window, device):
        return torch.ones(queries, context, dtype=torch.bool, device=device).tril()

    monkeypatch.setattr(torch_kernel, "_causal_mask", mask)


def no_causal_flag(monkeypatch):
    def attend(*arguments, is_causal=False, **options):
        return scaled_dot_product_attention(*arguments, **options)

    monkeypatch.setattr(torch_kernel, "scaled_dot_product_attention", attend)


def entries_beyond_a_table_are_read(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "masked_fill", lambda tensor, mask, value: tensor)


@pytest.mark.parametrize(
    ("breakage", "decodes", "prefills"),
    [
        (no_zeroing, (3, 9, 30), ()),
        (no_decode_mask, (3, 9, 30), ()),
        (no_chunk_mask, (), ((21, 4),)),
        (a_chunk_at_the_start_of_its_context, (), ((21, 4),)),
        (no_causal_flag, (), ((21, 21),)),
        (entries_beyond_a_table_are_read, (24, 24, 25, 25, 25), ()),
    ],
)
def test_the_torch_variant_fails_without_each_of_its_masks(monkeypatch, breakage, decodes, prefills):
    kernel = KERNELS["torch"]()
    Problem(decodes, prefills).check(kernel)
    breakage(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        Problem(decodes, prefills).check(kernel)


def test_the_truth_is_softmax_attention():
    """By hand: one head of size one, keys 0 and ln 3, values 1 and 5: weights 1/4 and 3/4."""
    keys, values = torch.tensor([0.0, math.log(3)]).double(), torch.tensor([1.0, 5.0]).double()
    query = torch.ones(2, 1, 1).double()
    out = attention(query, keys.view(2, 1, 1), values.view(2, 1, 1), scale=1.0)
    torch.testing.assert_close(out.flatten(), torch.tensor([1.0, 4.0]).double())
    only = attention(query, keys.view(2, 1, 1), values.view(2, 1, 1), scale=1.0, window=1)
    torch.testing.assert_close(only.flatten(), torch.tensor([1.0, 5.0]).double())
