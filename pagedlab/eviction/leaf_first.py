"""Leaf-first: a prefix is of use only whole, so no block goes while a block behind it is cached.

SGLang evicts from the leaves of its tree and then offers the parent; vLLM comes to the same by freeing in reverse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pagedlab.core.errors import InvariantError
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, Entry, Eviction, Retention


class LeafFirst(Eviction):
    """Any policy behind the same contract: it is offered only idle blocks that have no cached child.

    Idle is what the owner has offered. A parent is offered when its last child goes. Who uses a block uses all blocks
    before it, so the children of an idle block are idle as well, and every idle block can be evicted in the end.
    A block is cached only while the block before it is. That one may be idle where the new block is about to become so:
    it is then withdrawn from the policy. O(1) beside what the policy itself costs.
    """

    def __init__(self, policy: Eviction):
        self.policy = policy
        self.needs_future = policy.needs_future
        super().__init__(policy.capacity)
        self._parents: dict[int, int | None] = {}  # of every cached block
        self._children: Counter[int] = Counter()  # block -> how many of its children are cached, where there are any
        self._idle: set[int] = set()

    @property
    def now_s(self) -> float:
        return self.policy.now_s

    @now_s.setter
    def now_s(self, seconds: float) -> None:
        self.policy.now_s = seconds

    def foretell(self, references: Iterable[int]) -> None:
        self.policy.foretell(references)

    def miss(self, key: int) -> None:
        self.policy.miss(key)

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        parent = entry.parent
        if parent is not None:
            if parent not in self._parents:
                raise InvariantError(f"block {key} is cached before its parent {parent}")
            if parent in self._idle and parent not in self._children:
                self.policy.withdraw(parent)
            self._children[parent] += 1
        self._parents[key] = parent
        self.policy.insert(key, entry, retention)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        self.policy.hit(key, retention)

    def free(self, key: int) -> None:
        self.policy.free(key)

    def offer(self, key: int) -> None:
        self._idle.add(key)
        if key not in self._children:
            self.policy.offer(key)

    def withdraw(self, key: int) -> None:
        self._idle.remove(key)
        if key not in self._children:
            self.policy.withdraw(key)

    def forget(self, key: int) -> None:
        self._idle.discard(key)
        self.policy.forget(key)
        self._left(key)

    @property
    def num_offered(self) -> int:
        return len(self._idle)

    def evict(self) -> int:
        key = self.policy.evict()
        self._idle.remove(key)
        self._left(key)
        return key

    def peek(self) -> int:
        return self.policy.peek()

    def audit(self) -> None:
        self.policy.audit()
        children = Counter(parent for parent in self._parents.values() if parent in self._parents)
        if children != self._children:
            raise InvariantError(f"children {dict(self._children)} are counted, there are {dict(children)}")
        if unknown := self._idle - self._parents.keys():
            raise InvariantError(f"keys {sorted(unknown)} are idle and not cached")
        if busy := {key for key, parent in self._parents.items() if parent in self._idle and key not in self._idle}:
            raise InvariantError(f"keys {sorted(busy)} are in use, and a block before each of them is idle")
        if self.policy.num_offered != len(self._idle - self._children.keys()):
            raise InvariantError(f"{self.policy.num_offered} blocks are offered, not the idle ones without a child")

    def _left(self, key: int) -> None:
        """A block has gone: of its parent it was perhaps the last child."""
        self._children.pop(key, None)  # left only where a block is forgotten before its children
        parent = self._parents.pop(key)
        if parent is not None and parent in self._children:
            self._children[parent] -= 1
            if not self._children[parent]:
                del self._children[parent]
                if parent in self._idle:
                    self.policy.offer(parent)
