"""Blocks on demand, shared until written (PagedAttention, Kwon et al., SOSP 2023, sections 4.3 and 4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pagedlab.allocator.base import ALLOCATORS, Allocator, Grant, Holding, Restored, blocks_for
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.prefixes import Prefixes
from pagedlab.core.errors import InvariantError, OutOfBlocks
from pagedlab.core.request import Key, Request, Sequence
from pagedlab.prefix_cache.base import Match, Node


@ALLOCATORS.register("paged")
class PagedAllocator(Allocator):
    """A new sequence gets blocks for the tokens known so far, then one more block each time its last one is full.

    All that a sequence can waste is the tail of its last block. It may run out while it grows: the scheduler
    then preempts somebody.

    With a prefix cache it begins with the blocks that are cached of its tokens, and asks for the others alone. Whoever
    else holds them, and whether anybody does, makes no difference to it.
    """

    on_demand = True
    grows = True

    def __init__(self, pool: BlockPool, max_model_len: int, prefixes: Prefixes | None = None):
        super().__init__(pool, max_model_len)
        self.prefixes = prefixes

    @property
    def max_run(self) -> int:
        """Pinned blocks may stand in the way of everything else."""
        return self.pool.num_blocks - (self.prefixes.pin_blocks if self.prefixes else 0)

    def max_blocks(self, request: Request) -> int:
        """All sequences of a request share the full blocks of its prompt."""
        shared = request.prompt_tokens // self.pool.block_size
        return shared + request.width * (blocks_for(request.max_slots, self.pool.block_size) - shared)

    def can_admit(self, seq: Sequence, keep_free: int = 0) -> bool:
        if self.host is not None and self.is_swapped(seq):
            return self._blocks_to_return(seq) + keep_free <= self.pool.num_available
        if self.prefixes is None:
            return self._blocks_to_begin(seq) + keep_free <= self.pool.num_available
        return self._affordable(self.prefixes, seq, self._blocks_to_begin(seq) + keep_free) is not None

    def _affordable(self, prefixes: Prefixes, seq: Sequence, blocks: int) -> Match | None:
        """What the sequence would take from the cache, so that the pool can give the rest of `blocks` and keep what it
        takes; None where it cannot. Where there is no room for a block beside its copy, nothing is copied."""
        match = prefixes.match(seq)
        for usable in (match, replace(match, partial=None, copied=0, lost=match.lost + match.copied)):
            if blocks - len(usable.nodes) + prefixes.idle(usable) <= self.pool.num_available:
                return usable
        return None

    @property
    def caches(self) -> bool:
        return self.prefixes is not None

    def _blocks_to_return(self, request: Sequence) -> int:
        """How many of the available blocks it takes to restore a request and to feed all that it knows."""
        tables = self._need_host().tables[request.id]
        if request.forked:
            size, blocks = self.pool.block_size, len(self._need_host().blocks(request.id))
            tails = [tables[part.key][-1] for part in request.parts if part.computed % size]
            blocks += len(tails) - len(set(tails))  # each but the last that writes to a shared block gets a copy
            blocks += sum(blocks_for(part.num_tokens, size) - len(tables[part.key]) for part in request.parts)
        else:
            blocks = self._blocks_to_begin(request)
        if self.prefixes is None:
            return blocks
        nodes = list({node.block: node for node in self._attachable(request).values()}.values())
        return blocks - len(nodes) + self.prefixes.idle(Match(nodes))

    def _attachable(self, request: Sequence) -> dict[int, Node]:
        """Host block -> where its content is cached still."""
        if self.prefixes is None:
            return {}
        found: dict[int, Node] = {}
        for part in request.feeding:
            table = self._need_host().tables[request.id][part.key]
            nodes = self.prefixes.match(part).nodes[: part.computed // self.pool.block_size]
            found.update(zip(table, nodes, strict=False))
        return found

    def restore(self, request: Sequence) -> Restored:
        if (blocks := self._blocks_to_return(request)) > self.pool.num_available:
            raise OutOfBlocks(f"{blocks} blocks asked, {self.pool.num_available} free or evictable")
        size, pool, attached = self.pool.block_size, self.pool, self._attachable(request)
        counted = {node.block for node in attached.values() if pool.ref[node.block]}  # by those that hold them
        tables, held = self._need_host().tables[request.id], list[int]()
        moved = list(dict.fromkeys(b for table in tables.values() for b in table if b not in attached))
        promised = {part.key: part.computed if request.forked else part.num_tokens for part in request.feeding}
        growth = {key: blocks_for(promised[key], size) - len(table) for key, table in tables.items()}
        with self._given_back(held):
            for part in request.feeding:  # before anything is handed out: what is idle could be evicted for it
                if self.prefixes is not None:
                    nodes = [attached[block] for block in tables[part.key] if block in attached]
                    self.prefixes.attach(part, nodes)
                    held += [node.block for node in nodes]
            new = pool.allocate(len(moved) + sum(growth.values()))
        self._need_host().take_back(request.id)
        place = {block: node.block for block, node in attached.items()} | dict(zip(moved, new, strict=False))
        new = new[len(moved) :]
        seen: set[int] = set()
        grants = {}
        for part in request.feeding:
            table = [place[block] for block in tables[part.key]]
            again = [block for block in tables[part.key] if block in seen and block not in attached]
            pool.retain([place[block] for block in again])
            seen.update(tables[part.key])
            taken, new = new[: growth[part.key]], new[growth[part.key] :]
            table += taken
            fits = promised[part.key]
            shared = sum(min(size, fits - i * size) for i, block in enumerate(table) if block in counted)
            counted.update(table)
            grants[part.key] = Grant(table, fits, part.computed, shared)
        self._enter(grants)
        return Restored(grants, [(block, place[block]) for block in moved], len(set(place) - set(moved)))

    @contextmanager
    def _given_back(self, held: list[int]) -> Iterator[None]:
        """Blocks that a sequence is coming to hold, by no table yet, go back where that fails."""
        try:
            yield
        except BaseException:
            self.pool.release(held)
            raise

    def cached_tokens(self, seq: Sequence) -> int:
        if self.prefixes is None or self.is_swapped(seq):
            return 0
        return self.prefixes.match(seq).num_tokens(self.pool.block_size)

    def _blocks_to_begin(self, seq: Sequence) -> int:
        """For every token known so far: of branches that have generated something, theirs as well, since they have to
        feed it again. Only those of the trunk are taken at once."""
        size = self.pool.block_size
        if not seq.branches:
            return blocks_for(seq.num_tokens, size)
        shared = seq.num_tokens // size
        return shared + sum(blocks_for(part.num_tokens, size) - shared for part in seq.parts)

    def _blocks_at_admission(self, seq: Sequence) -> dict[Key, Grant]:
        size, tokens = self.pool.block_size, seq.num_tokens
        blocks = blocks_for(tokens, size)
        prefixes = self.prefixes
        if prefixes is None:
            return {seq.key: Grant(self.pool.allocate(blocks), tokens)}
        match = self._affordable(prefixes, seq, blocks)
        if match is None:
            raise OutOfBlocks(f"{blocks} blocks asked, {self.pool.num_available} free or evictable")
        shared = size * sum(self.pool.ref[node.block] > 0 for node in match.nodes)
        table = prefixes.take(seq, match)  # before anything is handed out: what is idle could be evicted for it
        with self._given_back(table):
            table += self.pool.allocate(blocks - len(table))
        copies = [(match.partial.block, table[len(match.nodes)])] if match.partial else []
        loads = list(Counter(match.below).items())
        return {seq.key: Grant(table, tokens, match.num_tokens(size), shared, copies, loads)}

    def time(self, now_s: float) -> None:
        if self.prefixes is not None:
            self.prefixes.pool.eviction.now_s = now_s

    def stored(self) -> list[tuple[str, int]]:
        return self.prefixes.tiers.stored() if self.prefixes is not None else []

    def cache_counts(self) -> tuple[int, ...]:
        if self.prefixes is None:
            return ()
        c = self.prefixes.counts
        return c.queried, c.hit, c.lost, c.copied, c.evictions, c.regretted, c.below["host"], c.below["disk"]

    def computed(self, seq: Sequence) -> bool:
        if self.prefixes is None or seq.key not in self.holdings:
            return True
        return self.prefixes.publish(seq, self.holdings[seq.key].table)

    def settle(self, seq: Sequence) -> None:
        if self.prefixes is not None and (holding := self.holdings.get(seq.key)) is not None:
            # In the middle of a step the last block may be waiting for the copy of what it is to hold.
            self.prefixes.settle(seq, holding.table, tail=holding.tokens == seq.computed)

    def audit(self) -> None:
        super().audit()
        if self.prefixes is not None:
            self.prefixes.audit()

    def _blocks_for_growth(self, holding: Holding, num_tokens: int, replaced: int) -> list[int] | None:
        missing = blocks_for(num_tokens, self.pool.block_size) - len(holding.table) + replaced
        try:
            return self.pool.allocate(missing)
        except OutOfBlocks:
            return None

    def fork(self, parent: Key, child: Key) -> list[tuple[int, int]]:
        source = self.holdings[parent]
        if source.tokens != source.promised:
            raise InvariantError(f"sequence {parent} forks with {source.tokens} of {source.promised} slots filled")
        self.pool.retain(source.table)
        self.release(child)
        self.holdings[child] = Holding(list(source.table), source.promised, source.promised, source.tokens)
        self._table_entries += len(source.table)
        return []
