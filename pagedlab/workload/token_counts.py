"""A CSV file of token counts and nothing else: ShareGPT's and arXiv's lengths, Vidur's processed traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, TraceSettings
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.trace import build_trace, check_trace, trace_path
from pagedlab.workload.trace_file import BadRow, Row, count, csv_rows

COLUMNS = {"prompt": ("prompt_tokens", "num_prefill_tokens"), "output": ("output_tokens", "num_decode_tokens")}

checks("token_counts")(check_trace)


@WORKLOADS.register("token_counts")
def build(settings: TraceSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int) -> list[Request]:
    """The requests of the file (`build_trace`), whose rows have no time. Raises ConfigError, WorkloadError."""
    return build_trace(settings, sampling, tokenizer, seed, rows(trace_path(settings)))


def rows(path: Path) -> Iterator[tuple[int, Row | BadRow]]:
    return csv_rows(path, COLUMNS, _row)


def _row(cells: dict[str, str]) -> Row:
    return Row(count("prompt_tokens", cells["prompt"]), count("output_tokens", cells["output"]))
