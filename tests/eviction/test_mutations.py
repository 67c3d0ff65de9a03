"""The checks of eviction find seeded faults: each mutation below breaks a policy in one place, and must be caught.

A mutation rewrites one piece of source text of one method. The policy's own `audit` is silenced, so that what catches a
fault is the naive model alone; those for which audit is there are in a list of their own. `pytest -rP` tells in which
program each was caught.
"""

from __future__ import annotations

import pytest

from pagedlab.core.errors import InvariantError
from pagedlab.eviction.arc import Arc
from pagedlab.eviction.base import Entry, Eviction
from pagedlab.eviction.belady import Belady
from pagedlab.eviction.clock import Clock
from pagedlab.eviction.cost_aware import CostAware
from pagedlab.eviction.expiring import ExpiringEviction
from pagedlab.eviction.gdsf import Gdsf
from pagedlab.eviction.ghosts import Ghosts
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.eviction.lfu import Lfu
from pagedlab.eviction.lirs import Lirs
from pagedlab.eviction.lowest_first import LowestFirst
from pagedlab.eviction.lru import Lru
from pagedlab.eviction.mru import Mru
from pagedlab.eviction.priority import Priority
from pagedlab.eviction.priority_ttl import PriorityTtl
from pagedlab.eviction.queue import Queue
from pagedlab.eviction.s3fifo import S3Fifo
from pagedlab.eviction.sieve import Sieve
from pagedlab.eviction.slru import Slru
from pagedlab.eviction.ttl_pin import TtlPin
from tests.engine.test_mutations import rewrite
from tests.eviction.programs import run

PROGRAMS = 400

# name -> (policy that is run, class, method, old text, new text)
MUTATIONS = {
    # ---- the queue and the heap
    "evicts_the_most_recent": ("lru", Queue, "first", "next(iter(self._order))", "next(reversed(self._order))"),
    "what_may_not_go_goes": ("lru", Queue, "first", "if front in self._offered:", "if True:"),
    "withdrawn_stays_offered": ("fifo", Queue, "withdraw", "self._offered.discard(key)", "pass"),
    "set_aside_and_never_met_again": ("fifo", Queue, "offer", "self._return(key)", "pass"),
    "returns_to_the_front": ("fifo", Queue, "_return", "(self._returned, (place, key))", "(self._returned, (0, key))"),
    "returned_is_taken_before_earlier_ones": (
        "sieve",
        Queue,
        "first",
        "returned[0][0] < self._order[front]",
        "returned[0][0] > 0",
    ),
    "place_of_what_was_set_aside_is_kept": ("lru", Queue, "push", "self._aside.pop(key, None)", "pass"),
    "moved_key_is_offered_no_longer": ("arc", Queue, "move", "if offered:", "if False:"),
    "lowest_is_the_highest": (
        "lfu",
        LowestFirst,
        "_push",
        "heappush(self._heap, (rank, key))",
        "self._heap[:0] = [(rank, key)]",
    ),
    "rank_that_rose_is_not_looked_at": ("lfu", LowestFirst, "first", "rank != (now := self._ranks[key])", "False"),
    "rank_that_fell_is_not_pushed": ("mru", LowestFirst, "__setitem__", "rank < self._heaped[key]", "False"),
    "withdrawn_is_evicted_from_the_heap": ("lfu", LowestFirst, "first", "key not in self._offered", "False"),
    # ---- leaf-first
    "leaf_first_is_ignored": ("lru", LeafFirst, "offer", "if key not in self._children:", "if True:"),
    "parent_is_never_offered_again": ("lru", LeafFirst, "_left", "if parent in self._idle:", "if False:"),
    "parent_is_offered_while_it_is_used": ("lru", LeafFirst, "_left", "if parent in self._idle:", "if True:"),
    "first_child_that_goes_frees_the_parent": (
        "fifo",
        LeafFirst,
        "_left",
        "self._children[parent] -= 1",
        "self._children[parent] = 0",
    ),
    # ---- policies
    "lru_forgets_a_hit": ("lru", Lru, "hit", "self._queue.push(key)", "pass"),
    "lru_forgets_the_end_of_a_use": ("lru", Lru, "free", "self._queue.push(key)", "pass"),
    "lfu_counts_the_end_of_a_use": ("lfu", Lfu, "free", "self._ranks[key][0]", "self._ranks[key][0] + 1"),
    "lfu_does_not_count": ("lfu", Lfu, "hit", " + 1", ""),
    "mru_is_lru": ("mru", Mru, "hit", "-self._tick()", "self._tick()"),
    "clock_does_not_lower_a_count": ("clock bits=2", Clock, "evict", "self._count[key] -= 1", "self._count[key] = 0"),
    "clock_counts_without_end": ("clock", Clock, "hit", "if self._count[key] < self._most:", "if True:"),
    "clock_leaves_what_it_passes_in_its_place": ("clock", Clock, "evict", "self._queue.push(key)", "pass"),
    "slru_protects_at_once": ("slru sglang", Slru, "hit", "self._hits[key] < self._promote_hits", "False"),
    "slru_protected_segment_has_no_end": ("slru small", Slru, "hit", "> self._most_protected", "> self.capacity"),
    "slru_evicts_the_protected_first": (
        "slru",
        Slru,
        "peek",
        "(self._probation, self._protected)",
        "(self._protected, self._probation)",
    ),
    "sieve_does_not_clear_the_visited_bit": ("sieve", Sieve, "evict", "self._used.remove(key)", "self._used.clear()"),
    "sieve_moves_what_it_passes": (
        "sieve",
        Sieve,
        "_pass",
        "self._ahead.take(key)",
        "(self._ahead.push(key), self._ahead.take(key))[1]",
    ),
    "sieve_ends_its_lap_late": (
        "sieve",
        Sieve,
        "evict",
        "if self.num_offered:\n        self._met()",
        "if False:\n        self._met()",
    ),
    "sieve_loses_what_came_back_late": ("sieve", Sieve, "_met", "(self._behind, self._late)", "(self._behind, {})"),
    "s3fifo_ghost_is_not_looked_at": ("s3fifo", S3Fifo, "miss", "self._returning.add(key)", "pass"),
    "s3fifo_victim_of_the_small_queue_is_no_ghost": ("s3fifo", S3Fifo, "_evict_small", "self._ghosts.add(key)", "pass"),
    "s3fifo_moves_after_one_hit_too_many": (
        "s3fifo half",
        S3Fifo,
        "_evict_small",
        "< self._promote_hits",
        "<= self._promote_hits",
    ),
    "s3fifo_keeps_the_count_of_what_it_moves": ("s3fifo half", S3Fifo, "_evict_small", "self._uses[key] = 0", "pass"),
    "s3fifo_warms_up_as_in_the_paper": ("s3fifo", S3Fifo, "insert", "and self._fills_main_early", "and False"),
    "s3fifo_main_queue_never_gives": ("s3fifo half", S3Fifo, "evict", "main_is_over or", "False or"),
    "ghosts_are_not_trimmed": ("s3fifo half", Ghosts, "add", "len(self._keys) > self.capacity", "False"),
    "newest_ghost_is_forgotten": ("s3fifo half", Ghosts, "drop_oldest", "last=False", "last=True"),
    "arc_target_goes_the_wrong_way": ("arc", Arc, "miss", "self._target + max(", "self._target - max("),
    "arc_target_moves_by_one_only": ("arc", Arc, "miss", "max(again / once, 1.0)", "1.0"),
    "arc_ghosts_of_t1_are_not_trimmed": ("arc", Arc, "_trim", "self._once_ghosts.drop_oldest()", "break"),
    "arc_ghosts_of_t2_are_not_trimmed": ("arc", Arc, "_trim", "self._again_ghosts.drop_oldest()", "break"),
    "arc_ghost_comes_back_into_t1": ("arc", Arc, "insert", "self._again if known else", "self._again if False else"),
    "arc_ignores_a_tie": ("arc", Arc, "peek", "self._missed_in_again", "False"),
    "lirs_ghost_comes_back_as_hir": ("lirs half", Lirs, "insert", "self._ghosts.discard(key) or", ""),
    "lirs_does_not_prune": ("lirs half", Lirs, "_prune", "if bottom in self._lir:", "if True:"),
    "lirs_demotes_nobody": ("lirs half", Lirs, "_demote", "while len", "while False and len"),
    "lirs_evicts_lir_first": ("lirs half", Lirs, "peek", "(self._hir, self._lir)", "(self._lir, self._hir)"),
    "gdsf_does_not_age": ("gdsf", Gdsf, "evict", "self._age = self._ranks[key][0]", "pass"),
    "gdsf_ignores_the_cost": ("gdsf recompute", Gdsf, "hit", " * self._costs[key]", ""),
    "priority_is_that_of_the_last_request": ("priority", Priority, "hit", "max(self._ranks[key][0], ", "(0 or "),
    "priority_never_expires": ("priority_ttl", PriorityTtl, "_expired", "(DEFAULT_PRIORITY,", "(self._ranks[key][0],"),
    "expiry_comes_a_second_late": ("priority_ttl", ExpiringEviction, "peek", "<= self.now_s", "< self.now_s"),
    "a_use_does_not_renew_a_pin": (
        "ttl_pin short",
        TtlPin,
        "free",
        "self.now_s + self._ttl_s[key]",
        "self._due.get(key, self.now_s + self._ttl_s[key])",
    ),
    "a_broken_pin_is_the_longest": ("ttl_pin", TtlPin, "free", "_PINNED, ends_s", "_PINNED, -ends_s"),
    "cost_is_not_looked_at": ("cost_aware short", CostAware, "free", "now + self._bonus[key]", "now"),
    "belady_evicts_what_is_next": ("belady", Belady, "insert", "-self.next_use(key)", "self.next_use(key)"),
    "belady_forgets_that_a_miss_is_a_use": ("belady", Belady, "miss", "self._pass(key)", "pass"),
}


def hunt(name):
    """(program, what was said) of the first program that fails; None when all pass."""
    for seed in range(PROGRAMS):
        try:
            run(name, seed)
        except Exception as fault:
            return seed, f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"
    return None


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_seeded_fault_is_caught(mutation):
    name, owner, method, old, new = MUTATIONS[mutation]
    with pytest.MonkeyPatch.context() as patch:
        for kind in {LeafFirst, owner, Eviction, *Eviction.__subclasses__()} - {Queue, LowestFirst, Ghosts}:
            if "audit" in vars(kind):
                patch.setattr(kind, "audit", lambda self: None)
        rewrite(patch, owner, method, old, new)
        caught = hunt(name)
    assert caught, f"{mutation} passed {PROGRAMS} programs"
    print(f"{mutation}: program {caught[0]}: {caught[1]}")


@pytest.mark.parametrize("name", sorted({mutation[0] for mutation in MUTATIONS.values()}))
def test_without_a_fault_the_same_programs_pass(name):
    for seed in range(0, PROGRAMS, 8):
        run(name, seed)
        run(name, seed + 1)


def test_audit_finds_what_an_owner_does_wrong():
    leaves = LeafFirst(Lru(4))
    with pytest.raises(InvariantError, match="block 3 is cached before its parent 7"):
        leaves.insert(3, Entry(7, 1))
    leaves.insert(1)
    leaves.insert(2, Entry(1, 1))
    leaves.offer(1)  # while its child 2 is in use
    with pytest.raises(InvariantError, match="keys \\[2\\] are in use, and a block before each of them is idle"):
        leaves.audit()
    lru = Lru(4)
    lru.offer(9)
    with pytest.raises(InvariantError, match="keys \\[9\\] are offered and not in the queue"):
        lru.audit()


def test_a_block_may_be_cached_behind_an_idle_one_which_is_on_offer_again_once_it_has_gone():
    """A sequence that is about to end has computed what lies in an idle block already, and more behind it."""
    leaves = LeafFirst(Lru(4))
    leaves.insert(1)
    leaves.offer(1)
    assert leaves.peek() == 1
    leaves.insert(2, Entry(1, 1))
    leaves.offer(2)
    leaves.audit()
    assert leaves.num_offered == 2
    assert leaves.evict_all(2) == [2, 1]
