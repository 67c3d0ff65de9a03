"""A list of compiled bodies run one after the other by all threads, without a word of Python between. Needs numba.

Each body divides its work among the threads that call it; a barrier keeps the next from beginning before all have
ended. Waiting threads spin: the next body begins within a microsecond. After a while they yield to whoever else wants
the core, or two threads on one core would wait for each other's whole share of it.
"""

from __future__ import annotations

from functools import lru_cache
from platform import machine
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from pagedlab.kernels import cpu_vectors
from pagedlab.kernels.compiled import body, version
from pagedlab.kernels.cpu_vectors import int64s, take

_PATIENCE = 1 << 20  # ticks, on an x86 a few tenths of a millisecond: longer than threads differ by in a body
# Of an ARM the counter of cycles is for the kernel alone, the steady one for all; of an x86 it is the other way round.
_CLOCK = "llvm.readcyclecounter" if machine() in ("x86_64", "AMD64") else "llvm.readsteadycounter"
_i32, _i64 = ir.IntType(32), ir.IntType(64)
_TURN, _ARRIVED, _ROUND = range(3)
_VECTORS = version(cpu_vectors)


def _field(builder: ir.IRBuilder, fields: Any, which: int) -> Any:
    return builder.gep(fields, [_i64(which)])


def _clock(builder: ir.IRBuilder) -> Any:
    kind = ir.FunctionType(_i64, [])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, _CLOCK), [])


@intrinsic
def _call(typing: Any, function: Any, fields: Any) -> Any:
    """The body at an address, on the fields at another."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_i64.as_pointer()])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [builder.inttoptr(args[1], _i64.as_pointer())])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _count(typing: Any, function: Any) -> Any:
    """int f(void) at an address."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_i32, [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), _i64)

    return types.int64(types.int64), generate


@intrinsic
def _ticks(typing: Any) -> Any:
    """The processor's own clock."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return _clock(builder)

    return types.int64(), generate


@intrinsic
def _wait(typing: Any, fields: Any, threads: Any, give_way: Any) -> Any:
    """Until all threads have come here. give_way: address of int f(void), called while it takes long."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        fields, threads, give_way = args
        round_ = _field(builder, fields, _ROUND)
        now = builder.load_atomic(round_, "acquire", 8)
        before = builder.atomic_rmw("add", _field(builder, fields, _ARRIVED), _i64(1), "acq_rel")
        last = builder.icmp_signed("==", builder.add(before, _i64(1)), threads)
        with builder.if_else(last) as (then, otherwise):
            with then:
                builder.store_atomic(_i64(0), _field(builder, fields, _ARRIVED), "monotonic", 8)
                builder.store_atomic(builder.add(now, _i64(1)), round_, "release", 8)
            with otherwise:
                began = _clock(builder)
                check, body, end = (builder.append_basic_block(name) for name in ("check", "spin", "met"))
                builder.branch(check)
                builder.position_at_end(check)
                same = builder.icmp_signed("==", builder.load_atomic(round_, "acquire", 8), now)
                builder.cbranch(same, body, end)
                builder.position_at_end(body)
                spent = builder.sub(_clock(builder), began)
                with builder.if_then(builder.icmp_signed(">", spent, _i64(_PATIENCE))):
                    kind = ir.FunctionType(_i32, [])
                    builder.call(builder.inttoptr(give_way, kind.as_pointer()), [])
                builder.branch(check)
                builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(types.CPointer(types.int64), types.int64, types.int64), generate


@lru_cache
def program_body() -> Any:
    """Fields: 0 next thread, 1 arrived, 2 round (all 0 at first), 3 steps, 4 of each step the body, its fields and the
    ticks that it has taken so far (int64), 5 threads, 6 address of a function that counts them where 5 is a wish, or 0,
    7 address of one that yields the core."""

    vectors = _VECTORS

    def program(fields: Any) -> None:
        f = carray(fields, 8 if vectors >= 0 else 0)
        steps = carray(int64s(f[4]), (f[3], 3))
        threads = f[5] if f[6] == 0 else _count(f[6])
        first = take(fields, _TURN) == 0
        before = _ticks()
        for step in range(f[3]):
            _call(steps[step, 0], steps[step, 1])
            _wait(fields, threads, f[7])
            if first:
                now = _ticks()
                steps[step, 2] += now - before
                before = now

    return body(program)
