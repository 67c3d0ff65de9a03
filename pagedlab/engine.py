"""The engine: arrivals in, plans to the executor, outcomes back, everything seen by the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf

from pagedlab.core.arrivals import Arrivals
from pagedlab.core.errors import EngineStalled
from pagedlab.core.plan import Entry, Outcome, Plan, Together
from pagedlab.core.request import Request, Sequence
from pagedlab.executor.base import Executor
from pagedlab.recorder.recorder import Recorder
from pagedlab.recorder.timeline import Piece
from pagedlab.scheduler.scheduler import Scheduler


def serve(
    requests: Iterable[Request],
    scheduler: Scheduler,
    executor: Executor,
    recorder: Recorder,
    stop_requested: Callable[[], bool] = lambda: False,
    audit_every: int = 0,
) -> bool:
    """Serve requests (in order of arrival) and what follows them until all have ended: True; or until asked to stop
    between two steps: False.

    audit_every: check every invariant each so many steps; 0 never. EngineStalled when nothing can run, or when no
    token is finished in as many steps as a healthy engine could possibly need.
    """
    arrivals = Arrivals(requests)
    engine = Engine(scheduler, executor, recorder, arrivals, arrivals.ended, audit_every)
    executor.clock.start()
    try:
        while engine.busy:
            if stop_requested():
                return False
            engine.turn()
    finally:
        scheduler.settle()
    scheduler.audit()
    return True


class Engine:
    """A scheduler and its executor, moved on from outside, a turn at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        recorder: Recorder,
        arrivals: Arrivals,
        ended: Callable[[list[Sequence]], None],
        audit_every: int = 0,
    ):
        """arrivals: what it is to serve. ended: told of those that finished or were refused, branches too."""
        self.scheduler = scheduler
        self.executor = executor
        self.recorder = recorder
        self.arrivals = arrivals
        self._ended = ended
        self._audit_every = audit_every
        # Whether a step has only what all have: no cache to be counted, no blocks on the host.
        self._plain = not scheduler.allocator.caches and scheduler.allocator.host is None
        self._barren = 0  # steps since a token was finished
        self._patience = patience(scheduler)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do, now or later."""
        return self.scheduler.has_work or bool(self.arrivals)

    @property
    def next_s(self) -> float:
        """When it goes on; inf where there is nothing to do."""
        now = self.executor.clock.now()
        return now if self.scheduler.has_work else max(now, self.arrivals.next_s)

    def turn(self, horizon: float = inf) -> None:
        """Take in who has arrived, then wait for the next one, or run a step; or several at once that nobody has to
        plan, which end with the first to end at `horizon` seconds or later. To be called while `busy`."""
        scheduler, executor, recorder, arrivals = self.scheduler, self.executor, self.recorder, self.arrivals
        clock = executor.clock
        now = clock.now()
        while arrivals.next_s <= now:
            seq = scheduler.submit(arrivals.pop())
            recorder.submitted(seq)
            if seq.refusal:
                self._ended([seq])
        if not scheduler.running and not scheduler.has_work:
            if arrivals:
                end = clock.wait_until(arrivals.next_s)
                recorder.idle(now, end, scheduler.allocator.split(), scheduler.allocator.cache_counts())
            return
        coasting = scheduler.coasting(now)
        if coasting is not None:
            self._coast(now, *coasting, horizon)
            return
        entry = scheduler.entering(now)
        if entry is not None:
            self._enter(now, entry)
        else:
            self._step(now)
        if self._audit_every and len(recorder.steps) % self._audit_every == 0:
            scheduler.audit()

    def _step(self, now: float) -> None:
        """A step as it is planned."""
        scheduler, executor, recorder = self.scheduler, self.executor, self.recorder
        plan, allocator = scheduler.schedule(now), scheduler.allocator
        slots, counts, host_blocks = allocator.split(), allocator.cache_counts(), allocator.host_blocks
        if recorder.block_map is not None:
            recorder.block_map.see(now, len(recorder.steps), allocator)
        if not plan.num_sequences:
            raise EngineStalled(f"nothing can run: {self._dump()}")
        outcome = executor.execute(plan)
        end = executor.clock.advance(outcome.seconds)
        progress = _progress(plan, outcome)
        waiting, running = scheduler.num_waiting, scheduler.num_running
        finished = scheduler.commit(plan, outcome, end)
        recorder.step(now, end, plan, outcome, slots, counts, running, waiting, finished, host_blocks)
        if finished:
            self._ended(finished)
        self._barren = 0 if progress else self._barren + 1
        if self._barren > self._patience:
            raise EngineStalled(f"no token finished in {self._barren} steps: {self._dump()}")

    def _enter(self, now: float, entry: Entry) -> None:
        """A step of prompts, which nobody has to plan."""
        scheduler, executor = self.scheduler, self.executor
        slots, running, waiting = scheduler.allocator.split(), scheduler.num_running, scheduler.num_waiting
        seconds, ended = executor.enter(entry)
        end = executor.clock.advance(seconds)
        scheduler.entered(entry, ended, end)
        self.recorder.entered(now, end, entry, slots, running, waiting, ended)
        self._barren = 0
        if ended:
            self._ended(ended)

    def _coast(
        self, now: float, together: Together, grown: Iterator[int], until: float, through: bool, horizon: float
    ) -> None:
        """Several steps at once, between which there is nothing to decide: what each of them changes is known."""
        scheduler, allocator, count = self.scheduler, self.scheduler.allocator, together.count
        waiting, blocked = scheduler.num_waiting, scheduler.memory_blocked
        counts: tuple[int, ...] = ()
        host_blocks = 0
        if not self._plain:
            counts, host_blocks = allocator.cache_counts(), allocator.host_blocks
        steps = self.executor.coast(together, grown, min(until, self.arrivals.next_s, horizon), through)
        ends, start, taken, running = steps.ends, now, 0, scheduler.num_running
        before = scheduler.coasted(ends, ends[-2] if len(ends) > 1 else now)
        pieces, everybody = list[Piece](), list[Sequence]()
        for upto, ended in steps.pieces:
            row = (start, running, waiting, count, count, 0, blocked)
            slots, start = allocator.split(), ends[upto - 1]
            allocator.fill(count * (upto - taken), steps.grown[upto - 1])
            finished = scheduler.left(ended, before + upto, start)
            pieces.append((row, slots, upto - taken, finished))
            everybody += finished
            count, running, taken = count - len(finished), running - len(finished), upto
        size, promises = allocator.pool.block_size, bool(allocator.grows)
        self.recorder.coasted(pieces, counts, host_blocks, steps, together, size, promises)
        self._barren = 0
        if everybody:
            self._ended(everybody)

    def _dump(self) -> str:
        s = self.scheduler
        s.settle()
        running = [(seq.id, seq.computed, seq.num_tokens, seq.preemptions) for seq in s.running[:8]]
        return f"{s.num_waiting} waiting, {s.allocator.usage()}, running (id, computed, tokens, preemptions) {running}"


def _progress(plan: Plan, outcome: Outcome) -> bool:
    """Whether somebody gets a token that it had not before: not a trunk that is fed once more."""
    if plan.together is not None and plan.together.count:
        return True
    for seq, token in zip(plan.batch, outcome.tokens, strict=True):
        if token >= 0 and not (seq.branches and seq.branches[0].output):
            return True
    return False


def patience(scheduler: Scheduler) -> int:
    """In how many steps a healthy engine finishes a token: more of them go in circles, a thrash of preemptions that
    would never end by itself.

    Its longest prompt takes max_model_len / token limit steps before it samples, a preempted request of several outputs
    all that these hold, at most the pool; the 2N steps on top are generous.
    """
    allocator = scheduler.allocator
    slots = allocator.pool.num_blocks * allocator.pool.block_size
    most_fed = max(allocator.max_model_len, slots)
    return 2 * allocator.pool.num_blocks + most_fed // scheduler.batching.max_tokens + 1
