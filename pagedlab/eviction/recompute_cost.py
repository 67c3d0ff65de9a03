"""What it costs to compute a block's KV again, by where in its sequence it lies."""

from __future__ import annotations

from pagedlab.eviction.base import Entry


def recompute_cost(entry: Entry, attention_tokens: float) -> float:
    """In tokens' worth of weights: with t tokens after c others, t x (1 + (c + t/2) / attention_tokens).

    A token costs 2 x parameters operations for the weights and 4 x layers x width for each token that it attends to;
    attention_tokens is the context at which the second equals the first, parameters / (2 x layers x width). All blocks
    before one are taken to be as long as it.
    """
    context = entry.depth * entry.tokens + entry.tokens / 2
    return entry.tokens * (1 + context / attention_tokens)
