"""The formulas: from what the recorder saw to the numbers of summary.json. docs/metrics.md says the same in prose.

Latencies, per request, in seconds (names and formulas of vLLM's benchmark):
    ttft = first token - arrival        tpot = (e2e - ttft) / (output tokens - 1), requests of 2 or more tokens
    itl  = every gap between two tokens e2e  = last token - arrival
    normalized latency = e2e / output tokens (PagedAttention, SOSP 2023, section 6.1)
where the tokens of a request of several outputs come in steps: one output token a step in which it generated any.
Memory: the split of the slots, weighted by the time that each row of the timeline holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import isnan, nan
from operator import sub
from struct import Struct
from typing import Any, TypeVar

import numpy as np

from pagedlab.allocator.base import Sharing
from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Sequence, Status
from pagedlab.core.told import Stamps
from pagedlab.recorder.fairness import service_gap
from pagedlab.recorder.recorder import Recorder

T = TypeVar("T")

SCHEMA_VERSION = 1
SIZE_CLASSES = (64, 256, 1024, 4096)  # prompt tokens, up to which one is of that class
SPLIT = ("token_states", "reserved", "internal", "block_tail", "cached_idle", "free", "external")


def split_over_time(recorder: Recorder) -> dict[str, np.ndarray]:
    """Slots of each kind, int64 [steps]; every row sums to N x B.

    reserved: promised slots that the sequence did fill later in the same stay. internal: promised slots it never
    filled, known when the stay has ended (an unfinished stay counts as reserved). external: free slots in steps in
    which the next waiting request was refused its blocks.
    """
    steps = recorder.steps
    change = np.zeros(len(steps) + 1, dtype=np.int64)
    for first, end, unused in recorder.stays:
        if unused:
            change[first] += unused
            change[end] -= unused
    internal = np.cumsum(change)[: len(steps)]
    blocked, free = steps.column("memory_blocked"), steps.column("usage.free")
    return {
        "token_states": steps.column("usage.tokens"),
        "reserved": steps.column("usage.reserved") - internal,
        "internal": internal,
        "block_tail": steps.column("usage.block_tail"),
        "cached_idle": steps.column("usage.cached_idle"),
        "free": np.where(blocked, 0, free),
        "external": np.where(blocked, free, 0),
    }


def durations(recorder: Recorder) -> np.ndarray:
    """Seconds that each row of the timeline holds: to the start of the next row, the last step to its own end.

    A wait after the last step (for a request that was then refused, say) holds nothing: the run was over.
    """
    steps = recorder.steps
    ran = np.flatnonzero(steps.column("batch"))
    seconds = np.zeros(len(steps))
    if len(ran):
        count = ran[-1] + 1
        seconds[:count] = np.diff(steps.column("start_s")[:count], append=steps.column("end_s")[count - 1])
    return seconds


class Columns:
    """What is asked of each of these sequences, [sequences], seconds NaN where there are none. In one walk: to look at
    a sequence again takes longer than to compute with what it said."""

    def __init__(self, seqs: Seq[Sequence]):
        rows, pack = bytearray(), Struct("11d").pack
        for seq in seqs:
            request, times = seq.request, seq.token_s
            count, finish = len(times), seq.finish_s
            first, last = (
                (nan, nan) if not count else times.ends() if isinstance(times, Stamps) else (times[0], times[-1])
            )
            rows += pack(
                request.arrival_s,
                first,
                last,
                nan if finish is None else finish,
                count,
                len(request.prompt),
                seq.output_tokens if seq.branches else len(seq.output),
                seq.recomputed_tokens,
                seq.preemptions,
                seq.status is Status.FINISHED,
                seq.status is Status.REFUSED,
            )
        columns = np.frombuffer(rows).reshape(-1, 11).T
        self.arrival, self.first, self.last, self.finish, self.count = columns[:5]
        self.prompt_tokens, self.output_tokens, self.recomputed_tokens, self.preemptions = columns[5:9].astype(np.int64)
        self.finished, self.refused = columns[9:].astype(bool)

    def delays(self) -> dict[str, np.ndarray]:
        """As `delays_of`."""
        count = np.where(np.isnan(self.finish), nan, self.count)
        e2e = self.finish - self.arrival
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                "ttft_s": self.first - self.arrival,
                "tpot_s": np.where(count > 1, (self.last - self.first) / (count - 1), nan),
                "e2e_s": e2e,
                "normalized_latency_s_per_token": np.where(count > 0, e2e / count, nan),
            }


def delays_of(seqs: Seq[Sequence]) -> dict[str, np.ndarray]:
    """ttft_s, tpot_s, e2e_s, normalized_latency_s_per_token of each sequence, float64, NaN where it has none."""
    return Columns(seqs).delays()


def latencies(seq: Sequence) -> dict[str, float | None]:
    """The same of one sequence; None where it has none."""
    return {name: None if isnan(values[0]) else float(values[0]) for name, values in delays_of([seq]).items()}


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request is to be served in; None is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met_by(self, seqs: list[Sequence]) -> list[bool | None]:
        """None where nothing is asked for. A request that did not end as it should has not met it; one of a single
        token has no time per token that it could exceed (as in vLLM's benchmark)."""
        if self.ttft_s is None and self.tpot_s is None:
            return [None] * len(seqs)
        ended = [seq.status is Status.FINISHED and seq.finish_reason != "abort" for seq in seqs]
        met, delays = np.array(ended, dtype=bool), delays_of(seqs)
        for took, limit in ((delays["ttft_s"], self.ttft_s), (delays["tpot_s"], self.tpot_s)):
            if limit is not None:
                met &= ~(took > limit)  # NaN, no time at all, is not
        return [bool(one) for one in met]


NO_SLO = Slo()


class Gaps:
    """The seconds between two tokens of sequences of one run.

    single: gaps that belong to one sequence each, `single_of` says to which. Of the steps that many take together, each
    sequence has stretches: the gaps `starts` to `stops` of those between the times that all share, `shared`.
    """

    def __init__(self, seqs: list[Sequence]):
        self._count = len(seqs)
        single, single_of, starts, stops, stretch_of = array("d"), array("q"), array("q"), array("q"), array("q")
        shared: array[float] = array("d")
        for i, seq in enumerate(seqs):
            times = seq.token_s
            if not isinstance(times, Stamps):
                single.extend(map(sub, times[1:], times[:-1]))
                single_of.extend([i] * (len(times) - 1))
                continue
            if times.shared is not shared:
                if len(starts):
                    raise InvariantError("token times of two runs at once")
                shared = times.shared
            last = None
            for part in times.parts:
                if isinstance(part, tuple):
                    start, stop = part
                    first, end = shared[start], shared[stop - 1]
                    if stop - start > 1:
                        stretch_of.append(i)
                        starts.append(start)
                        stops.append(stop - 1)
                else:
                    first = end = part
                if last is not None:
                    single.append(first - last)
                    single_of.append(i)
                last = end
        self.single, self.single_of = np.array(single), np.array(single_of)
        self.starts, self.stops, self.stretch_of = np.array(starts), np.array(stops), np.array(stretch_of)
        self.shared = np.diff(np.array(shared))

    def longest(self) -> np.ndarray:
        """Of each sequence, a stall: float64 [sequences], NaN of fewer than two tokens."""
        longest = np.full(self._count, nan)
        np.fmax.at(longest, self.single_of, self.single)
        if len(self.starts):
            found = np.append(self.shared, nan)
            by_start = np.argsort(self.starts, kind="stable")  # what lies between two stretches is looked at once
            ranges = np.stack([self.starts, self.stops], axis=1)[by_start].ravel()
            np.fmax.at(longest, self.stretch_of[by_start], np.fmax.reduceat(found, ranges)[::2])
        return longest

    def counted(self) -> tuple[np.ndarray, np.ndarray]:
        """All of them, float64, and how often each counts: one that is shared is there once."""
        once = np.ones(len(self.single), dtype=np.int64)
        if not len(self.shared):
            return self.single, once
        size = len(self.shared) + 1
        change = np.bincount(self.starts, minlength=size) - np.bincount(self.stops, minlength=size)
        return np.concatenate([self.shared, self.single]), np.concatenate([np.cumsum(change)[:-1], once])


def waits(recorder: Recorder) -> dict[int, float]:
    """Request id -> seconds from its arrival to its first admission, of those admitted."""
    arrivals = {seq.id: seq.request.arrival_s for seq in recorder.sequences}
    return {id: start - arrivals[id] for id, start in recorder.admitted_s.items()}


def waits_by_size(
    seqs: list[Sequence], prompt_tokens: np.ndarray, waited: dict[int, float]
) -> dict[str, dict[str, float | None]]:
    """How long prompts of each class of size waited to be admitted. prompt_tokens: int [sequences]. waited: as `waits`
    says."""
    seconds = np.array([waited.get(seq.id, nan) for seq in seqs])
    admitted = ~np.isnan(seconds)
    seconds, classes = seconds[admitted], np.searchsorted(SIZE_CLASSES, prompt_tokens[admitted])
    return {f"wait_s_prompt_to_{to}": spread(seconds[classes == i]) for i, to in enumerate((*SIZE_CLASSES, "any"))}


def spread(values: list[float] | list[int] | np.ndarray, weights: np.ndarray | None = None) -> dict[str, float | None]:
    """mean and linear-interpolated percentiles; None of nothing. weights: how often each value counts, int."""
    known = np.asarray(values, dtype=np.float64)
    if weights is not None:
        known, weights = known[weights > 0], weights[weights > 0]
    if not len(known):
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    if weights is None:
        p50, p90, p99 = np.percentile(known, (50, 90, 99))
        return {"mean": float(np.mean(known)), "p50": float(p50), "p90": float(p90), "p99": float(p99)}
    order = np.argsort(known)
    ranked, through = known[order], np.cumsum(weights[order])
    result: dict[str, float | None] = {"mean": float(np.sum(known * weights) / through[-1])}
    for percent in (50, 90, 99):
        # As numpy does it with every value written out: between the neighbours of the place (n - 1) percent / 100.
        place = (int(through[-1]) - 1) * (percent / 100)
        low = int(place)
        below, above = ranked[np.searchsorted(through, (low, min(low + 1, int(through[-1]) - 1)), side="right")]
        share = place - low
        result[f"p{percent}"] = float(below + (above - below) * share)
    return result


def ratio(a: float, b: float) -> float:
    return float(a / b) if b else 0.0


def _over_time(values: np.ndarray, seconds: np.ndarray) -> float:
    """The sum of value x seconds. Not by `@`, whose threads take longer to wake up than the sum."""
    return float(np.sum(values * seconds))


class _Run:
    """One engine's timeline, and how long each row of it holds."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self._of_steps: dict[str, np.ndarray] = {}
        self.weights = durations(recorder)
        self.duration = float(self.weights.sum())
        self.split = split_over_time(recorder)
        split = self.split
        self.held = split["token_states"] + split["reserved"] + split["internal"] + split["block_tail"]
        self.full = self.column("memory_blocked")
        self.done = [seq for seq in recorder.sequences if seq.status is Status.FINISHED]

    def prefill_saved_s(self) -> float:
        """What the hits would have taken, at the mean time that a token of a prompt took."""
        tokens, prefill = self.column("tokens"), self.column("prefill_tokens")
        fed = prefill / np.maximum(1, tokens)
        return self.sharing.hit_tokens * ratio(float(fed @ self.weights), int(prefill.sum()))

    @property
    def sharing(self) -> Sharing:
        """At the end."""
        return self.recorder.steps[-1].sharing if len(self.recorder.steps) else Sharing()

    def column(self, name: str) -> np.ndarray:
        if name not in self._of_steps:
            self._of_steps[name] = self.recorder.steps.column(name)
        return self._of_steps[name]


def _peak_batch(runs: list[_Run]) -> int:
    """The most sequences that ran at once, on all replicas."""
    times = np.concatenate([np.append(run.column("start_s"), run.column("end_s")[-1:]) for run in runs])
    running = [run.column("running") for run in runs]
    changes = np.concatenate([np.diff(of, prepend=0, append=0) if len(of) else of for of in running])
    return int(np.cumsum(changes[np.argsort(times, kind="stable")]).max(initial=0))


def summarize(
    recorders: Recorder | Seq[Recorder],
    num_blocks: int,
    block_size: int,
    status: str,
    host_num_blocks: int = 0,
    slo: Slo = NO_SLO,
    service_weights: tuple[float, float] = (1.0, 2.0),
) -> dict[str, Any]:
    """The scalars of a run. status: completed, interrupted or failed. service_weights: of a prompt's and of a generated
    token, in the service gap.

    Of several replicas, each with its own pool of num_blocks: counts, rates and batches are of all together, and the
    run lasts as long as the longest. Shares of memory and of time are over the time that each was running; peaks of
    them, and the service gap, are the highest of one replica.
    """
    runs = [_Run(recorder) for recorder in ([recorders] if isinstance(recorders, Recorder) else recorders)]

    def over_time(value: Callable[[_Run], np.ndarray]) -> float:
        return sum(_over_time(value(run), run.weights) for run in runs)

    def total(column: str) -> Any:
        return sum(run.column(column).sum() for run in runs)

    def peak(value: Callable[[_Run], np.ndarray]) -> float:
        return float(max(np.max(value(run), initial=0) for run in runs))

    def records(of: Callable[[Recorder], Seq[tuple[float, int, T]]]) -> list[T]:
        return [record for run in runs for _, _, record in of(run.recorder)]

    seqs = [seq for run in runs for seq in run.recorder.sequences]
    columns = Columns(seqs)
    done = columns.finished
    completed = int(np.count_nonzero(done))
    duration, running_s = max(run.duration for run in runs), sum(run.duration for run in runs)
    slot_seconds = {kind: over_time(lambda run, kind=kind: run.split[kind]) for kind in SPLIT}  # type: ignore[misc]
    pool_seconds = num_blocks * block_size * running_s
    allocated = sum(slot_seconds[kind] for kind in ("token_states", "reserved", "internal", "block_tail"))
    prompt_tokens = int(columns.prompt_tokens[done].sum())
    output_tokens = int(columns.output_tokens.sum())
    computed = int(total("tokens"))
    recomputed = int(columns.recomputed_tokens.sum())
    found = Sharing(*map(sum, zip(*(run.sharing for run in runs), strict=True)))
    below = found.host_hit_tokens + found.disk_hit_tokens
    delays = {name: spread(values[done & ~np.isnan(values)]) for name, values in columns.delays().items()}
    gaps = [Gaps(run.done) for run in runs]
    stalls = np.concatenate([of.longest() for of in gaps])
    counted = zip(*(of.counted() for of in gaps), strict=True)
    waited: dict[int, float] = {}
    for run in runs:
        waited |= waits(run.recorder)
    met = slo.met_by(seqs)
    asked = any(each is not None for each in met)
    preempted = columns.preemptions[~columns.refused]
    preemptions, returns = records(lambda recorder: recorder.preemptions), records(lambda recorder: recorder.returns)
    out_s, in_s = float(total("swap_out_s")), float(total("swap_in_s"))
    service_gaps = [service_gap(run.recorder, *service_weights) for run in runs]

    return {
        "status": status,
        "schema_version": SCHEMA_VERSION,
        "num_requests": len(seqs),
        "completed": completed,
        "refused": int(np.count_nonzero(columns.refused)),
        "duration_s": duration,
        "steps": sum(int(np.count_nonzero(run.column("batch"))) for run in runs),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "computed_tokens": computed,
        "output_tokens_per_s": ratio(output_tokens, duration),
        "total_tokens_per_s": ratio(prompt_tokens + output_tokens, duration),
        "requests_per_s": ratio(completed, duration),
        "mean_batch_size": ratio(over_time(lambda run: run.column("running")), duration),
        "peak_batch_size": _peak_batch(runs),
        "kv_num_blocks": num_blocks,
        "block_size": block_size,
        **{f"kv_{kind}_fraction": ratio(slot_seconds[kind], pool_seconds) for kind in SPLIT},
        "kv_waste_fraction": 1 - ratio(slot_seconds["token_states"], allocated) if allocated else 0.0,
        "kv_waste_fraction_when_full": (
            1
            - ratio(
                over_time(lambda run: run.split["token_states"] * run.full), over_time(lambda run: run.held * run.full)
            )
            if any(run.full.any() for run in runs)
            else None
        ),
        "memory_blocked_fraction": ratio(over_time(lambda run: run.full), running_s),
        "kv_peak_held_fraction": ratio(peak(lambda run: run.held), num_blocks * block_size),
        "blocks_saved_fraction": ratio(
            over_time(lambda run: run.column("sharing.saved")), over_time(lambda run: run.column("sharing.mapped"))
        ),
        "blocks_saved_fraction_peak": peak(
            lambda run: run.column("sharing.saved") / np.maximum(run.column("sharing.mapped"), 1)
        ),
        "prefix_queried_tokens": found.queried_tokens,
        "prefix_hit_tokens": found.hit_tokens,
        "prefix_hit_rate": ratio(found.hit_tokens, found.queried_tokens),
        "tier_hit_tokens": {"device": found.hit_tokens - below, "host": found.host_hit_tokens}
        | {"disk": found.disk_hit_tokens},
        "tier_hit_rate": ratio(below, found.queried_tokens),
        "tier_load_s": float(total("load_s")),
        "tier_store_s": float(total("store_s")),
        "prefix_lost_tokens": found.lost_tokens,
        "prefix_copied_tokens": found.copied_tokens,
        "prefix_evicted_blocks": found.evictions,
        "prefix_regretted_blocks": found.regretted,
        "prefill_saved_s": sum(run.prefill_saved_s() for run in runs),
        "blocks_copied": int(total("copies")),
        "copy_s": float(total("copy_s")),
        "goodput_fraction": ratio(met.count(True), len(met)) if asked else None,
        "goodput_requests_per_s": ratio(met.count(True), duration) if asked else None,
        "preemptions": len(preemptions),
        "preemptions_outranked": sum(record.reason == "outranked" for record in preemptions),
        "preempted_requests": int(np.count_nonzero(preempted)),
        "preemptions_per_request": spread(preempted) | {"max": int(preempted.max()) if len(preempted) else None},
        "recomputed_tokens": recomputed,
        "recompute_tax": ratio(recomputed, computed),
        "swaps": sum(record.kind == "swap" for record in preemptions),
        "swap_fallbacks": sum(record.fallback for record in preemptions),
        "swapped_out_bytes": sum(record.bytes_moved for record in preemptions),
        "swapped_in_bytes": sum(record.bytes_moved for record in returns),
        "swapped_bytes": sum(record.bytes_moved for record in preemptions)
        + sum(record.bytes_moved for record in returns),
        "swap_attached_blocks": sum(record.blocks_attached for record in returns),
        "swap_out_s": out_s,
        "swap_in_s": in_s,
        "swap_s": out_s + in_s,
        "host_num_blocks": host_num_blocks,
        "host_used_fraction": ratio(over_time(lambda run: run.column("host_blocks")), host_num_blocks * running_s),
        "host_used_fraction_peak": ratio(peak(lambda run: run.column("host_blocks")), host_num_blocks),
        "service_gap_tokens": max((gap for gap in service_gaps if gap is not None), default=None),
        "wait_s": spread(list(waited.values())),
        "longest_wait_s": max(waited.values(), default=None),
        **waits_by_size(seqs, columns.prompt_tokens, waited),
        "max_itl_s": spread(stalls[~np.isnan(stalls)]),
        "ttft_s": delays["ttft_s"],
        "tpot_s": delays["tpot_s"],
        "itl_s": spread(*map(np.concatenate, counted)),
        "e2e_s": delays["e2e_s"],
        "normalized_latency_s_per_token": delays["normalized_latency_s_per_token"],
    }
