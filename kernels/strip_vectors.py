"""Products of rows with strips of a matrix as LLVM vectors: the inner loops of `product_compiled.py` and
`prefill_compiled.py`.

A strip is WIDTH columns of a matrix from its first row to its last, in bf16 two rows side by side: words of 32 bits,
WIDTH of them, then the next. The sums of ROWS rows of x, or of fewer rows and several strips, stay in registers; every
vector of a strip is read once and serves all of them. A sum goes through a row from its first number to its last,
however many rows there are: a row's result does not depend on the batch it comes in.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedlab.kernels.cpu_vectors import LANES, LOWEST, exp2, fold, prefetch_line, splat

_VECTORS = 2  # side by side
WIDTH = LANES * _VECTORS
ROWS = 12 if LANES == 16 else 6  # with _VECTORS each, sums for all but a few of the registers
# Strips at a time, of few rows and of fewer: a core reads each stream only so far ahead, so it reads several.
ABREAST, MOST_ABREAST = 3, 6
_PAIRS = bool(llvm.get_host_cpu_features().get("avx512bf16"))  # an instruction for two products of bf16 a lane
_AHEAD = 2048  # bytes of the weight asked for before they are read: the hardware does not look past a page

_i8, _i16, _i32, _i64, _f32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_FUSED = ("contract",)  # and no other freedom: not to change the order of a sum


class _BFloat(ir.Type):
    """bf16 as LLVM names it; llvmlite has no word for it."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _vector(element: ir.Type, lanes: int = LANES) -> Any:
    return ir.VectorType(element, lanes)


def _load(builder: ir.IRBuilder, address: Any, kind: Any, align: int) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=align)


def _add(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=_FUSED)


def _halves(builder: ir.IRBuilder, pairs: Any) -> tuple[Any, Any]:
    """The two bf16 of each lane as fp32, the one that lies first in memory first."""
    first = builder.shl(pairs, ir.Constant(pairs.type, [16] * LANES))
    second = builder.and_(pairs, ir.Constant(pairs.type, [-65536] * LANES))
    kind = _vector(_f32)
    return builder.bitcast(first, kind), builder.bitcast(second, kind)


def _accumulate(builder: ir.IRBuilder, total: Any, x: Any, weight: Any, bits: int) -> Any:
    if bits == 32:
        return _add(builder, builder.fmul(x, weight, flags=_FUSED), total)
    if not _PAIRS:
        for a, b in zip(_halves(builder, x), _halves(builder, weight), strict=True):
            total = _add(builder, builder.fmul(a, b, flags=_FUSED), total)
        return total
    kind = _vector(_BFloat(), 2 * LANES)
    signature = ir.FunctionType(total.type, [total.type, kind, kind])
    dot = cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(dot, [total, builder.bitcast(x, kind), builder.bitcast(weight, kind)])


def _rounded(builder: ir.IRBuilder, vector: Any) -> Any:
    """fp32 to bf16, to nearest even; NaN stays NaN."""
    wide = _vector(_i32)

    def number(value: int) -> Any:
        return ir.Constant(wide, [value] * LANES)

    whole = builder.bitcast(vector, wide)
    odd = builder.and_(builder.lshr(whole, number(16)), number(1))
    up = builder.lshr(builder.add(builder.add(whole, number(0x7FFF)), odd), number(16))
    kept = builder.select(builder.fcmp_unordered("uno", vector, vector), number(0x7FC0), up)
    return builder.trunc(kept, _vector(_i16))


def _read(builder: ir.IRBuilder, address: Any, bits: int) -> Any:
    if bits == 32:
        return _load(builder, address, _vector(_f32), 4)
    halves = builder.zext(_load(builder, address, _vector(_i16), 2), _vector(_i32))
    return builder.bitcast(builder.shl(halves, ir.Constant(_vector(_i32), [16] * LANES)), _vector(_f32))


def _write(builder: ir.IRBuilder, vector: Any, address: Any, bits: int) -> None:
    value = vector if bits == 32 else _rounded(builder, vector)
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=bits // 8)


@intrinsic(prefer_literal=True)
def few_rows(
    typing: Any, bits: Any, bits_out: Any, side: Any, rows: Any, x: Any, x_bytes: Any, strip: Any, words: Any,
    bias: Any, more: Any, out: Any, out_bytes: Any,
) -> Any:  # fmt: skip
    """out[r] = x[r] . strips + bias + more[r] for rows <= ROWS // side and the columns of `side` strips, one behind the
    other in memory. Addresses of the first column; bias and more may be 0. x_bytes, out_bytes: of a row, of x and of
    out and more. words: of 32 bits in a row of x. bits: of the numbers of x and the strips; bits_out: of the others;
    these and side are literals."""
    width, width_out, strips = bits.literal_value, bits_out.literal_value, side.literal_value
    vectors = [(s, v) for s in range(strips) for v in range(_VECTORS)]

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        _, _, _, rows, x, x_bytes, strip, words, bias, more, out, out_bytes = args
        word = _f32 if width == 32 else _i32
        begins = [builder.add(strip, builder.mul(words, _i64(4 * WIDTH * s))) for s in range(strips)]

        def emit(count: int) -> None:
            zero = ir.Constant(_vector(_f32), [0.0] * LANES)
            sums = [[cgutils.alloca_once(builder, zero.type) for _ in vectors] for _ in range(count)]
            for one in chain(*sums):
                builder.store(zero, one)
            starts = [builder.add(x, builder.mul(x_bytes, _i64(r))) for r in range(count)]
            with cgutils.for_range(builder, words) as loop:
                places = [builder.add(begin, builder.mul(loop.index, _i64(4 * WIDTH))) for begin in begins]
                offset = builder.mul(loop.index, _i64(4))
                for line in range(0, 4 * WIDTH if strips == 1 else 0, 64):
                    ahead = builder.add(places[0], _i64(_AHEAD + line))
                    prefetch_line(builder, builder.inttoptr(ahead, _i8.as_pointer()), 3)
                weights = [
                    _load(builder, builder.add(places[s], _i64(4 * LANES * v)), _vector(word), 4) for s, v in vectors
                ]
                for start, row in zip(starts, sums, strict=True):
                    factor = splat(builder, _load(builder, builder.add(start, offset), word, 2), LANES)
                    for weight, one in zip(weights, row, strict=True):
                        builder.store(_accumulate(builder, builder.load(one), factor, weight, width), one)
            for i, (s, v) in enumerate(vectors):
                column = _i64((s * WIDTH + v * LANES) * width_out // 8)
                for added, a_row in ((bias, _i64(0)), (more, out_bytes)):
                    with builder.if_then(builder.icmp_signed("!=", added, _i64(0))):
                        for r, row in enumerate(sums):
                            at = builder.add(builder.add(added, column), builder.mul(a_row, _i64(r)))
                            builder.store(_add(builder, builder.load(row[i]), _read(builder, at, width_out)), row[i])
                for r, row in enumerate(sums):
                    at = builder.add(builder.add(out, column), builder.mul(out_bytes, _i64(r)))
                    _write(builder, builder.load(row[i]), at, width_out)

        for count in range(1, ROWS // strips + 1):
            with builder.if_then(builder.icmp_signed("==", rows, _i64(count))):
                emit(count)
        return context.get_dummy_value()

    return types.void(bits, bits_out, side, *[types.int64] * 9), generate


@intrinsic(prefer_literal=True)
def soften(
    typing: Any, bits: Any, scores: Any, low: Any, high: Any, count: Any, factor: Any, weights: Any, maximum: Any,
    total: Any,
) -> Any:  # fmt: skip
    """A row of the online softmax, in powers of two: weights[i] = 2 ** (scores[i] * factor - maximum) for low <= i <
    high, 0 for the rest of count, a multiple of a vector's lanes. scores fp32, weights of `bits`, maximum and total
    fp32, all addresses. They go on; returned is by what all that was summed before is to be multiplied."""
    width = bits.literal_value

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        _, scores, low, high, count, factor, weights, maximum, total = args
        number, lanes = _vector(_f32), _vector(_i64)
        lowest = ir.Constant(number, [LOWEST] * LANES)
        own = ir.Constant(lanes, list(range(LANES)))
        bounds = [splat(builder, bound, LANES) for bound in (low, high)]
        factors = splat(builder, factor, LANES)
        end = builder.and_(builder.add(high, _i64(LANES - 1)), _i64(-LANES))

        def scaled(at: Any) -> Any:
            place = builder.add(scores, builder.mul(at, _i64(4)))
            index = builder.add(splat(builder, at, LANES), own)
            seen = builder.icmp_signed(">=", index, bounds[0])
            seen = builder.and_(seen, builder.icmp_signed("<", index, bounds[1]))
            value = builder.fmul(_load(builder, place, number, 4), factors)
            return builder.select(seen, value, lowest), seen

        best, sums = (cgutils.alloca_once(builder, number) for _ in range(2))
        builder.store(lowest, best)
        with cgutils.for_range_slice(builder, _i64(0), end, _i64(LANES)) as (at, _):
            value, before = scaled(at)[0], builder.load(best)
            builder.store(builder.select(builder.fcmp_unordered(">", value, before), value, before), best)
        places = [builder.inttoptr(address, _f32.as_pointer()) for address in (maximum, total)]
        before = builder.load(places[0])

        def larger(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_unordered(">", a, b), a, b)

        found = builder.extract_element(fold(builder, larger, [builder.load(best)], LANES), _i32(0))
        now = larger(builder, found, before)
        nows = splat(builder, now, LANES)
        builder.store(ir.Constant(number, [0.0] * LANES), sums)
        zero = ir.Constant(number, [0.0] * LANES)
        with cgutils.for_range_slice(builder, _i64(0), end, _i64(LANES)) as (at, _):
            value, seen = scaled(at)
            weight = builder.select(seen, exp2(builder, builder.fsub(value, nows)), zero)
            builder.store(_add(builder, builder.load(sums), weight), sums)
            _write(builder, weight, builder.add(weights, builder.mul(at, _i64(width // 8))), width)
        with cgutils.for_range_slice(builder, end, count, _i64(LANES)) as (at, _):
            _write(builder, zero, builder.add(weights, builder.mul(at, _i64(width // 8))), width)
        decay = builder.extract_element(exp2(builder, builder.fsub(splat(builder, before, LANES), nows)), _i32(0))
        added = builder.extract_element(fold(builder, _add, [builder.load(sums)], LANES), _i32(0))
        builder.store(now, places[0])
        builder.store(_add(builder, builder.fmul(builder.load(places[1]), decay), added), places[1])
        return decay

    return types.float32(bits, *[types.int64] * 4, types.float32, *[types.int64] * 3), generate


@njit(inline="always")
def all_rows(
    bits: Any, bits_out: Any, side: Any, rows: Any, x: Any, x_bytes: Any, strip: Any, words: Any, bias: Any, more: Any,
    out: Any, out_bytes: Any,
) -> None:  # fmt: skip
    """few_rows for any number of rows. The first three are literals where it is called."""
    most = ROWS // side
    chunks, first = (rows + most - 1) // most, 0
    for chunk in range(chunks):
        count = (rows - first + chunks - chunk - 1) // (chunks - chunk)  # as even as can be
        few_rows(
            bits, bits_out, side, count, x + first * x_bytes, x_bytes, strip, words, bias,
            more + first * out_bytes if more != 0 else 0, out + first * out_bytes, out_bytes,
        )  # fmt: skip
        first += count
