"""The claims of the paper's text: what it says, and what our points say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedlab.paper.points import Point
from pagedlab.paper.sweep import LATENCY, knees_of

# What lies inside the published range widened by so much of its ends is called agreement.
SLACK = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """published: in words. low, high: what it allows, None where it does not bound. ours: values of it by our points,
    none where a figure that it needs was not run."""

    said: str
    published: str
    low: float | None
    high: float | None
    ours: Callable[[list[Point]], list[float]]
    unit: str


@dataclass(frozen=True, slots=True)
class Finding:
    said: str
    published: str
    ours: str
    verdict: str


def findings(points: list[Point]) -> list[Finding]:
    """Of the claims whose figures were run."""
    found = []
    for claim in _CLAIMS:
        values = claim.ours(points)
        if values:
            least, most = min(values), max(values)
            ours = f"{least:.3g}{claim.unit}" if least == most else f"{least:.3g} to {most:.3g}{claim.unit}"
            found.append(Finding(claim.said, claim.published, ours, _verdict(claim, values)))
    return found


def _verdict(claim: Claim, values: list[float]) -> str:
    within = [
        (claim.low is None or value >= claim.low * (1 - SLACK))
        and (claim.high is None or value <= claim.high * (1 + SLACK))
        for value in values
    ]
    if all(within):
        return "agrees"
    return f"agrees in {sum(within)} of {len(within)}" if any(within) else "differs"


def _waste(*systems: str) -> Callable[[list[Point]], list[float]]:
    """All that holds no token, % of the memory."""
    return lambda points: [
        100 - p.value for p in points if p.metric == "share_token_pct" and p.system in systems and p.value is not None
    ]


def _more(other: str, *panels: str) -> Callable[[list[Point]], list[float]]:
    """Capacity of vLLM over that of another."""

    def ours(points: list[Point]) -> list[float]:
        pairs = [(knees.get("vllm"), knees.get(other)) for knees in (knees_of(points, panel) for panel in panels)]
        return [a.value / b.value for a, b in pairs if a and b and a.value and b.value]

    return ours


def _of(metric: str, figure: str, workload: str = "") -> Callable[[list[Point]], list[float]]:
    return lambda points: [
        p.value
        for p in points
        if p.metric == metric and p.figure == figure and p.workload.startswith(workload) and p.value is not None
    ]


def _recompute_over_swap(points: list[Point]) -> list[float]:
    """The most that recomputing costs over swapping in and out, %, over block sizes."""
    times = {(p.metric, p.x): p.value for p in points if p.figure == "19a" and p.value}
    over = [
        100 * (times["recompute_ms", x] / swap - 1) for (name, x), swap in times.items() if name == "swap_in_out_ms"
    ]
    return [max(over)] if over else []


def _best_block(workload: str) -> Callable[[list[Point]], list[float]]:
    def ours(points: list[Point]) -> list[float]:
        of = [p for p in points if p.figure == "18b" and p.workload == workload and p.metric == LATENCY]
        if not of:
            return []
        # The smallest that is within 5 % of the best: what a user would take.
        least = min(p.value or 0.0 for p in of)
        return [min(p.x or 0.0 for p in of if (p.value or 0.0) <= 1.05 * least)]

    return ours


_ALL = ("12a", "12b", "12c", "12d", "12e", "12f")
_CLAIMS = (
    Claim("KV memory wasted before", "60 to 80 %", 60, 80, _waste("orca_max", "orca_pow2", "orca_oracle"), " %"),
    Claim("KV memory wasted by vLLM", "under 4 %", None, 4, _waste("vllm"), " %"),
    Claim(
        "more throughput at the same latency than Orca (Oracle)", "2 to 4 x", 2, 4, _more("orca_oracle", *_ALL), " x"
    ),
    Claim(
        "rate over Orca (Oracle), ShareGPT", "1.7 to 2.7 x", 1.7, 2.7, _more("orca_oracle", "12a", "12b", "12c"), " x"
    ),
    Claim("rate over Orca (Max), ShareGPT", "2.7 to 8 x", 2.7, 8, _more("orca_max", "12a", "12b", "12c"), " x"),
    Claim("rate over FasterTransformer", "up to 22 x", None, 22, _more("fastertransformer", *_ALL), " x"),
    Claim("saved by sharing, parallel, Alpaca", "6.1 to 9.8 %", 6.1, 9.8, _of("saving_parallel_pct", "15a"), " %"),
    Claim("saved by sharing, beams, Alpaca", "37.6 to 55.2 %", 37.6, 55.2, _of("saving_beam_pct", "15a"), " %"),
    Claim(
        "the paged kernel costs more than a contiguous one (A100, simulated)",
        "20 to 26 %",
        20,
        26,
        _of("paging_overhead_pct", "18a", "simulated"),
        " %",
    ),
    Claim(
        "the same on this machine's CPU", "20 to 26 %", 20, 26, _of("paging_overhead_pct", "18a", "this machine"), " %"
    ),
    Claim("recomputing costs over swapping at most", "20 %", None, 20, _recompute_over_swap, " %"),
    Claim("smallest block within 5 % of the best, ShareGPT", "16", 16, 16, _best_block("sharegpt"), " tokens"),
    Claim("smallest block within 5 % of the best, Alpaca", "16", 16, 16, _best_block("alpaca"), " tokens"),
)
