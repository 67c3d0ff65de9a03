"""First in, first out (SGLang `fifo`, Mooncake's store): the block cached longest ago goes, however much it is used."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, EVICTIONS, Retention
from pagedlab.eviction.queued import QueuedEviction


@EVICTIONS.register("fifo")
class Fifo(QueuedEviction):
    """Of a sequence the first block was cached first: without leaf-first its start goes before its end."""

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        """A use changes nothing."""
