"""The formulas: from what the recorder saw to the numbers of summary.json. docs/metrics.md says the same in prose.

Latencies, per request, in seconds (names and formulas of vLLM's benchmark):
    ttft = first token - arrival        tpot = (e2e - ttft) / (output tokens - 1), requests of 2 or more tokens
    itl  = every gap between two tokens e2e  = last token - arrival
    normalized latency = e2e / output tokens (PagedAttention, SOSP 2023, section 6.1)
where the tokens of a request of several outputs come in steps: one output token a step in which it generated any.
Memory: the split of the slots, weighted by the time that each row of the timeline holds.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from pagedlab.allocator.base import Sharing
from pagedlab.core.request import Sequence, Status
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
    usage = np.array(
        [(s.usage.tokens, s.usage.reserved, s.usage.block_tail, s.usage.cached_idle, s.usage.free) for s in steps],
        dtype=np.int64,
    ).reshape(len(steps), 5)
    blocked = np.array([s.memory_blocked for s in steps], dtype=bool)
    return {
        "token_states": usage[:, 0],
        "reserved": usage[:, 1] - internal,
        "internal": internal,
        "block_tail": usage[:, 2],
        "cached_idle": usage[:, 3],
        "free": np.where(blocked, 0, usage[:, 4]),
        "external": np.where(blocked, usage[:, 4], 0),
    }


def durations(recorder: Recorder) -> np.ndarray:
    """Seconds that each row of the timeline holds: to the start of the next row, the last step to its own end.

    A wait after the last step (for a request that was then refused, say) holds nothing: the run was over.
    """
    steps = recorder.steps
    count = next((i for i in range(len(steps), 0, -1) if steps[i - 1].batch), 0)
    seconds = np.zeros(len(steps))
    if count:
        seconds[:count] = np.diff([s.start_s for s in steps[:count]], append=steps[count - 1].end_s)
    return seconds


def latencies(seq: Sequence) -> dict[str, float | None]:
    """ttft_s, tpot_s, e2e_s, normalized_latency_s_per_token of one sequence; None where it has none."""
    arrival, times = seq.request.arrival_s, seq.token_s
    first = times[0] - arrival if times else None
    if seq.finish_s is None:
        return {"ttft_s": first, "tpot_s": None, "e2e_s": None, "normalized_latency_s_per_token": None}
    e2e = seq.finish_s - arrival
    n = len(times)
    return {
        "ttft_s": first,
        "tpot_s": (times[-1] - times[0]) / (n - 1) if n > 1 else None,
        "e2e_s": e2e,
        "normalized_latency_s_per_token": e2e / n,
    }


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request is to be served in; None is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def met_by(self, seq: Sequence) -> bool | None:
        """None where nothing is asked for. A request that did not end as it should has not met it; one of a single
        token has no time per token that it could exceed (as in vLLM's benchmark)."""
        if self.ttft_s is None and self.tpot_s is None:
            return None
        if seq.status is not Status.FINISHED or seq.finish_reason == "abort":
            return False
        took = latencies(seq)
        limits = ((took["ttft_s"], self.ttft_s), (took["tpot_s"], self.tpot_s))
        return all(limit is None or value is None or value <= limit for value, limit in limits)


NO_SLO = Slo()


def longest_gap(seq: Sequence) -> float | None:
    """The longest time between two tokens of a request: a stall."""
    return max((b - a for a, b in pairwise(seq.token_s)), default=None)


def waits(recorder: Recorder) -> dict[int, float]:
    """Request id -> seconds from its arrival to its first admission, of those admitted."""
    arrivals = {seq.id: seq.request.arrival_s for seq in recorder.sequences}
    return {id: start - arrivals[id] for id, start in recorder.admitted_s.items()}


def waits_by_size(recorder: Recorder) -> dict[str, dict[str, float | None]]:
    """How long prompts of each class of size waited to be admitted."""
    waited, classes = waits(recorder), (*SIZE_CLASSES, None)
    of: dict[int | None, list[float]] = {limit: [] for limit in classes}
    for seq in recorder.sequences:
        if seq.id in waited:
            size = seq.request.prompt_tokens
            of[next((limit for limit in SIZE_CLASSES if size <= limit), None)].append(waited[seq.id])
    return {f"wait_s_prompt_to_{limit or 'any'}": spread(of[limit]) for limit in classes}


def spread(values: Seq[float] | np.ndarray) -> dict[str, float | None]:
    """mean and linear-interpolated percentiles; None of nothing."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return {"mean": float(np.mean(values)), "p50": float(p50), "p90": float(p90), "p99": float(p99)}


def ratio(a: float, b: float) -> float:
    return float(a / b) if b else 0.0


def summarize(
    recorder: Recorder,
    num_blocks: int,
    block_size: int,
    status: str,
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
    slot_seconds = {kind: float(slots @ weights) for kind, slots in split.items()}
    pool_seconds = num_blocks * block_size * duration
    allocated = sum(slot_seconds[kind] for kind in ("token_states", "reserved", "internal", "block_tail"))
    full = np.array([s.memory_blocked for s in recorder.steps], dtype=bool)
    held = sum(split[kind] for kind in ("token_states", "reserved", "internal", "block_tail"))
    running = np.array([s.running for s in recorder.steps], dtype=np.int64)
    prompt_tokens = sum(seq.request.prompt_tokens for seq in done)
    output_tokens = sum(seq.output_tokens for seq in seqs)
    computed = sum(s.tokens for s in recorder.steps)
    mapped = np.array([s.sharing.mapped for s in recorder.steps], dtype=np.int64)
    saved = np.array([s.sharing.saved for s in recorder.steps], dtype=np.int64)
    recomputed = sum(seq.recomputed_tokens for seq in seqs)
    found = recorder.steps[-1].sharing if recorder.steps else Sharing()
    fed = np.array([s.prefill_tokens / max(1, s.tokens) for s in recorder.steps])
    prefill_tokens = sum(s.prefill_tokens for s in recorder.steps)
    per_request = [latencies(seq) for seq in done]
    waited = waits(recorder)
    met = [slo.met_by(seq) for seq in seqs]
    asked = any(each is not None for each in met)
    preemptions = [seq.preemptions for seq in seqs if not seq.refusal]
    gaps = [np.diff(seq.token_s) for seq in done if len(seq.token_s) > 1]

    def of(name: str) -> dict[str, float | None]:
        return spread([value for row in per_request if (value := row[name]) is not None])

    return {
        "status": status,
        "schema_version": SCHEMA_VERSION,
        "num_requests": len(seqs),
        "completed": len(done),
        "refused": sum(seq.status is Status.REFUSED for seq in seqs),
        "duration_s": duration,
        "steps": sum(s.batch > 0 for s in recorder.steps),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "computed_tokens": computed,
        "output_tokens_per_s": ratio(output_tokens, duration),
        "total_tokens_per_s": ratio(prompt_tokens + output_tokens, duration),
        "requests_per_s": ratio(len(done), duration),
        "mean_batch_size": ratio(float(running @ weights), duration),
        "peak_batch_size": int(running.max(initial=0)),
        "kv_num_blocks": num_blocks,
        "block_size": block_size,
        **{f"kv_{kind}_fraction": ratio(slot_seconds[kind], pool_seconds) for kind in SPLIT},
        "kv_waste_fraction": 1 - ratio(slot_seconds["token_states"], allocated) if allocated else 0.0,
        "kv_waste_fraction_when_full": (
            1 - ratio(float((split["token_states"] * full) @ weights), float((held * full) @ weights))
            if full.any()
            else None
        ),
        "memory_blocked_fraction": ratio(float(full @ weights), duration),
        "kv_peak_held_fraction": ratio(float(np.max(held, initial=0)), num_blocks * block_size),
        "blocks_saved_fraction": ratio(float(saved @ weights), float(mapped @ weights)),
        "blocks_saved_fraction_peak": float(np.max(saved / np.maximum(mapped, 1), initial=0)),
        "prefix_queried_tokens": found.queried_tokens,
        "prefix_hit_tokens": found.hit_tokens,
        "prefix_hit_rate": ratio(found.hit_tokens, found.queried_tokens),
        "prefix_lost_tokens": found.lost_tokens,
        "prefix_copied_tokens": found.copied_tokens,
        "prefix_evicted_blocks": found.evictions,
        "prefix_regretted_blocks": found.regretted,
        "prefill_saved_s": found.hit_tokens * ratio(float(fed @ weights), prefill_tokens),
        "blocks_copied": sum(s.copies for s in recorder.steps),
        "copy_s": sum(s.copy_s for s in recorder.steps),
        "goodput_fraction": ratio(met.count(True), len(met)) if asked else None,
        "goodput_requests_per_s": ratio(met.count(True), duration) if asked else None,
        "preemptions": len(recorder.preemptions),
        "preemptions_outranked": sum(record.reason == "outranked" for _, _, record in recorder.preemptions),
        "preempted_requests": sum(count > 0 for count in preemptions),
        "preemptions_per_request": spread(preemptions) | {"max": max(preemptions, default=None)},
        "recomputed_tokens": recomputed,
        "recompute_tax": ratio(recomputed, computed),
        "service_gap_tokens": service_gap(recorder, *service_weights),
        "wait_s": spread(list(waited.values())),
        "longest_wait_s": max(waited.values(), default=None),
        **waits_by_size(recorder),
        "max_itl_s": spread([gap for seq in done if (gap := longest_gap(seq)) is not None]),
        "ttft_s": of("ttft_s"),
        "tpot_s": of("tpot_s"),
        "itl_s": spread(np.concatenate(gaps) if gaps else []),
        "e2e_s": of("e2e_s"),
        "normalized_latency_s_per_token": of("normalized_latency_s_per_token"),
    }
