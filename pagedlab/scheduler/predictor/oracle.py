"""The truth: what the best predictor could reach."""

from __future__ import annotations

from pagedlab.allocator.oracle import oracle_output_tokens
from pagedlab.core.request import Request
from pagedlab.scheduler.predictor.base import PREDICTORS, Predictor


@PREDICTORS.register("oracle")
class Oracle(Predictor):
    """The true output length."""

    def length(self, request: Request) -> float:
        return float(oracle_output_tokens(request))
