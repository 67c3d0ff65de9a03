"""LIRS (Jiang, Zhang, SIGMETRICS 2002): what counts is how much was used between a block's last two uses."""

from __future__ import annotations

from collections import OrderedDict

from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Eviction, Retention
from pagedlab.eviction.ghosts import Ghosts
from pagedlab.eviction.queue import Queue
from pagedlab.settings import LirsSettings


@EVICTIONS.register("lirs")
class Lirs(Eviction):
    """Blocks that came back soon (LIR, low inter-reference recency) keep all of the cache but `hir_fraction`; the
    others (HIR) wait in a queue and leave from its front. The stack holds everything used since the least recently used
    LIR block, ghosts included: a HIR block or ghost that is used while in it becomes LIR, and the LIR block at its
    bottom becomes HIR. A LIR block is the victim only where no HIR block may go.

    The paper bounds no ghosts; here there are `ghost_fraction` of the cache, of more the one that left earliest is
    forgotten. Amortised O(1).
    """

    def __init__(self, capacity: int, settings: LirsSettings, seed: int = 0):
        super().__init__(capacity, settings, seed)
        self._most_lir = capacity - max(1, int(capacity * settings.hir_fraction))
        self._stack: OrderedDict[int, None] = OrderedDict()  # most recently used last
        self._lir = Queue()  # in the order of the stack
        self._hir = Queue()
        self._ghosts = Ghosts(int(capacity * settings.ghost_fraction))  # all in the stack

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        if self._ghosts.discard(key) or len(self._lir) < self._most_lir:
            self._lir.push(key)
        else:
            self._hir.push(key)
        self._to_the_top(key)
        self._demote()

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        if key in self._lir:
            self._lir.push(key)
        elif key in self._stack:
            self._hir.move(key, self._lir)
        else:
            self._hir.push(key)
        self._to_the_top(key)
        self._demote()

    def offer(self, key: int) -> None:
        self._queue_of(key).offer(key)

    def withdraw(self, key: int) -> None:
        self._queue_of(key).withdraw(key)

    def forget(self, key: int) -> None:
        self._queue_of(key).remove(key)
        self._stack.pop(key, None)
        self._prune()

    @property
    def num_offered(self) -> int:
        return self._hir.num_offered + self._lir.num_offered

    def evict(self) -> int:
        key = self.peek()
        if key in self._stack and key in self._hir:
            self._hir.remove(key)
            forgotten = self._ghosts.add(key)
            if forgotten is not None:
                del self._stack[forgotten]
        else:
            self.forget(key)
        return key

    def peek(self) -> int:
        for queue in (self._hir, self._lir):
            key = queue.first()
            if key is not None:
                return key
        raise OutOfBlocks("no block may be evicted")

    def audit(self) -> None:
        self._lir.audit()
        self._hir.audit()
        lir, hir, ghosts = set(self._lir.keys()), set(self._hir.keys()), set(self._ghosts.keys())
        if lir & hir or lir & ghosts or hir & ghosts:
            raise InvariantError("a block is of two kinds")
        if not lir | ghosts <= self._stack.keys() <= lir | hir | ghosts:
            raise InvariantError("the stack lacks a LIR block or a ghost, or holds what is nothing")
        if self._stack and next(iter(self._stack)) not in lir:
            raise InvariantError("the bottom of the stack is no LIR block")
        if self._lir.keys() != [key for key in self._stack if key in lir]:
            raise InvariantError("the LIR blocks are not in the order of the stack")

    def _to_the_top(self, key: int) -> None:
        self._stack[key] = None
        self._stack.move_to_end(key)
        self._prune()

    def _demote(self) -> None:
        """Of more LIR blocks than there is room for, the one at the bottom becomes HIR."""
        while len(self._lir) > self._most_lir:
            bottom = next(iter(self._stack))
            del self._stack[bottom]
            self._lir.move(bottom, self._hir)
            self._prune()

    def _prune(self) -> None:
        """Down to the lowest LIR block: what lies below it has been away for longer than any of them."""
        while self._stack:
            bottom = next(iter(self._stack))
            if bottom in self._lir:
                break
            del self._stack[bottom]
            self._ghosts.discard(bottom)

    def _queue_of(self, key: int) -> Queue:
        return self._lir if key in self._lir else self._hir
