"""The differences between two runs or sweeps, and which of them are more than chance."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from rich.table import Table

from pagedlab.analysis.metrics import METRICS, Metric, known_metrics
from pagedlab.analysis.pairing import Pairs
from pagedlab.analysis.runs import Run
from pagedlab.analysis.statistics import LEVEL, MIN_VALUES, Estimate, estimate, holm
from pagedlab.recorder.reading import read_table

# Columns of requests.parquet -> the metric that is their mean.
_OF_REQUESTS = {
    "ttft_s": "ttft_s_mean",
    "tpot_s": "tpot_s_mean",
    "e2e_s": "e2e_s_mean",
    "normalized_latency_s_per_token": "normalized_latency_s_per_token_mean",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one metric, B - A. count: of pairs that are independent of each other. p: corrected for all the metrics looked
    at; None of too few."""

    metric: Metric
    a: float
    b: float
    count: int
    estimate: Estimate
    p: float | None

    @property
    def verdict(self) -> str:
        if self.p is None:
            return f"not judged: {self.count} of {MIN_VALUES} values needed"
        if self.p >= LEVEL:
            return "no difference shown"
        return "B better" if (self.estimate.mean > 0) == (self.metric.better == "higher") else "B worse"


def compare(pairs: Pairs) -> list[Difference]:
    """Every metric that all runs have. A seed is one value, the mean of its pairs: they were given the same requests,
    and are not independent of each other."""
    by_seed: dict[int, list[tuple[Run, Run]]] = {}
    for a, b in pairs.pairs:
        by_seed.setdefault(a.seed, []).append((a, b))
    metrics = known_metrics([run.summary for pair in pairs.pairs for run in pair])
    return differences([(m, [_means(m.column, same) for same in by_seed.values()]) for m in metrics])


def _means(column: str, pairs: Seq[tuple[Run, Run]]) -> tuple[float, float]:
    a, b = np.mean([[run.summary[column] for run in pair] for pair in pairs], axis=0)
    return float(a), float(b)


def compare_requests(a: Run, b: Run) -> list[Difference]:
    """The latencies of the same requests in two runs, of those that both completed."""
    tables = [read_table(run.folder / "requests.parquet", tuple(_OF_REQUESTS)) for run in (a, b)]
    values: list[tuple[Metric, list[tuple[float, float]]]] = []
    for column, metric in _OF_REQUESTS.items():
        both = np.array([table[column].to_numpy() for table in tables], dtype=np.float64).T
        known = both[~np.isnan(both).any(axis=1)]
        if len(known):
            values.append((METRICS[metric], [(one, other) for one, other in known.tolist()]))
    return differences(values)


def differences(values: Seq[tuple[Metric, Seq[tuple[float, float]]]]) -> list[Difference]:
    """values: of each metric its (A, B) pairs."""
    estimates = [estimate([b - a for a, b in pairs]) for _, pairs in values]
    judged = holm([e.p for e in estimates if e.p is not None])
    corrected = iter(judged)
    return [
        Difference(
            metric,
            float(np.mean([a for a, _ in pairs])),
            float(np.mean([b for _, b in pairs])),
            len(pairs),
            e,
            None if e.p is None else next(corrected),
        )
        for (metric, pairs), e in zip(values, estimates, strict=True)
    ]


def as_table(found: Seq[Difference]) -> pa.Table:
    """One row a metric, for programs."""
    return pa.table(
        {
            "metric": pa.array([d.metric.column for d in found], pa.string()),
            "a": pa.array([d.a for d in found], pa.float64()),
            "b": pa.array([d.b for d in found], pa.float64()),
            "difference": pa.array([d.estimate.mean for d in found], pa.float64()),
            "ci_low": pa.array([d.estimate.low for d in found], pa.float64()),
            "ci_high": pa.array([d.estimate.high for d in found], pa.float64()),
            "p_holm": pa.array([d.p for d in found], pa.float64()),
            "values": pa.array([d.count for d in found], pa.int64()),
            "verdict": pa.array([d.verdict for d in found], pa.string()),
        }
    )


def printed(found: Seq[Difference], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("A", "B", "B - A", "", "95 %", "p"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for d in found:
        m, e = d.metric, d.estimate
        relative = f"{100 * (d.b / d.a - 1):+.1f} %" if d.a else ""
        interval = "" if e.low is None or e.high is None else f"{m.change(e.low)} to {m.change(e.high)}"
        p = "" if d.p is None else f"{d.p:.4f}"
        table.add_row(m.label, m.text(d.a), m.text(d.b), m.change(e.mean), relative, interval, p, d.verdict)
    return table


def verdict(found: Seq[Difference]) -> str:
    """One plain sentence."""
    judged = [d for d in found if d.p is not None]
    shown = [d for d in judged if d.verdict != "no difference shown"]
    if not judged:
        return f"Nothing is judged: an interval needs {MIN_VALUES} seeds."
    if not shown:
        return f"No difference shown in any of {len(judged)} metrics, at 5 % over all of them."
    said = ", ".join(f"{d.metric.label} {d.verdict.removeprefix('B ')}" for d in shown)
    return f"B differs from A in {len(shown)} of {len(judged)} metrics, at 5 % over all of them: {said}."
