"""Only who is longer than whom (learning to rank: Fu et al., NeurIPS 2024)."""

from __future__ import annotations

from pagedlab.allocator.oracle import oracle_output_tokens
from pagedlab.core.request import Request, Sequence
from pagedlab.scheduler.predictor.base import PREDICTORS, Predictor


@PREDICTORS.register("rank")
class Rank(Predictor):
    """A score that orders requests by their true length and is no number of tokens: nothing can be taken from it for
    what was generated already, so what remains ranks as the whole did. Srtf is then sjf that preempts."""

    def length(self, request: Request) -> float:
        return float(oracle_output_tokens(request))

    def remaining(self, seq: Sequence) -> float:
        return self.length(seq.request)
