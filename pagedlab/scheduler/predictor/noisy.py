"""The truth with a stated error, as of a regression on the logarithm of the length (SSJF, arXiv 2404.08509)."""

from __future__ import annotations

import numpy as np

from pagedlab.allocator.oracle import oracle_output_tokens
from pagedlab.core.request import Request
from pagedlab.scheduler.predictor.base import PREDICTORS, Predictor


@PREDICTORS.register("noisy")
class Noisy(Predictor):
    """True length x exp(sigma x z), z normal and drawn once for each request from (seed, id): the median is right, and
    two of three predictions are within a factor of exp(sigma)."""

    def length(self, request: Request) -> float:
        z = np.random.default_rng((self.seed, request.id)).standard_normal()
        return float(oracle_output_tokens(request) * np.exp(self.sigma * z))
