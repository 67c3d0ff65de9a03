"""Paged decode attention as machine code: what `cpu.py` runs on every thread. Needs numba.

Kept in one file, the vectors apart (`cpu_vectors.py`), because numba recompiles what it has cached on disk only when
the file of the function itself changes: `_VECTORS` makes it look at the other one too. Each thread takes the next item
from a counter until none is left: ragged batches, and cores that others use, balance themselves.

An item is a range of one sequence's tokens, for all its heads: the slots of a page are then read in the order in which
they lie in memory. It goes in tiles of TILE tokens, over page edges, with an online softmax.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import carray, njit

from pagedlab.kernels import cpu_vectors
from pagedlab.kernels.compiled import body, version
from pagedlab.kernels.cpu_vectors import (
    FAST,
    GROUP,
    LOWEST,
    TILE,
    copy,
    floats,
    int32s,
    int64s,
    power_of_two,
    take,
    tile_scores,
    tile_values,
    tile_weights,
    touch,
)  # fmt: skip

ITEM = 4  # int64 numbers an item: sequence, first token, end, row of the output
MERGE = 3  # row of the output, first row of its pieces, how many
TOUCHED = 2048  # bytes from one line to the next that is asked for early: of each page of 4 KB one
CHUNK = 64  # tokens that a thread writes at a time

_VECTORS = version(cpu_vectors)
_SCRATCH = 1024  # bytes of a thread, its statistics apart
# The places of a tile's tokens, bits reversed. Lines asked for in ascending order are a stream to the hardware, which
# reads on ahead: beyond the end of the page, where nothing is of use.
_ORDER = tuple(int(f"{t:0{(TILE - 1).bit_length()}b}"[::-1], 2) for t in range(TILE))
_options: dict[str, Any] = {"error_model": "numpy", "fastmath": set(FAST)}


@njit(**_options)
def _find_rows(rows: Any, table: Any, begin: Any, end: Any, block_size: Any, stride: Any) -> int:
    """Element offsets of the tokens begin to end, at most TILE of them, in 64 bits: how many there are. They fill a
    tile in `_ORDER`; one that they do not fill has them in their own, and the first one's in the rest."""
    found = carray(int64s(rows), TILE)
    count = max(0, min(TILE, end - begin))
    block, offset = begin // block_size, begin % block_size
    for t in range(count):
        at = _ORDER[t] if count == TILE else t
        found[at] = (np.int64(table[block]) * block_size + offset) * stride
        offset += 1
        if offset == block_size:
            block, offset = block + 1, 0
    if count > 0:
        found[count:] = found[0]
    return count


@njit(inline="always")
def scratch_bytes(heads: Any) -> int:
    """Of a thread. What it keeps of each head is on lines of its own: in the rows of the output those of two sequences
    share a line, which two threads would take from each other at every tile."""
    return _SCRATCH + (8 * heads + 63) // 64 * 64


@lru_cache
def decode_body(bits: int) -> Any:
    """Attention over keys and values of `bits` bits. Fields: 0 next item, 1 next thread (both 0 at first), 2 items,
    3 their number, 4 query (fp32, times scale and log2 e), 5 k_cache, 6 v_cache, 7 block tables, 8 their row stride,
    9 out (fp32), 10 maxima and 11 sums of each row and head, 12 scratch (`scratch_bytes` a thread), 13 block size,
    14 KV heads, 15 group, 16 D.
    """
    version = _VECTORS

    def decode(fields: Any) -> None:
        f = carray(fields, 17 if version >= 0 else 0)
        num_items, k_cache, v_cache, block_size, kv_heads, group, dim = f[3], f[5], f[6], f[13], f[14], f[15], f[16]
        items = carray(int64s(f[2]), (num_items, ITEM))
        heads, stride, row_bytes = kv_heads * group, kv_heads * dim, kv_heads * group * dim * 4
        token_bytes = stride * (bits // 8)
        rows = f[12] + take(fields, 1) * scratch_bytes(heads)
        next_rows = rows + 8 * TILE
        scores = next_rows + 8 * TILE
        decay = scores + 4 * GROUP * TILE
        highest = rows + _SCRATCH
        added = highest + 4 * heads
        maxima, sums = carray(floats(highest), heads), carray(floats(added), heads)
        while True:
            taken = take(fields, 0)
            if taken >= num_items:
                break
            sequence, begin, end, row = items[taken]
            table = carray(int32s(f[7] + sequence * f[8] * 4), f[8])
            result = carray(floats(f[9] + row * row_bytes), (heads, dim))
            maxima[:] = np.float32(LOWEST)
            sums[:] = 0
            result[:] = 0
            count = _find_rows(rows, table, begin, end, block_size, stride)
            while count > 0:
                begin += count
                next_count = _find_rows(next_rows, table, begin, end, block_size, stride)
                guess = f[0]
                if next_count == 0 and guess < num_items:
                    # Most likely this thread's next item: its first tile is asked for while the last one is computed.
                    other, first_token, last_token, _ = items[guess]
                    others = carray(int32s(f[7] + other * f[8] * 4), f[8])
                    _find_rows(next_rows, others, first_token, last_token, block_size, stride)
                # Of pages further on a line each: whatever translates their addresses has found them by then.
                far = begin + next_count + 2 * TILE
                if far < end:
                    token = np.int64(table[far // block_size]) * block_size + far % block_size
                    first_byte = token * token_bytes
                    for byte in range(first_byte, first_byte + TILE * token_bytes, TOUCHED):
                        touch(k_cache + byte)
                        touch(v_cache + byte)
                for kv_head in range(kv_heads):
                    column = kv_head * dim
                    for first in range(0, group, GROUP):
                        head, share = kv_head * group + first, min(GROUP, group - first)
                        query = f[4] + sequence * row_bytes + head * dim * 4
                        total = f[9] + row * row_bytes + head * dim * 4
                        tile_scores(bits, share, query, k_cache, rows, column, count, dim, scores, next_rows)
                        tile_weights(share, scores, count, highest + 4 * head, added + 4 * head, decay)
                        tile_values(bits, share, scores, v_cache, rows, column, count, dim, decay, total, next_rows)
                rows, next_rows, count = next_rows, rows, next_count
            for head in range(heads):
                result[head] *= np.float32(1) / sums[head]
            copy(f[10] + row * heads * 4, highest, heads * 4)
            copy(f[11] + row * heads * 4, added, heads * 4)

    return body(decode, **_options)


@lru_cache
def merge_body() -> Any:
    """One row from the rows of its pieces. Fields: as in decode, and 17 merges, 18 their number."""

    version = _VECTORS

    def merge(fields: Any) -> None:
        f = carray(fields, 19 if version >= 0 else 0)
        heads, dim = f[14] * f[15], f[16]
        merges = carray(int64s(f[17]), (f[18], MERGE))
        for row, first, count in merges:
            whole = carray(floats(f[9] + row * heads * dim * 4), (heads, dim))
            pieces = carray(floats(f[9] + first * heads * dim * 4), (count, heads, dim))
            maxima = carray(floats(f[10] + first * heads * 4), (count, heads))
            sums = carray(floats(f[11] + first * heads * 4), (count, heads))
            for head in range(heads):
                largest = maxima[0, head]
                for i in range(1, count):
                    largest = max(largest, maxima[i, head])
                total = np.float32(0)
                whole[head] = 0
                for i in range(count):
                    weight = sums[i, head] * power_of_two(maxima[i, head] - largest)
                    total += weight
                    for d in range(dim):
                        whole[head, d] += weight * pieces[i, head, d]
                whole[head] *= np.float32(1) / total

    return body(merge, **_options)


@lru_cache
def write_body() -> Any:
    """Rows of keys and values into their slots. Fields: 0 next chunk, 1 tokens, 2 key, 3 value, 4 k_cache, 5 v_cache,
    6 slots, 7 bytes of a row."""
    version = _VECTORS

    def write(fields: Any) -> None:
        f = carray(fields, 8 if version >= 0 else 0)
        tokens, size = f[1], f[7]
        slots = carray(int64s(f[6]), tokens)
        while True:
            first = take(fields, 0) * CHUNK
            if first >= tokens:
                break
            for t in range(first, min(first + CHUNK, tokens)):
                if slots[t] >= 0:
                    copy(f[4] + slots[t] * size, f[2] + t * size, size)
                    copy(f[5] + slots[t] * size, f[3] + t * size, size)

    return body(write, **_options)
