"""Moving keys and values: new tokens into their slots, whole blocks within the cache, and between host and device."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped, import-not-found"
# Triton has no types, and its kernels are functions of whatever it makes of their arguments.

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

# The (token, head) rows of a write program, and the 4-byte words of a copy program: 16 bytes a thread, several times.
_WRITE_ELEMENTS = 2048
_COPY_WORDS = 2048

# Blocks below this many bytes, and at least so many of them: one kernel that reads pinned host memory is faster than as
# many copies (measured by vLLM: pull request 42212).
KERNEL_SWAP_BYTES = 28 * 1024
KERNEL_SWAP_COPIES = 16


def write(
    key: torch.Tensor,  # [T, KVH, D]
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,  # int64 [T]
) -> None:
    """Keys and values of T tokens into their slots; -1 is no slot."""
    tokens, kv_heads, head_dim = key.shape
    if tokens == 0:
        return
    padded = triton.next_power_of_2(head_dim)
    rows = max(1, _WRITE_ELEMENTS // padded)
    write_kernel[(triton.cdiv(tokens * kv_heads, rows),)](
        key,
        value,
        k_cache,
        v_cache,
        slot_mapping,
        tokens * kv_heads,
        *key.stride()[:2],
        *value.stride()[:2],
        *k_cache.stride()[:3],
        KV_HEADS=kv_heads,
        D=head_dim,
        DP=padded,
        PAGE=k_cache.shape[1],
        ROWS=rows,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["total"])
def write_kernel(
    key,
    value,
    k_cache,
    v_cache,
    slots,
    total,
    stride_key,
    stride_key_head,
    stride_value,
    stride_value_head,
    stride_block,
    stride_slot,
    stride_head,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = (row // KV_HEADS).to(tl.int64)
    head = row % KV_HEADS
    slot = tl.load(slots + token, mask=row < total, other=-1)
    d = tl.arange(0, DP)
    kept = (slot >= 0)[:, None] & (d < D)[None, :]
    k = tl.load(key + (token * stride_key + head * stride_key_head)[:, None] + d[None, :], mask=kept)
    v = tl.load(value + (token * stride_value + head * stride_value_head)[:, None] + d[None, :], mask=kept)
    # The slot is int64, and with it all that is multiplied.
    place = slot // PAGE * stride_block + slot % PAGE * stride_slot + head * stride_head
    offsets = place[:, None] + d[None, :]
    tl.store(k_cache + offsets, k, mask=kept)
    tl.store(v_cache + offsets, v, mask=kept)


def addresses(caches: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """int64 [L] on `device`: where each cache begins. Pinned host memory has one address for host and device."""
    return torch.tensor([cache.data_ptr() for cache in caches], dtype=torch.int64, device=device)


def copyable(caches: Sequence[torch.Tensor]) -> bool:
    """Whether copy_kernel can take them: whole blocks of equal size, at addresses that 16-byte accesses can use."""
    block_bytes = caches[0][0].numel() * caches[0].element_size()
    return block_bytes % 16 == 0 and all(
        cache.is_contiguous()
        and cache.data_ptr() % 16 == 0
        and cache.shape[1:] == caches[0].shape[1:]
        and cache.dtype == caches[0].dtype
        for cache in caches
    )


def copy(
    sources: torch.Tensor,  # int64 [L], as of `addresses`
    destinations: torch.Tensor,
    pairs: torch.Tensor,  # int64 [P, 2], contiguous, on the same device
    block_bytes: int,
) -> None:
    """Block pairs[p, 0] of each source over block pairs[p, 1] of its destination, in one launch."""
    words = block_bytes // 4
    chunk = min(_COPY_WORDS, max(512, triton.next_power_of_2(words)))  # 512: 16 bytes a thread
    copy_kernel[(pairs.shape[0], sources.shape[0], triton.cdiv(words, chunk))](
        sources, destinations, pairs, WORDS=words, CHUNK=chunk, num_warps=4, enable_fp_fusion=True
    )


@triton.jit
def copy_kernel(sources, destinations, pairs, WORDS: tl.constexpr, CHUNK: tl.constexpr):
    """The words are int32 whatever the dtype: bits are copied. Addresses from a table carry no promise of alignment
    that the compiler could see, so it is made here; `copyable` has kept it."""
    pair = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1)
    source = tl.multiple_of(tl.load(sources + layer).to(tl.pointer_type(tl.int32)), 16)
    destination = tl.multiple_of(tl.load(destinations + layer).to(tl.pointer_type(tl.int32)), 16)
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    inside = word < WORDS
    found = tl.load(source + (tl.load(pairs + 2 * pair) * WORDS + word), mask=inside)
    tl.store(destination + (tl.load(pairs + 2 * pair + 1) * WORDS + word), found, mask=inside)


def swap(sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: torch.Tensor) -> None:
    """Whole blocks between host and device; done on return. pairs int64 [P, 2] on the CPU.

    Many small blocks of pinned host memory go through copy_kernel, all else through asynchronous copies, one a run of
    blocks that follow each other on both sides; from and to memory that is not pinned CUDA stages them itself.
    """
    device = next((c.device for c in (sources[0], destinations[0]) if c.is_cuda), torch.device("cpu"))
    if small(sources, destinations, len(pairs)):
        block_bytes = sources[0][0].numel() * sources[0].element_size()
        on_device = pairs.to(device).contiguous()
        copy(addresses(sources, device), addresses(destinations, device), on_device, block_bytes)
    else:
        for i, j, count in runs(pairs.tolist()):
            for source, destination in zip(sources, destinations, strict=True):
                destination[j : j + count].copy_(source[i : i + count], non_blocking=True)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def small(sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor], pairs: int) -> bool:
    """Whether the copies are so small and so many that a kernel should make them, and the host's memory lets it."""
    block_bytes = sources[0][0].numel() * sources[0].element_size()
    host = [cache for cache in (*sources, *destinations) if not cache.is_cuda]
    return (
        block_bytes < KERNEL_SWAP_BYTES
        and pairs * len(sources) >= KERNEL_SWAP_COPIES
        and copyable((*sources, *destinations))
        and all(cache.is_pinned() for cache in host)
    )


def runs(pairs: list[list[int]]) -> list[tuple[int, int, int]]:
    """(source, destination, count) of the runs in which both sides go up by one."""
    found: list[tuple[int, int, int]] = []
    for i, j in pairs:
        if found and (i, j) == (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]):
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((i, j, 1))
    return found
