"""Least recently used first: the default of vLLM, SGLang, TensorRT-LLM and LMCache."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, EVICTIONS, Retention
from pagedlab.eviction.queued import QueuedEviction


@EVICTIONS.register("lru")
class Lru(QueuedEviction):
    """A use is being asked for, and the end of the last sequence that used it.

    As a sequence lets go of its deepest block first, of blocks that were used together the deepest goes first: so vLLM
    frees a table in reverse (RFC vllm-project/vllm#2614: oldest access, then the longest prefix).
    """

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._queue.push(key)

    def free(self, key: int) -> None:
        self._queue.push(key)
