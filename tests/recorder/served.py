"""What the tests of the recorder share: small runs whose whole timeline can be worked out by hand."""

from __future__ import annotations

from pagedlab.engine import serve
from pagedlab.recorder.metrics import SPLIT, split_over_time, summarize
from pagedlab.recorder.recorder import Recorder
from tests.lab import make_executor, make_scheduler

FRACTIONS = [f"kv_{kind}_fraction" for kind in SPLIT]


def served(requests, num_blocks, step_s=1.0, token_s=0.0, copy_s=0.0, swap_s=0.0, eos=None, stop_after=None, **choices):
    """Serve on the virtual clock, a step a second unless said: (recorder, summary)."""
    scheduler = make_scheduler(num_blocks, **choices)
    executor = make_executor(scheduler, eos, step_s=step_s, token_s=token_s, copy_s=copy_s, swap_s=swap_s)
    recorder = Recorder()
    stop = (lambda: False) if stop_after is None else (lambda: len(recorder.steps) >= stop_after)
    done = serve(requests, scheduler, executor, recorder, stop, audit_every=1)
    pool = scheduler.allocator.pool
    host = scheduler.allocator.host
    status = "completed" if done else "interrupted"
    return recorder, summarize(recorder, pool.num_blocks, pool.block_size, status, host.pool.num_blocks if host else 0)


def split_rows(recorder):
    """(token_states, reserved, internal, block_tail, cached_idle, free, external) of each row, in slots."""
    return list(zip(*(split_over_time(recorder)[kind].tolist() for kind in SPLIT), strict=True))
