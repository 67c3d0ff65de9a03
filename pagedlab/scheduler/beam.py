"""Beam search over forked block tables: the token-for-token behaviour of transformers' `generate(num_beams=...)`."""

from __future__ import annotations

from pagedlab.core.plan import Choice
from pagedlab.core.request import Completion, Request, Sequence, Status
from pagedlab.scheduler.group import Group, Move


class BeamSearch(Group):
    """Each step keeps the beam_width most likely continuations of all beams, and sets aside those that end.

    Follows `GenerationMixin._beam_search` of transformers 5: of the candidates of all beams, 2 x beam_width or more
    by log probability, those among the first beam_width that end are finished, scored by log probability / length
    ** length_penalty, and the best beam_width of all that ever finished are kept. It ends when every candidate ends,
    when as many have finished and early_stopping is "true", or when no beam can become better than the worst of
    them: better than its score at the present length ("false"), or at the longest possible one ("never", where
    length_penalty is positive).
    """

    def __init__(self, request: Request):
        super().__init__(request)
        self._scores = [0.0] * request.width
        self._finished: list[Completion] = []  # the best first

    def _take(self, offers: list[list[Choice]]) -> list[Move]:
        sampling = self.trunk.request.sampling
        width = sampling.beam_width
        parents = self.trunk.feeding
        candidates = sorted(
            (
                (self._scores[parent.index] + choice.logprob, parent, choice)
                for parent, offer in zip(parents, offers, strict=True)
                for choice in offer
            ),
            key=lambda candidate: -candidate[0],
        )[: len(offers[0])]
        length = len(parents[0].output) + 1
        self._finish([c for c in candidates[:width] if c[2].finish is not None], length)
        survivors = [c for c in candidates if c[2].finish is None][:width]
        if not survivors or not self._may_improve(survivors[0][0], length):
            for branch in self.trunk.branches:
                branch.status = Status.FINISHED
            return []
        return self._move(survivors)

    def _finish(self, ended: list[tuple[float, Sequence, Choice]], length: int) -> None:
        sampling = self.trunk.request.sampling
        new = [
            Completion([*parent.output, choice.token], score / length**sampling.length_penalty, choice.finish)
            for score, parent, choice in ended
        ]
        self._finished = sorted([*self._finished, *new], key=lambda c: -(c.score or 0.0))[: sampling.beam_width]

    def _may_improve(self, best: float, length: int) -> bool:
        """Whether to go on: `best` is the log probability of the best beam, now `length` tokens long."""
        sampling = self.trunk.request.sampling
        if len(self._finished) < sampling.beam_width:
            return True
        if sampling.early_stopping == "true":
            return False
        if sampling.early_stopping == "never" and sampling.length_penalty > 0:
            length = self.trunk.request.max_tokens
        return bool(best / length**sampling.length_penalty > (self._finished[-1].score or 0.0))

    def _move(self, survivors: list[tuple[float, Sequence, Choice]]) -> list[Move]:
        """The first survivor of a beam stays where that is, the others take the places of beams without any."""
        parents = {parent for _, parent, _ in survivors}
        vacant = [branch for branch in self.trunk.branches if branch not in parents]
        moves, texts = [], []
        for score, parent, choice in survivors:
            stays = parent is not self.trunk and parent in parents
            parents.discard(parent)
            branch = parent if stays else vacant.pop(0)
            moves.append((branch, parent))
            texts.append(([*parent.output, choice.token], score))
        for (branch, _), (output, score) in zip(moves, texts, strict=True):
            branch.output, self._scores[branch.index] = output, score
        return moves

    def _answer(self) -> list[Completion]:
        return self._finished
