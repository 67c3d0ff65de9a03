"""S3-FIFO (Yang et al., SOSP 2023): a small queue that content used once passes quickly, a main one, and ghosts."""

from __future__ import annotations

from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention
from pagedlab.eviction.ghosts import Ghosts
from pagedlab.eviction.queue import Queue
from pagedlab.settings import S3FifoSettings

_MOST_USES = 3
"""What a count of two bits holds."""


@EVICTIONS.register("s3fifo")
class S3Fifo(Eviction):
    """Content enters the small queue (`small_fraction` of the cache), or the main one if it is a ghost. At the front of
    the small queue what was hit `promote_hits` times moves to the main one and the first other is the victim, which
    becomes a ghost (`ghost_fraction` of the cache in all). The main queue is CLOCK with two bits, and is taken from
    when it holds more than its share or the small one has nothing to give.

    warmup: until the first eviction the paper's text puts all content into the small queue; libCacheSim since December
    2024 puts it into the main one once the small one is full. Traces of many requests tell them apart. Amortised O(1).
    """

    def __init__(self, capacity: int, settings: S3FifoSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._most_small = max(1, int(capacity * settings.small_fraction))
        self._promote_hits = settings.promote_hits
        self._fills_main_early = settings.warmup == "libcachesim"
        self._small = Queue()
        self._main = Queue()
        self._ghosts = Ghosts(int(capacity * settings.ghost_fraction))
        self._returning = Ghosts(capacity)  # were ghosts when they were missed, and may be cached soon
        self._uses: dict[int, int] = {}
        self._has_evicted = False

    def miss(self, key: int) -> None:
        # Out of the ghosts at once: the eviction that makes room for it must not push it out of them.
        if self._ghosts.discard(key):
            self._returning.add(key)

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._uses[key] = 0
        known = self._returning.discard(key) or self._ghosts.discard(key)
        full = len(self._small) >= self._most_small
        if known or (full and self._fills_main_early and not self._has_evicted):
            self._main.push(key)
        else:
            self._small.push(key)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self._uses[key] += 1

    def offer(self, key: int) -> None:
        self._queue_of(key).offer(key)

    def withdraw(self, key: int) -> None:
        self._queue_of(key).withdraw(key)

    def forget(self, key: int) -> None:
        self._queue_of(key).remove(key)
        del self._uses[key]

    @property
    def num_offered(self) -> int:
        return self._small.num_offered + self._main.num_offered

    def evict(self) -> int:
        if not self.num_offered:
            raise OutOfBlocks("no block may be evicted")
        self._has_evicted = True
        key = None
        while key is None:
            main_is_over = len(self._main) > self.capacity - self._most_small
            if self._main.num_offered and (main_is_over or not self._small.num_offered):
                key = self._evict_main()
            else:
                key = self._evict_small()
        self.forget(key)
        return key

    def _evict_small(self) -> int | None:
        """The victim; None where everything that may go has been moved to the main queue."""
        while (key := self._small.first()) is not None:
            if self._uses[key] < self._promote_hits:
                self._ghosts.add(key)
                return key
            self._uses[key] = 0
            self._small.move(key, self._main)
        return None

    def _evict_main(self) -> int | None:
        while (key := self._main.first()) is not None and self._uses[key]:
            self._uses[key] = min(self._uses[key], _MOST_USES) - 1
            self._main.push(key)
        return key

    def audit(self) -> None:
        self._small.audit()
        self._main.audit()
        small, main = set(self._small.keys()), set(self._main.keys())
        if small & main or small | main != self._uses.keys():
            raise InvariantError("the two queues and the counts of uses do not hold the same blocks")
        for ghosts in (self._ghosts, self._returning):
            if len(ghosts) > ghosts.capacity:
                raise InvariantError(f"{len(ghosts)} ghosts, expected at most {ghosts.capacity}")
            if cached := self._uses.keys() & set(ghosts.keys()):
                raise InvariantError(f"keys {sorted(cached)} are cached and ghosts")

    def _queue_of(self, key: int) -> Queue:
        return self._small if key in self._small else self._main
