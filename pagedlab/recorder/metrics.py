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
from dataclasses import dataclass
from math import isnan, nan
from operator import sub
from typing import Any

import numpy as np

from pagedlab.allocator.base import Sharing
from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Sequence, Status
from pagedlab.core.told import Stamps
from pagedlab.recorder.fairness import service_gap
from pagedlab.recorder.recorder import Recorder

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


def delays_of(seqs: list[Sequence]) -> dict[str, np.ndarray]:
    """ttft_s, tpot_s, e2e_s, normalized_latency_s_per_token of each sequence, float64, NaN where it has none."""
    arrival = np.array([seq.request.arrival_s for seq in seqs])
    first = np.array([seq.token_s[0] if len(seq.token_s) else nan for seq in seqs])
    last = np.array([seq.token_s[-1] if len(seq.token_s) else nan for seq in seqs])
    count = np.array([len(seq.token_s) for seq in seqs], dtype=np.float64)
    finish = np.array([nan if seq.finish_s is None else seq.finish_s for seq in seqs])
    count[np.isnan(finish)] = nan
    e2e = finish - arrival
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "ttft_s": first - arrival,
            "tpot_s": np.where(count > 1, (last - first) / (count - 1), nan),
            "e2e_s": e2e,
            "normalized_latency_s_per_token": np.where(count > 0, e2e / count, nan),
        }


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


def longest_gaps(seqs: list[Sequence]) -> np.ndarray:
    """The longest time between two tokens of each request, a stall: float64 [requests], NaN of fewer than two tokens.

    Within a stretch of times that many share, it is the longest of a range of the gaps between those.
    """
    longest = np.full(len(seqs), nan)
    shared: array[float] = array("d")
    owners, starts, stops = array("q"), array("q"), array("q")  # of ranges of gaps
    for i, seq in enumerate(seqs):
        times = seq.token_s
        if not isinstance(times, Stamps):
            longest[i] = max(map(sub, times[1:], times[:-1]), default=nan)
            continue
        shared, last, most = times.shared, nan, nan
        for part in times.parts:
            if isinstance(part, tuple):
                first, end = shared[part[0]], shared[part[1] - 1]
                if part[1] - part[0] > 1:
                    owners.append(i)
                    starts.append(part[0])
                    stops.append(part[1] - 1)
            else:
                first = end = part
            most = first - last if not most >= first - last else most
            last = end
        longest[i] = most
    if len(owners):
        found = np.append(np.diff(np.array(shared)), nan)
        by_start = np.argsort(np.array(starts), kind="stable")  # what lies between two ranges is looked at once
        ranges = np.stack([np.array(starts), np.array(stops)], axis=1)[by_start].ravel()
        np.fmax.at(longest, np.array(owners)[by_start], np.fmax.reduceat(found, ranges)[::2])
    return longest


def waits(recorder: Recorder) -> dict[int, float]:
    """Request id -> seconds from its arrival to its first admission, of those admitted."""
    arrivals = {seq.id: seq.request.arrival_s for seq in recorder.sequences}
    return {id: start - arrivals[id] for id, start in recorder.admitted_s.items()}


def waits_by_size(recorder: Recorder, waited: dict[int, float]) -> dict[str, dict[str, float | None]]:
    """How long prompts of each class of size waited to be admitted. waited: as `waits` says."""
    of: dict[int | None, list[float]] = {limit: [] for limit in (*SIZE_CLASSES, None)}
    for seq in recorder.sequences:
        if seq.id in waited:
            size = seq.request.prompt_tokens
            of[next((limit for limit in SIZE_CLASSES if size <= limit), None)].append(waited[seq.id])
    return {f"wait_s_prompt_to_{limit or 'any'}": spread(values) for limit, values in of.items()}


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


def _gaps(seqs: list[Sequence]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds between the tokens of each sequence, all together, and how often each counts.

    A step that many sequences took together is a gap of all of them: found once, and counted.
    """
    single, starts, stops = array("d"), array("q"), array("q")
    shared: array[float] = array("d")
    for seq in seqs:
        times = seq.token_s
        if not isinstance(times, Stamps):
            single.extend(map(sub, times[1:], times[:-1]))
            continue
        if times.shared is not shared and len(starts):
            raise InvariantError("token times of two runs at once")
        shared, last = times.shared, None
        for part in times.parts:
            if isinstance(part, tuple):
                start, stop = part
                first, end = shared[start], shared[stop - 1]
                starts.append(start + 1)
                stops.append(stop)
            else:
                first = end = part
            if last is not None:
                single.append(first - last)
            last = end
    found = np.diff(np.array(shared))
    if not len(found):
        return np.array(single), np.ones(len(single), dtype=np.int64)
    size = len(found) + 2
    change = np.bincount(np.array(starts), minlength=size) - np.bincount(np.array(stops), minlength=size)
    counts = np.cumsum(change)[1:-1]
    return np.concatenate([found, single]), np.concatenate([counts, np.ones(len(single), dtype=np.int64)])


def ratio(a: float, b: float) -> float:
    return float(a / b) if b else 0.0


def _over_time(values: np.ndarray, seconds: np.ndarray) -> float:
    """The sum of value x seconds. Not by `@`, whose threads take longer to wake up than the sum."""
    return float(np.sum(values * seconds))


def summarize(
    recorder: Recorder,
    num_blocks: int,
    block_size: int,
    status: str,
    host_num_blocks: int = 0,
    slo: Slo = NO_SLO,
    service_weights: tuple[float, float] = (1.0, 2.0),
) -> dict[str, Any]:
    """The scalars of a run. status: completed, interrupted or failed. service_weights: of a prompt's and of a generated
    token, in the service gap."""
    seqs = recorder.sequences
    done = [seq for seq in seqs if seq.status is Status.FINISHED]
    weights = durations(recorder)
    duration = float(weights.sum())
    split = split_over_time(recorder)
    slot_seconds = {kind: _over_time(slots, weights) for kind, slots in split.items()}
    pool_seconds = num_blocks * block_size * duration
    allocated = sum(slot_seconds[kind] for kind in ("token_states", "reserved", "internal", "block_tail"))
    steps = recorder.steps
    full = steps.column("memory_blocked")
    held = sum(split[kind] for kind in ("token_states", "reserved", "internal", "block_tail"))
    running, tokens, prefill = steps.column("running"), steps.column("tokens"), steps.column("prefill_tokens")
    prompt_tokens = sum(seq.request.prompt_tokens for seq in done)
    output_tokens = sum(seq.output_tokens for seq in seqs)
    computed = int(tokens.sum())
    mapped, saved = steps.column("sharing.mapped"), steps.column("sharing.saved")
    recomputed = sum(seq.recomputed_tokens for seq in seqs)
    found = steps[-1].sharing if len(steps) else Sharing()
    fed = prefill / np.maximum(1, tokens)
    prefill_tokens = int(prefill.sum())
    delays = {name: spread(values[~np.isnan(values)]) for name, values in delays_of(done).items()}
    stalls, waited, met = longest_gaps(done), waits(recorder), slo.met_by(seqs)
    asked = any(each is not None for each in met)
    preempted = [seq.preemptions for seq in seqs if not seq.refusal]
    preemptions = [record for _, _, record in recorder.preemptions]
    returns = [record for _, _, record in recorder.returns]
    on_host, out_s, in_s = steps.column("host_blocks"), steps.column("swap_out_s"), steps.column("swap_in_s")

    return {
        "status": status,
        "schema_version": SCHEMA_VERSION,
        "num_requests": len(seqs),
        "completed": len(done),
        "refused": sum(seq.status is Status.REFUSED for seq in seqs),
        "duration_s": duration,
        "steps": int(np.count_nonzero(steps.column("batch"))),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "computed_tokens": computed,
        "output_tokens_per_s": ratio(output_tokens, duration),
        "total_tokens_per_s": ratio(prompt_tokens + output_tokens, duration),
        "requests_per_s": ratio(len(done), duration),
        "mean_batch_size": ratio(_over_time(running, weights), duration),
        "peak_batch_size": int(running.max(initial=0)),
        "kv_num_blocks": num_blocks,
        "block_size": block_size,
        **{f"kv_{kind}_fraction": ratio(slot_seconds[kind], pool_seconds) for kind in SPLIT},
        "kv_waste_fraction": 1 - ratio(slot_seconds["token_states"], allocated) if allocated else 0.0,
        "kv_waste_fraction_when_full": (
            1 - ratio(_over_time(split["token_states"] * full, weights), _over_time(held * full, weights))
            if full.any()
            else None
        ),
        "memory_blocked_fraction": ratio(_over_time(full, weights), duration),
        "kv_peak_held_fraction": ratio(float(np.max(held, initial=0)), num_blocks * block_size),
        "blocks_saved_fraction": ratio(_over_time(saved, weights), _over_time(mapped, weights)),
        "blocks_saved_fraction_peak": float(np.max(saved / np.maximum(mapped, 1), initial=0)),
        "prefix_queried_tokens": found.queried_tokens,
        "prefix_hit_tokens": found.hit_tokens,
        "prefix_hit_rate": ratio(found.hit_tokens, found.queried_tokens),
        "prefix_lost_tokens": found.lost_tokens,
        "prefix_copied_tokens": found.copied_tokens,
        "prefix_evicted_blocks": found.evictions,
        "prefix_regretted_blocks": found.regretted,
        "prefill_saved_s": found.hit_tokens * ratio(float(fed @ weights), prefill_tokens),
        "blocks_copied": int(steps.column("copies").sum()),
        "copy_s": float(steps.column("copy_s").sum()),
        "goodput_fraction": ratio(met.count(True), len(met)) if asked else None,
        "goodput_requests_per_s": ratio(met.count(True), duration) if asked else None,
        "preemptions": len(recorder.preemptions),
        "preemptions_outranked": sum(record.reason == "outranked" for record in preemptions),
        "preempted_requests": sum(count > 0 for count in preempted),
        "preemptions_per_request": spread(preempted) | {"max": max(preempted, default=None)},
        "recomputed_tokens": recomputed,
        "recompute_tax": ratio(recomputed, computed),
        "swaps": sum(record.kind == "swap" for record in preemptions),
        "swap_fallbacks": sum(record.fallback for record in preemptions),
        "swapped_out_bytes": sum(record.bytes_moved for record in preemptions),
        "swapped_in_bytes": sum(record.bytes_moved for record in returns),
        "swapped_bytes": sum(record.bytes_moved for record in preemptions)
        + sum(record.bytes_moved for record in returns),
        "swap_attached_blocks": sum(record.blocks_attached for record in returns),
        "swap_out_s": float(out_s.sum()),
        "swap_in_s": float(in_s.sum()),
        "swap_s": float(out_s.sum() + in_s.sum()),
        "host_num_blocks": host_num_blocks,
        "host_used_fraction": ratio(_over_time(on_host, weights), host_num_blocks * duration),
        "host_used_fraction_peak": ratio(int(on_host.max(initial=0)), host_num_blocks),
        "service_gap_tokens": service_gap(recorder, *service_weights),
        "wait_s": spread(list(waited.values())),
        "longest_wait_s": max(waited.values(), default=None),
        **waits_by_size(recorder, waited),
        "max_itl_s": spread(stalls[~np.isnan(stalls)]),
        "ttft_s": delays["ttft_s"],
        "tpot_s": delays["tpot_s"],
        "itl_s": spread(*_gaps(done)),
        "e2e_s": delays["e2e_s"],
        "normalized_latency_s_per_token": delays["normalized_latency_s_per_token"],
    }
