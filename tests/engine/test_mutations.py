"""The checks of the machine find seeded faults: each mutation below breaks the core in one place, and must be caught.

A mutation rewrites one piece of source text of one function, or replaces the function; where that text has gone, the
mutation says so instead of mutating nothing. Up to PROGRAMS seeded programs are run, the first failure ends the hunt.
The product's own `audit` is silenced, so that what catches a fault is independent of it.
`pytest -rP` lists which check caught what, and in which program.
"""

import inspect
import random
import sys
import textwrap

import pytest

from pagedlab.allocator.base import Allocator
from pagedlab.allocator.contiguous import ContiguousAllocator
from pagedlab.allocator.oracle import Oracle
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.power_of_two import PowerOfTwo
from pagedlab.allocator.reserve_output import ReserveOutput
from pagedlab.allocator.runs import Buddy, FirstFit
from pagedlab.core.clock import VirtualClock
from pagedlab.core.plan import Plan
from pagedlab.executor.fingerprint import FingerprintExecutor
from pagedlab.executor.inputs import InputBuilder
from pagedlab.preemption.base import Preemption
from pagedlab.preemption.victim.fewest_computed import FewestComputed
from pagedlab.preemption.victim.last_arrived import LastArrived
from pagedlab.preemption.victim.longest_remaining import LongestRemaining
from pagedlab.preemption.victim.lowest_priority import LowestPriority
from pagedlab.preemption.victim.most_blocks import MostBlocks
from pagedlab.preemption.victim.shortest_output import ShortestOutput
from pagedlab.scheduler.admission.estimated_peak import EstimatedPeak
from pagedlab.scheduler.admission.on_demand import OnDemand
from pagedlab.scheduler.admission.one_at_a_time import OneAtATime
from pagedlab.scheduler.admission.reserve_output import ReserveOutput as AdmitReserved
from pagedlab.scheduler.batching.chunked import Chunked
from pagedlab.scheduler.batching.iteration import Iteration
from pagedlab.scheduler.batching.prefill_first import PrefillFirst
from pagedlab.scheduler.batching.static import Static
from pagedlab.scheduler.beam import BeamSearch
from pagedlab.scheduler.group import Group, Samples
from pagedlab.scheduler.order.base import Order
from pagedlab.scheduler.order.fcfs import Fcfs
from pagedlab.scheduler.order.mlfq import Mlfq
from pagedlab.scheduler.order.priority import Priority
from pagedlab.scheduler.order.sjf import Sjf
from pagedlab.scheduler.order.srtf import Srtf
from pagedlab.scheduler.order.vtc import VirtualTokenCounter
from pagedlab.scheduler.scheduler import Scheduler
from tests.engine.machine import Violation, expected, random_program
from tests.lab import VOCAB, naive_answer, request, run

PROGRAMS = 1300  # heirs and second preemptions are rare
LATE = (1208, 283)  # that found such a fault when last looked at: tried first, to be quick


def rewrite(patch, owner, name, old, new):
    """Put `new` for `old` in the source of owner.name, which must hold it once."""
    source = textwrap.dedent(inspect.getsource(owner.__dict__[name]))
    assert source.count(old) == 1, f"{owner.__name__}.{name} no longer holds {old!r} once: mend this mutation"
    scope = dict(vars(sys.modules[owner.__module__]))
    code = compile("from __future__ import annotations\n" + source.replace(old, new), f"<mutated {name}>", "exec")
    exec(code, scope)
    patch.setattr(owner, name, scope[name])


class Twice(list):
    """A free queue that does not notice a block it already has (the double free of vLLM #42571)."""

    def popitem(self, last):
        return self.pop(-1 if last else 0), None

    def __setitem__(self, block, _):
        self.append(block)

    def __delitem__(self, block):
        self.remove(block)


def double_free(patch):
    made = BlockPool.__init__

    def with_a_plain_list(self, num_blocks, block_size):
        made(self, num_blocks, block_size)
        self._free = Twice(range(num_blocks))

    patch.setattr(BlockPool, "__init__", with_a_plain_list)
    again = "if block == ids[-1]:\n                self._free[block] = None\n            freed += 1"
    rewrite(patch, BlockPool, "release", "freed += 1", again)


def failed_allocation_takes_some(patch):
    allocate = BlockPool.allocate

    def greedy(self, n):
        if n > len(self._free):
            allocate(self, len(self._free))
        return allocate(self, n)

    patch.setattr(BlockPool, "allocate", greedy)


def buddy_merges_the_wrong_neighbour(patch):
    def give_back(self, start, length):
        while start + length in self._free.get(length, ()):
            self._free[length].remove(start + length)
            length *= 2
        self._free.setdefault(length, set()).add(start)

    patch.setattr(Buddy, "give_back", give_back)


def refused_admission_takes_a_block(patch):
    def allows(self, seq, running, freed=0):
        fits = self.allocator.can_admit(seq, (self.watermark_blocks if running else 0) - freed)
        if not fits and self.allocator.pool.num_free:
            self.allocator.pool.allocate(1)
        return fits

    patch.setattr(OnDemand, "allows", allows)


def static_batch_stays_open(patch):
    patch.setattr(Static, "_fits", PrefillFirst._fits)


def static_batch_stays_closed(patch):
    def fill(self, plan, scheduler):
        PrefillFirst.fill(self, plan, scheduler)
        self._open = self._open and bool(plan.admitted or scheduler.prefilling())

    patch.setattr(Static, "fill", fill)


def copy_after_the_write(patch):
    execute = FingerprintExecutor.execute

    def late(self, plan):
        copies, plan.copies = plan.copies, []
        outcome = execute(self, plan)
        for copy in copies:
            self._block(copy.destination)[:] = self._block(copy.source)
        plan.copies = copies
        return outcome

    patch.setattr(FingerprintExecutor, "execute", late)


MUTATIONS = {
    # ---- the pool
    "allocated_without_a_reference": (BlockPool, "_hand_out", "ref[block] = 1", "pass"),
    "double_free_into_the_queue": double_free,
    "released_root_first": (BlockPool, "release", "reversed(ids)", "ids"),
    "release_forgets_the_last_block": (BlockPool, "release", "reversed(ids)", "reversed(ids[:-1])"),
    "release_leaves_the_references": (BlockPool, "release", "ref[block] -= 1", "pass"),
    "allocated_blocks_stay_in_the_queue": (
        BlockPool,
        "_hand_out",
        "[take(last=False)[0] for _ in range(n)]",
        "list(self._free)[:n]",
    ),
    "newest_free_block_is_taken_first": (BlockPool, "_hand_out", "last=False", "last=True"),
    "failed_allocation_takes_some": failed_allocation_takes_some,
    "take_leaves_the_queue_alone": (BlockPool, "take", "del self._free[block]", "pass"),
    # ---- tables and sums
    "one_block_too_few_at_admission": (
        PagedAllocator,
        "_blocks_at_admission",
        "blocks = blocks_for(tokens, size)",
        "blocks = max(1, tokens // size)",
    ),
    "one_block_too_many_at_admission": (
        PagedAllocator,
        "_blocks_at_admission",
        "blocks = blocks_for(tokens, size)",
        "blocks = tokens // size + 1",
    ),
    "growth_comes_one_token_late": (
        PagedAllocator,
        "_blocks_for_growth",
        "blocks_for(num_tokens",
        "blocks_for(num_tokens - 1",
    ),
    "growth_comes_one_token_early": (
        PagedAllocator,
        "_blocks_for_growth",
        "blocks_for(num_tokens",
        "blocks_for(num_tokens + 1",
    ),
    "growth_is_not_put_into_the_table": (Allocator, "grow", "holding.table.extend(new)", "pass"),
    "growth_raises_no_promise": (Allocator, "grow", "holding.promised = num_tokens", "pass"),
    "failed_growth_counts_the_token": (
        Allocator,
        "grow",
        "new is None:\n",
        "new is None:\n                self._tokens += 1\n",
    ),
    "token_sum_is_not_decremented": (
        Allocator,
        "release",
        "self._tokens -= max(0, holding.tokens - still_held)",
        "pass",
    ),
    "promised_sum_is_not_decremented": (
        Allocator,
        "release",
        "self._promised -= max(0, holding.promised - still_held)",
        "pass",
    ),
    "table_sum_is_not_decremented": (Allocator, "release", "self._table_entries -= len(holding.table)", "pass"),
    "usage_counts_the_tail_twice": (
        Allocator,
        "split",
        "promised - tokens",
        "(pool.num_blocks - free) * size - tokens",
    ),
    "usage_calls_reserved_what_is_tail": (
        Allocator,
        "split",
        "promised - tokens, held * size - promised",
        "held * size - tokens, 0",
    ),
    "released_sequence_is_still_held": (
        Allocator,
        "release",
        "self.holdings.pop(key, None)",
        "self.holdings.get(key)",
    ),
    "can_admit_forgets_the_watermark": (
        PagedAllocator,
        "can_admit",
        "self._blocks_to_begin(seq) + keep_free <=",
        "self._blocks_to_begin(seq) <=",
    ),
    "never_fits_is_off_by_one": (Allocator, "refusal", "need <= self.max_run", "need <= self.max_run + 1"),
    # ---- contiguous runs
    "buddy_merges_the_wrong_neighbour": buddy_merges_the_wrong_neighbour,
    "buddy_never_merges": (Buddy, "give_back", "while (start ^ length) in", "while None in"),
    "buddy_keeps_no_other_half": (Buddy, "take", "self._free.setdefault(size, set()).add(start + size)", "pass"),
    "first_fit_hands_out_a_block_twice": (
        FirstFit,
        "take",
        "(start + length, free - length)",
        "(start + length - 1, free - length + 1)",
    ),
    "first_fit_does_not_merge_to_the_left": (FirstFit, "give_back", "if i > 0 and", "if False and"),
    "first_fit_does_not_merge_to_the_right": (FirstFit, "give_back", "if i < len(self._free) and", "if False and"),
    "last_fit": (FirstFit, "take", "enumerate(self._free)", "reversed(list(enumerate(self._free)))"),
    "run_is_not_given_back": (ContiguousAllocator, "_returned", "self._runs.give_back(table[0], len(table))", "pass"),
    "oracle_reserves_one_slot_too_few": (Oracle, "slots", "- 1", "- 2"),
    "declared_output_reserves_one_slot_too_many": (
        ReserveOutput,
        "slots",
        "request.max_slots",
        "request.max_slots + 1",
    ),
    "power_of_two_rounds_down": (PowerOfTwo, "slots", "- 1).bit_length()", ").bit_length() >> 1"),
    # ---- preemption
    "preempt_loses_a_token": (Preemption, "recompute", "lost =", "seq.output and seq.output.pop()\n    lost ="),
    "preempt_does_not_reset_computed": (Preemption, "recompute", "part.computed = 0", "pass"),
    "preempt_forgets_to_release": (Preemption, "recompute", "self.allocator.release(part.key)", "0"),
    "preempt_says_it_lost_nothing": (Preemption, "recompute", ", lost\n", ", 0\n"),
    "earliest_is_the_victim": (LastArrived, "choose", "max(", "min("),
    "smallest_holder_is_the_victim": (MostBlocks, "choose", "max(", "min("),
    "victim_stays_in_the_batch": (Plan, "drop", "if part in self.batch", "if False"),
    "victims_growth_stays_in_the_plan": (Plan, "drop", "if growth.row != part.row", ""),
    "victims_tokens_stay_in_the_total": (
        Plan,
        "drop",
        "self.total_tokens -= self.num_tokens.pop(i)",
        "self.num_tokens.pop(i)",
    ),
    "victim_is_not_queued_again": (Scheduler, "_preempt", "self.order.push(victim)", "pass"),
    # ---- the scheduler
    "growth_is_not_told_to_the_executor": (Scheduler, "_feed", "if new:", "if False:"),
    "growth_starts_one_entry_late": (Scheduler, "_feed", "Growth(seq.row, start, new)", "Growth(seq.row, length, new)"),
    "released_row_is_not_told": (Scheduler, "_leave", "self._released += rows", "pass"),
    "finish_forgets_to_release": (Scheduler, "_return", "allocator.release(key)", "pass"),
    "ended_sequence_keeps_its_row": (Scheduler, "_vacate", "self._rows += rows", "pass"),
    "row_is_reused_while_in_use": (Scheduler, "_take_rows", "self._rows.pop()", "self._rows[-1]"),
    "admission_ignores_the_watermark": (OnDemand, "allows", "self.watermark_blocks if running else 0", "0"),
    "watermark_holds_in_an_empty_pool": (OnDemand, "allows", " if running else 0", ""),
    "refused_admission_takes_a_block": refused_admission_takes_a_block,
    "one_at_a_time_admits_two": (OneAtATime, "allows", "not running and ", ""),
    "memory_blocked_is_forgotten": (
        Scheduler,
        "schedule",
        "ran_out or self._blocked",
        "ran_out",
    ),
    "admission_in_a_step_that_preempted": (Scheduler, "admit_next", "plan.preempted or", "False or"),
    "recomputed_counts_new_tokens": (Scheduler, "commit", "min(high, seq.computed + fed) - seq.computed", "fed"),
    "recomputed_is_not_counted": (Scheduler, "commit", "seq.computed < high", "False"),
    "only_the_last_preemption_is_recomputed": (
        Scheduler,
        "_preempt",
        "max(self._high_water.get(part.key, 0), part.computed)",
        "part.computed",
    ),
    "aborted_while_preempted_is_remembered": (Scheduler, "abort", "self._high_water.pop(part.key, None)", "pass"),
    "aborted_request_stays_queued": (Order, "remove", "self._heap = [", "_ = ["),
    "removal_breaks_the_order_of_the_queue": (Order, "remove", "heapq.heapify(self._heap)", "self._heap.reverse()"),
    "preempted_goes_to_the_back": (
        Fcfs,
        "key",
        "return seq.request.arrival_s",
        "return seq.request.arrival_s + (1e9 if seq.preemptions else 0)",
    ),
    "last_come_first_served": (Fcfs, "key", "seq.request", "-seq.request"),
    "of_two_that_arrive_at_once_the_later_id_is_first": (Order, "push", "seq.id", "-seq.id"),
    "max_tokens_is_not_cut": (Scheduler, "submit", "replace(request, max_tokens=room)", "request"),
    "token_is_emitted_twice": (Scheduler, "commit", "seq.output.append(token)", "seq.output += [token, token]"),
    "time_stands_still": (VirtualClock, "advance", "self._now += seconds", "pass"),
    "unused_slots_are_not_told": (Scheduler, "_return", "part.slots_unused = ", "_ = "),
    "prompt_longer_than_the_budget_waits_for_ever": (PrefillFirst, "_fits", " or budget == self.max_tokens", ""),
    "chunk_exceeds_the_budget": (Chunked, "fill", "plan, new, self.left(plan)", "plan, new, new.to_compute"),
    "decodes_exceed_the_budget": (Scheduler, "decode_all", "plan.total_tokens + seq.num_feeding > most", "False"),
    "whole_prompts_exceed_the_budget": (
        PrefillFirst,
        "fill",
        "plan, new, self.left(plan)",
        "plan, new, new.to_compute",
    ),
    "prompts_begun_are_forgotten": (Chunked, "fill", "scheduler.prefilling()", "[]"),
    # ---- the further policies
    "least_urgent_first": (Priority, "key", "seq.request.priority", "-seq.request.priority"),
    "longest_job_first": (Sjf, "key", "self.predictor", "-self.predictor"),
    "remaining_is_the_whole": (Srtf, "key", "self.predictor.remaining(seq)", "self.predictor.length(seq.request)"),
    "mlfq_counts_no_prompts": (Mlfq, "served", "fed + generated", "generated"),
    "mlfq_never_demotes": (Mlfq, "served", "self._places[seq.id] =", "_ ="),
    "mlfq_does_not_age": (Mlfq, "time", "if place.level and", "if False and"),
    "mlfq_skips_no_level": (Mlfq, "_first_level", ">= prompt_tokens", ">= 0"),
    "vtc_forgets_the_prompt": (VirtualTokenCounter, "pop", "if not seq.preemptions:", "if False:"),
    "vtc_lifts_nobody": (VirtualTokenCounter, "_lift", "if least > own:", "if False:"),
    "vtc_counts_no_output": (VirtualTokenCounter, "served", "* generated", "* 0"),
    "the_first_behind_yields": (Scheduler, "_outrank", "behind.pop()", "behind.pop(0)"),
    "more_yield_than_needed": (Scheduler, "_outrank", "if self._may_enter(seq, yielding):", "if not behind:"),
    "one_before_it_yields": (Scheduler, "_may_yield_to", "if not self.preemptive:", "if True:"),
    "it_yields_before_those_behind_it": (Scheduler, "_may_yield_to", "> rank]", ">= rank]"),
    "admission_forgets_who_runs": (AdmitReserved, "allows", "(*running, seq)", "(seq,)"),
    "peak_forgets_the_tails": (EstimatedPeak, "peak", "self.allocator.pool.block_size - 1", "0"),
    "estimate_never_rises": (EstimatedPeak, "planned", "max(self.estimate, min(seen, 1.0))", "self.estimate"),
    "estimate_never_falls": (EstimatedPeak, "planned", "self.estimate - fall", "self.estimate"),
    "static_batch_stays_open": static_batch_stays_open,
    "static_batch_stays_closed": static_batch_stays_closed,
    "iteration_takes_a_part_of_a_prompt": (Iteration, "_fits", "whole <= budget or ", "True or "),
    "most_urgent_is_the_victim": (LowestPriority, "choose", "(seq.request.priority", "(-seq.request.priority"),
    "most_computed_is_the_victim": (FewestComputed, "choose", "-computed(seq)", "computed(seq)"),
    "longest_output_is_the_victim": (ShortestOutput, "choose", "-seq.generated", "seq.generated"),
    "shortest_prompt_is_the_victim": (ShortestOutput, "choose", "seq.request.prompt", "-seq.request.prompt"),
    "shortest_remaining_is_the_victim": (LongestRemaining, "choose", "(oracle_output", "(-oracle_output"),
    # ---- the input builder
    "stale_block_table_row": (InputBuilder, "apply", "in plan.grown", "in ()"),
    "row_remembers_its_last_owner": (
        InputBuilder,
        "apply",
        "len(new.token_ids), new.computed",
        "len(new.token_ids), self.computed[new.row]",
    ),
    "tokens_of_the_last_owner": (
        InputBuilder,
        "apply",
        "self.tokens[new.row, : len(new.token_ids)] = new.token_ids",
        "self.tokens[new.row, : len(new.token_ids) - 1] = new.token_ids[:-1]",
    ),
    "slot_mapping_off_by_one_at_a_block_edge": (
        InputBuilder,
        "build",
        "self.block_table[token_rows, entries]",
        "self.block_table[token_rows, np.maximum(positions - 1, 0) // self.block_size]",
    ),
    "slot_mapping_forgets_the_offset": (InputBuilder, "build", " + offsets", ""),
    "rows_are_not_moved_on": (InputBuilder, "build", "self.computed[rows] = context", "pass"),
    "decodes_first_is_forgotten_in_the_samples": (InputBuilder, "build", "order[samples]", "np.flatnonzero(samples)"),
    "table_row_one_block_too_short": (
        InputBuilder,
        "build",
        "-(-int(context.max()) // self.block_size)",
        "int(context.max()) // self.block_size",
    ),
    "sampled_token_overwrites_the_last": (
        InputBuilder,
        "append",
        "self.known[rows]] = tokens",
        "self.known[rows] - 1] = tokens",
    ),
    # ---- forks and copy-on-write
    "fork_without_references": (PagedAllocator, "fork", "self.pool.retain(source.table)", "pass"),
    "fork_skips_the_last_reference": (
        PagedAllocator,
        "fork",
        "self.pool.retain(source.table)",
        "self.pool.retain(source.table[:-1])",
    ),
    "fork_shares_the_table_itself": (PagedAllocator, "fork", "list(source.table)", "source.table"),
    "fork_skips_the_last_block": (PagedAllocator, "fork", "list(source.table)", "source.table[:-1]"),
    "fork_keeps_what_the_child_held": (PagedAllocator, "fork", "self.release(child)", "self.holdings.pop(child, None)"),
    "fork_forgets_the_tokens": (PagedAllocator, "fork", "source.promised, source.tokens)", "source.promised)"),
    "fork_counts_no_entries": (PagedAllocator, "fork", "self._table_entries += len(source.table)", "pass"),
    "fork_copies_one_block_too_few": (
        ContiguousAllocator,
        "fork",
        "table[:filled], target",
        "table[: filled - 1], target",
    ),
    "fork_copies_the_wrong_way": (
        ContiguousAllocator,
        "fork",
        "zip(source.table[:filled], target.table[:filled], strict=True)",
        "zip(target.table[:filled], source.table[:filled], strict=True)",
    ),
    "no_copy_on_write": (Allocator, "grow", "shared = filled > 0 and", "shared = False and"),
    "copy_when_the_last_writes": (Allocator, "grow", "self.pool.is_shared(holding.table[-1])", "True"),
    "copy_of_a_full_block": (Allocator, "grow", "filled > 0 and", ""),
    "copy_keeps_the_old_reference": (
        Allocator,
        "grow",
        "self.pool.release([holding.table.pop()])",
        "holding.table.pop()",
    ),
    "copy_releases_the_old_twice": (
        Allocator,
        "grow",
        "self.pool.release([holding.table.pop()])",
        "self.pool.release([holding.table[-1]] * 2)\n                holding.table.pop()",
    ),
    "copied_tokens_are_not_counted": (Allocator, "grow", "self._tokens += filled", "pass"),
    "copied_promise_is_not_counted": (Allocator, "grow", "self._promised += filled", "pass"),
    "copied_entry_is_counted_twice": (Allocator, "grow", "self._table_entries -= 1", "pass"),
    "copy_takes_no_block_of_its_own": (PagedAllocator, "_blocks_for_growth", " + replaced", ""),
    "shared_tokens_go_with_the_first_that_leaves": (
        Allocator,
        "release",
        "holding.tokens - still_held",
        "holding.tokens",
    ),
    "shared_promise_goes_with_the_first": (Allocator, "release", "holding.promised - still_held", "holding.promised"),
    "group_is_let_in_for_its_prompt_alone": (PagedAllocator, "_blocks_to_begin", "if not seq.branches", "if True"),
    "group_of_runs_is_let_in_for_one": (ContiguousAllocator, "can_admit", ">= len(seq.parts)", ">= 1"),
    "too_wide_is_let_in": (PagedAllocator, "max_blocks", "request.width * ", ""),
    "held_by_counts_shared_blocks_twice": (
        Allocator,
        "held_by",
        "len({block for key in keys if key in self.holdings for block in self.holdings[key].table})",
        "sum(len(self.holdings[key].table) for key in keys if key in self.holdings)",
    ),
    "copy_is_not_planned": (Scheduler, "_feed", "if start < length:", "if False:"),
    "copy_comes_from_the_wrong_block": (
        Scheduler,
        "_feed",
        "Copy(seq.row, last, new[0])",
        "Copy(seq.row, new[0], last)",
    ),
    "copies_of_forks_are_lost": (Scheduler, "_advance", "self._copies += ", "_ = "),
    "victims_copies_stay_in_the_plan": (Plan, "drop", "if copy.row != part.row", ""),
    "victims_forks_stay_in_the_plan": (Plan, "drop", "if fork.row != part.row", ""),
    "forks_of_the_aborted_are_told": (Scheduler, "_leave", "if fork.row not in rows", ""),
    "fork_is_not_told": (Scheduler, "_advance", "self._forked.append(", "id("),
    "fork_is_told_the_parents_row": (
        Scheduler,
        "_advance",
        "Fork(branch.row, parent.row",
        "Fork(parent.row, parent.row",
    ),
    "fork_tells_no_table": (
        Scheduler,
        "_advance",
        "table = list(self.allocator.holdings[branch.key].table)",
        "table = []",
    ),
    "fork_goes_on_one_token_late": (Scheduler, "_advance", "branch.output[known:]", "branch.output[known + 1 :]"),
    "nobody_inherits": (Scheduler, "_bequeath", "if heir is not first", "if False"),
    "heir_keeps_its_row": (Scheduler, "_bequeath", "first.row, heir.row = heir.row, first.row", "pass"),
    "heir_gets_nothing": (Scheduler, "_bequeath", "self.allocator.exchange(first.key, heir.key)", "pass"),
    "branches_sample_while_others_lag": (Scheduler, "prefill", "part.to_compute - 1", "part.to_compute"),
    "preempted_group_stays_forked": (Scheduler, "_preempt", "victim.forked = False", "pass"),
    "only_one_branch_is_preempted": (Preemption, "recompute", "in seq.parts)", "in seq.parts[:1])"),
    "group_gets_one_row": (Scheduler, "_may_enter", "rows < seq.num_parts", "not rows"),
    "ended_branch_keeps_its_blocks": (Scheduler, "_advance", "if finished:", "if not trunk.parts:"),
    "decodes_in_part": (Scheduler, "decode_all", "seq.num_feeding", "1"),
    "first_tokens_are_taken_again": (Group, "advance", "self.started and not self.trunk.forked", "False"),
    # ---- what the executor does of it
    "copy_comes_after_the_write": copy_after_the_write,
    "copy_is_not_done": (FingerprintExecutor, "execute", "in plan.copies", "in ()"),
    "fork_is_not_applied": (InputBuilder, "apply", "in plan.forked", "in ()"),
    "fork_copies_no_tokens": (InputBuilder, "_fork", "if fork.row != fork.parent", "if False"),
    "fork_copies_no_table": (InputBuilder, "_fork", "self._write_table(fork.row, 0, fork.block_ids)", "pass"),
    "fork_counts_its_tokens_as_computed": (InputBuilder, "_fork", "= known, shared", "= known, known"),
    "trunk_offers_one_token": (
        FingerprintExecutor,
        "_choices",
        "seq.branches or [seq]",
        "[seq] * len(seq.branches or [seq])",
    ),
    "executor_reads_one_slot_too_few": (FingerprintExecutor, "_slots", "np.arange(context)", "np.arange(context - 1)"),
}


# What the outputs of a request are, which needs no program: answers are compared with those of the naive model.
ANSWERS = {
    "best_of_keeps_the_order": (Samples, "_answer", "-(completion.score or 0.0)", "0"),
    "worst_of": (Samples, "_answer", "-(completion.score or 0.0)", "(completion.score or 0.0)"),
    "score_is_not_per_token": (Samples, "_answer", " / len(b.output)", ""),
    "beam_keeps_its_old_text": (BeamSearch, "_move", "branch.output, self._scores", "_, self._scores"),
    "beam_keeps_its_old_score": (
        BeamSearch,
        "_move",
        "self._scores[branch.index] = output, score",
        "_ = output, score",
    ),
    "every_survivor_moves": (BeamSearch, "_move", "parent if stays else vacant.pop(0)", "(vacant or [parent]).pop(0)"),
    "beams_rank_the_worst_first": (BeamSearch, "_take", "-candidate[0]", "candidate[0]"),
    "beams_forget_their_scores": (BeamSearch, "_take", "self._scores[parent.index] + ", ""),
    "late_candidates_finish": (BeamSearch, "_take", "candidates[:width]", "candidates"),
    "length_penalty_is_ignored": (BeamSearch, "_finish", "score / length**sampling.length_penalty", "score"),
    "finished_beams_are_never_replaced": (BeamSearch, "_finish", "key=lambda c: -(c.score or 0.0)", "key=lambda c: 0"),
    "early_stopping_is_ignored": (BeamSearch, "_may_improve", 'early_stopping == "true"', 'early_stopping == ""'),
    "never_is_taken_for_false": (BeamSearch, "_may_improve", 'early_stopping == "never"', 'early_stopping == ""'),
    "beams_never_give_up": (BeamSearch, "_may_improve", "> (self._finished[-1].score or 0.0)", "> -1e9"),
    "too_few_candidates": (FingerprintExecutor, "_choices", "[:count].tolist()", "[: count // 2].tolist()"),
    "beams_give_up_with_the_first_that_ends": (BeamSearch, "_may_improve", "< sampling.beam_width", "< 1"),
}


def hunt_answers():
    """(output, request, what it is) of the first wrong answer; None when all are right."""
    rng = random.Random(0)
    for number in range(300):
        beams = {"beam_width": rng.choice([2, 3, 4]), "early_stopping": rng.choice(["false", "true", "never"])}
        beams["length_penalty"] = rng.choice([-1.0, 0.0, 0.5, 1.0, 2.0])
        samples = {"temperature": 1.0, "seed": rng.randrange(9), "n": rng.choice([1, 2]), "best_of": rng.choice([2, 4])}
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 6))]
        asked = request(prompt, 14, id=number, ignore_eos=False, **rng.choice([beams, beams, samples]))
        eos = rng.randrange(VOCAB)
        recorder, _ = run([asked], 64, eos=eos)
        got, want = recorder.sequences[0].outputs(), naive_answer(asked, eos)
        if [c.token_ids for c in got] != [c.token_ids for c in want]:
            return "tokens", number, f"{got} is not {want}"
        if any(a.score is not None and abs(a.score - b.score) > 1e-9 for a, b in zip(got, want, strict=True)):
            return "score", number, f"{got} is not {want}"
        steps = expected(tuple(prompt), 14, 14, asked.sampling, eos)[2]
        if steps and len(recorder.sequences[0].token_s) != len(steps) + 1:
            return "steps", number, f"{len(recorder.sequences[0].token_s)} is not {len(steps) + 1}"
    return None


def hunt(seeds=(*LATE, *range(PROGRAMS))):
    """(name of the check, program, what it said) of the first program that fails; None when all pass."""
    for seed in seeds:
        try:
            random_program(seed)
        except Violation as violation:
            return violation.check, seed, str(violation)
        except Exception as error:  # the product fell over by itself
            return type(error).__name__, seed, str(error)
    return None


@pytest.mark.parametrize("name", [*MUTATIONS, *ANSWERS])
def test_a_seeded_fault_is_caught(name, record_property):
    mutation = MUTATIONS.get(name) or ANSWERS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "audit", lambda self: None)
        mutation(patch) if callable(mutation) else rewrite(patch, *mutation)
        try:
            caught = hunt() if name in MUTATIONS else hunt_answers()
        except Exception as error:  # the product fell over by itself
            caught = type(error).__name__, -1, str(error)
    assert caught is not None, "every program, or answer, passed"
    check, program, said = caught
    record_property("caught_by", check)
    print(f"{name}: caught by {check} in program {program}: {said[:300]}")


@pytest.mark.parametrize("part", range(4))
def test_the_clean_core_passes_as_many_programs(part):
    assert hunt(range(part, PROGRAMS, 4)) is None


def test_the_clean_core_gives_as_many_answers():
    assert hunt_answers() is None
