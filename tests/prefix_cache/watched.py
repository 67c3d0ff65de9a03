"""The engine with a prefix cache, one step at a time, beside a naive account of what is cached.

`Watched` drives a Scheduler and a FingerprintExecutor over a pool of a few blocks. What is cached it knows as whole
texts, read from the tree of contents (never by a search of the product's): a hit must be what a search of those texts
from end to end finds, and the slots of every cached block must hold the fingerprints of its text. Blocks that are
handed out, or free, are overwritten. The first thing found wrong raises `Violation`, which names its check. Hypothesis
makes the programs in test_engine.py, a seeded generator (`random_program`) in test_mutations.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pagedlab.core.request import Request, Status
from pagedlab.core.request import Sequence as Served
from pagedlab.eviction.base import EVICTIONS
from pagedlab.prefix_cache.base import Node
from tests.lab import fingerprints_of, make_executor, make_scheduler, naive_answer, naive_output, request

CHECKS = {
    "I01": "every block is held, cached and idle, or free, and is counted as what it is",
    "I04": "a block has as many references as table entries",
    "I12": "a request generates what it would alone",
    "I14": "a block that others may write to is not cached: a cached one is full, or held by nobody",
    "I19": "an admission that can be refused is refused, and then changes nothing",
    "I21": "a hit is the longest cached beginning less one token: never of another text, salt or adapter",
    "I22": "the end of a use is told deepest block first",
    "I26": "the block before a cached one is cached; under leaf-first no block goes before those behind it",
    "I27": "pinned blocks are never evicted, and no more are than may be",
    "I33": "tokens computed + cached = prompt + generated - 1 + lost to preemptions",
    "slots": "through the index, every slot of every cached block holds the fingerprint of its text",
    "taken": "a block that is handed out is nobody's",
    "whole": "what a request has computed is cached, as far as it does not lie in another block already",
    "told": "the eviction policy is told what is cached and what was asked for in vain, and nothing else",
    "counts": "queried, hit, copied, lost, evicted and regretted are what they are from scratch",
    "offer": "what may be evicted is what is idle, neither pinned nor being copied from",
}

FREED = np.uint64(0xF2EEDF2EEDF2EED)  # what is written over the slots of blocks that hold nothing any more

Text = tuple[str, str, tuple[int, ...]]
"""Salt, adapter, and all tokens up to the end of a block."""


class Violation(AssertionError):
    def __init__(self, check: str, detail: str):
        super().__init__(f"{check} ({CHECKS[check]}): {detail}")
        self.check = check


def must(check: str, holds: bool, *detail: Any) -> None:
    if not holds:
        raise Violation(check, " ".join(str(d) for d in detail))


# ---- what is chosen: by Hypothesis, or by a seeded generator --------------------------------------------------------

Choose = Callable[[Sequence[Any]], Any]
"""One of the options."""

POLICIES = [name for name in EVICTIONS if not EVICTIONS[name].needs_future]


@dataclass(frozen=True)
class World:
    """A small engine, and the requests that it gets. aborts: (step, which of the requests)."""

    num_blocks: int
    block_size: int
    prefix_cache: str
    eviction: str
    leaf_first: bool
    hash_bits: int
    pin_blocks: int
    batching: str
    tokens: int
    victim: str
    watermark: float
    eos: int | None
    requests: tuple[Request, ...]
    aborts: tuple[tuple[int, int], ...]


def a_world(choose: Choose, policies: Sequence[str] = POLICIES) -> World:
    """Requests that mostly begin alike, in a pool that holds few of them."""
    block_size = choose([1, 2, 2, 3, 4])
    num_blocks = choose([5, 6, 8, 10, 16])
    pin_blocks = choose([0, 0, 1, 2])
    slots = (num_blocks - pin_blocks) * block_size
    stems = [tuple(choose([1, 2]) for _ in range(min(12, slots // 2))), (1,) * (slots // 2)]
    requests, now = [], 0.0
    for i in range(choose(range(2, 8))):
        kind = choose(["one", "one", "one", "n", "beam"])
        sampling = {"n": {"n": choose([2, 3]), "temperature": 1.0, "seed": choose(range(9))}}.get(kind, {})
        if kind == "beam":
            sampling = {"beam_width": choose([2, 3])}
        width = 1 if kind == "one" else sampling.get("n") or sampling["beam_width"]
        longest = max(2, slots // width)
        new = choose(range(1, max(2, longest // 2) + 1))
        stem = choose(stems)
        prompt = [*stem[: choose(range(len(stem) + 1))], *(choose([1, 2]) for _ in range(choose(range(4))))]
        prompt = prompt[: max(1, longest - new)] or [1]
        r = request(prompt, new, id=i, arrival=now, ignore_eos=False, **sampling)
        requests.append(
            replace(
                r,
                cache_salt=choose(["", "", "", "tenant"]),
                adapter=choose(["", "", "", "lora"]),
                cache_priority=choose([0, 35, 35, 80]),
                cache_ttl_s=choose([None, None, 0.03]),
                pin_tokens=choose([0, 0, len(prompt), len(prompt) // 2]) if pin_blocks else 0,
            )
        )
        now += choose([0.0, 0.0, 0.01, 0.03, 0.1])
    eos = None
    if choose([False, False, True]):  # what somebody says first
        eos = naive_output(replace(choose(requests), max_tokens=1))[0]
    return World(
        num_blocks,
        block_size,
        prefix_cache=choose(["hash_chain", "radix"]),
        eviction=choose(policies),
        leaf_first=choose([True, True, False]),
        hash_bits=choose([128, 128, 8, 3]),
        pin_blocks=pin_blocks,
        batching=choose(["chunked", "prefill_first"]),
        tokens=choose([4, 6, 64]),
        victim=choose(["last_arrived", "most_blocks"]),
        watermark=choose([0.0, 0.0, 0.25]),
        eos=eos,
        requests=tuple(requests),
        aborts=tuple((choose(range(1, 12)), choose(range(8))) for _ in range(choose([0, 0, 0, 1, 2]))),
    )


# ---- the account ----------------------------------------------------------------------------------------------------


class Watched:
    """`step` after `step`; `serve` runs the requests of the world from their arrivals to the end."""

    def __init__(self, world: World):
        self.world = world
        self.scheduler = make_scheduler(
            world.num_blocks,
            world.block_size,
            batching=world.batching,
            tokens=world.tokens,
            victim=world.victim,
            watermark=world.watermark,
            prefix_cache=world.prefix_cache,
            eviction=world.eviction,
            leaf_first=world.leaf_first,
            hash_bits=world.hash_bits,
            pin_blocks=world.pin_blocks,
        )
        self.executor = make_executor(self.scheduler, world.eos)
        self.allocator, self.pool = self.scheduler.allocator, self.scheduler.allocator.pool
        self.index = self.allocator.prefixes.index
        self.seqs: list[Served] = []
        self.counts: Counter[str] = Counter()
        self.fed: Counter[int] = Counter()  # tokens, by request
        self.lost: Counter[int] = Counter()  # to preemptions
        self.evicted: set[Text] = set()  # and not cached again since
        self.pinned: set[Text] = set()
        self._policy_keys: set[int] = set()
        self._wanted: set[int] = set()  # blocks that the step being planned copies from, or is about to share
        self._fingerprints: dict[tuple[int, ...], list[int]] = {}
        self._watch_policy()
        self._watch_blocks()

    # ---- what is cached, as texts -----------------------------------------------------------------------------------

    def texts(self) -> dict[Text, Node]:
        """From the tree, root by root."""
        found: dict[Text, Node] = {}
        for (salt, adapter), root in self.index._roots.items():
            stack: list[tuple[Node, tuple[int, ...]]] = [(root, ())]
            while stack:
                node, before = stack.pop()
                for child in node.children():
                    text = (*before, *np.frombuffer(child.tokens, ">u4").tolist())
                    found[salt, adapter, text] = child
                    stack.append((child, text))
        return found

    def expected(self, seq: Served) -> tuple[list[Node], Node | None, int, int]:
        """Of a waiting request: full blocks to share, a block to copy from, tokens to copy, tokens of no use."""
        size, who = self.world.block_size, (seq.request.cache_salt, seq.request.adapter)
        cached = {text: node for (*whose, text), node in self.texts().items() if tuple(whose) == who}
        known = (*seq.request.prompt.tolist(), *seq.output)
        asked = known[:-1]  # something is to be computed
        nodes: list[Node] = []
        while len(text := asked[: (len(nodes) + 1) * size]) == (len(nodes) + 1) * size and text in cached:
            nodes.append(cached[text])
        start = len(nodes) * size
        common = {0: [None]}  # tokens that blocks behind begin with -> these blocks
        for text, node in cached.items():
            if text[:start] == known[:start] and start < len(text) <= start + size:
                same = 0
                while same < min(len(text), len(asked)) - start and text[start + same] == asked[start + same]:
                    same += 1
                common.setdefault(same, []).append(node)
        most = max(common)
        if self.world.prefix_cache == "hash_chain":
            return nodes, None, 0, most
        partial = self.index.match(seq).partial  # of several that begin alike any is as good
        must("I21", partial in common[most], "copied from", partial, ", not one of", common[most])
        return nodes, partial, most, 0

    def _held(self) -> Counter[int]:
        return Counter(block for holding in self.allocator.holdings.values() for block in holding.table)

    def _idle(self) -> set[int]:
        return {node.block for node in self.texts().values()} - self._held().keys()

    def _has_room(self, fresh: int, kept: Sequence[Node]) -> bool:
        """Whether so many blocks can be had while these stay."""
        idle = self._idle()
        pinned = {node.block for node in self.texts().values() if self.pool.is_pinned(node.block)}
        free = self.world.num_blocks - len(self._held().keys() | idle)
        return fresh <= free + len(idle - pinned - self._wanted - {node.block for node in kept})

    # ---- watching single calls --------------------------------------------------------------------------------------

    def _watch_policy(self) -> None:
        policy, keys = self.pool.eviction, self._policy_keys
        insert, forget, evict, miss, hit = policy.insert, policy.forget, policy.evict, policy.miss, policy.hit

        def watched_insert(key: int, *what: Any) -> None:
            must("told", key not in keys, key, "is cached already")
            keys.add(key)
            insert(key, *what)

        def watched_forget(key: int) -> None:
            must("told", key in keys, key, "is not cached")
            keys.remove(key)
            forget(key)

        def watched_evict() -> int:
            policy.forget = forget  # some forget by the very call
            key = evict()
            policy.forget = watched_forget
            must("told", key in keys, key, "is not cached")
            keys.remove(key)
            self.counts["victims"] += 1
            return key

        def watched_miss(key: int) -> None:
            must("told", key not in keys, key, "is cached, and was said to be missed")
            miss(key)

        def watched_hit(key: int, *what: Any) -> None:
            must("told", key in keys, key, "is not cached, and was said to be hit")
            self.counts["uses"] += 1
            hit(key, *what)

        policy.insert, policy.forget, policy.evict = watched_insert, watched_forget, watched_evict
        policy.miss, policy.hit = watched_miss, watched_hit

    def _watch_blocks(self) -> None:
        a, pool = self.allocator, self.pool
        admit, can_admit, release, allocate, free = a.admit, a.can_admit, a.release, pool.allocate, pool.eviction.free
        freed: list[int] = []

        def watched_free(key: int) -> None:
            freed.append(self.index.nodes[key].depth)
            free(key)

        def watched_release(key: Any) -> int:
            freed.clear()
            count = release(key)
            _ = pool.eviction  # which is told now
            must("I22", freed == sorted(freed, reverse=True), "depths of the blocks let go:", freed)
            return count

        def watched_allocate(n: int) -> list[int]:
            before, held, idle = self.texts(), self._held(), self._idle()
            victims = self.counts["victims"]
            taken = allocate(n)
            must("taken", len(set(taken)) == n, taken, "handed out")
            must("taken", not held.keys() & set(taken), taken, "handed out,", held, "held")
            must("taken", not self._wanted & set(taken), taken, "handed out,", self._wanted, "wanted")
            gone = before.keys() - self.texts().keys()
            must("taken", {before[text].block for text in gone} <= idle, gone, "was in use")
            must("I27", not gone & self.pinned, "evicted:", gone & self.pinned)
            if self.world.leaf_first:
                must("I26", len(gone) == self.counts["victims"] - victims, "more than the victims left:", gone)
            self.counts["evicted"] += len(gone)
            self.evicted |= gone
            for block in taken:
                self._overwrite(block, 0)
            return taken

        def watched_can_admit(seq: Served, keep_free: int = 0) -> bool:
            before = self._state()
            answer = can_admit(seq, keep_free)
            must("I19", self._state() == before, "can_admit changed something")
            if not seq.branches:
                nodes = self.expected(seq)[0]
                fresh = -(-seq.num_tokens // self.world.block_size) - len(nodes) + keep_free
                must("I19", answer == self._has_room(fresh, nodes), "can_admit says", answer, "of", seq)
            return answer

        def watched_admit(seq: Served) -> Any:
            nodes, partial, copied, lost = self.expected(seq)
            fresh = -(-seq.num_tokens // self.world.block_size) - len(nodes)
            if partial is not None and not self._has_room(fresh, [*nodes, partial]):
                partial, copied, lost = None, 0, lost + copied
            shared = {node.block for node in nodes}
            self._count(seq, len(nodes), copied, lost)
            self._wanted |= shared | ({partial.block} if partial else set())
            uses = self.counts["uses"]
            grant = admit(seq)
            uses = self.counts["uses"] - uses
            must("told", uses == len(nodes) + (partial is not None), uses, "blocks used, said the policy, by", seq)
            hit = len(nodes) * self.world.block_size + copied
            must("I21", grant.filled == hit < seq.num_tokens, grant, ", expected", hit, "of", seq)
            must("I21", grant.table[: len(nodes)] == [node.block for node in nodes], grant, ", expected", nodes)
            copies = [(partial.block, grant.table[len(nodes)])] if partial else []
            must("I21", grant.copies == copies, grant, ", expected", copies)
            self._wanted -= shared  # held from now on
            return grant

        a.admit, a.can_admit, a.release = watched_admit, watched_can_admit, watched_release
        pool.allocate, pool.eviction.free = watched_allocate, watched_free

    def _state(self) -> tuple[Any, ...]:
        holdings = {key: (list(h.table), h.promised, h.tokens) for key, h in self.allocator.holdings.items()}
        return (
            self.pool.free_ids(),
            list(self.pool.ref),
            holdings,
            self.texts(),
            self.allocator.usage(),
            self.allocator.sharing(),
        )

    def _count(self, seq: Served, shared: int, copied: int, lost: int) -> None:
        size, r = self.world.block_size, seq.request
        known = (*r.prompt.tolist(), *seq.output)
        counts = self.counts
        counts["queried"] += len(known)
        counts["hit"] += shared * size + copied
        counts["copied"] += copied
        counts["lost"] += lost
        for block in range(shared, len(known) // size):
            counts["regretted"] += (r.cache_salt, r.adapter, known[: (block + 1) * size]) in self.evicted

    # ---- actions ----------------------------------------------------------------------------------------------------

    def submit(self, r: Request) -> Served:
        seq = self.scheduler.submit(r)
        self.seqs.append(seq)
        return seq

    def abort(self, seq: Served) -> None:
        self.scheduler.abort(seq)
        self.check()

    def step(self) -> None:
        clock = self.executor.clock
        self._wanted = set()
        plan = self.scheduler.schedule(clock.now())
        must("I19", bool(plan.batch), "nothing can run:", self.allocator.usage())
        for record in plan.preempted:
            self.lost[record.victim] += record.tokens_lost
        outcome = self.executor.execute(plan)
        finished = self.scheduler.commit(plan, outcome, clock.advance(outcome.seconds))
        for seq, fed in zip(plan.batch, plan.num_tokens, strict=True):
            self.fed[seq.id] += fed
        self._wanted = set()
        texts = self.texts()
        for seq in plan.batch:
            if seq.row != -1:
                self._check_whole(seq, self.allocator.holdings[seq.key].table, texts)
        for seq in finished:
            if seq.request.width == 1:
                self._check_whole(seq, None, texts)
        self.check()

    def serve(self) -> None:
        """All requests of the world; then every one of them is looked at once more."""
        clock = self.executor.clock
        clock.start()
        arrivals, steps = list(self.world.requests), 0
        while arrivals or self.scheduler.has_work:
            while arrivals and arrivals[0].arrival_s <= clock.now():
                self.submit(arrivals.pop(0))
            if not self.scheduler.has_work:
                if arrivals:
                    clock.wait_until(arrivals[0].arrival_s)
                continue
            self.step()
            steps += 1
            must("I19", steps < 2000, "not done after", steps, "steps")
            for at, which in self.world.aborts:
                if at == steps and which < len(self.seqs):
                    self.abort(self.seqs[which])
        self.check()
        for seq in self.seqs:
            self._check_answer(seq)

    # ---- what is true between steps ---------------------------------------------------------------------------------

    def _check_answer(self, seq: Served) -> None:
        if seq.status is Status.REFUSED or seq.finish_reason == "abort":
            return
        answers = [done.token_ids for done in seq.outputs()]
        must("I12", answers == [done.token_ids for done in naive_answer(seq.request, self.world.eos)], seq, answers)
        if seq.request.width == 1:
            fed = self.fed[seq.id] + seq.cached_tokens
            total = seq.request.prompt_tokens + len(seq.output) - 1 + self.lost[seq.id]
            must(
                "I33", fed == total, self.fed[seq.id], "computed,", seq.cached_tokens, "cached,", total, "needed:", seq
            )

    def _check_whole(self, seq: Served, table: list[int] | None, texts: dict[Text, Node]) -> None:
        """Of a running request up to the first block that lies elsewhere as well; of one that has ended, all of it."""
        if self.world.hash_bits < 128:  # two contents of one key: the later is not cached
            return
        size, r = self.world.block_size, seq.request
        known = (*r.prompt.tolist(), *seq.output)
        ends = list(range(size, seq.computed + 1, size))
        if table is None and self.world.prefix_cache == "radix" and seq.computed % size:
            ends.append(seq.computed)
        for block, end in enumerate(ends):
            node = texts.get((r.cache_salt, r.adapter, known[:end]))
            must("whole", node is not None, known[:end], "of", seq, "is computed and not cached")
            if table is not None and node.block != table[block]:
                return

    def check(self) -> None:
        """Everything, from scratch; then the product's own audit. What holds nothing is overwritten at the end."""
        w, pool = self.world, self.pool
        texts, held = self.texts(), self._held()
        idle = self._idle()
        free = set(range(w.num_blocks)) - held.keys() - idle
        must("I01", len({node.block for node in texts.values()}) == len(texts), "a block is cached twice:", texts)
        must("I01", sorted(pool.free_ids()) == sorted(free), pool.free_ids(), "free, expected", free)
        usage = self.allocator.usage()
        split = (usage.cached_idle, usage.free, usage.total)
        must("I01", split == tuple(n * w.block_size for n in (len(idle), len(free), w.num_blocks)), usage, idle, free)
        for block in range(w.num_blocks):
            must("I04", pool.ref[block] == held[block], "block", block, pool.ref[block], "references,", held)
        for text, node in texts.items():
            must("I26", self.index.nodes.get(node.key) is node, text, "is in the tree and not under its key")
            if node.num_tokens < w.block_size:
                must("I14", w.prefix_cache == "radix" and not held[node.block], text, "is cached, not full and held")
            slots = slice(node.block * w.block_size, node.block * w.block_size + node.num_tokens)
            found = self.executor.kv[slots].tolist()
            must("slots", found == self._fingerprints_of(text[2])[-node.num_tokens :], text, "in block", node.block)
        must("I26", len(texts) == len(self.index.nodes), "nodes that are in no tree:", self.index.nodes)
        must("told", self._policy_keys == {node.key for node in texts.values()}, self._policy_keys)
        self._check_pins(texts)
        self.evicted -= texts.keys()
        self._check_counts()
        pinned = {node.block for node in texts.values() if pool.is_pinned(node.block)}
        must("offer", pool.num_available == len(free) + len(idle - pinned), pool.num_available, free, idle, pinned)
        self.scheduler.audit()
        for block in free:
            self._overwrite(block, 0)
        for node in texts.values():
            self._overwrite(node.block, node.num_tokens)

    def _check_pins(self, texts: dict[Text, Node]) -> None:
        must("I27", self.pinned <= texts.keys(), "was pinned, and is cached no longer:", self.pinned - texts.keys())
        self.pinned |= {text for text, node in texts.items() if self.pool.is_pinned(node.block)}
        must("I27", len(self.pinned) <= self.world.pin_blocks, len(self.pinned), "pinned")
        asked = {
            (seq.request.cache_salt, seq.request.adapter, tuple(seq.request.prompt.tolist()[: seq.request.pin_tokens]))
            for seq in self.seqs
        }
        for salt, adapter, text in self.pinned:
            wanted = [pin for pin in asked if pin[:2] == (salt, adapter) and pin[2][: len(text)] == text]
            must("I27", bool(wanted), text, "is pinned and nobody asked for it")
            before = text[: (len(text) - 1) // self.world.block_size * self.world.block_size]
            must("I27", not before or (salt, adapter, before) in self.pinned, text, "is pinned behind what is not")

    def _check_counts(self) -> None:
        said = self.allocator.sharing()
        counts = {
            "queried": said.queried_tokens,
            "hit": said.hit_tokens,
            "copied": said.copied_tokens,
            "lost": said.lost_tokens,
            "evicted": said.evictions,
            "regretted": said.regretted,
        }
        for name, count in counts.items():
            if name != "regretted" or self.world.hash_bits == 128:  # it goes by keys
                must("counts", count == self.counts[name], name, count, ", counted", self.counts[name])

    def _fingerprints_of(self, tokens: tuple[int, ...]) -> list[int]:
        if tokens not in self._fingerprints:
            self._fingerprints[tokens] = fingerprints_of(list(tokens))
        return self._fingerprints[tokens]

    def _overwrite(self, block: int, start: int) -> None:
        size = self.world.block_size
        self.executor.kv[block * size + start : (block + 1) * size] = FREED


def random_program(seed: int, policies: Sequence[str] = POLICIES) -> Watched:
    """The world that belongs to a seed, served to the end."""
    watched = Watched(a_world(random.Random(seed).choice, policies))
    watched.serve()
    return watched
