"""Every state that a very small pool can come to: breadth first over admit, compute, append, fork, free, preempt, swap
and resume, with a prefix cache or without, until there is no new state or the depth is reached.

Beside the product runs a naive account: what each slot of memory holds, written through the block tables, and what each
sequence has computed. Two states are one when they differ only in the numbers of blocks, in the places of
sequences, and in sums and clocks that nothing is decided by.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pagedlab.allocator.base import Allocator
from pagedlab.allocator.host import Host
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import OutOfBlocks
from pagedlab.core.request import Request, Sequence, Status
from tests.audit.harness import Check, Found
from tests.lab import caching_allocator

SEQUENCES = 3
HOST_BLOCKS = 2
PROMPTS = ((0,), (0, 1, 0))
Text = tuple[int, ...]


class Wrong(AssertionError):
    pass


def must(holds: bool, *said: object) -> None:
    if not holds:
        raise Wrong(" ".join(map(str, said)))


@dataclass
class World:
    """memory, host: of each slot all tokens up to its own, or None. seqs: by place, None where nobody is."""

    allocator: Allocator
    most: int  # tokens of a sequence
    memory: list[Text | None]
    host: list[Text | None]
    seqs: list[Sequence | None] = field(default_factory=lambda: [None] * SEQUENCES)

    @property
    def size(self) -> int:
        return self.allocator.pool.block_size

    # ---- what can be done ---------------------------------------------------------------------------------------

    def moves(self) -> list[tuple[Any, ...]]:
        """Every action that has a meaning now. Of places that nobody is at only the first is used."""
        made: list[tuple[Any, ...]] = []
        vacant = next((place for place, seq in enumerate(self.seqs) if seq is None), None)
        if vacant is not None:
            made += [("admit new", vacant, prompt) for prompt in PROMPTS]
        for place, seq in enumerate(self.seqs):
            if seq is None:
                continue
            if seq.status is not Status.RUNNING:
                made += [("restore" if seq.swapped else "admit", place), ("drop", place)]
                continue
            made += [("free", place), ("preempt", place)]
            if self.allocator.host is not None:
                made.append(("swap out", place))
            if seq.to_compute:
                made.append(("compute", place))
                continue
            if seq.num_tokens < self.most:
                made += [("append", place, token) for token in (0, 1)]
            if vacant is not None:
                made.append(("fork", place, vacant))
        return made

    def do(self, move: tuple[Any, ...]) -> bool:
        """Do it, as a step of its own; False where there was no room for it, and then nothing has changed."""
        what, place, *more = move
        if what == "admit new":
            prompt = np.array(more[0], dtype=np.int32)
            self.seqs[place] = Sequence(Request(place, prompt, self.most))
        seq = self.seqs[place]
        assert seq is not None
        done = getattr(self, "_" + what.split()[0])(seq, *more)
        self.allocator.step_over()
        return bool(done)

    def _admit(self, seq: Sequence, *_: object) -> bool:
        fits, expected = self.allocator.can_admit(seq), self._longest_prefix(seq)
        try:
            grant = self.allocator.admit(seq)
        except OutOfBlocks:
            must(not fits, "can_admit said that there was room")
            return False
        must(fits, "can_admit said that there was no room")
        must(grant.filled <= expected, grant.filled, "tokens hit, of", expected, "that are cached")
        must(grant.filled == expected or grant.filled < seq.num_tokens - 1, "a shorter prefix was hit")
        for source, destination in grant.copies:
            self._copy(self.memory, source, self.memory, destination)
        seq.status, seq.computed = Status.RUNNING, grant.filled
        return True

    def _compute(self, seq: Sequence) -> bool:
        tokens, table = self._tokens(seq), self.allocator.holdings[seq.key].table
        must(self.allocator.grow(seq.key, seq.num_tokens) == [], "admitted without room for its tokens")
        self._write(seq, table, tokens)
        return True

    def _append(self, seq: Sequence, token: int) -> bool:
        assert isinstance(seq.output, list)
        holding = self.allocator.holdings[seq.key]
        length, last = len(holding.table), holding.table[-1]
        new = self.allocator.grow(seq.key, seq.num_tokens + 1)
        if new is None:
            return False
        seq.output.append(token)
        if new and len(holding.table) - len(new) < length:
            self._copy(self.memory, last, self.memory, new[0])
        self._write(seq, holding.table, self._tokens(seq))
        return True

    def _fork(self, seq: Sequence, place: int) -> bool:
        child = Sequence(Request(place, seq.request.prompt, self.most), Status.RUNNING, computed=seq.computed)
        child.output = list(seq.output)
        child.chain = seq.chain.copy() if seq.chain is not None else None
        must(self.allocator.fork(seq.key, child.key) == [], "a fork of shared blocks copies nothing")
        self.seqs[place] = child
        return True

    def _free(self, seq: Sequence) -> bool:
        self.allocator.settle(seq)
        self.allocator.release(seq.key)
        self.seqs[self.seqs.index(seq)] = None
        return True

    def _preempt(self, seq: Sequence) -> bool:
        self.allocator.settle(seq)
        self.allocator.release(seq.key)
        seq.status, seq.computed = Status.PREEMPTED, 0
        return True

    def _swap(self, seq: Sequence) -> bool:
        if not seq.computed:
            return False
        self.allocator.settle(seq)
        pairs = self.allocator.swap_out(seq, {})
        if pairs is None:  # no room on the host
            self.allocator.release(seq.key)
            seq.status, seq.computed = Status.PREEMPTED, 0
            return True
        for block, on_host in pairs:
            self._copy(self.memory, block, self.host, on_host)
        seq.status, seq.swapped = Status.PREEMPTED, True
        return True

    def _restore(self, seq: Sequence) -> bool:
        fits = self.allocator.can_admit(seq)
        try:
            back = self.allocator.restore(seq)
        except OutOfBlocks:
            must(not fits, "can_admit said that there was room to come back")
            return False
        must(fits, "can_admit said that there was no room to come back")
        for on_host, block in back.pairs:
            self._copy(self.host, on_host, self.memory, block)
        seq.status, seq.swapped = Status.RUNNING, False
        return True

    def _drop(self, seq: Sequence) -> bool:
        if seq.swapped:
            self.allocator.forget(seq)
        self.seqs[self.seqs.index(seq)] = None
        return True

    # ---- memory, naively ----------------------------------------------------------------------------------------

    @staticmethod
    def _tokens(seq: Sequence) -> Text:
        return tuple(int(token) for token in seq.token_ids())

    def _copy(self, source: list[Text | None], a: int, destination: list[Text | None], b: int) -> None:
        size = self.size
        destination[b * size : (b + 1) * size] = source[a * size : (a + 1) * size]

    def _write(self, seq: Sequence, table: list[int], tokens: Text) -> None:
        for position in range(seq.computed, len(tokens)):
            block = table[position // self.size]
            must(self.allocator.pool.references(block) == 1, "block", block, "is written to and shared")
            self.memory[block * self.size + position % self.size] = tokens[: position + 1]
        seq.computed = len(tokens)
        self.allocator.computed(seq)

    def _longest_prefix(self, seq: Sequence) -> int:
        """Tokens of the longest beginning, less one, that the index can give: by the paths of its nodes alone."""
        assert isinstance(self.allocator, PagedAllocator)
        if self.allocator.prefixes is None:
            return 0
        index, tokens, best = self.allocator.prefixes.index, self._tokens(seq), 0
        for node in index.nodes.values():
            path, common = self._path(node), 0
            while common < min(len(path), len(tokens) - 1) and path[common] == tokens[common]:
                common += 1
            best = max(best, common if index.keeps_tails else common // self.size * self.size)
        return best

    @staticmethod
    def _path(node: Any) -> Text:
        tokens: list[int] = []
        while node is not None and node.depth >= 0:
            tokens[:0] = np.frombuffer(node.tokens, ">u4").tolist()
            node = node.parent
        return tuple(tokens)

    # ---- what must be true --------------------------------------------------------------------------------------

    def check(self) -> None:
        a, pool, size = self.allocator, self.allocator.pool, self.size
        a.audit()
        running = [seq for seq in self.seqs if seq is not None and seq.status is Status.RUNNING]
        must(set(a.holdings) == {seq.key for seq in running}, "held by", set(a.holdings))
        mapped = Counter(block for seq in running for block in a.holdings[seq.key].table)
        must(pool.ref == [mapped[block] for block in range(pool.num_blocks)], pool.ref, "references,", mapped)
        must(pool.num_free + pool.num_idle + len(mapped) == pool.num_blocks, "blocks are lost, or twice there")
        for seq in running:
            table, tokens = a.holdings[seq.key].table, self._tokens(seq)
            held = [self.memory[table[i // size] * size + i % size] for i in range(seq.computed)]
            must(held == [tokens[: i + 1] for i in range(seq.computed)], seq, "finds", held)
        if a.host is not None:
            away = {seq.id: seq for seq in self.seqs if seq is not None and seq.swapped}
            must(set(a.host.tables) == set(away), "on the host", a.host.tables)
            for seq in away.values():
                table, tokens = a.host.tables[seq.id][seq.key], self._tokens(seq)
                held = [self.host[table[i // size] * size + i % size] for i in range(seq.computed)]
                must(held == [tokens[: i + 1] for i in range(seq.computed)], seq, "has on the host", held)
        assert isinstance(a, PagedAllocator)
        if a.prefixes is not None:
            for node in a.prefixes.index.nodes.values():
                path, first = self._path(node), node.block * size
                begin = len(path) - node.num_tokens
                held = [self.memory[first + i] for i in range(node.num_tokens)]
                must(held == [path[: begin + i + 1] for i in range(node.num_tokens)], "cached as", path, "is", held)
        usage = a.usage()
        filled: dict[int, int] = {}
        for seq in running:
            for i, block in enumerate(a.holdings[seq.key].table):
                tokens_in = max(0, min(size, a.holdings[seq.key].tokens - i * size))
                filled[block] = max(filled.get(block, 0), tokens_in)
        must(usage.tokens == sum(filled.values()), usage, "but", filled, "tokens")
        must(usage.total == pool.num_blocks * size, usage)

    # ---- which state it is --------------------------------------------------------------------------------------

    def canonical(self) -> Any:
        """Equal for states that nothing tells apart but the numbers of blocks and the places of sequences."""
        a, names = self.allocator, dict[int, int]()

        def named(block: int) -> int:
            return names.setdefault(block, len(names))

        known = []
        for seq in self.seqs:
            if seq is not None:
                kept = [self._path(node) for node in seq.chain.nodes] if seq.chain is not None else []
                known.append(((len(seq.request.prompt), self._tokens(seq), seq.computed, seq.swapped, kept), seq))
        seqs = []
        for said, seq in sorted(known, key=lambda one: one[0]):  # whose place is whose decides nothing
            running = seq.status is Status.RUNNING
            seqs.append((said, [named(block) for block in a.holdings[seq.key].table] if running else None))
        assert isinstance(a, PagedAllocator)
        cached: Any = None
        if a.prefixes is not None:
            nodes, policy = a.prefixes.index.nodes, a.prefixes.pool.eviction
            order = policy.policy._queue  # type: ignore[attr-defined]
            places = sorted({**order._order, **order._aside}.items(), key=lambda item: item[1])
            cached = [(self._path(nodes[key]), named(nodes[key].block), order.is_offered(key)) for key, _ in places]
        free = tuple(named(block) for block in a.pool.free_ids())
        host = a.host.pool.num_free if a.host is not None else 0
        # By text: small, and whatever is in it compares.
        return repr((seqs, cached, free, host))


CONFIGURATIONS: dict[str, tuple[str | None, int, int, bool]] = {
    # name -> prefix cache, block size, tokens of a sequence, host pool
    "no cache": (None, 2, 5, False),
    "no cache, host": (None, 2, 4, True),
    "hash_chain": ("hash_chain", 2, 4, False),
    "hash_chain, host": ("hash_chain", 2, 4, True),
    "radix": ("radix", 2, 4, False),
    "radix, host": ("radix", 2, 4, True),
}
BLOCKS = 4


def start(name: str) -> World:
    cache, size, most, host = CONFIGURATIONS[name]
    if cache is None:
        allocator: Allocator = PagedAllocator(BlockPool(BLOCKS, size), most)
    else:
        allocator = caching_allocator(BLOCKS, size, most, cache)
    if host:
        allocator.host = Host(HOST_BLOCKS, size)
    return World(allocator, most, [None] * (BLOCKS * size), [None] * (HOST_BLOCKS * size))


def explore(name: str, most_states: int) -> Found:
    """Every state up to the depth at which there are `most_states`, that last depth not whole."""
    found = Found(figures={"states": 0, "moves": 0})
    world = start(name)
    seen, layer, depth = {world.canonical()}, [pickle.dumps(world)], 0
    while layer and len(seen) < most_states and not found.faults:
        further = []
        for packed in layer:
            for move in pickle.loads(packed).moves():
                if len(seen) >= most_states:
                    break
                after = pickle.loads(packed)
                found.figures["moves"] += 1
                try:
                    before = after.canonical() if move[0] != "admit new" else None
                    done = after.do(move)
                    if not done:
                        must(before is None or after.canonical() == before, "a refused move changed something")
                        after.seqs[move[1]] = None if before is None else after.seqs[move[1]]
                    after.check()
                    state = after.canonical()
                except Exception as error:
                    found.faults.append(f"{name}, depth {depth}: {move}: {type(error).__name__}: {error}")
                    continue
                if state not in seen:
                    seen.add(state)
                    further.append(pickle.dumps(after))
        depth += not found.faults and len(seen) < most_states
        layer = further
    found.tried = len(seen)
    found.figures["states"] = len(seen)
    found.figures["how far"] = {name: f"{len(seen)} states, " + ("all there are" if not layer else f"depth {depth}")}
    return found


def pieces(short: bool) -> list[tuple[str, int]]:
    return [(name, 300 if short else 40_000) for name in CONFIGURATIONS]


def attempt(piece: tuple[str, int]) -> Found:
    return explore(*piece)


CHECK = Check("states of 4 blocks and 3 sequences, all invariants in each", pieces, attempt, 100_000, limit_s=1800)
