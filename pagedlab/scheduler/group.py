"""A request of several outputs: what its branches do with what the executor offers. Tokens only, no memory."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pagedlab.core.plan import Choice
from pagedlab.core.request import Completion, Request, Sequence, Status

Move = tuple[Sequence, Sequence]
"""A branch, and the sequence whose KV it goes on from: the trunk, another branch, or itself."""


class Group(ABC):
    """The branches of one trunk. They run in step: all feed in the same steps, so all that run are of one length.

    After a preemption the trunk feeds the prompt again and forks into the branches as they are, and those feed what
    they have generated. What the executor then offers the trunk is what it offered the first time, and is ignored.
    """

    def __init__(self, request: Request):
        self.trunk = Sequence(request)
        self.trunk.branches = [Sequence(request, index=i, trunk=self.trunk) for i in range(request.width)]
        for branch in self.trunk.branches:
            branch.sampling = request.sampling.of_child(branch.index)
        self.started = False

    def advance(self, offers: list[list[Choice]]) -> list[Move]:
        """offers[i]: what may follow the i-th of the trunk's `feeding` sequences, as in Outcome.choices.

        Returns who goes on from whom, where the executor cannot know it by itself. Branches that end are marked
        FINISHED; when all have, the trunk has its answer.
        """
        if self.started and not self.trunk.forked:
            return [(branch, self.trunk) for branch in self.trunk.parts]
        moves = self._take(offers)
        self.started = True
        if not self.trunk.parts:
            self.trunk.answer = self._answer()
            self.trunk.output = self.trunk.answer[0].token_ids
            self.trunk.finish_reason = self.trunk.answer[0].finish_reason
        return moves

    @abstractmethod
    def _take(self, offers: list[list[Choice]]) -> list[Move]:
        """Each branch that runs gets its next token. The first time, only the trunk has an offer."""

    @abstractmethod
    def _answer(self) -> list[Completion]:
        """All have ended: the outputs of the request, the best first."""


class Samples(Group):
    """Parallel sampling, and best-of: independent samples of one prompt (PagedAttention, SOSP 2023, section 4.4).

    Each draws by a seed of its own, the first one by the request's, so it is what it would be alone.
    """

    def __init__(self, request: Request):
        super().__init__(request)
        self._logprobs = [0.0] * request.width

    def _take(self, offers: list[list[Choice]]) -> list[Move]:
        first = not self.trunk.forked
        for branch, choice in zip(self.trunk.parts, offers[0] if first else (o for (o,) in offers), strict=True):
            branch.output.append(choice.token)
            self._logprobs[branch.index] += choice.logprob
            if choice.finish is not None:
                branch.status, branch.finish_reason = Status.FINISHED, choice.finish
        return [(branch, self.trunk) for branch in self.trunk.parts] if first else []

    def _answer(self) -> list[Completion]:
        """The n of the highest log probability a token, as the OpenAI API defines best_of; all, where none is left
        out, in the order of their seeds."""
        sampling = self.trunk.request.sampling
        made = [
            Completion(b.output, self._logprobs[b.index] / len(b.output) if sampling.ranks else None, b.finish_reason)
            for b in self.trunk.branches
        ]
        return sorted(made, key=lambda completion: -(completion.score or 0.0))[: sampling.n]
