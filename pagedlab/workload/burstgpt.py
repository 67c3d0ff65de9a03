"""BurstGPT (Wang et al., 2024): Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type.

A failed request has 0 response tokens: a bad row, which workload.bad_rows=skip passes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, TraceSettings
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.trace import build_trace, check_trace, trace_path
from pagedlab.workload.trace_file import BadRow, Row, count, csv_rows, seconds

COLUMNS = {"time": ("Timestamp",), "prompt": ("Request tokens",), "output": ("Response tokens",)}

checks("burstgpt")(check_trace)


@WORKLOADS.register("burstgpt")
def build(settings: TraceSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int) -> list[Request]:
    """The requests of the trace (`build_trace`). Raises ConfigError, WorkloadError."""
    return build_trace(settings, sampling, tokenizer, seed, rows(trace_path(settings)))


def rows(path: Path) -> Iterator[tuple[int, Row | BadRow]]:
    return csv_rows(path, COLUMNS, _row)


def _row(cells: dict[str, str]) -> Row:
    return Row(
        count("Request tokens", cells["prompt"]),
        count("Response tokens", cells["output"]),
        seconds("Timestamp", cells["time"]),
    )
