"""What is replayed: requests as lists of keys, each key the content of one KV block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from pagedlab.core.errors import ConfigError, WorkloadError
from pagedlab.core.request import Request
from pagedlab.model.config import read_config
from pagedlab.model.locate import model_folder
from pagedlab.model.shape import shape_of
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.settings import TRACES, ReplaySettings
from pagedlab.workload import ids, mooncake, oracle_general
from pagedlab.workload.base import WORKLOADS
from pagedlab.workload.block_trace import BlockRequest, trace_path
from pagedlab.workload.checks import one_line

READERS = {"mooncake": mooncake.read, "ids": ids.read, "oracle_general": oracle_general.read}


@dataclass(frozen=True, slots=True)
class Trace:
    """requests: the keys of each, in order. times_s: when each arrives. block_tokens: tokens of a block.
    input_tokens: of all prompts, where the workload says it."""

    requests: list[list[int]]
    times_s: list[float]
    block_tokens: int = 1
    input_tokens: int | None = None

    @property
    def num_references(self) -> int:
        return sum(map(len, self.requests))

    @property
    def num_blocks(self) -> int:
        """Different ones."""
        return len(set(self.references()))

    def references(self) -> Iterator[int]:
        """All keys, in the order in which they are asked for."""
        return chain.from_iterable(self.requests)


def trace_of_ids(keys: Iterable[int]) -> Trace:
    """A flat trace: a request of one block for each key, a second apart."""
    requests = [[key] for key in keys]
    return Trace(requests, list(map(float, range(len(requests)))))


def load_trace(settings: ReplaySettings) -> Trace:
    """The configured workload. ConfigError, WorkloadError, ModelError.

    Where blocks are to be prefixes (leaf_first), an id means a block with all ids before it: the keys of a trace whose
    ids are not yet that (a file of plain ids) are made anew so, those of one whose ids are (Mooncake) come out as they
    were but for their numbers.
    """
    trace = _read(settings) if settings.workload.name in TRACES else _tokenized(settings)
    if not trace.num_references:
        raise WorkloadError(f"workload={settings.workload.name}: no request has a whole block, expected at least one")
    return trace


def _read(settings: ReplaySettings) -> Trace:
    workload = settings.workload
    path = trace_path(workload)
    chains = Chains() if settings.leaf_first else None
    requests, times, tokens = [], [], 0
    request: BlockRequest
    for request in islice(READERS[workload.name](workload, path), workload.limit):
        requests.append(chains.keys(request.blocks) if chains else request.blocks)
        times.append(request.time_s / workload.rate_scale)
        tokens += request.prompt_tokens or 0
    if not requests:
        raise WorkloadError(f"{one_line(path)}: no request, expected at least one")
    return Trace(requests, times, workload.block_tokens, tokens or None)


def _tokenized(settings: ReplaySettings) -> Trace:
    folder = model_folder(settings.model, weights=False)
    vocab_size = shape_of(read_config(settings.model, folder)).vocab_size
    tokenizer = load_tokenizer(folder, vocab_size)
    build = WORKLOADS[settings.workload.name]
    made = build(settings.workload, settings.sampling, tokenizer, settings.seed)
    if any(request.follow_up for request in made):
        raise ConfigError(
            f"workload={settings.workload.name}: its prompts hold answers, which only `pagedlab serve` generates"
        )
    return trace_of_requests(made, settings.block_size)


def trace_of_requests(requests: list[Request], block_size: int) -> Trace:
    """The full blocks of the prompts, by order of arrival. A block is the same where it and all before it hold the same
    tokens, as in a prefix cache; the rest of a prompt after its last full block is in no block."""
    chains = Chains()
    ordered = sorted(requests, key=lambda request: (request.arrival_s, request.id))
    keys = []
    for request in ordered:
        prompt = np.ascontiguousarray(request.prompt, dtype=np.int32)
        ends = range(block_size, len(prompt) + 1, block_size)
        keys.append(chains.keys([prompt[end - block_size : end].tobytes() for end in ends]))
    tokens = sum(request.prompt_tokens for request in requests)
    return Trace(keys, [request.arrival_s for request in ordered], block_size, tokens)


class Chains:
    """Numbers for blocks with all that lies before them, given out in order of first appearance."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, int | bytes], int] = {}

    def keys(self, contents: Iterable[int | bytes]) -> list[int]:
        key, keys = -1, []
        for content in contents:
            key = self._keys.setdefault((key, content), len(self._keys))
            keys.append(key)
        return keys
