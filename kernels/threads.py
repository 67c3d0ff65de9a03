"""Compiled bodies on several threads: those that torch itself runs on."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any


def run(body: Any, fields: tuple[int, ...], threads: int) -> None:
    """Run a compiled body on this many threads at once; they share its fields. Addresses in them are kept alive by the
    caller."""
    array = (ctypes.c_int64 * len(fields))(*fields)
    if threads == 1:
        body.ctypes(array)
    elif (parallel := _openmp()) is not None:
        parallel(body.address, ctypes.addressof(array), threads, 0)
    else:
        list(_pool(threads).map(body.ctypes, [array] * threads))


@cache
def helpers() -> tuple[int, int]:
    """Addresses of two functions int f(void): one says on how many threads the body that calls it is run (0: as many
    as were asked for), one yields the core to whoever else waits for it."""
    library = ctypes.CDLL(None)
    counted = 0 if _openmp() is None else _address(library.omp_get_num_threads)
    return counted, _address(library.sched_yield)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _openmp() -> Any:
    """The entry of the OpenMP library that torch itself runs on: GOMP_parallel(function, data, threads, flags).

    Threads of our own (numba's `omp` layer loads a second libgomp, `workqueue` has a pool) would compete with torch's,
    which keep spinning on their cores after each operation. None where torch runs on something else.
    """
    function = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
    return function


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "pagedlab-cpu")
