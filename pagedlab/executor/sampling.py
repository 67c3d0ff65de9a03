"""From logits to tokens. A request's sample depends on its seed, the index of the token and its own logits alone."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from pagedlab.core.mixing import uniform
from pagedlab.core.request import SamplingParams

_GREEDY_BELOW = 1e-5  # as vLLM: dividing by less overflows


def sample(logits: torch.Tensor, params: Seq[SamplingParams], indices: Seq[int]) -> torch.Tensor:
    """logits [R, V]; row r is the indices[r]-th output token of a request with params[r]. Returns int64 [R]."""
    tokens = logits.argmax(dim=-1)
    for r, (p, index) in enumerate(zip(params, indices, strict=True)):
        if p.temperature >= _GREEDY_BELOW:
            tokens[r] = _draw(logits[r], p, uniform(p.seed, index))
    return tokens


def _draw(logits: torch.Tensor, params: SamplingParams, u: float) -> torch.Tensor:
    """Inverse transform sampling, the most likely token first. top_k, then top_p (the token that crosses p stays)."""
    tokens = torch.arange(len(logits), device=logits.device)
    if 0 < params.top_k < len(logits):
        # topk takes any of those that tie, as logits in half precision often do. The stable sort goes by index.
        tokens = torch.nonzero(logits >= logits.topk(params.top_k).values[-1]).flatten()
    ranked, order = logits[tokens].sort(descending=True, stable=True)
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    cumulative = torch.softmax(ranked.double() / params.temperature, dim=-1).cumsum(dim=-1)
    if params.top_p < 1:
        # In float arithmetic a sum may stay below p by a rounding: then every token is kept.
        kept = int(torch.searchsorted(cumulative, params.top_p * float(cumulative[-1]))) + 1
        cumulative = cumulative[:kept]
    chosen = int(torch.searchsorted(cumulative, u * float(cumulative[-1]), right=True))
    return tokens[order[min(chosen, len(cumulative) - 1)]]
