"""Azure's LLM inference traces of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, TraceSettings
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.trace import build_trace, check_trace, trace_path
from pagedlab.workload.trace_file import Bad, BadRow, Row, count, csv_rows

COLUMNS = {"time": ("TIMESTAMP",), "prompt": ("ContextTokens",), "output": ("GeneratedTokens",)}
_EPOCH = datetime(2023, 1, 1, tzinfo=UTC)

checks("azure")(check_trace)


@WORKLOADS.register("azure")
def build(settings: TraceSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int) -> list[Request]:
    """The requests of the trace (`build_trace`). Raises ConfigError, WorkloadError."""
    return build_trace(settings, sampling, tokenizer, seed, rows(trace_path(settings)))


def rows(path: Path) -> Iterator[tuple[int, Row | BadRow]]:
    return csv_rows(path, COLUMNS, _row)


def _row(cells: dict[str, str]) -> Row:
    return Row(count("ContextTokens", cells["prompt"]), count("GeneratedTokens", cells["output"]), _time(cells["time"]))


def _time(text: str) -> float:
    """A date and time, of UTC where it names no zone; digits beyond the microsecond are dropped."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise Bad("TIMESTAMP", text, "a date and time such as 2023-11-16 18:15:46.680590") from error
    return ((when if when.tzinfo else when.replace(tzinfo=UTC)) - _EPOCH).total_seconds()
