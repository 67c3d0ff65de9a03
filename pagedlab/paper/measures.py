"""What the paper counts, from what a recorder saw."""

from __future__ import annotations

import numpy as np

from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.core.request import Sequence, Status
from pagedlab.paper.bench import Served
from pagedlab.recorder.metrics import delays_of, durations, split_over_time

SHARES = ("token", "reservation", "internal", "external")


def mean_batch(served: Served) -> float:
    """Requests that hold memory, a mean over the time in which requests arrived."""
    steps = served.recorder.steps
    weights = durations(served.recorder) * (steps.column("start_s") < served.last_arrival_s)
    return float(np.average(steps.column("running"), weights=weights))


def normalized_latency_s(served: Served) -> float:
    """Mean over requests of end-to-end latency / output tokens (section 6.1). The run must have drained. What runs in
    static batches is answered when the whole batch has ended (Orca, OSDI 2022, section 3)."""
    if served.lab.scheduler.batching.answers_together:
        ended = _ended(served)
        arrived = np.array([seq.request.arrival_s for seq in ended])
        return float(np.mean((_batch_ends(ended) - arrived) / [len(seq.token_s) for seq in ended]))
    return float(np.mean(delays_of(served.recorder.sequences)["normalized_latency_s_per_token"]))


def _batch_ends(ended: list[Sequence]) -> np.ndarray:
    """When the last of each sequence's batch ended, float64 [sequences]. Nobody enters a batch before all of the one
    before have ended: in the order of first tokens, who begins after all the others' ends begins a batch."""
    first = np.array([seq.token_s[0] for seq in ended])
    last = np.array([seq.token_s[-1] for seq in ended])
    order = np.argsort(first, kind="stable")
    latest = np.maximum.accumulate(last[order])
    begins = np.flatnonzero(first[order][1:] > latest[:-1]) + 1
    batch = np.searchsorted(begins, np.arange(len(order)), side="right")
    ends = np.empty(len(order))
    ends[order] = latest[np.append(begins, len(order))[batch] - 1]
    return ends


def memory_shares(served: Served) -> dict[str, float | None]:
    """The shares of Fig. 2, % of the pool, a mean over the time in which a request waited for memory; None where none
    did: what nobody lacks is not wasted. Only while requests arrived.

    token: slots that hold a token. reservation: slots that the same request will still fill. internal: slots of
    its own that it will never fill. external: everything else, also what an allocator added to round a run up, which
    the paper counts with the allocator's fragmentation (its Orca (Oracle), of buddy runs, has no internal share).
    """
    recorder, steps = served.recorder, served.recorder.steps
    within = steps.column("memory_blocked") & (steps.column("start_s") < served.last_arrival_s)
    weights = durations(recorder) * within
    if not weights.sum():
        return dict.fromkeys(SHARES)
    split = split_over_time(recorder)
    kept, lost = split["reserved"] + split["block_tail"], split["internal"]
    rounded = _rounded_up(served)
    lost = lost - rounded
    last_tails = _last_tails(served)
    slots = {
        "token": split["token_states"],
        "reservation": kept - last_tails,
        "internal": lost + last_tails,
        "external": split["external"] + split["free"] + rounded,
    }
    pool = served.lab.scheduler.allocator.pool
    whole = pool.num_blocks * pool.block_size
    return {name: 100 * float(np.average(values, weights=weights)) / whole for name, values in slots.items()}


def saved_share(served: Served, by_instant: bool = False) -> float:
    """Fig. 15: blocks saved by sharing, % of the blocks that there would be without, a ratio of means over time; or,
    by_instant, the mean over time of the ratio at each instant, in which a long request's blocks weigh no more."""
    steps, weights = served.recorder.steps, durations(served.recorder)
    saved, mapped = steps.column("sharing.saved"), steps.column("sharing.mapped")
    if by_instant:
        some = mapped > 0
        return 100 * float(np.average(saved[some] / mapped[some], weights=weights[some]))
    return 100 * float(np.sum(saved * weights) / np.sum(mapped * weights))


def _ended(served: Served) -> list[Sequence]:
    return [seq for seq in served.recorder.sequences if seq.status is Status.FINISHED]


def _rounded_up(served: Served) -> np.ndarray:
    """Slots of runs beyond what the policy asked for, int64 [steps]. From a request's first token on: the step that
    fed its prompt is left out."""
    allocator = served.lab.scheduler.allocator
    if not isinstance(allocator, ContiguousAllocator):
        return np.zeros(len(served.recorder.steps), dtype=np.int64)
    size = allocator.pool.block_size
    spans = [
        (seq.token_s[0], seq.token_s[-1], allocator.max_blocks(seq.request) * size - allocator.slots(seq.request))
        for seq in _ended(served)
    ]
    return _over_steps(served, spans)


def _last_tails(served: Served) -> np.ndarray:
    """Slots of last blocks that no token will come into, int64 [steps], while the request works in that block."""
    allocator = served.lab.scheduler.allocator
    spans = []
    if allocator.grows:
        size = allocator.pool.block_size
        for seq in _ended(served):
            filled = seq.request.prompt_tokens + seq.output_tokens - 1
            steps_in_block = min((filled - 1) % size + 1, seq.output_tokens - 1)
            times = np.asarray(seq.token_s)
            spans.append((float(times[-1 - steps_in_block]), float(times[-1]), -filled % size))
    return _over_steps(served, spans)


def _over_steps(served: Served, spans: list[tuple[float, float, int]]) -> np.ndarray:
    """The sum of the spans (from, until, slots) that hold in each step."""
    ends = served.recorder.steps.column("end_s")
    change = np.zeros(len(ends) + 1, dtype=np.int64)
    if spans:
        first, last, slots = (np.array(side) for side in zip(*spans, strict=True))
        # Tokens come at the ends of steps: the span is of the steps after the first one, the last one included.
        np.add.at(change, np.searchsorted(ends, first, side="right"), slots)
        np.add.at(change, np.searchsorted(ends, last, side="right"), -slots)
    return np.cumsum(change)[:-1]
