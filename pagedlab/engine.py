"""The engine: arrivals in, plans to the executor, outcomes back, everything seen by the recorder."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from pagedlab.core.errors import EngineStalled
from pagedlab.core.plan import Outcome, Plan, Together
from pagedlab.core.request import Request
from pagedlab.executor.base import Executor
from pagedlab.recorder.recorder import Recorder
from pagedlab.recorder.timeline import Step
from pagedlab.scheduler.scheduler import Scheduler


def serve(
    requests: Iterable[Request],
    scheduler: Scheduler,
    executor: Executor,
    recorder: Recorder,
    stop_requested: Callable[[], bool] = lambda: False,
    audit_every: int = 0,
) -> bool:
    """Serve requests (in order of arrival) until all have ended: True; or until asked to stop between two steps: False.

    audit_every: check every invariant each so many steps; 0 never. EngineStalled when nothing can run, or when no
    token is finished in as many steps as a healthy engine could possibly need.
    """
    arrivals = deque(requests)
    executor.clock.start()
    try:
        finished = _loop(arrivals, scheduler, executor, recorder, stop_requested, audit_every)
    finally:
        scheduler.settle()
    if finished:
        scheduler.audit()
    return finished


def _loop(
    arrivals: deque[Request],
    scheduler: Scheduler,
    executor: Executor,
    recorder: Recorder,
    stop_requested: Callable[[], bool],
    audit_every: int,
) -> bool:
    clock, patience = executor.clock, _Patience(scheduler)
    while arrivals or scheduler.has_work:
        if stop_requested():
            return False
        now = clock.now()
        while arrivals and arrivals[0].arrival_s <= now:
            recorder.submitted(scheduler.submit(arrivals.popleft()))
        if not scheduler.has_work:
            if arrivals:
                end, allocator = clock.wait_until(arrivals[0].arrival_s), scheduler.allocator
                recorder.idle(now, end, allocator.usage(), allocator.sharing())
            continue
        coasting = scheduler.coasting(now)
        if coasting is not None:
            _coast(now, *coasting, arrivals, scheduler, executor, recorder)
            patience.saw(True)
            continue
        plan = scheduler.schedule(now)
        usage, sharing = scheduler.allocator.usage(), scheduler.allocator.sharing()
        host_blocks = scheduler.allocator.host_blocks
        if recorder.block_map is not None:
            recorder.block_map.see(now, len(recorder.steps), scheduler.allocator)
        if not plan.num_sequences:
            raise EngineStalled(f"nothing can run: {patience.dump()}")
        outcome = executor.execute(plan)
        end = clock.advance(outcome.seconds)
        progress = _progress(plan, outcome)
        waiting, running = scheduler.num_waiting, scheduler.num_running
        finished = scheduler.commit(plan, outcome, end)
        recorder.step(now, end, plan, outcome, usage, sharing, running, waiting, finished, host_blocks)
        patience.saw(progress)
        if audit_every and len(recorder.steps) % audit_every == 0:
            scheduler.audit()
    return True


def _progress(plan: Plan, outcome: Outcome) -> bool:
    """Whether somebody gets a token that it had not before: not a trunk that is fed once more."""
    if plan.together is not None and plan.together.count:
        return True
    pairs = zip(plan.batch, outcome.tokens, strict=True)
    return any(token >= 0 and not (seq.branches and seq.branches[0].output) for seq, token in pairs)


def _coast(
    now: float,
    together: Together,
    grown: Iterator[int],
    until: float,
    arrivals: deque[Request],
    scheduler: Scheduler,
    executor: Executor,
    recorder: Recorder,
) -> None:
    """Several steps at once, between which there is nothing to decide: what each of them changes is the same, and
    known."""
    allocator, count = scheduler.allocator, together.count
    waiting, running, blocked = scheduler.num_waiting, scheduler.num_running, scheduler.memory_blocked
    steps = executor.coast(together, grown, min(until, arrivals[0].arrival_s) if arrivals else until)
    allocator.fill(count)
    allocator.owe(steps.grown[0])
    usage, sharing = allocator.usage(), allocator.sharing()
    on_host = allocator.host_blocks
    first = Step(now, steps.ends[0], running, waiting, count, count, 0, usage, blocked, sharing, host_blocks=on_host)
    if len(steps.ends) > 1:
        allocator.fill(count * (len(steps.ends) - 1))
        allocator.owe(sum(steps.grown) - steps.grown[0])
    finished = scheduler.coasted(steps, steps.ends[-2] if len(steps.ends) > 1 else now)
    recorder.coasted(first, steps, together, allocator.pool.block_size, bool(allocator.grows), finished)


class _Patience:
    """Ends a run that goes in circles: a thrash of preemptions finishes no token, and would never end by itself.

    A healthy engine feeds its longest prompt in max_model_len / token limit steps and then samples, a preempted request
    of several outputs all that these hold, at most the pool; the 2N steps on top are generous.
    """

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        allocator = scheduler.allocator
        slots = allocator.pool.num_blocks * allocator.pool.block_size
        most_fed = max(allocator.max_model_len, slots)
        self._limit = 2 * allocator.pool.num_blocks + most_fed // scheduler.batching.max_tokens + 1
        self._barren = 0

    def saw(self, sampled: bool) -> None:
        self._barren = 0 if sampled else self._barren + 1
        if self._barren > self._limit:
            raise EngineStalled(f"no token finished in {self._barren} steps: {self.dump()}")

    def dump(self) -> str:
        s = self._scheduler
        s.settle()
        running = [(seq.id, seq.computed, seq.num_tokens, seq.preemptions) for seq in s.running[:8]]
        return f"{s.num_waiting} waiting, {s.allocator.usage()}, running (id, computed, tokens, preemptions) {running}"
