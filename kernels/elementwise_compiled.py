"""The element-wise parts of a decoder layer as machine code, each in one pass over its numbers. Needs numba.

Plain loops that LLVM makes vectors of. fp32 arithmetic on fp32 and bf16 numbers, rounded once. Bodies as in
`cpu_compiled.py`: a thread takes the next rows from a counter until none is left.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from pagedlab.kernels.compiled import body

ROWS = 8  # that a thread takes at a time
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
_i16, _i32, _i64, _f32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
# 2 ** x from -1/2 to 1/2, the highest power first: relative error below 2e-7.
_POLYNOMIAL = (1.5353362e-4, 1.3398874e-3, 9.6184374e-3, 5.5503325e-2, 2.4022648e-1, 6.9314720e-1, 1.0)
_LOG2E, _LN2 = math.log2(math.e), math.log(2)


def _at(builder: ir.IRBuilder, address: Any, at: Any, element: ir.Type) -> Any:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [at])


@intrinsic(prefer_literal=True)
def load(typing: Any, bits: Any, address: Any, at: Any) -> Any:
    """Number `at` of 32 (fp32) or 16 bits (bf16), as fp32."""
    width = bits.literal_value

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        if width == 32:
            return builder.load(_at(builder, args[1], args[2], _f32))
        half = builder.zext(builder.load(_at(builder, args[1], args[2], _i16)), _i32)
        return builder.bitcast(builder.shl(half, _i32(16)), _f32)

    return types.float32(bits, types.int64, types.int64), generate


@intrinsic(prefer_literal=True)
def store(typing: Any, bits: Any, address: Any, at: Any, value: Any) -> Any:
    """The fp32 value, rounded to nearest even where `bits` is 16. NaN stays NaN."""
    width = bits.literal_value

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        value = args[3]
        if width == 32:
            builder.store(value, _at(builder, args[1], args[2], _f32))
        else:
            whole = builder.bitcast(value, _i32)
            odd = builder.and_(builder.lshr(whole, _i32(16)), _i32(1))
            rounded = builder.lshr(builder.add(builder.add(whole, _i32(0x7FFF)), odd), _i32(16))
            kept = builder.select(builder.fcmp_unordered("uno", value, value), _i32(0x7FC0), rounded)
            builder.store(builder.trunc(kept, _i16), _at(builder, args[1], args[2], _i16))
        return context.get_dummy_value()

    return types.void(bits, types.int64, types.int64, types.float32), generate


@intrinsic
def _integer(typing: Any, address: Any, at: Any) -> Any:
    """int64 number `at`."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.load(_at(builder, args[0], args[1], _i64))

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _take(typing: Any, counter: Any) -> Any:
    """The next number of the counter (int64 pointer): each is given out once, whichever thread asks."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], _i64(1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def _as_float(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _f32)

    return types.float32(types.int32), generate


@njit(inline="always", **_OPTIONS)
def shrunk(x: Any) -> Any:
    """e ** -|x| in fp32: a library call is not to be had for vectors."""
    power = max(-abs(x) * np.float32(_LOG2E), np.float32(-126))
    whole = np.floor(power + np.float32(0.5))
    rest = power - whole
    value = np.float32(_POLYNOMIAL[0])
    value = value * rest + np.float32(_POLYNOMIAL[1])
    value = value * rest + np.float32(_POLYNOMIAL[2])
    value = value * rest + np.float32(_POLYNOMIAL[3])
    value = value * rest + np.float32(_POLYNOMIAL[4])
    value = value * rest + np.float32(_POLYNOMIAL[5])
    value = value * rest + np.float32(_POLYNOMIAL[6])
    return value * _as_float((np.int32(whole) + np.int32(127)) << np.int32(23))


@lru_cache
def norm_body(bits: int) -> Any:
    """out = x / sqrt(mean(x ** 2) + eps) * weight, a row. Fields: 0 next rows, 1 rows, 2 x, 3 weight, 4 out, 5 columns,
    6 row stride of x, 7 address of eps (fp32)."""

    def norm(fields: Any) -> None:
        f = carray(fields, 8)
        rows, x, weight, out, columns, stride = f[1], f[2], f[3], f[4], f[5], f[6]
        eps = load(32, f[7], 0)
        while True:
            first = _take(fields) * ROWS
            if first >= rows:
                break
            for row in range(first, min(first + ROWS, rows)):
                squares = np.float32(0)
                for i in range(columns):
                    value = load(bits, x, row * stride + i)
                    squares += value * value
                scale = np.float32(1) / np.sqrt(squares / np.float32(columns) + eps)
                for i in range(columns):
                    value = load(bits, x, row * stride + i) * scale
                    store(bits, out, row * columns + i, value * load(bits, weight, i))

    return body(norm, **_OPTIONS)


@lru_cache
def gate_body(bits: int) -> Any:
    """out = silu(gate) * up. Fields: 0 next rows, 1 rows, 2 gate, 3 up, 4 out, 5 columns, 6 row stride of the two."""

    def gated(fields: Any) -> None:
        f = carray(fields, 7)
        rows, gate, up, out, columns, stride = f[1], f[2], f[3], f[4], f[5], f[6]
        while True:
            first = _take(fields) * ROWS
            if first >= rows:
                break
            for row in range(first, min(first + ROWS, rows)):
                for i in range(columns):
                    x = load(bits, gate, row * stride + i)
                    below = shrunk(x)
                    share = (np.float32(1) if x >= 0 else below) / (np.float32(1) + below)
                    store(bits, out, row * columns + i, x * share * load(bits, up, row * stride + i))

    return body(gated, **_OPTIONS)


@njit(inline="always", **_OPTIONS)
def _turn(
    bits: Any, bits_out: Any, x: Any, at: Any, cos: Any, sin: Any, angle: Any, dim: Any, factor: Any, out: Any, to: Any
) -> None:
    """One head's dim numbers from x[at] on, its halves against each other, times factor, into out[to] on. A loop for
    each half: with both in one LLVM has more addresses to tell apart than it will, and makes no vectors. The first two
    are literals where it is called."""
    half = dim // 2
    for i in range(half):
        left = load(bits, x, at + i) * load(bits, cos, angle + i)
        left -= load(bits, x, at + half + i) * load(bits, sin, angle + i)
        store(bits_out, out, to + i, left * factor)
    for i in range(half, dim):
        right = load(bits, x, at + i) * load(bits, cos, angle + i)
        right += load(bits, x, at + i - half) * load(bits, sin, angle + i)
        store(bits_out, out, to + i, right * factor)


@lru_cache
def rotate_body(bits: int) -> Any:
    """Rotary embedding of queries and keys, halves against each other. Fields: 0 next tokens, 1 tokens, 2 cos, 3 sin
    (both [T, D]), 4 D, then of the queries 5 address, 6 stride of a token, 7 of a head, 8 heads, 9 out [T, H, D]; the
    same of the keys from 10 on."""

    def rotate(fields: Any) -> None:
        f = carray(fields, 15)
        tokens, cos, sin, dim = f[1], f[2], f[3], f[4]
        while True:
            first = _take(fields) * ROWS
            if first >= tokens:
                break
            for token in range(first, min(first + ROWS, tokens)):
                for which in range(5, 15, 5):
                    x, token_stride, head_stride, heads, out = f[which : which + 5]
                    for head in range(heads):
                        at = token * token_stride + head * head_stride
                        to = (token * heads + head) * dim
                        _turn(bits, bits, x, at, cos, sin, token * dim, dim, np.float32(1), out, to)

    return body(rotate, **_OPTIONS)


@lru_cache
def place_body(bits: int) -> Any:
    """What lies between a layer's first product and its attention, for decodes: queries rotated and scaled, keys
    rotated into their slots, values into theirs. Fields: 0 next rows, 1 rows, 2 their queries, keys and values side by
    side, 3 row stride, 4 cos, 5 sin (both [rows, D]), 6 D, 7 query heads, 8 KV heads, 9 address of the queries' factor
    (fp32), 10 queries out (fp32 [rows, H, D]), 11 k_cache, 12 v_cache, 13 slots (int64; -1: nowhere)."""

    def place(fields: Any) -> None:
        f = carray(fields, 14)
        rows, x, stride, cos, sin, dim, heads, kv_heads = f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]
        factor = load(32, f[9], 0)
        while True:
            first = _take(fields) * ROWS
            if first >= rows:
                break
            for row in range(first, min(first + ROWS, rows)):
                angle, slot = row * dim, _integer(f[13], row)
                for head in range(heads):
                    to = (row * heads + head) * dim
                    _turn(bits, 32, x, row * stride + head * dim, cos, sin, angle, dim, factor, f[10], to)
                for head in range(kv_heads if slot >= 0 else 0):
                    at, to = row * stride + (heads + head) * dim, (slot * kv_heads + head) * dim
                    _turn(bits, bits, x, at, cos, sin, angle, dim, np.float32(1), f[11], to)
                if slot >= 0:
                    values = row * stride + (heads + kv_heads) * dim
                    for i in range(kv_heads * dim):
                        store(bits, f[12], slot * kv_heads * dim + i, load(bits, x, values + i))

    return body(place, **_OPTIONS)


@lru_cache
def finish_body(bits: int) -> Any:
    """Rows of decode attention into the model's dtype, those that were cut from their pieces. Fields: 0 next rows,
    1 rows, 2 attention (fp32, pieces behind the rows), 3 maxima, 4 sums (of each row and head), 5 heads, 6 D, 7 of each
    row its first piece and their number, 0 where it is whole (int64), 8 out."""

    def finish(fields: Any) -> None:
        f = carray(fields, 9)
        rows, x, maxima, sums, heads, dim, pieces, out = f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]
        size = heads * dim
        while True:
            first = _take(fields) * ROWS
            if first >= rows:
                break
            for row in range(first, min(first + ROWS, rows)):
                piece, count = _integer(pieces, 2 * row), _integer(pieces, 2 * row + 1)
                if count == 0:
                    for i in range(size):
                        store(bits, out, row * size + i, load(32, x, row * size + i))
                    continue
                for head in range(heads):
                    largest = load(32, maxima, piece * heads + head)
                    for p in range(piece + 1, piece + count):
                        largest = max(largest, load(32, maxima, p * heads + head))
                    total = np.float32(0)
                    for p in range(piece, piece + count):
                        below = (largest - load(32, maxima, p * heads + head)) * np.float32(_LN2)
                        weight = load(32, sums, p * heads + head) * shrunk(below)
                        total += weight
                        store(32, maxima, p * heads + head, weight)  # they have served
                    for i in range(head * dim, head * dim + dim):
                        value = np.float32(0)
                        for p in range(piece, piece + count):
                            value += load(32, maxima, p * heads + head) * load(32, x, p * size + i)
                        store(bits, out, row * size + i, value / total)

    return body(finish, **_OPTIONS)
