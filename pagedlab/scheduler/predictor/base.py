"""Predictor: how long an output will be, as far as an order may know it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pagedlab.core.registry import Registry
from pagedlab.core.request import Request, Sequence


class Predictor(ABC):
    """Stands in for a trained one: it takes the truth and makes it as bad as it says. The same answer for a request,
    whenever it is asked."""

    def __init__(self, sigma: float, seed: int):
        self.sigma = sigma
        self.seed = seed

    @abstractmethod
    def length(self, request: Request) -> float:
        """Output tokens, or any number that orders requests as those would."""

    def remaining(self, seq: Sequence) -> float:
        """Of what `length` says, how much is still to come; one token at least, as it has not ended."""
        return max(self.length(seq.request) - seq.generated, 1.0)


PREDICTORS: Registry[type[Predictor]] = Registry(
    "scheduler.predictor", "pagedlab.scheduler.predictor", ("oracle", "noisy", "rank")
)
