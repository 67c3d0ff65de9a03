"""The eviction contract: which cached block that nobody uses goes when its room is needed."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pagedlab.core.errors import OutOfBlocks
from pagedlab.core.registry import Registry

DEFAULT_PRIORITY = 35
"""Of 0 to 100, as in TensorRT-LLM."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A block's content. parent: key of the block before it, None for a first block. depth: blocks before it.
    tokens: how many it holds."""

    parent: int | None = None
    depth: int = 0
    tokens: int = 1


@dataclass(frozen=True, slots=True)
class Retention:
    """What a request asks for the blocks that it uses. priority: 0 to 100, higher is kept longer. ttl_s: for how many
    seconds after its end it should count; None is the policy's own answer."""

    priority: int = DEFAULT_PRIORITY
    ttl_s: float | None = None


ENTRY = Entry()
ASKS_NOTHING = Retention()


class Eviction(ABC):
    """Chooses victims among the cached blocks that it was offered. It holds no blocks: its owner (a prefix cache) does.

    A key is an int that names content (a digest, an id of a trace), not a place in memory, so that a policy can
    remember content that has left. The owner tells everything that happens to a key, in this order:

        miss(key)        asked for and not cached; told before room is made for it, also where it is not cached after
        insert(key)      its content has become cached. It may not be evicted yet
        hit(key)         asked for while cached
        free(key)        the last sequence that used it let go; of one sequence, the deepest block first
        offer(key)       it may be evicted from now on: cached, and nobody uses it. Then, any number of times,
        withdraw(key)    it may not, until it is offered again
        forget(key)      it is cached no longer by other means than `evict`, which forgets by itself

    miss, insert, hit and free say something about how much content is worth. offer and withdraw do not: they change
    neither recency nor frequency. To offer what is offered, and to withdraw what is not, are faults of the owner, as
    is any other event of a key that is not cached; `audit` finds what they leave behind, where checking each call would
    cost more than the policy.

    Time is a count of events, kept inside. Only what is asked for in seconds is in seconds: the owner keeps `now_s` up
    to date (virtual time in a simulation), and it never goes back.
    """

    needs_future = False
    """Whether it is an oracle, which must be told beforehand what will be asked for, by `foretell`."""

    def __init__(self, capacity: int, settings: Any = None, seed: int = 0):
        """capacity: blocks of the cache. settings: the option's dataclass. seed: for those that draw."""
        self.capacity = capacity
        self.now_s = 0.0

    def foretell(self, references: Iterable[int]) -> None:  # noqa: B027 - only an oracle wants to know
        """All keys that will be asked for, in order. Told once, before everything else, to one that `needs_future`."""

    # ---- what is told ---------------------------------------------------------------------------------------------

    def miss(self, key: int) -> None:  # noqa: B027 - most policies have no use for it
        """`key` was asked for and is not cached."""

    @abstractmethod
    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        """`key` is cached now."""

    @abstractmethod
    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        """`key` was asked for and is cached."""

    def free(self, key: int) -> None:  # noqa: B027 - a use that ends is no news to most policies
        """The last sequence that used `key` has let go of it. Recency for those that go by it, never frequency."""

    @abstractmethod
    def offer(self, key: int) -> None:
        """`key` may be evicted."""

    @abstractmethod
    def withdraw(self, key: int) -> None:
        """`key` may not be evicted."""

    @abstractmethod
    def forget(self, key: int) -> None:
        """`key`, offered or not, is cached no longer."""

    # ---- what is asked --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def num_offered(self) -> int:
        """How many blocks can be evicted, one after the other."""

    @abstractmethod
    def evict(self) -> int:
        """Choose one of the offered, forget it, return its key. OutOfBlocks where none is offered."""

    def peek(self) -> int:
        """The key that `evict` would return, nothing changed. For tests and displays: where a policy has no quick
        answer, a copy of it is made and asked, O(blocks)."""
        return copy.deepcopy(self).evict()

    def evict_all(self, n: int) -> list[int]:
        """Evict n blocks, in order, or none: OutOfBlocks, and nothing changed, where fewer can be evicted."""
        if n > self.num_offered:
            raise OutOfBlocks(f"{n} blocks to evict, {self.num_offered} may be")
        return [self.evict() for _ in range(n)]

    @abstractmethod
    def audit(self) -> None:
        """Check every invariant from scratch; InvariantError names the first that does not hold. O(blocks)."""


EVICTIONS: Registry[type[Eviction]] = Registry(
    "eviction",
    "pagedlab.eviction",
    (
        *("lru", "fifo", "lfu", "mru", "filo", "random", "clock", "slru", "sieve", "s3fifo", "arc", "lirs", "gdsf"),
        *("priority", "priority_ttl", "cost_aware", "ttl_pin", "belady"),
    ),
)
