"""From logits to what the sequences of a step may go on with: a token each, or what several outputs need."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from pagedlab.core.plan import Choice
from pagedlab.core.request import Sequence
from pagedlab.executor.base import finish_reason, num_candidates
from pagedlab.executor.sampling import sample


def choose(
    logits: torch.Tensor, seqs: Seq[Sequence], eos_token_ids: frozenset[int]
) -> tuple[list[int], list[list[Choice] | None]]:
    """logits [R, V], of the last token of each of seqs. Returns their next tokens, and for those of a request of
    several outputs the choices, as in Outcome, of which the token is the first."""
    if not any(seq.branches or seq.trunk for seq in seqs):
        return sample(logits, [s.sampling for s in seqs], [len(s.output) for s in seqs]).tolist(), [None] * len(seqs)
    beams = [r for r, seq in enumerate(seqs) if seq.sampling.beam_width > 1]
    draws = [(r, s) for r, seq in enumerate(seqs) if seq.sampling.beam_width == 1 for s in seq.branches or [seq]]
    offers: list[list[tuple[int, float]]] = [[] for _ in seqs]  # (token, log probability)
    if draws:
        rows = [r for r, _ in draws]
        of_draws = logits[rows]
        drawn = sample(of_draws, [s.sampling for _, s in draws], [len(seqs[r].output) for r in rows])
        for r, offer in zip(rows, zip(drawn.tolist(), _log_probs(of_draws, drawn, draws), strict=True), strict=True):
            offers[r].append(offer)
    if beams:
        widths = [num_candidates(seqs[r].sampling, len(eos_token_ids)) for r in beams]
        best = logits[beams].float().log_softmax(dim=-1).topk(max(widths))
        for r, width, values, tokens in zip(beams, widths, best.values.tolist(), best.indices.tolist(), strict=True):
            offers[r] = list(zip(tokens[:width], values[:width], strict=True))
    choices: list[list[Choice] | None] = [
        [Choice(token, logprob, finish_reason(seq, token, eos_token_ids)) for token, logprob in offer]
        if seq.branches or seq.trunk
        else None
        for seq, offer in zip(seqs, offers, strict=True)
    ]
    return [offer[0][0] for offer in offers], choices


def _log_probs(logits: torch.Tensor, tokens: torch.Tensor, draws: list[tuple[int, Sequence]]) -> list[float]:
    """Of the drawn tokens, where something is ranked by them; else 0."""
    ranked = [i for i, (_, seq) in enumerate(draws) if seq.sampling.ranks]
    found = [0.0] * len(draws)
    if ranked:
        values = logits[ranked].float().log_softmax(dim=-1).gather(1, tokens[ranked][:, None])[:, 0].tolist()
        for i, value in zip(ranked, values, strict=True):
            found[i] = value
    return found
