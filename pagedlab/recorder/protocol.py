"""How a measurement was made, as its header says it: what its prompts have in common, and from what state it began."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pagedlab.core.request import Request

_MOST_TOKENS = 20_000_000  # of prompts that are compared: a fifth of a second, 80 MB


def protocol(requests: Sequence[Request]) -> dict[str, Any]:
    """Flat facts for the summary. A run builds its pool, its prefix cache and its queue itself and sends nothing
    before its first request, so that it always begins cold."""
    return {
        "prompt_overlap_fraction": prompt_overlap([request.prompt for request in requests]),
        "cache_at_start": "cold",
        "warm_up_requests": 0,
    }


def prompt_overlap(prompts: Sequence[np.ndarray]) -> float | None:
    """The share of all prompt tokens that lie in a beginning which a prompt before has as well: what a prefix cache
    without end or blocks could hit at most. None without a prompt, or where there are too many tokens to compare.

    Sorted, the prompts are a depth-first walk of the tree of their beginnings, in which each one shares with all before
    it what it shares with its neighbour. prompts: int32 token ids, each [tokens].
    """
    total = sum(len(prompt) for prompt in prompts)
    if not 0 < total <= _MOST_TOKENS:
        return None
    # Bytes sort as fast as memory is compared; in which order tokens come does not matter.
    ordered = sorted(np.ascontiguousarray(prompt, np.int32).tobytes() for prompt in prompts)
    arrays = [np.frombuffer(text, np.int32) for text in ordered]
    return sum(_common(one, other) for one, other in pairwise(arrays)) / total


def _common(one: np.ndarray, other: np.ndarray) -> int:
    shorter = min(len(one), len(other))
    differing = one[:shorter] != other[:shorter]
    first = int(differing.argmax()) if shorter else 0
    return first if shorter and differing[first] else shorter
