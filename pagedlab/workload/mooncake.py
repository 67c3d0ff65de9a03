"""Traces of Mooncake (Qin et al., FAST 2025): JSONL with timestamp, input_length, output_length and hash_ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pagedlab.core.errors import WorkloadError
from pagedlab.core.mixing import mix
from pagedlab.core.request import Request
from pagedlab.settings import BlockTraceSettings, SamplingSettings
from pagedlab.workload.assemble import Draft, bound_prompts, requests_at
from pagedlab.workload.base import WORKLOADS, PromptTokenizer, checks
from pagedlab.workload.block_trace import BlockRequest, block_id, check_block_trace, trace_path
from pagedlab.workload.checks import LARGEST, one_line, shown
from pagedlab.workload.jsonfile import json_objects

LONGEST_MS = 1e15
"""Of a timestamp: thirty thousand years, beyond which milliseconds are no longer told apart."""

checks("mooncake")(check_block_trace)


@WORKLOADS.register("mooncake")
def build(
    settings: BlockTraceSettings, sampling: SamplingSettings, tokenizer: PromptTokenizer, seed: int
) -> list[Request]:
    """The requests of the trace, to be served: prompts of made-up tokens, equal exactly where the ids are.

    So a prefix cache hits what it hit in Mooncake, whatever its block size, as long as that divides `block_tokens`. A
    request that the trace says generates nothing generates one token. Raises ConfigError, WorkloadError.
    """
    path = trace_path(settings)
    check_block_trace(settings)
    drafts, times, total = [], [], 0
    for number, row in enumerate(islice(read(settings, path), settings.limit)):
        total += row.prompt_tokens or 0
        bound_prompts(total)
        prompt = tokens_of(row.blocks, settings.block_tokens, tokenizer.vocab_size, seed)[: row.prompt_tokens]
        output = max(1, row.output_tokens or 0)
        drafts.append(Draft(prompt, output, output, str(number)))
        times.append(row.time_s / settings.rate_scale)
    if not drafts:
        raise WorkloadError(f"{one_line(path)}: no request, expected at least one")
    return requests_at(drafts, np.array(times), sampling, seed)


def tokens_of(blocks: list[int], block_tokens: int, vocab_size: int, seed: int) -> np.ndarray:
    """int32 [len(blocks) x block_tokens]: of each block a number of its id and the token's place in it, uniform over
    the vocabulary (`mixing.mix` of both, for all at once)."""
    named = np.array([mix(mix(seed) ^ id) for id in blocks], dtype=np.uint64)
    x = named[:, None] + np.arange(1, block_tokens + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(((x ^ (x >> np.uint64(31))) % np.uint64(vocab_size)).ravel(), dtype=np.int32)


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
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LONGEST_MS:
        raise WorkloadError(f"{where}timestamp: {shown(value)}, expected milliseconds from 0 to {LONGEST_MS:g}")
    time_ms = float(value)
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
