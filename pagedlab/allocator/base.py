"""The allocator contract: who may hold which blocks, and where every slot of the pool is.

Sequences of one request may share blocks: a fork gives a sequence all that another one holds. A shared block is never
written: what would write into it gets a block of its own first, and a copy (copy-on-write). So only the partly filled
last block is ever copied, and the last that maps it writes in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from pagedlab.allocator.host import Host
from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.registry import Registry
from pagedlab.core.request import Key, Request, Sequence


def blocks_for(slots: int, block_size: int) -> int:
    return -(-slots // block_size)


class Usage(NamedTuple):
    """Where every slot of the pool is; the five sum to N x B exactly. A shared slot is one slot, counted once.

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


class Sharing(NamedTuple):
    """mapped: entries of all block tables, so as many blocks as would be held if none was shared. saved: by how many
    fewer are held. The rest are sums since the start, of the prefix cache (see `PrefixCounts`)."""

    mapped: int = 0
    saved: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    lost_tokens: int = 0
    copied_tokens: int = 0
    evictions: int = 0
    regretted: int = 0
    host_hit_tokens: int = 0
    disk_hit_tokens: int = 0


@dataclass(slots=True)
class Grant:
    """What a sequence gets at its admission: blocks, which become its table, and the slots promised in them. filled:
    slots that hold its tokens already, from a prefix cache. shared: slots among them that others hold as well. copies:
    (source, destination) blocks to be copied before it writes. loads: (tier, blocks) to be brought up before it goes
    on."""

    table: list[int]
    promised: int
    filled: int = 0
    shared: int = 0
    copies: list[tuple[int, int]] = field(default_factory=list)
    loads: list[tuple[str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Restored:
    """What a request that was swapped out gets back, for each of its sequences. pairs: (host block, block) to be copied
    before the step. attached: blocks that need no copy, since a prefix cache has their content still."""

    grants: dict[Key, Grant]
    pairs: list[tuple[int, int]]
    attached: int


@dataclass(slots=True)
class Holding:
    """What one sequence holds. promised: slots it may fill without asking again; entered: the promise at admission.
    tokens: slots it has filled, those of the step being planned included."""

    table: list[int]
    promised: int
    entered: int
    tokens: int = 0


class Allocator(ABC):
    """Hands blocks to sequences, which it knows by their keys.

    Invariants, checked by `audit()`: a block belongs to as many sequences as it has references; tokens <= promised
    <= slots of the table; the table is no longer than the promise needs; those that share a block fill it alike; the
    running sums equal the sums recomputed.
    A call that raises OutOfBlocks, or returns None, has changed nothing. `release` is the only way back, and a
    second release of the same sequence does nothing.
    """

    needs_true_length = False
    """Whether it must know how long the output will be (an oracle)."""
    on_demand = False
    """Whether it gives blocks to what runs as that grows, so that it can run out of them."""

    grows: bool | None = None
    """How a sequence that decodes comes to blocks: True, one whenever its last one is full; False, it never needs any;
    None, nobody but the allocator can tell, and steps are not skipped."""

    def __init__(self, pool: BlockPool, max_model_len: int):
        self.pool = pool
        self.max_model_len = max_model_len
        self.holdings: dict[Key, Holding] = {}
        self.host: Host | None = None
        """Where requests are swapped out to, if they are."""
        self._tokens = 0  # slots of the pool, shared ones once
        self._promised = 0
        self._table_entries = 0

    # ---- what an option decides -------------------------------------------------------------------------------

    @abstractmethod
    def max_blocks(self, request: Request) -> int:
        """The most blocks this request can ever come to hold."""

    @abstractmethod
    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        """Whether `admit` would succeed and, where the sequence may still grow, leave `keep_free` blocks free, those
        not counted that its branches need for what they have generated."""

    @abstractmethod
    def _blocks_at_admission(self, seq: Sequence) -> dict[Key, Grant]:
        """Take blocks for a new sequence: by key, for itself first, and for as many of its branches as get theirs now.
        OutOfBlocks changes nothing."""

    @abstractmethod
    def _blocks_for_growth(self, holding: Holding, num_tokens: int, replaced: int) -> list[int] | None:
        """Take blocks until a sequence that outgrew its promise has room for `num_tokens`, `replaced` (0 or 1) more in
        place of a shared last block; None: there are too few."""

    @abstractmethod
    def fork(self, parent: Key, child: Key) -> list[tuple[int, int]]:
        """The child goes on from all that the parent holds, and gives up what it held before. Returns the (source,
        destination) blocks to be copied before either writes: none where the blocks can be shared."""

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

    def admit(self, seq: Sequence) -> Grant:
        """Give a sequence its first blocks: room for every token known so far, at least."""
        key = seq.key
        if key in self.holdings:
            raise InvariantError(f"sequence {key} is admitted twice")
        grants = self._blocks_at_admission(seq)
        self._enter(grants)
        return grants[key]

    def _enter(self, grants: dict[Key, Grant]) -> None:
        for key, grant in grants.items():
            # `entered` is what it may come to waste: what it shares it did not ask for.
            table, promised = grant.table, grant.promised
            self.holdings[key] = Holding(table, promised, promised, grant.filled)
            self._table_entries += len(table)
            self._promised += promised - grant.shared
            self._tokens += grant.filled - grant.shared

    def swap_out(self, request: Sequence, copied: Mapping[int, int]) -> list[tuple[int, int]] | None:
        """Move all that a running request has computed to the host, and release its blocks. copied: of the blocks that
        it was to get as copies in the step being planned, destination to source: their content still lies there.

        Returns (block, host block), each block once, however many of its sequences share it; None, and nothing
        changed, where the host has no room. What a prefix cache has is copied as well, since it may be evicted before
        the request returns: making room is why that leaves.
        """
        host, size = self._need_host(), self.pool.block_size
        tables = {}
        for part in request.feeding:
            computed = self.holdings[part.key].table[: blocks_for(part.computed, size)]
            tables[part.key] = [copied.get(block, block) for block in computed]
        pairs = host.store(request.id, tables)
        if pairs is not None:
            for part in request.parts:
                self.release(part.key)
        return pairs

    def restore(self, request: Sequence) -> Restored:
        """Give a request that was swapped out its blocks back, shared as they were; one that has not forked also those
        for every token known so far. OutOfBlocks changes nothing."""
        raise InvariantError(f"request {request.id} was never swapped out: its blocks are a reservation")

    def is_swapped(self, request: Sequence) -> bool:
        return self.host is not None and request.id in self.host.tables

    def forget(self, request: Sequence) -> None:
        """A request that was swapped out does not come back."""
        self._need_host().forget(request.id)

    @property
    def host_blocks(self) -> int:
        """Blocks of the host pool that are in use, those included that a step being planned reads."""
        return self.host.pool.num_held if self.host is not None else 0

    def _need_host(self) -> Host:
        if self.host is None:
            raise InvariantError("nothing can be swapped out: there is no host pool")
        return self.host

    def time(self, now_s: float) -> None:  # noqa: B027 - of use to a policy that knows seconds
        """It is now_s seconds after the start, of which a step is planned."""

    def stored(self) -> list[tuple[str, int]]:
        """What went down to tiers below the device since this was asked last: (tier, blocks)."""
        return []

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting sequence that need not be computed, were it admitted now."""
        return 0

    def computed(self, seq: Sequence) -> bool:
        """A step is over, and the keys and values of all that `seq` has computed are final. False where a cache could
        not take in all of it now and may be able to after another step."""
        return True

    def settle(self, seq: Sequence) -> None:  # noqa: B027
        """A sequence is about to be released, and computes nothing more before."""

    def step_over(self) -> None:
        """A step has been executed, what it moved included."""
        self.pool.lift_fences()
        if self.host is not None:
            self.host.pool.lift_fences()

    def grow(self, key: Key, num_tokens: int) -> list[int] | None:
        """The sequence is about to hold `num_tokens` tokens. Returns the blocks added to the end of its table (often
        none), or None, and nothing changed, when the pool cannot give them.

        Where the tokens would go into a shared last block, the first block returned has taken its place in the table,
        and is to get a copy of it before anything is written.
        """
        holding = self.holdings[key]
        new: list[int] | None = []
        if num_tokens > holding.promised:
            size = self.pool.block_size
            filled = holding.promised % size
            shared = filled > 0 and self.pool.is_shared(holding.table[-1])
            if shared or not self.grows or num_tokens > size * len(holding.table):
                new = self._blocks_for_growth(holding, num_tokens, int(shared))
                if new is None:
                    return None
                if shared:
                    self.pool.release([holding.table.pop()])
                    self._tokens += filled
                    self._promised += filled
                    self._table_entries -= 1
                holding.table.extend(new)
                self._table_entries += len(new)
            self._promised += num_tokens - holding.promised
            holding.promised = num_tokens
        self._tokens += num_tokens - holding.tokens
        holding.tokens = num_tokens
        return new

    @property
    def caches(self) -> bool:
        """Whether what sequences compute is kept for others."""
        return False

    def fill(self, count: int, owed: int = 0) -> None:
        """Decoding sequences fill `count` more slots of the blocks they hold, one each in every step, and of `owed`
        that they come to hold for it, where `grows`. The sums alone: `catch_up` brings their holdings up to date when
        they are next looked at, and decides which blocks these are."""
        self._tokens += count
        if self.grows:  # nothing was promised beyond the tokens known
            self._promised += count
        if owed:
            self.pool.owe(owed)
            self._table_entries += owed

    def catch_up(self, key: Key, num_tokens: int) -> None:
        """The sequence holds `num_tokens` tokens, which the sums know already, and gets the blocks it is owed."""
        holding = self.holdings[key]
        holding.tokens = num_tokens
        if num_tokens > holding.promised:
            holding.promised = num_tokens
            table, pool = holding.table, self.pool
            owed = -(-num_tokens // pool.block_size) - len(table)
            if owed:
                table += pool.settle(owed)

    def release(self, key: Key) -> int:
        """Take back all that a sequence holds; returns how many blocks became free. Nothing held: 0, no error."""
        holding = self.holdings.pop(key, None)
        if holding is None:
            return 0
        self._table_entries -= len(holding.table)
        freed = self.pool.release(holding.table)
        # What others share is the start of the table: a fork shares all of it, and a table grows at its end.
        still_held = (len(holding.table) - freed) * self.pool.block_size
        self._promised -= max(0, holding.promised - still_held)
        self._tokens -= max(0, holding.tokens - still_held)
        self._returned(holding.table)
        return freed

    def exchange(self, one: Key, other: Key) -> None:
        """Each of two sequences gets what the other one holds; one of them may hold nothing."""
        held = {other: self.holdings.pop(one, None), one: self.holdings.pop(other, None)}
        self.holdings.update({key: holding for key, holding in held.items() if holding is not None})

    def unused(self, key: Key, filled: int) -> int:
        """Slots that a sequence was promised at its admission and never filled, having filled `filled`. What it asked
        for later it asked for in the step that fills it. Nothing held: 0."""
        holding = self.holdings.get(key)
        return holding.entered - filled if holding is not None and holding.entered > filled else 0

    def held_by(self, seq: Sequence) -> int:
        """Blocks that a request holds, shared ones once."""
        if not seq.branches:
            return len(self.holdings[seq.key].table)
        keys = [part.key for part in seq.parts]
        return len({block for key in keys if key in self.holdings for block in self.holdings[key].table})

    def freed_by(self, seqs: Seq[Sequence]) -> int:
        """Blocks that would become free, were all of these requests to give back what they hold."""
        keys = [part.key for seq in seqs for part in seq.parts]
        mapped = Counter(block for key in keys if key in self.holdings for block in self.holdings[key].table)
        return sum(self.pool.references(block) == times for block, times in mapped.items())

    def sharing(self) -> Sharing:
        """What sharing saves now: O(1)."""
        return Sharing(*self.split()[5:], *self.cache_counts())

    def usage(self) -> Usage:
        """The split of every slot now, from running sums: O(1)."""
        return Usage(*self.split()[:5])

    def split(self) -> tuple[int, int, int, int, int, int, int]:
        """The numbers of `usage`, then mapped and saved of `sharing`: what is asked for at every step."""
        pool, tokens, promised, entries = self.pool, self._tokens, self._promised, self._table_entries
        size, free, idle = pool.block_size, pool.num_free, pool.num_idle
        held = pool.num_blocks - free - idle
        return tokens, promised - tokens, held * size - promised, idle * size, free * size, entries, entries - held

    def cache_counts(self) -> tuple[int, ...]:
        """The rest of `sharing`; () where nothing is cached."""
        return ()

    def audit(self) -> None:
        """Check every invariant from scratch; InvariantError names the first that does not hold."""
        size = self.pool.block_size
        self.pool.audit([h.table for h in self.holdings.values()])
        if self.host is not None:
            self.host.audit()
        for seq_id, h in self.holdings.items():
            if len(set(h.table)) != len(h.table):
                raise InvariantError(f"sequence {seq_id} maps a block twice: {h.table}")
            if not h.tokens <= h.promised <= len(h.table) * size:
                raise InvariantError(f"sequence {seq_id}: {h.tokens} tokens, {h.promised} promised, {h.table}")
            if len(h.table) != blocks_for(h.promised, size):
                raise InvariantError(f"sequence {seq_id}: {len(h.table)} blocks of {size} for {h.promised} slots")
        sums = (self._tokens, self._promised, self._table_entries)
        holdings = list(self.holdings.values())
        tokens = sum(_filled(holdings, size, lambda h: h.tokens).values())
        promised = sum(_filled(holdings, size, lambda h: h.promised).values())
        true = (tokens, promised, sum(len(h.table) for h in holdings))
        if sums != true:
            raise InvariantError(f"running sums {sums} of tokens, promised, table entries differ from {true}")
        if self.usage().total != self.pool.num_blocks * size:
            raise InvariantError(f"{self.usage()} sums to {self.usage().total}, not {self.pool.num_blocks} x {size}")


def _filled(holdings: list[Holding], block_size: int, slots_of: Callable[[Holding], int]) -> dict[int, int]:
    """Of every block of the tables, how many of its slots are taken; InvariantError where two sharers differ."""
    filled: dict[int, int] = {}
    for holding in holdings:
        for i, block in enumerate(holding.table):
            slots = min(max(slots_of(holding) - i * block_size, 0), block_size)
            if filled.setdefault(block, slots) != slots:
                raise InvariantError(f"block {block} holds {filled[block]} slots for one sequence, {slots} for another")
    return filled


ALLOCATORS: Registry[type[Allocator]] = Registry(
    "allocator",
    "pagedlab.allocator",
    ("paged", "reserve_max", "power_of_two", "oracle", "oracle_buddy", "reserve_output"),
)

__all__ = ["ALLOCATORS", "Allocator", "Holding", "OutOfBlocks", "Sharing", "Usage", "blocks_for"]
