"""Router: which of several replicas serves a request, decided once, at its arrival."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pagedlab.core.registry import Registry
from pagedlab.core.request import Request


class Router(ABC):
    """It knows what a proxy in front of servers does: what it has sent to each of them and what has come back. What is
    in their queues and caches it can only guess from that.

    requests, tokens: of each replica, the requests that have not come back, and the tokens that they may come to
    (prompt and max_tokens).
    """

    def __init__(self, settings: Any, num_replicas: int, block_size: int, num_blocks: int, seed: int):
        """settings: the option's dataclass. block_size, num_blocks: of each replica's pool."""
        self.settings = settings
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.seed = seed
        self.requests = [0] * num_replicas
        self.tokens = [0] * num_replicas

    def route(self, request: Request) -> int:
        """The replica that serves it, from 0 on. Called once for each request, in order of arrival."""
        replica = self._choose(request)
        self.requests[replica] += 1
        self.tokens[replica] += request.prompt_tokens + request.max_tokens
        return replica

    def answered(self, replica: int, request: Request) -> None:
        """It has come back, before the next one is routed."""
        self.requests[replica] -= 1
        self.tokens[replica] -= request.prompt_tokens + request.max_tokens

    @abstractmethod
    def _choose(self, request: Request) -> int: ...


ROUTERS: Registry[type[Router]] = Registry(
    "router", "pagedlab.router", ("round_robin", "random", "least_loaded", "prefix_aware")
)
