"""Beam search for reading: plain lists, no blocks, no batch, written after transformers' `_beam_search` with its arrays
of fixed size and its -1e9 for what does not count, which is not how pagedlab does it."""

from __future__ import annotations

from collections.abc import Callable

from pagedlab.core.request import Completion, Request

NEVER = -1e9

Scored = tuple[float, list[int], bool]  # score, tokens, whether it has ended


def naive_beams(
    r: Request, log_probs: Callable[[list[int]], list[float]], eos: int | None, limit: int
) -> tuple[list[Completion], list[list[list[int]]]]:
    """(the answer, the beams after each step). log_probs(output): of every next token. limit: the longest output."""
    s = r.sampling
    width, penalty = s.beam_width, s.length_penalty
    obeyed = None if s.ignore_eos else eos
    keep = max(2, 1 + (obeyed is not None)) * width
    running: list[Scored] = [(0.0, [], False)] + [(NEVER, [], False)] * (width - 1)
    finished: list[Scored] = [(NEVER, [], False)] * width
    steps = []
    while True:
        candidates = []
        for score, tokens, _ in running:
            if score > NEVER / 2:
                candidates += [(score + p, [*tokens, t]) for t, p in enumerate(log_probs(tokens))]
        candidates = sorted(candidates, key=lambda c: -c[0])[:keep]
        length = len(candidates[0][1])
        ended = [tokens[-1] == obeyed or length >= limit for _, tokens in candidates]

        going = [(score + NEVER * end, tokens, False) for (score, tokens), end in zip(candidates, ended, strict=True)]
        running = sorted(going, key=lambda c: -c[0])[:width]
        full = all(done for _, _, done in finished)
        new = []
        for rank, ((score, tokens), end) in enumerate(zip(candidates, ended, strict=True)):
            counts = end and rank < width and not (full and s.early_stopping == "true")
            new.append((score / length**penalty + (0 if counts else NEVER), tokens, counts))
        finished = sorted([*finished, *new], key=lambda c: -c[0])[:width]

        hoped = r.max_tokens if s.early_stopping == "never" and penalty > 0 else length
        worst = min(score for score, _, _ in finished)
        full = all(done for _, _, done in finished)
        improvable = any(running[0][0] / hoped**penalty > (worst if done else NEVER) for _, _, done in finished)
        if not improvable or (full and s.early_stopping == "true") or all(ended):
            break
        steps.append([tokens for _, tokens, _ in running])
    reasons = ["stop" if tokens[-1] == obeyed else "length" for _, tokens, _ in finished]
    return [Completion(t, score, why) for (score, t, _), why in zip(finished, reasons, strict=True)], steps
