"""The metrics by which runs are compared: what they are called, how they are written, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of a run's flat summary. better: "higher" or "lower". form: percent, or the format of a number."""

    column: str
    label: str
    better: str
    form: str = ".3f"

    def text(self, value: Any) -> str:
        """A value for people; `-` for none."""
        if value is None:
            return "-"
        if isinstance(value, int):
            return str(value)
        return f"{100 * value:.1f} %" if self.form == "percent" else f"{value:{self.form}}"

    def change(self, value: float) -> str:
        """A difference for people: shares in points."""
        return f"{100 * value:+.2f} pts" if self.form == "percent" else f"{value:+{self.form}}"


METRICS = {
    metric.column: metric
    for metric in (
        Metric("kv_waste_fraction", "waste", "lower", "percent"),
        Metric("kv_waste_fraction_when_full", "waste, pool full", "lower", "percent"),
        Metric("mean_batch_size", "mean batch", "higher", ".2f"),
        Metric("output_tokens_per_s", "output tokens/s", "higher", ".1f"),
        Metric("requests_per_s", "requests/s", "higher", ".3f"),
        Metric("ttft_s_mean", "TTFT, mean (s)", "lower", ".4f"),
        Metric("ttft_s_p99", "TTFT, p99 (s)", "lower", ".4f"),
        Metric("tpot_s_mean", "TPOT, mean (s)", "lower", ".4f"),
        Metric("itl_s_p99", "ITL, p99 (s)", "lower", ".4f"),
        Metric("e2e_s_mean", "end to end, mean (s)", "lower", ".3f"),
        Metric("normalized_latency_s_per_token_mean", "normalized latency (s/token)", "lower", ".4f"),
        Metric("prefix_hit_rate", "prefix hits", "higher", "percent"),
        Metric("blocks_saved_fraction", "saved by sharing", "higher", "percent"),
        Metric("goodput_fraction", "met the SLO", "higher", "percent"),
        Metric("preemptions", "preemptions", "lower", ".1f"),
        Metric("recompute_tax", "recomputed", "lower", "percent"),
        Metric("refused", "refused", "lower", ".1f"),
    )
}
MAIN = ("kv_waste_fraction", "mean_batch_size", "output_tokens_per_s", "ttft_s_mean", "e2e_s_mean", "preemptions")


def known_metrics(rows: list[dict[str, Any]]) -> list[Metric]:
    """Those that every row has a value for and that are not zero throughout."""
    return [
        metric
        for column, metric in METRICS.items()
        if all(row.get(column) is not None for row in rows) and any(row[column] for row in rows)
    ]
