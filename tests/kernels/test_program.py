"""A list of bodies run by several threads: each begins when all threads have ended the one before."""

import numpy as np
import pytest
from numba import carray, cfunc

from pagedlab.kernels.cpu_vectors import int64s, take
from pagedlab.kernels.program_compiled import program_body
from pagedlab.kernels.threads import helpers, run

COUNT = 4096


@cfunc("void(CPointer(int64))")
def add_one(fields):
    """to[i] = max(from) + 1 for whichever i are left: wrong where another thread still writes what it reads."""
    f = carray(fields, 4)
    source, target = carray(int64s(f[1]), COUNT), carray(int64s(f[2]), COUNT)
    while True:
        i = take(fields, 0)
        if i >= f[3]:
            break
        target[i] = max(source[i], source[COUNT - 1 - i]) + 1


def program(steps, threads, count=COUNT):
    """From one array to the other and back, `steps` times. Returns the arrays and the ticks of each step."""
    ends = np.zeros((2, COUNT), dtype=np.int64)
    fields = np.array([[0, ends[s % 2].ctypes.data, ends[1 - s % 2].ctypes.data, count] for s in range(steps)])
    rows = np.array([[add_one.address, fields[s].ctypes.data, 0] for s in range(steps)])
    run(program_body(), (0, 0, 0, steps, rows.ctypes.data, threads, *helpers()), threads)
    return ends, rows[:, 2]


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_no_step_begins_before_the_last_has_ended(threads):
    for steps in (1, 2, 5, 200):
        ends, ticks = program(steps, threads)
        assert (ends[steps % 2] == steps).all()
        assert (ends[1 - steps % 2] == max(steps - 1, 0)).all()
        assert (ticks > 0).all()


def test_steps_without_work_for_all_threads():
    ends, _ = program(301, 4, count=1)
    assert ends[1, 0] == 301


def test_without_openmp_a_pool_of_threads_runs_it(monkeypatch):
    from pagedlab.kernels import threads

    monkeypatch.setattr(threads, "_openmp", lambda: None)
    threads.helpers.cache_clear()
    try:
        ends, _ = program(50, 3)
        assert (ends[0] == 50).all()
    finally:
        threads.helpers.cache_clear()
