"""The allocator contract: who may hold which blocks, and where every slot of the pool is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.registry import Registry
from pagedlab.core.request import Request, Sequence


def blocks_for(slots: int, block_size: int) -> int:
    return -(-slots // block_size)


@dataclass(frozen=True, slots=True)
class Usage:
    """Where every slot of the pool is; the five sum to N x B exactly.

    tokens: hold the KV of a token (that of the step being run included). reserved: promised to a sequence
    beyond its tokens. block_tail: the rest of a sequence's last block, promised to nobody. cached_idle: kept
    for prefix hits, referenced by nobody. free: held by nobody.
    """

    tokens: int
    reserved: int
    block_tail: int
    cached_idle: int
    free: int

    @property
    def total(self) -> int:
        return self.tokens + self.reserved + self.block_tail + self.cached_idle + self.free


@dataclass(slots=True)
class Holding:
    """What one sequence holds. promised: slots it may fill without asking again; entered: the promise at admission.
    tokens: slots it has filled, those of the step being planned included."""

    table: list[int]
    promised: int
    entered: int
    tokens: int = 0


class Allocator(ABC):
    """Hands blocks to sequences.

    Invariants, checked by `audit()`: a block belongs to as many sequences as it has references; tokens <= promised
    <= slots of the table; the table is no longer than the promise needs; the running sums equal the sums recomputed.
    A call that raises OutOfBlocks, or returns None, has changed nothing. `release` is the only way back, and a
    second release of the same sequence does nothing.
    """

    needs_true_length = False
    """Whether it must know how long the output will be (an oracle)."""

    def __init__(self, pool: BlockPool, max_model_len: int):
        self.pool = pool
        self.max_model_len = max_model_len
        self.holdings: dict[int, Holding] = {}
        self._tokens = 0
        self._promised = 0
        self._table_entries = 0

    # ---- what an option decides -------------------------------------------------------------------------------

    @abstractmethod
    def max_blocks(self, request: Request) -> int:
        """The most blocks this request can ever come to hold."""

    @abstractmethod
    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        """Whether `admit` would succeed and, where the sequence may still grow, leave `keep_free` blocks free."""

    @abstractmethod
    def _blocks_at_admission(self, seq: Sequence) -> tuple[list[int], int]:
        """Take blocks for a new sequence: (block ids, promised slots). OutOfBlocks changes nothing."""

    @abstractmethod
    def _blocks_for_growth(self, holding: Holding, num_tokens: int) -> list[int] | None:
        """Take blocks until a sequence that outgrew its promise has room for `num_tokens`; None: there are too few."""

    def _returned(self, table: list[int]) -> None:  # noqa: B027 - a hook for those that keep books of their own
        """A table went back to the pool."""

    # ---- shared ----------------------------------------------------------------------------------------------

    @property
    def max_run(self) -> int:
        """The most blocks that one request could be given in an empty pool."""
        return self.pool.num_blocks

    def refusal(self, request: Request) -> str | None:
        """Why this request can never be served, with both numbers; None when it can."""
        need = self.max_blocks(request)
        if need <= self.max_run:
            return None
        return (
            f"request {request.id} can need {need} blocks of {self.pool.block_size} slots "
            f"({request.prompt_tokens} prompt + {request.max_tokens} new tokens), "
            f"the pool can give {self.max_run} at most (of {self.pool.num_blocks})"
        )

    def admit(self, seq: Sequence) -> list[int]:
        """Give a sequence its first blocks: room for every token known so far, at least. Returns its block table."""
        if seq.id in self.holdings:
            raise InvariantError(f"sequence {seq.id} is admitted twice")
        table, promised = self._blocks_at_admission(seq)
        self.holdings[seq.id] = Holding(table, promised, promised)
        self._table_entries += len(table)
        self._promised += promised
        return table

    def grow(self, seq_id: int, num_tokens: int) -> list[int] | None:
        """The sequence is about to hold `num_tokens` tokens. Returns the blocks added (often none), or None, and
        nothing changed, when the pool cannot give them."""
        holding = self.holdings[seq_id]
        new: list[int] | None = []
        if num_tokens > holding.promised:
            new = self._blocks_for_growth(holding, num_tokens)
            if new is None:
                return None
            holding.table.extend(new)
            self._table_entries += len(new)
            self._promised += num_tokens - holding.promised
            holding.promised = num_tokens
        self._tokens += num_tokens - holding.tokens
        holding.tokens = num_tokens
        return new

    def fill(self, count: int) -> None:
        """`count` decoding sequences each fill one more slot of the blocks they hold: the sums alone; `catch_up` brings
        their holdings up to date when they are next looked at."""
        self._tokens += count

    def catch_up(self, seq_id: int, num_tokens: int) -> None:
        """The sequence holds `num_tokens` tokens, which the sums know already."""
        holding = self.holdings[seq_id]
        holding.tokens = num_tokens
        holding.promised = max(holding.promised, num_tokens)

    def release(self, seq_id: int) -> int:
        """Take back all that a sequence holds; returns how many blocks became free. Nothing held: 0, no error."""
        holding = self.holdings.pop(seq_id, None)
        if holding is None:
            return 0
        self._table_entries -= len(holding.table)
        self._promised -= holding.promised
        self._tokens -= holding.tokens
        freed = self.pool.release(holding.table)
        self._returned(holding.table)
        return freed

    def unused(self, seq_id: int, filled: int) -> int:
        """Slots that a sequence was promised at its admission and never filled, having filled `filled`. What it asked
        for later it asked for in the step that fills it."""
        return max(0, self.holdings[seq_id].entered - filled)

    def usage(self) -> Usage:
        """The split of every slot now, from running sums: O(1)."""
        size = self.pool.block_size
        return Usage(
            tokens=self._tokens,
            reserved=self._promised - self._tokens,
            block_tail=self._table_entries * size - self._promised,
            cached_idle=0,
            free=self.pool.num_free * size,
        )

    def audit(self) -> None:
        """Check every invariant from scratch; InvariantError names the first that does not hold."""
        size = self.pool.block_size
        self.pool.audit([h.table for h in self.holdings.values()])
        for seq_id, h in self.holdings.items():
            if len(set(h.table)) != len(h.table):
                raise InvariantError(f"sequence {seq_id} maps a block twice: {h.table}")
            if not h.tokens <= h.promised <= len(h.table) * size:
                raise InvariantError(f"sequence {seq_id}: {h.tokens} tokens, {h.promised} promised, {h.table}")
            if len(h.table) != blocks_for(h.promised, size):
                raise InvariantError(f"sequence {seq_id}: {len(h.table)} blocks of {size} for {h.promised} slots")
        sums = (self._tokens, self._promised, self._table_entries)
        holdings = self.holdings.values()
        true = (sum(h.tokens for h in holdings), sum(h.promised for h in holdings), sum(len(h.table) for h in holdings))
        if sums != true:
            raise InvariantError(f"running sums {sums} of tokens, promised, table entries differ from {true}")
        if self.usage().total != self.pool.num_blocks * size:
            raise InvariantError(f"{self.usage()} sums to {self.usage().total}, not {self.pool.num_blocks} x {size}")


ALLOCATORS: Registry[type[Allocator]] = Registry(
    "allocator", "pagedlab.allocator", ("paged", "reserve_max", "power_of_two", "oracle", "reserve_output")
)

__all__ = ["ALLOCATORS", "Allocator", "Holding", "OutOfBlocks", "Usage", "blocks_for"]
