"""Causal attention of prompts and chunks of prompts over a paged cache, as machine code. Needs numba.

Bound by arithmetic, not by memory: keys and values of a sequence are laid out once as strips (`strip_vectors.py`), and
a tile of its tokens, all query heads of one key-value head at a time, goes through them as a product with each, with
an online softmax between (Dao et al., 2022, algorithm 1). Weights of the softmax are rounded to the cache's dtype
before they meet the values, as on tensor cores.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import carray

from pagedlab.kernels import cpu_vectors, elementwise_compiled, strip_vectors
from pagedlab.kernels.compiled import body, version
from pagedlab.kernels.cpu_vectors import FAST, LOWEST, copy, int32s, int64s, take
from pagedlab.kernels.elementwise_compiled import load, store
from pagedlab.kernels.strip_vectors import WIDTH, all_rows, soften

ITEM = 3  # int64 numbers of a tile: prompt, first token, end
PROMPT = 4  # int64 numbers of a prompt: row of the block tables, first row of the queries, tokens fed, context
TILE_ROWS = 48  # of queries, tokens times heads of a group
KEYS = 128  # tokens whose scores are there at once, a multiple of WIDTH
_options: dict[str, Any] = {"error_model": "numpy", "fastmath": set(FAST)}
_VECTORS = version(strip_vectors) ^ version(elementwise_compiled) ^ version(cpu_vectors)


def strips_bytes(dim: int, bits: int) -> tuple[int, int]:
    """Of the keys and of the values of WIDTH tokens of one head."""
    wide = -(-dim // WIDTH) * WIDTH
    return WIDTH * dim * bits // 8, WIDTH * wide * bits // 8


def scratch_bytes(rows: int, dim: int, bits: int) -> int:
    """Of a thread, for tiles of so many rows: sums, scores, maxima and totals in fp32, queries and weights."""
    wide = -(-dim // WIDTH) * WIDTH
    return rows * (4 * wide + 4 * KEYS + 8) + rows * (dim + KEYS) * bits // 8


@lru_cache
def lay_out_body(bits: int) -> Any:
    """Keys and values of each prompt and head as strips, tokens the columns of the keys and the rows of the values.
    Fields: 0 next piece, 1 pieces (prompts times KV heads times strips of WIDTH tokens), 2 of each piece the prompt,
    the head and the first token, 3 prompts, 4 block tables, 5 their row stride, 6 k_cache, 7 v_cache, 8 block size,
    9 KV heads, 10 D, 11 keys out, 12 values out, `strips_bytes` a piece, all pieces of a prompt and head one after the
    other. Beyond the context, and beyond D, there are zeros."""
    vectors, pair = _VECTORS, 32 // bits

    def lay_out(fields: Any) -> None:
        f = carray(fields, 13 if vectors >= 0 else 0)
        block_size, kv_heads, dim = f[8], f[9], f[10]
        pieces, prompts = carray(int64s(f[2]), (f[1], 3)), f[3]
        words, wide = dim // pair, (dim + WIDTH - 1) // WIDTH * WIDTH
        while True:
            taken = take(fields, 0)
            if taken >= f[1]:
                break
            prompt, head, first = pieces[taken]
            shape = carray(int64s(prompts + prompt * 8 * PROMPT), PROMPT)
            table = carray(int32s(f[4] + shape[0] * f[5] * 4), f[5])
            count = min(WIDTH, shape[3] - first)
            keys = carray(int32s(f[11] + taken * words * WIDTH * 4), (words, WIDTH))
            strips, own = (shape[3] + WIDTH - 1) // WIDTH, first // WIDTH
            values = f[12] + (taken - own) * (WIDTH * wide * bits // 8)  # of all tokens of the prompt and head
            if count < WIDTH or wide > dim:
                keys[:] = 0
                for strip in range(wide // WIDTH):
                    part = values + (strip * strips + own) * (WIDTH * WIDTH * bits // 8)
                    carray(int32s(part), WIDTH * WIDTH * bits // 32)[:] = 0
            for t in range(count):
                token = first + t
                slot = np.int64(table[token // block_size]) * block_size + token % block_size
                start = (slot * kv_heads + head) * dim
                key = carray(int32s(f[6] + start * bits // 8), words)
                for word in range(words):
                    keys[word, t] = key[word]
                for strip in range(wide // WIDTH):
                    row = (strip * strips * WIDTH + token // pair * pair) * WIDTH + token % pair
                    for i in range(min(WIDTH, dim - strip * WIDTH)):
                        store(bits, values, row + i * pair, load(bits, f[7], start + strip * WIDTH + i))

    return body(lay_out, **_options)


@lru_cache
def prefill_body(bits: int) -> Any:
    """Fields: 0 next item, 1 next thread, 2 items (tiles times KV heads), 3 tiles (int64 [tiles, ITEM], longest
    first), 4 prompts (int64 [prompts, PROMPT]), 5 of each prompt the first piece of its first head, 6 queries
    [T, H, D], 7 keys, 8 values (as `lay_out_body` leaves them), 9 out [T, H, D], 10 scratch, 11 bytes of it a thread,
    12 KV heads, 13 group, 14 D, 15 address of the factor of the scores (scale times log2 e, fp32), 16 window, or 0 for
    all."""
    vectors, size = _VECTORS, bits // 8

    def prefill(fields: Any) -> None:
        f = carray(fields, 17 if vectors >= 0 else 0)
        kv_heads, group, dim, window = f[12], f[13], f[14], f[16]
        factor = load(32, f[15], 0)
        wide = (dim + WIDTH - 1) // WIDTH * WIDTH
        words = dim * size // 4
        key_bytes, value_bytes = WIDTH * dim * size, WIDTH * wide * size
        tiles = carray(int64s(f[3]), (f[2] // kv_heads, ITEM))
        sums = f[10] + take(fields, 1) * f[11]
        rows_most = (f[11]) // (4 * wide + 4 * KEYS + 8 + (dim + KEYS) * size)
        scores = sums + rows_most * wide * 4
        maxima = scores + rows_most * KEYS * 4
        totals = maxima + rows_most * 4
        queries = totals + rows_most * 4
        weights = queries + rows_most * dim * size
        while True:
            taken = take(fields, 0)
            if taken >= f[2]:
                break
            prompt, first, end = tiles[taken // kv_heads]
            head = taken % kv_heads
            shape = carray(int64s(f[4] + prompt * 8 * PROMPT), PROMPT)
            cached = shape[3] - shape[2]
            strips = (shape[3] + WIDTH - 1) // WIDTH
            piece = carray(int64s(f[5]), prompt + 1)[prompt] + head * strips
            rows = (end - first) * group
            for row in range(rows):
                token = shape[1] + first + row // group
                at = (token * kv_heads * group + head * group + row % group) * dim
                copy(queries + row * dim * size, f[6] + at * size, dim * size)
                store(32, maxima, row, np.float32(LOWEST))
                store(32, totals, row, np.float32(0))
                for i in range(wide):
                    store(32, sums, row * wide + i, np.float32(0))
            last = cached + end  # what the last token of the tile sees
            begin = max(0, cached + first + 1 - window) // KEYS * KEYS if window > 0 else 0
            while begin < last:
                count = min(KEYS, (last - begin + WIDTH - 1) // WIDTH * WIDTH)
                for strip in range(count // WIDTH):
                    keys = f[7] + (piece + begin // WIDTH + strip) * key_bytes
                    to = scores + strip * WIDTH * 4
                    all_rows(bits, 32, 1, rows, queries, dim * size, keys, words, 0, 0, to, KEYS * 4)
                for row in range(rows):
                    sees = cached + first + row // group + 1  # keys from the first on
                    high = min(max(sees - begin, 0), count)
                    low = min(max(sees - window - begin, 0), count) if window > 0 else 0
                    decay = soften(
                        bits, scores + row * KEYS * 4, low, high, count, factor, weights + row * KEYS * size,
                        maxima + row * 4, totals + row * 4,
                    )  # fmt: skip
                    if decay != np.float32(1):
                        for i in range(wide):
                            store(32, sums, row * wide + i, load(32, sums, row * wide + i) * decay)
                for strip in range(wide // WIDTH):
                    to = sums + strip * WIDTH * 4
                    values = f[8] + piece * value_bytes + (strip * strips * WIDTH + begin) * WIDTH * size
                    all_rows(bits, 32, 1, rows, weights, KEYS * size, values, count * size // 4, 0, to, to, wide * 4)
                begin += count
            for row in range(rows):
                token = shape[1] + first + row // group
                to = (token * kv_heads * group + head * group + row % group) * dim
                share = np.float32(1) / load(32, totals, row)
                for i in range(dim):
                    store(bits, f[9], to + i, load(32, sums, row * wide + i) * share)

    return body(prefill, **_options)
