"""The inner loops of `cpu_compiled.py` as LLVM vectors, and the few operations that numba has no word for.

Left to itself LLVM's vectoriser reloads and reconverts keys and values for every query head of a group, because it
cannot know that what is written is not what is read. numba has no bf16 either: it is the upper half of an fp32.

While one tile is computed, the next one is prefetched through the block table, token by token: the hardware's
prefetcher stops at the end of a page of memory and cannot know which comes next. Into the second-level cache: a decode
that prefetches into the first takes 2.0 times as long in fp32, 1.6 times in bf16 (AVX-512, 32 sequences of 2048
tokens, 9 query and 3 key-value heads of 64). Slower for fp32 as well: asking in the order of memory, from several
pages in turn, or for twice as many tokens at once.

Addresses and element offsets are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

TILE = 16  # tokens
GROUP = 4  # query heads that share one pass over a tile; more take another pass, over what is in L1 by then

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
_CHUNKS = 4  # vectors of columns accumulated in registers at once, for each query head of a pass
_ABREAST = 4 if LANES == 16 else 2  # tokens scored at once: with GROUP heads, half of the registers are sums
_LINE = 64
LOWEST = -1e30  # below every score, and the difference of two of them is finite
# 2 ** x from -1/2 to 1/2, the highest power first.
_POLYNOMIAL = (1.5353362e-4, 1.3398874e-3, 9.6184374e-3, 5.5503325e-2, 2.4022648e-1, 6.9314720e-1, 1.0)
FAST = ("reassoc", "contract", "nsz", "arcp")  # not nnan, ninf: a model's own NaN stays one

_i8, _i16, _i32, _i64, _f32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


def _pointer(builder: ir.IRBuilder, address: Any, element: ir.Type) -> Any:
    return builder.inttoptr(address, element.as_pointer())


def _read(builder: ir.IRBuilder, address: Any, at: Any, bits: int, lanes: int) -> Any:
    """lanes numbers of 32 (fp32) or 16 bits (bf16) from the element `at` on, as fp32."""
    element = _f32 if bits == 32 else _i16
    start = builder.gep(_pointer(builder, address, element), [at])
    kind = ir.VectorType(element, lanes)
    vector = builder.load(builder.bitcast(start, kind.as_pointer()), align=bits // 8)
    if bits == 32:
        return vector
    wide = ir.VectorType(_i32, lanes)
    shift = ir.Constant(wide, [16] * lanes)
    return builder.bitcast(builder.shl(builder.zext(vector, wide), shift), ir.VectorType(_f32, lanes))


def _write(builder: ir.IRBuilder, vector: Any, address: Any, at: Any) -> None:
    start = builder.gep(_pointer(builder, address, _f32), [at])
    builder.store(vector, builder.bitcast(start, vector.type.as_pointer()), align=4)


def _int64_at(builder: ir.IRBuilder, address: Any, at: Any) -> Any:
    return builder.load(builder.gep(_pointer(builder, address, _i64), [at]))


def _float_at(builder: ir.IRBuilder, address: Any, at: Any) -> Any:
    return builder.load(builder.gep(_pointer(builder, address, _f32), [at]))


def _variable(builder: ir.IRBuilder, value: Any) -> Any:
    """A variable that holds value; LLVM keeps it in a register."""
    place = cgutils.alloca_once(builder, value.type)
    builder.store(value, place)
    return place


def splat(builder: ir.IRBuilder, number: Any, lanes: int) -> Any:
    nothing = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    first = builder.insert_element(nothing, number, _i32(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_i32, lanes), [0] * lanes))


def larger(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _sum(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=FAST)


def fold(builder: ir.IRBuilder, operation: Any, vectors: list[Any], lanes: int) -> Any:
    """Lanes folded by `lanes` neighbours (a power of two), the vectors packed into one: those of vectors[0] first."""
    count = vectors[0].type.count
    pick = [ir.Constant(ir.VectorType(_i32, count), [2 * i + odd for i in range(count)]) for odd in (0, 1)]
    vectors = vectors + vectors[:1] * (-len(vectors) % (1 << (len(vectors) - 1).bit_length()))
    while lanes > 1:
        seconds = vectors[1::2] or vectors
        vectors = [
            operation(builder, *(builder.shuffle_vector(a, b, lane) for lane in pick))
            for a, b in zip(vectors[::2], seconds, strict=True)
        ]
        lanes //= 2
    return vectors[0]


def _totals(builder: ir.IRBuilder, vectors: list[Any]) -> Any:
    """The sums of the lanes of _ABREAST vectors, as so many lanes. Shuffled within 128 bits, which is cheap, until each
    such part holds a number of every vector; then the parts are added."""
    lanes = vectors[0].type.count
    if lanes == 1:
        first, *others = vectors
        joined = splat(builder, builder.extract_element(first, _i32(0)), _ABREAST)
        for i, one in enumerate(others, 1):
            joined = builder.insert_element(joined, builder.extract_element(one, _i32(0)), _i32(i))
        return joined
    picks = [
        [part + lane + source for part in range(0, lanes, 4) for source in (0, lanes) for lane in (odd, odd + 2)]
        for odd in (0, 1)
    ]

    def folded(a: Any, b: Any) -> Any:
        masks = (ir.Constant(ir.VectorType(_i32, lanes), pick) for pick in picks)
        return _sum(builder, *(builder.shuffle_vector(a, b, mask) for mask in masks))

    pairs = [folded(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    total = folded(pairs[0], pairs[-1])
    while (half := total.type.count // 2) >= 4:
        ends = (ir.Constant(ir.VectorType(_i32, half), list(range(at, at + half))) for at in (0, half))
        total = _sum(builder, *(builder.shuffle_vector(total, total, end) for end in ends))
    return _first(builder, total, _ABREAST)


def _multiply_add(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=FAST), c, flags=FAST)


def _first(builder: ir.IRBuilder, vector: Any, lanes: int) -> Any:
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_i32, lanes), list(range(lanes))))


def exp2(builder: ir.IRBuilder, x: Any) -> Any:
    """2 ** x in fp32 for x <= 0, lane by lane, relative error below 2e-7: a library call is not to be had for vectors.

    The whole part goes into the exponent's bits, the rest, -1/2 to 1/2, into a polynomial."""
    lanes = x.type.count

    def number(value: float) -> Any:
        return ir.Constant(ir.VectorType(_f32, lanes), [float(np.float32(value))] * lanes)

    lowest = number(-126)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    kind = ir.FunctionType(x.type, [x.type])
    floor = cgutils.get_or_insert_function(builder.module, kind, f"llvm.floor.v{lanes}f32")
    whole = builder.call(floor, [builder.fadd(x, number(0.5))])
    rest = builder.fsub(x, whole)
    power = number(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        power = _multiply_add(builder, power, rest, number(factor))
    wide = ir.VectorType(_i32, lanes)
    exponent = builder.add(builder.fptosi(whole, wide), ir.Constant(wide, [127] * lanes))
    scale = builder.bitcast(builder.shl(exponent, ir.Constant(wide, [23] * lanes)), x.type)
    return builder.fmul(power, scale)


def prefetch_line(builder: ir.IRBuilder, pointer: Any, locality: int) -> None:
    """Ask for the line at an i8 pointer, to be read. locality: 3 into the first cache, 2 into the second."""
    kind = ir.FunctionType(ir.VoidType(), [_i8.as_pointer(), _i32, _i32, _i32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [pointer, _i32(0), _i32(locality), _i32(1)])


def _prefetch(builder: ir.IRBuilder, address: Any, at: Any, dim: Any, bits: int) -> None:
    """Ask for the cache lines of dim elements from `at` on."""
    size = _i64(bits // 8)
    start = builder.gep(_pointer(builder, address, _i8), [builder.mul(at, size)])
    with cgutils.for_range_slice(builder, _i64(0), builder.mul(dim, size), _i64(_LINE)) as (byte, _):
        prefetch_line(builder, builder.gep(start, [byte]), 2)


def _widths(builder: ir.IRBuilder, dim: Any) -> tuple[tuple[int, Any, Any], tuple[int, Any, Any]]:
    """(lanes, first column, end) that cover dim columns: whole vectors, then one by one."""
    whole = builder.and_(dim, _i64(-LANES))
    return (LANES, _i64(0), whole), (1, whole, dim)


def _for_each_group(builder: ir.IRBuilder, group: Any, emit: Callable[[int], None]) -> None:
    """Code for each number of heads up to GROUP, of which the one for `group` runs."""
    for heads in range(1, GROUP + 1):
        with builder.if_then(builder.icmp_signed("==", group, _i64(heads))):
            emit(heads)


@intrinsic(prefer_literal=True)
def tile_scores(
    typing: Any, bits: Any, group: Any, query: Any, keys: Any, rows: Any, column: Any, count: Any, dim: Any,
    scores: Any, next_rows: Any,
) -> Any:  # fmt: skip
    """scores[g, t] = query[g] . keys[rows[t] + column], g < group, t < count. bits: a literal, 32 or 16. For the rest
    of a tile, of which it may write some, rows has to name any slot there is.

    query fp32 [group, dim], rows and next_rows int64 [TILE], scores fp32 [GROUP, TILE]. Prefetches
    keys[next_rows[t] + column]; what lies there, or that nothing does, is of no consequence.
    """
    width = bits.literal_value

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        _, group, query, keys, rows, column, count, dim, scores, next_rows = args

        def emit(heads: int) -> None:
            with cgutils.for_range_slice(builder, _i64(0), count, _i64(_ABREAST)) as (first, _):
                tokens = [builder.add(first, _i64(t)) for t in range(_ABREAST)]
                for token in tokens:
                    _prefetch(builder, keys, builder.add(_int64_at(builder, next_rows, token), column), dim, width)
                starts = [builder.add(_int64_at(builder, rows, token), column) for token in tokens]
                for g, total in enumerate(dots(starts, heads)):
                    _write(builder, total, scores, builder.add(first, _i64(g * TILE)))

        def dots(starts: list[Any], heads: int) -> list[Any]:
            """For each head a vector of the tokens' products: a key read serves all heads, a query all tokens."""
            totals = [ir.Constant(ir.VectorType(_f32, _ABREAST), [0.0] * _ABREAST)] * heads
            for lanes, first, end in _widths(builder, dim):
                zero = ir.Constant(ir.VectorType(_f32, lanes), [0.0] * lanes)
                sums = [[_variable(builder, zero) for _ in starts] for _ in range(heads)]
                with cgutils.for_range_slice(builder, first, end, _i64(lanes)) as (at, _):
                    read = [_read(builder, keys, builder.add(start, at), width, lanes) for start in starts]
                    for g, row in enumerate(sums):
                        factor = _read(builder, query, builder.add(builder.mul(dim, _i64(g)), at), 32, lanes)
                        for key, one in zip(read, row, strict=True):
                            builder.store(_multiply_add(builder, key, factor, builder.load(one)), one)
                added = [_totals(builder, [builder.load(one) for one in row]) for row in sums]
                totals = [_sum(builder, a, b) for a, b in zip(totals, added, strict=True)]
            return totals

        _for_each_group(builder, group, emit)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 9), generate


@intrinsic
def tile_weights(typing: Any, group: Any, scores: Any, count: Any, maxima: Any, sums: Any, decay: Any) -> Any:
    """The online softmax: scores[g, t] become weights, 0 from t = count on. maxima and sums fp32 [group] go on; what
    was summed before is to be multiplied by decay[g] (fp32 [group])."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        group, scores, count, maxima, sums, decay = args
        numbers = ir.VectorType(_i64, LANES)
        end = splat(builder, count, LANES)
        lowest = ir.Constant(ir.VectorType(_f32, LANES), [LOWEST] * LANES)
        inside = [
            builder.icmp_signed("<", ir.Constant(numbers, [t + i for i in range(LANES)]), end)
            for t in range(0, TILE, LANES)
        ]

        def emit(heads: int) -> None:
            places = [[_i64(g * TILE + t) for t in range(0, TILE, LANES)] for g in range(heads)]
            tiles = [
                [
                    builder.select(known, _read(builder, scores, place, 32, LANES), lowest)
                    for known, place in zip(inside, row, strict=True)
                ]
                for row in places
            ]
            largest = [reduce(partial(larger, builder), tile) for tile in tiles]
            before = _read(builder, maxima, _i64(0), 32, heads)
            now = larger(builder, before, _first(builder, fold(builder, larger, largest, LANES), heads))
            shrink = exp2(builder, builder.fsub(before, now))
            totals = []
            for g, (tile, row) in enumerate(zip(tiles, places, strict=True)):
                top = splat(builder, builder.extract_element(now, _i32(g)), LANES)
                weights = [exp2(builder, builder.fsub(vector, top)) for vector in tile]
                for weight, place in zip(weights, row, strict=True):
                    _write(builder, weight, scores, place)
                totals.append(reduce(partial(_sum, builder), weights))
            total = _first(builder, fold(builder, _sum, totals, LANES), heads)
            sums_before = _read(builder, sums, _i64(0), 32, heads)
            _write(builder, _multiply_add(builder, sums_before, shrink, total), sums, _i64(0))
            _write(builder, now, maxima, _i64(0))
            _write(builder, shrink, decay, _i64(0))

        _for_each_group(builder, group, emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6), generate


@intrinsic(prefer_literal=True)
def tile_values(
    typing: Any, bits: Any, group: Any, weights: Any, values: Any, rows: Any, column: Any, count: Any, dim: Any,
    decay: Any, sums: Any, next_rows: Any,
) -> Any:  # fmt: skip
    """sums[g] = sums[g] * decay[g] + sum over t < count of weights[g, t] * values[rows[t] + column].

    weights fp32 [GROUP, TILE], sums fp32 [group, dim], decay fp32 [group]; the rest as in tile_scores.
    """
    width = bits.literal_value

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        _, group, weights, values, rows, column, count, dim, decay, sums, next_rows = args

        def emit(heads: int) -> None:
            with cgutils.for_range(builder, count) as loop:
                _prefetch(builder, values, builder.add(_int64_at(builder, next_rows, loop.index), column), dim, width)
            whole = builder.and_(dim, _i64(-LANES * _CHUNKS))
            (lanes, _, end), (one, rest, last) = _widths(builder, dim)
            for first, stop, width_of_one, chunks in (
                (_i64(0), whole, lanes, _CHUNKS),
                (whole, end, lanes, 1),
                (rest, last, one, 1),
            ):
                with cgutils.for_range_slice(builder, first, stop, _i64(width_of_one * chunks)) as (at, _):
                    columns(at, heads, width_of_one, chunks)

        def columns(at: Any, heads: int, lanes: int, chunks: int) -> None:
            """All tokens of the tile, for `chunks` vectors of columns from `at` on: their sums stay in registers."""
            places, totals = [], []
            for g in range(heads):
                factor = splat(builder, _float_at(builder, decay, _i64(g)), lanes)
                for c in range(chunks):
                    place = builder.add(builder.mul(dim, _i64(g)), builder.add(at, _i64(c * lanes)))
                    before = builder.fmul(_read(builder, sums, place, 32, lanes), factor)
                    places.append(place)
                    totals.append(_variable(builder, before))
            with cgutils.for_range(builder, count) as loop:
                start = builder.add(builder.add(_int64_at(builder, rows, loop.index), column), at)
                places_in_row = [builder.add(start, _i64(c * lanes)) for c in range(chunks)]
                value = [_read(builder, values, place, width, lanes) for place in places_in_row]
                for g in range(heads):
                    weight = _float_at(builder, weights, builder.add(loop.index, _i64(g * TILE)))
                    factor = splat(builder, weight, lanes)
                    for c in range(chunks):
                        total = totals[g * chunks + c]
                        builder.store(_multiply_add(builder, value[c], factor, builder.load(total)), total)
            for place, total in zip(places, totals, strict=True):
                _write(builder, builder.load(total), sums, place)

        _for_each_group(builder, group, emit)
        return context.get_dummy_value()

    return types.void(bits, *[types.int64] * 10), generate


@intrinsic
def touch(typing: Any, address: Any) -> Any:
    """Ask for the line at an address, and so for the translation of its page."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        prefetch_line(builder, _pointer(builder, args[0], _i8), 2)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def take(typing: Any, counters: Any, which: Any) -> Any:
    """The next number of counters[which] (int64 pointer): each is given out once, whichever thread asks."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", builder.gep(args[0], [args[1]]), _i64(1), "monotonic")

    return types.int64(types.CPointer(types.int64), types.int64), generate


def _pointer_to(number: Any, element: ir.Type) -> Any:
    """From an address to a pointer that numba's carray takes."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
            return _pointer(builder, args[0], element)

        return types.CPointer(number)(types.int64), generate

    return pointer


int64s = _pointer_to(types.int64, _i64)
int32s = _pointer_to(types.int32, _i32)
floats = _pointer_to(types.float32, _f32)


@intrinsic
def copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """memcpy between addresses, size in bytes."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        cgutils.raw_memcpy(builder, _pointer(builder, args[0], _i8), _pointer(builder, args[1], _i8), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def power_of_two(typing: Any, x: Any) -> Any:
    """2 ** x in fp32 for x <= 0."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.extract_element(exp2(builder, splat(builder, args[0], 1)), _i32(0))

    return types.float32(types.float32), generate
