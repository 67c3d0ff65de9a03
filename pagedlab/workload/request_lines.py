"""One JSON object a line, as serving benchmarks write them: vLLM's custom datasets, AIBrix's workloads.

A line is a request, {"prompt": text, "output_tokens": n}, or {"timestamp": ms, "requests": [...]} with those that
come at one time. The counts may have any of the names below; a prompt is taken as text only where none counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pagedlab.core.errors import WorkloadError
from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, TraceSettings
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.checks import one_line
from pagedlab.workload.jsonfile import LINE_LIMIT
from pagedlab.workload.strict_json import DECODER, located
from pagedlab.workload.trace import build_trace, check_trace, trace_path
from pagedlab.workload.trace_file import Bad, BadRow, Row, count, lines, seconds

PROMPTS = ("prompt_tokens", "prompt_length", "prompt_len", "input_length", "input_tokens")
OUTPUTS = ("output_tokens", "output_length", "output_len", "completion_tokens")
_MS = 1e-3

checks("request_lines")(check_trace)


@WORKLOADS.register("request_lines")
def build(settings: TraceSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int) -> list[Request]:
    """The requests of the file (`build_trace`). Raises ConfigError, WorkloadError."""
    return build_trace(settings, sampling, tokenizer, seed, rows(trace_path(settings), tokenizer))


def rows(path: Path, tokenizer: PromptTokenizer) -> Iterator[tuple[int, Row | BadRow]]:
    for number, line in lines(path, LINE_LIMIT):
        if line is not None and not line.strip():
            continue
        try:
            entry = _object(line, one_line(path), number)
            together = entry.get("requests")
            if together is None:
                yield number, _row(entry, entry.get("timestamp"), tokenizer, "")
                continue
            if not isinstance(together, list):
                raise Bad("requests", together, "a list of requests")
        except Bad as bad:
            yield number, bad.row
            continue
        for i, request in enumerate(together):
            try:
                yield number, _row(request, entry.get("timestamp"), tokenizer, f"requests[{i}].")
            except Bad as bad:
                yield number, bad.row


def _object(line: bytes | None, name: str, number: int) -> dict[str, Any]:
    if line is None:
        raise Bad("row", f"more than {LINE_LIMIT} bytes", "a shorter line")
    try:
        with located(name, str(number)):
            value = DECODER.decode(line.decode("utf-8"))
    except WorkloadError as error:
        raise Bad("row", str(error).partition(f": {number}: ")[2], "a JSON object") from error
    if not isinstance(value, dict):
        raise Bad("row", value, "a JSON object")
    return value


def _row(entry: object, time: object, tokenizer: PromptTokenizer, where: str) -> Row:
    if not isinstance(entry, dict):
        raise Bad(where.rstrip(".") or "row", entry, "an object")
    output = _first(entry, OUTPUTS, where)
    known = [name for name in PROMPTS if entry.get(name) is not None]
    prompt: int | np.ndarray
    if known:
        prompt = count(where + known[0], _no_text(where + known[0], entry[known[0]]))
    else:
        text = entry.get("prompt")
        if not isinstance(text, str) or not text:
            raise Bad(f"{where}prompt", text, f"text, or its tokens as {PROMPTS[0]}")
        prompt = np.asarray(tokenizer.encode(text), dtype=np.int32)
        count(f"{where}prompt", len(prompt))
    return Row(prompt, output, None if time is None else seconds("timestamp", _no_text("timestamp", time), _MS))


def _first(entry: dict[str, Any], names: tuple[str, ...], where: str) -> int:
    for name in names:
        if entry.get(name) is not None:
            return count(where + name, _no_text(where + name, entry[name]))
    raise Bad(where + names[0], None, f"a whole number, as {names[0]} or {', '.join(names[1:])}")


def _no_text(field: str, value: object) -> object:
    """JSON has numbers: text in the place of one, which in CSV is all there is, is a fault of who wrote it."""
    if isinstance(value, str):
        raise Bad(field, value, "a number")
    return value
