"""Requests that begin alike go where that beginning is likely to be cached.

`cache_aware` of SGLang's router (sgl-router, policies/cache_aware.rs, v0.4): a tree of the texts sent to each server,
of which the one with the longest match is chosen, unless it is short, or the load uneven. Preble (Srivatsa et al., ICLR
2025) weighs the two by their costs instead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from pagedlab.core.request import Request
from pagedlab.prefix_cache.base import as_bytes
from pagedlab.prefix_cache.digest import Digest
from pagedlab.router.base import ROUTERS, Router


@ROUTERS.register("prefix_aware")
class PrefixAware(Router):
    """Of each replica it remembers the full blocks of the prompts that it sent there, as many as its pool holds, the
    most recent ones. Answers it does not remember, nor does it know what a replica evicts.

    1. Where replicas are more than balance_requests requests apart, and the most is more than balance_ratio times the
       least: the one with the fewest requests.
    2. Else the one that has seen most of the prompt's beginning, if that is more than cache_threshold of it.
    3. Else the one of which it remembers the least: there is room for something new.
    Ties go to the fewer requests, then to the lower number.
    """

    def __init__(self, settings: Any, num_replicas: int, block_size: int, num_blocks: int, seed: int):
        super().__init__(settings, num_replicas, block_size, num_blocks, seed)
        self._digest = Digest()
        # Of each replica the keys of blocks, each standing for all before it as well; the latest used at the end.
        self._seen: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_replicas)]

    def _choose(self, request: Request) -> int:
        keys = self._keys(request)
        chosen = self._by_load() if self._uneven() else self._by_content(request, keys)
        seen = self._seen[chosen]
        for key in reversed(keys):  # the deepest is forgotten first
            seen[key] = None
            seen.move_to_end(key)
        while len(seen) > self.num_blocks:
            seen.popitem(last=False)
        return chosen

    def _uneven(self) -> bool:
        most, least = max(self.requests), min(self.requests)
        return bool(most - least > self.settings.balance_requests and most > self.settings.balance_ratio * least)

    def _by_load(self) -> int:
        return self.requests.index(min(self.requests))

    def _by_content(self, request: Request, keys: list[int]) -> int:
        matched = [next((i for i, key in enumerate(keys) if key not in seen), len(keys)) for seen in self._seen]
        if max(matched) * self.block_size > self.settings.cache_threshold * request.prompt_tokens:
            return min(range(len(matched)), key=lambda i: (-matched[i], self.requests[i], i))
        return min(range(len(matched)), key=lambda i: (len(self._seen[i]), self.requests[i], i))

    def _keys(self, request: Request) -> list[int]:
        """Of the full blocks of the prompt."""
        keys, key = [], self._digest.root((request.cache_salt, request.adapter))
        for end in range(self.block_size, request.prompt_tokens + 1, self.block_size):
            key = self._digest.next(key, as_bytes(request.prompt[end - self.block_size : end]))
            keys.append(key)
        return keys
