"""From logits to tokens. A request's sample depends on its seed, the index of the token and its own logits alone.

`_draw` defines a sample, one row at a time, and sorts the whole vocabulary for it. Most samples are among the likeliest
few tokens: `_from_head` finds those for all rows at once, and leaves to `_draw` the rows of which it cannot be certain.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from pagedlab.core.mixing import uniform
from pagedlab.core.request import SamplingParams

_GREEDY_BELOW = 1e-5  # as vLLM: dividing by less overflows
_HEAD = 256  # tokens looked at before a row is sorted
_MARGIN = 4e-6  # more than the sum of a row's weights, in single precision, can be wrong by
_ROWS_AT_ONCE = 64  # bounds the memory


def sample(logits: torch.Tensor, params: Seq[SamplingParams], indices: Seq[int]) -> torch.Tensor:
    """logits [R, V]; row r is the indices[r]-th output token of a request with params[r]. Returns int64 [R]."""
    tokens = _likeliest(logits)
    drawn = [r for r, p in enumerate(params) if p.temperature >= _GREEDY_BELOW]
    for start in range(0, len(drawn), _ROWS_AT_ONCE):
        rows = drawn[start : start + _ROWS_AT_ONCE]
        of_rows = [params[r] for r in rows]
        at = [uniform(params[r].seed, indices[r]) for r in rows]
        chosen, certain = _from_head(logits[rows], of_rows, at)
        for i, sure in enumerate(certain.tolist()):
            if not sure:
                chosen[i] = _draw(logits[rows[i]], of_rows[i], at[i])
        tokens[rows] = chosen
    return tokens


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """The first of the largest numbers of each row. On a CPU by NumPy: torch's argmax takes 7 to 15 times as long."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    wide = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return torch.from_numpy(wide.numpy().argmax(axis=-1))


def _from_head(logits: torch.Tensor, params: Seq[SamplingParams], at: Seq[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """What `_draw` would draw for each row of logits [R, V]: int64 [R]; and bool [R], where that is certain.

    Certain is a row whose sample, and the end of whose top_p, lie within the head and further than rounding from the
    next token's share; and whose head does not end, before them, in tokens that tie with others outside.
    """

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=logits.device)[:, None]

    size = min(_HEAD, logits.shape[-1])
    order = logits.topk(size).indices.sort(dim=-1).values  # by index: those that tie stay in this order
    ranked, by_rank = logits.gather(1, order).sort(dim=-1, descending=True, stable=True)
    order = order.gather(1, by_rank)
    whole = size == logits.shape[-1]
    settled = (ranked > ranked[:, -1:]).sum(dim=-1, keepdim=True) if not whole else size

    temperature, top_k = column([p.temperature for p in params]), column([p.top_k or logits.shape[-1] for p in params])
    top = ranked[:, :1]
    weights = ((ranked.double() - top.double()) / temperature).exp()
    weights = weights.where(torch.arange(size, device=logits.device) < top_k, 0.0)
    cut = top_k <= size
    total = weights.sum(dim=-1, keepdim=True)
    if not all(0 < p.top_k <= size for p in params):
        every = ((logits.float() - top.float()) / temperature.float()).exp().sum(-1, keepdim=True, dtype=torch.float64)
        total = torch.where(cut, total, every)
    share = weights.cumsum(dim=-1) / total

    certain = (~cut & (top_k >= logits.shape[-1])) | (top_k <= settled)
    top_p = column([p.top_p for p in params])
    end = _first(share >= top_p)
    filtered = top_p < 1
    certain &= ~filtered | ((end < settled) & _apart(share, end, top_p))
    kept = torch.where(filtered, share.gather(1, end.clamp(max=size - 1)), 1.0)
    target = column(list(at)) * kept
    chosen = _first(share > target)
    certain &= (chosen < settled) & (chosen < top_k) & _apart(share, chosen, target)
    return order.gather(1, chosen.clamp(max=size - 1))[:, 0], certain[:, 0]


def _first(true: torch.Tensor) -> torch.Tensor:
    """Index of the first true entry of each row of [R, K], K where there is none: int64 [R, 1]."""
    return torch.where(true.any(dim=-1, keepdim=True), true.int().argmax(dim=-1, keepdim=True), true.shape[-1])


def _apart(share: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Whether `value` is clearly below share[index] and clearly above the share before it."""
    last = share.shape[-1] - 1
    before = torch.where(index > 0, share.gather(1, (index - 1).clamp(0, last)), -1.0)
    return (share.gather(1, index.clamp(max=last)) - value > _MARGIN) & (value - before > _MARGIN)


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
