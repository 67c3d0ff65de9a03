"""Traces of Mooncake (Qin et al., FAST 2025): JSONL with timestamp, input_length, output_length and hash_ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagedlab.core.errors import WorkloadError
from pagedlab.settings import BlockTraceSettings
from pagedlab.workload.block_trace import BlockRequest, block_id
from pagedlab.workload.checks import LARGEST, one_line, shown
from pagedlab.workload.jsonfile import json_objects

LONGEST_MS = 1e15
"""Of a timestamp: thirty thousand years, beyond which milliseconds are no longer told apart."""


def read(settings: BlockTraceSettings, path: Path) -> Iterator[BlockRequest]:
    """The requests of a file, in its order. A hash id stands for a block with all that lies before it.

    timestamp is in milliseconds and may not go back. Each of hash_ids is a block of `block_tokens` tokens, the last
    one may be part of one. Raises WorkloadError: file, line, field, value, what was expected.
    """
    before = 0.0
    for place, entry in json_objects(path):
        where = f"{one_line(path)}: {place}: "
        time_ms = _time(entry, before, where)
        before = time_ms
        prompt = _count(entry, "input_length", 1, where)
        output = _count(entry, "output_length", 0, where)
        yield BlockRequest(time_ms / 1000, _blocks(entry, prompt, settings.block_tokens, where), prompt, output)


def _field(entry: dict[str, Any], name: str, where: str) -> object:
    if name not in entry:
        raise WorkloadError(f'{where}no "{name}"')
    value: object = entry[name]
    return value


def _time(entry: dict[str, Any], before: float, where: str) -> float:
    value = _field(entry, "timestamp", where)
    # A comparison that NaN fails; an int too large for a float fails it before it is made one.
    if type(value) not in (int, float) or not 0 <= value <= LONGEST_MS:  # type: ignore[operator]
        raise WorkloadError(f"{where}timestamp: {shown(value)}, expected milliseconds from 0 to {LONGEST_MS:g}")
    time_ms = float(value)  # type: ignore[arg-type]
    if time_ms < before:
        raise WorkloadError(f"{where}timestamp: {shown(value)}, expected no less than {before:g} of the line before")
    return time_ms


def _count(entry: dict[str, Any], name: str, low: int, where: str) -> int:
    value = _field(entry, name, where)
    if type(value) is not int or not low <= value <= LARGEST:
        raise WorkloadError(f"{where}{name}: {shown(value)}, expected a whole number from {low} to {LARGEST}")
    return value


def _blocks(entry: dict[str, Any], prompt_tokens: int, block_tokens: int, where: str) -> list[int]:
    value = _field(entry, "hash_ids", where)
    if not isinstance(value, list):
        raise WorkloadError(f"{where}hash_ids: {shown(value)}, expected a list of ids")
    expected = -(-prompt_tokens // block_tokens)
    if len(value) != expected:
        of = f"for {prompt_tokens} tokens in blocks of {block_tokens}"
        raise WorkloadError(f"{where}hash_ids: {len(value)} ids, expected {expected} {of}")
    return [block_id(item, f"{where}hash_ids[{i}]") for i, item in enumerate(value)]
