"""Orca (Oracle): a baseline that knows the output length beforehand (Kwon et al., SOSP 2023, section 6.1)."""

from __future__ import annotations

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.core.errors import ConfigError
from pagedlab.core.request import Request


def oracle_output_tokens(request: Request) -> int:
    """How many tokens the request will generate. Only oracles, and executors to stop, may ask."""
    if request.true_output_tokens is None:
        raise ConfigError(
            f"request {request.id} has no known output length, which an oracle needs: set sampling.ignore_eos=true"
        )
    return min(request.true_output_tokens, request.max_tokens)


@ALLOCATORS.register("oracle")
class Oracle(ContiguousAllocator):
    """Reserves exactly the slots that the request will fill: prompt + true output - 1."""

    needs_true_length = True

    def slots(self, request: Request) -> int:
        return request.prompt_tokens + oracle_output_tokens(request) - 1
