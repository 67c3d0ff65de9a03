"""Writing, copying and swapping against the clock. GB/s count what is read and what is written; a swap's, one way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from pagedlab.device_check.base import Bench, Row
from pagedlab.device_check.timing import median_ms, per_second

DTYPE = torch.bfloat16
_BLOCK = 16
# Blocks to swap, 4 KiB to 512 KiB with 128 elements a head: slots, key-value heads.
_SWAPPED = ((16, 1), (16, 4), (16, 8), (64, 8), (128, 16))


def write(bench: Bench) -> Iterator[Row]:
    """The new tokens of one layer into shuffled slots: of a step of decodes, of a step of prefills."""
    sizes, device = bench.sizes, bench.device
    for tokens in sizes.written_tokens:
        blocks = 4 * -(-tokens // _BLOCK)
        shape = (blocks, _BLOCK, sizes.kv_heads, sizes.head_dim)
        k_cache, v_cache = (torch.zeros(shape, dtype=DTYPE, device=device) for _ in range(2))
        key, value = (torch.randn(tokens, *shape[2:], device=device).to(DTYPE) for _ in range(2))
        slots = torch.randperm(blocks * _BLOCK, device=device)[:tokens]
        moved = 4 * key.numel() * DTYPE.itemsize
        for kernel in bench.made(DTYPE, sizes.head_dim, _BLOCK):
            call = _bound(kernel.write_kv, key, value, k_cache, v_cache, slots)
            taken = median_ms(call, device, sizes.repeats)
            yield {
                "kernel": kernel.name,
                "tokens": tokens,
                "bytes": moved,
                "ms": taken,
                "gb_per_s": per_second(moved, taken),
            }


def copy(bench: Bench) -> Iterator[Row]:
    """Copy-on-write of some blocks in every layer."""
    sizes, device = bench.sizes, bench.device
    shape = (2 * sizes.copied_blocks, _BLOCK, sizes.kv_heads, sizes.head_dim)
    caches = [torch.zeros(shape, dtype=DTYPE, device=device) for _ in range(2 * sizes.layers)]
    pairs = torch.randperm(shape[0], device=device).view(-1, 2)
    moved = 2 * len(caches) * sizes.copied_blocks * caches[0][0].numel() * DTYPE.itemsize
    for kernel in bench.made(DTYPE, sizes.head_dim, _BLOCK):
        call = _bound(kernel.copy_blocks, caches[: sizes.layers], caches[sizes.layers :], pairs)
        taken = median_ms(call, device, sizes.repeats)
        yield {
            "kernel": kernel.name,
            "blocks": sizes.copied_blocks,
            "layers": sizes.layers,
            "bytes": moved,
            "ms": taken,
            "gb_per_s": per_second(moved, taken),
        }


def swap(bench: Bench) -> Iterator[Row]:
    """Scattered blocks between the device and page-locked memory, both ways: the call returns when they are there."""
    sizes, device = bench.sizes, bench.device
    pinned = device.startswith("cuda")
    tensors = 2 * sizes.swapped_layers
    for slots, kv_heads in _SWAPPED:
        block_bytes = slots * kv_heads * 128 * DTYPE.itemsize
        blocks = min(64, max(1, sizes.swapped_bytes // (tensors * block_bytes)))
        shape = (2 * blocks, slots, kv_heads, 128)
        on_device = [torch.zeros(shape, dtype=DTYPE, device=device) for _ in range(tensors)]
        on_host = [torch.zeros(shape, dtype=DTYPE, pin_memory=pinned) for _ in range(tensors)]
        pairs = torch.stack([torch.randperm(2 * blocks)[:blocks] for _ in range(2)], 1)
        moved = tensors * blocks * block_bytes
        for kernel in bench.made(DTYPE, 128, slots):
            for direction, source, target in (("out", on_device, on_host), ("in", on_host, on_device)):
                taken = median_ms(_bound(kernel.swap_blocks, source, target, pairs), device, sizes.repeats)
                yield {
                    "kernel": kernel.name,
                    "direction": direction,
                    "block_bytes": block_bytes,
                    "blocks": blocks,
                    "tensors": tensors,
                    "ms": taken,
                    "gb_per_s": per_second(moved, taken),
                }


def _bound(call: Callable[..., object], *arguments: object) -> Callable[[], object]:
    """Of a loop's variables as they are now."""
    return lambda: call(*arguments)
