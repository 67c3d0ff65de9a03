"""The checks of `Watched` find seeded faults: each mutation breaks the prefix cache in one place, and must be caught.

The product's own `audit` is silenced, so that what catches a fault is independent of it. `pytest -rP` lists which check
caught what, and in which program.
"""

import pytest

from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.prefixes import Prefixes
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.prefix_cache.base import Node, PrefixCache
from pagedlab.prefix_cache.digest import Digest
from pagedlab.prefix_cache.hash_chain import HashChain
from pagedlab.prefix_cache.radix import Radix
from pagedlab.scheduler.scheduler import Scheduler
from tests.engine.test_mutations import rewrite
from tests.prefix_cache.watched import POLICIES, Violation, random_program

PROGRAMS = 400

# What is broken -> where: owner, function, text, and what is put in its place.
MUTATIONS = {
    # ---- what a key stands for
    "a key forgets what came before": (Digest, "next", 'parent.to_bytes(16, "big") + tokens', "tokens"),
    "the salt is ignored": (PrefixCache, "_root", "(seq.request.cache_salt, ", '("", '),
    "the adapter is ignored": (PrefixCache, "_root", "seq.request.adapter)", '"")'),
    "tokens are not compared": (HashChain, "find", " and node.tokens == tokens", ""),
    "the block before is not compared": (HashChain, "find", " and node.parent is parent", ""),
    "nothing is compared": (HashChain, "find", "node.parent is parent and node.tokens == tokens", "True"),
    "tokens generated are keyed one too early": (
        PrefixCache,
        "tokens",
        "seq.output[max(0, start - len(prompt)) : end - len(prompt)]",
        "seq.output[max(0, start - len(prompt) - 1) : end - len(prompt) - 1]",
    ),
    # ---- what is hit
    "the whole prompt is hit": (PrefixCache, "match", "seq.num_tokens - 1", "seq.num_tokens"),
    "the last whole block is not hit": (PrefixCache, "match", "<= limit", "< limit"),
    "one token too many is copied": (
        Radix,
        "rest",
        "partial, common)",
        "partial, min(common + 1, partial.num_tokens) if partial else 0)",
    ),
    "only the neighbour behind is looked at": (Node, "nearest", "max(0, place - 1) : place + 1", "place : place + 1"),
    "a shared block is not counted as used": (CachingPool, "hold", "self.ref[block] += 1", "pass"),
    "a shared block stays on offer": (CachingPool, "hold", "self.eviction.withdraw(key)", "pass"),
    "a shared block is still idle": (CachingPool, "hold", "self._idle.remove(block)", "pass"),
    "use is not told to the policy": (CachingPool, "hold", "self.eviction.hit(key, retention)", "pass"),
    "a block may go while it is copied from": (CachingPool, "fence", "self._fenced.add(block)", "pass"),
    "a fence is never lifted": (CachingPool, "lift_fences", "self.eviction.offer(self._keys[block])", "pass"),
    "nothing is copied": (PagedAllocator, "_blocks_at_admission", "if match.partial else []", "if False else []"),
    "copied to the second block": (
        PagedAllocator,
        "_blocks_at_admission",
        "table[len(match.nodes)]",
        "table[-1]",
    ),
    "an old answer is given": (Prefixes, "match", "self._memo[0] is not seq or", "self._memo[0] is not seq and"),
    "idle blocks that are hit count as room": (Prefixes, "idle", "return sum", "return 0 * sum"),
    # ---- what is cached
    "cached before it is computed": (Prefixes, "publish", "seq.computed // index", "seq.num_tokens // index"),
    "cached with its last block half full": (
        Prefixes,
        "publish",
        "seq.computed // index.block_size",
        "-(-seq.computed // index.block_size)",
    ),
    "a tail is cached by hash_chain": (Prefixes, "settle", "tail and index.keeps_tails", "tail"),
    "copying from a block is not told to the policy": (
        Prefixes,
        "_taken",
        "self.pool.eviction.hit(match.partial.key, retention)",
        "pass",
    ),
    "nothing is cached at the end": (Prefixes, "settle", "range(len(chain.nodes), -(-end // size))", "()"),
    "what lies elsewhere is gone on behind": (Prefixes, "publish", " or node.block != table[block]", ""),
    "a fork goes on with the chain of its parent": (Scheduler, "_advance", "parent.chain.copy()", "parent.chain"),
    # ---- what goes
    "a name stays after its block is reused": (
        Prefixes,
        "_on_evicted",
        "[node.key for node in nodes]",
        "[key]",
    ),
    "blocks behind an evicted one stay": (PrefixCache, "remove", "list(_all_behind(node))", "[node]"),
    "an evicted block is still found behind its parent": (PrefixCache, "remove", "node.parent.drop(node)", "pass"),
    "first blocks are let go first": (BlockPool, "release", "reversed(ids)", "ids"),
    "pinned blocks are on offer": (CachingPool, "may_go", "block not in self._pinned and ", ""),
    "more are pinned than may be": (Prefixes, "_cache", "self.pool.num_pinned < self.pin_blocks", "True"),
    "more cached ones are pinned than may be": (Prefixes, "_pin", "self.pool.num_pinned >= self.pin_blocks", "False"),
    "pinned behind what is not": (Prefixes, "_cache", " and self._parent_pinned(parent)", ""),
    "more is pinned than was asked for": (
        Prefixes,
        "_cache",
        "end <= seq.request.pin_tokens",
        "seq.request.pin_tokens",
    ),
    "an idle parent stays on offer": (LeafFirst, "insert", "self.policy.withdraw(parent)", "pass"),
    # ---- what is said
    "what is lost is not counted": (HashChain, "rest", "lost=common", "lost=0"),
    "a block that is back is still regretted": (Prefixes, "_cache", "self._evicted.pop(key, None)", "pass"),
    "of blocks behind an evicted one only the first is counted": (
        Prefixes,
        "_on_evicted",
        "self.counts.evictions += len(gone)",
        "self.counts.evictions += 1",
    ),
    "a cached block is said to be missed": (Prefixes, "_taken", "if key not in self.index.nodes:", "if True:"),
    "hits are not reported to the engine": (PagedAllocator, "_blocks_at_admission", "match.num_tokens(size)", "0"),
}


def hunt():
    """(name of the check, program, what it said) of the first program that fails; None when all pass."""
    for seed in range(PROGRAMS):
        try:
            random_program(seed, POLICIES)
        except Violation as violation:
            return violation.check, seed, str(violation)
        except Exception as error:  # the product fell over by itself
            return type(error).__name__, seed, str(error)
    return None


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_seeded_fault_is_caught(name, record_property):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "audit", lambda self: None)
        rewrite(patch, *MUTATIONS[name])
        caught = hunt()
    assert caught is not None, f"{PROGRAMS} programs passed"
    check, program, said = caught
    record_property("caught_by", check)
    print(f"{name}: caught by {check} in program {program}: {said[:300]}")


def test_without_a_fault_as_many_programs_pass():
    assert hunt() is None
