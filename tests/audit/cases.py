"""The kinds of bugs that paged-KV engines had, by the numbers of the case list that the project keeps: which tests have
each of them, with more inputs than the list's own."""

from __future__ import annotations

from tests.audit.harness import Check, Found
from tests.audit.tested import tested

CASES: dict[str, tuple[str, ...]] = {
    # ---- release and reference counts
    "E1 double free by two paths": ("engine/test_cases::test_e4_abort_in_each_state_frees_everything_once",),
    "E2 one id twice in one free": (
        "allocator/test_pool::test_two_references_may_be_dropped_in_one_call_and_free_the_block_once",
    ),
    "E3 free of a free block": ("allocator/test_pool::test_releasing_what_is_not_held_is_refused_and_changes_nothing",),
    "E4 abort in each state": (
        "engine/test_cases::test_e4_abort_in_each_state_frees_everything_once",
        "engine/test_cases::test_e4_abort_while_preempted_leaves_the_queue_in_order",
        "engine/test_sharing::test_aborted_in_any_state_it_gives_all_back",
        "preemption/test_cases::test_e4_abort_while_swapped_out_frees_its_host_blocks",
        "preemption/test_cases::test_e4_what_a_return_reads_is_handed_out_only_when_the_step_is_over",
    ),
    "E6 release before or after caching": (
        "prefix_cache/test_engine::test_e6_a_request_that_ends_gives_back_its_blocks_whether_they_are_cached_or_not",
    ),
    "E7 a failed admission changes nothing": (
        "prefix_cache/test_engine::test_e7_a_refused_admission_changes_nothing",
        "allocator/test_pool::test_a_failed_allocation_changes_nothing",
    ),
    "E8 a failed fork changes nothing": (
        "engine/test_sharing::test_e8_a_copy_without_a_block_for_it_is_refused_and_changes_nothing",
        "engine/test_sharing::test_e8_a_group_of_runs_is_admitted_whole_or_not_at_all",
    ),
    "E10 references of beams and their swap state": (
        "preemption/test_cases::test_e10_a_group_drops_and_takes_back_all_its_references",
        "preemption/test_cases::test_e10_a_group_swapped_out_in_the_step_that_was_to_copy_for_it_has_the_source",
    ),
    # ---- sharing and copy-on-write
    "E11 copy-on-write at a partial tail": (
        "engine/test_sharing::test_e11_only_a_partial_tail_is_copied_and_only_once",
    ),
    "E13 beam prune": ("engine/test_sharing::test_e13_a_beam_whose_parent_loses_gets_a_copy_of_the_winners_tail",),
    "E14 four samples": (
        "engine/test_sharing::test_e14_four_samples_of_a_prompt_of_ten_hold_six_blocks_and_compute_the_prompt_once",
        "engine/test_sharing::test_e14_a_contiguous_allocator_gives_each_sample_a_run_and_a_copy_of_the_prompt",
    ),
    # ---- hash, identity, index
    "E16 collision": (
        "prefix_cache/test_engine::test_e16_and_s19_contents_that_share_a_key_are_told_apart",
        "prefix_cache/test_index::test_e16_where_every_key_is_the_same_nothing_wrong_is_hit",
    ),
    "E17 the same block behind another parent": (
        "prefix_cache/test_engine::test_what_is_hit_after_what_was_asked",
        "prefix_cache/test_index::test_what_is_hit_of_eight_cached_tokens",
    ),
    "E18 identity left out of the key": (
        "prefix_cache/test_engine::test_s18_and_e18_another_tenant_or_adapter_hits_nothing_and_the_same_does",
        "prefix_cache/test_index::test_e18_other_salt_or_adapter_hits_nothing_and_the_same_does",
    ),
    "E19 weights replaced": ("prefix_cache/test_index::test_e19_keys_of_another_model_or_revision_are_others",),
    "E20 stale hash after reuse": (
        "prefix_cache/test_engine::test_e20_a_block_used_again_is_no_longer_found_by_its_old_name",
    ),
    "E22 indexed before its tokens are final": (
        "prefix_cache/test_engine::test_e22_a_block_is_found_once_its_step_is_over_and_not_before",
    ),
    "E23 full hit": (
        "prefix_cache/test_engine::test_e23_of_a_full_hit_one_token_is_computed_in_a_block_of_its_own",
        "prefix_cache/test_index::test_what_is_hit_of_eight_cached_tokens",
    ),
    "E24 full hit and one more": (
        "prefix_cache/test_engine::test_what_is_hit_after_what_was_asked",
        "prefix_cache/test_index::test_what_is_hit_of_eight_cached_tokens",
    ),
    # ---- eviction
    "E27 leaf first": (
        "prefix_cache/test_engine::test_e27_the_end_of_a_chain_goes_first",
        "prefix_cache/test_engine::test_e27_without_leaf_first_the_whole_chain_goes_with_its_beginning",
    ),
    "E28 all or nothing": (
        "prefix_cache/test_engine::test_e28_what_cannot_be_had_is_refused_and_evicts_nothing",
        "eviction/test_policies::test_n_victims_are_all_or_none",
    ),
    "E30 clock too coarse": (
        "audit/test_audit::test_e30_uses_at_one_moment_keep_their_order",
        "eviction/test_against_naive::test_the_victim_is_the_one_that_a_search_over_all_blocks_finds",
    ),
    "E31 partial blocks pollute": (
        "prefix_cache/test_engine::test_e31_a_block_that_never_became_full_goes_before_the_full_one",
    ),
    "E32 policy tables": (
        "eviction/test_golden::test_the_hits_are_those_of_the_golden_table",
        "eviction/test_policies::test_no_policy_hits_more_than_the_optimum",
    ),
    # ---- boundary, size, admission
    "E34 block edge": (
        "engine/test_cases::test_e34_a_request_holds_ceil_of_p_plus_g_minus_1_over_b_blocks_at_its_end",
        "engine/test_cases::test_e34_the_listed_numbers",
    ),
    "E35 larger than the pool": (
        "engine/test_cases::test_e35_e36_what_can_never_fit_is_refused_at_submission_and_the_queue_goes_on",
    ),
    "E36 a lone request outgrows the pool": (
        "engine/test_cases::test_e35_e36_what_can_never_fit_is_refused_at_submission_and_the_queue_goes_on",
    ),
    "E37 exact fit": ("engine/test_cases::test_e37_an_exact_fit_is_served_without_preemption_in_spite_of_a_watermark",),
    "E38 watermark and the empty pool": (
        "engine/test_cases::test_e38_the_first_into_an_empty_pool_bypasses_the_watermark",
    ),
    "E41 prompt at the limit": (
        "engine/test_cases::test_e41_a_prompt_at_the_limit_ends_with_length_and_the_queue_goes_on",
    ),
    # ---- preemption, swap, asynchrony
    "E43 thrash": (
        "engine/test_cases::test_e43_two_requests_that_outgrow_the_pool_cost_one_preemption_of_the_younger",
        "preemption/test_cases::test_e43_by_swap_costs_no_token",
        "scheduler/test_victims::test_e43_costs_one_preemption_whoever_chooses",
        "scheduler/test_victims::test_e43_costs_one_preemption_in_every_order",
    ),
    "E44 livelock": ("engine/test_cases::test_e44_a_run_without_a_finished_token_ends_with_a_dump",),
    "E45 recompute keeps the output": (
        "engine/test_equality::test_a_request_preempted_at_any_step_generates_the_same",
        "engine/test_sharing::test_a_request_preempted_at_any_step_answers_the_same",
        "preemption/test_cases::test_e45_a_request_preempted_at_any_step_generates_the_same",
    ),
    "E47 the return counts what comes next": (
        "preemption/test_cases::test_e47_who_comes_back_has_room_for_all_that_it_knows",
    ),
    "E48 shared block and swap": (
        "preemption/test_cases::test_e48_a_shared_block_stays_with_the_other_and_is_attached_or_reloaded",
        "preemption/test_cases::test_e48_what_was_evicted_meanwhile_is_reloaded",
        "prefix_cache/test_engine::test_e48_a_preempted_request_comes_back_to_the_blocks_that_are_still_there",
    ),
    "E49 host full or absent": (
        "preemption/test_cases::test_e49_without_room_on_the_host_it_is_recomputed_and_counted",
    ),
    "E51 preempt while a store reads": (
        "preemption/test_cases::test_e51_a_fenced_block_is_handed_out_to_nobody_while_it_is_read",
        "preemption/test_cases::test_e51_a_block_released_in_the_step_that_reads_it_is_free_afterwards",
    ),
    "E52 priority": (
        "scheduler/test_orders::test_priority_takes_the_memory_of_the_least_urgent",
        "scheduler/test_any_combination::test_a_preemptive_order_has_somebody_yield",
    ),
    # ---- equality, fuzz
    "E58 equality over all memory settings": (
        "engine/test_equality::test_tokens_do_not_depend_on_memory_or_scheduling",
        "scheduler/test_any_combination::test_tokens_do_not_depend_on_any_policy",
        "prefix_cache/test_engine::test_no_answer_and_no_block_depends_on_the_policy",
    ),
    "E60 fuzz": (
        "engine/test_state_machine::runTest",
        "prefix_cache/test_engine::test_no_answer_and_no_block_depends_on_the_policy",
    ),
}

# Of what pagedlab does not have there is nothing to get wrong.
ABSENT = {
    "E26 events mirror the index": "no events of stored and removed blocks are sent to anybody",
    "E55 EAGLE and hits": "no speculative decoding",
    "E56 sliding window": "a window is a mask: no block is given back before its sequence ends",
}


def pieces(short: bool) -> list[str]:
    """By file. They are tests themselves: of the short form only the one that says all are there."""
    return [] if short else sorted({test.partition("::")[0] for tests in CASES.values() for test in tests})


def attempt(file: str) -> Found:
    wanted = {test.partition("::")[2]: case for case, tests in CASES.items() for test in tests if test.startswith(file)}
    ran = tested(f"tests/{file}.py", "-k", " or ".join(wanted))
    found = Found(figures={"inputs": 0, "cases": {}})
    for function in wanted:
        results = [test for test in ran if test.name.partition("[")[0] == function]
        cases = [case for case, tests in CASES.items() if f"{file}::{function}" in tests]
        failed = [f"{test.name}: {test.said}" for test in results if test.outcome != "passed"]
        found.attempt(f"{cases}: {function}", bool(results) and not failed, failed or "no such test")
        found.figures["inputs"] += len(results)
        found.figures["cases"] |= dict.fromkeys(cases, "tried")
    found.figures["absent"] = ABSENT
    return found


CHECK = Check(
    f"the {len(CASES) + len(ABSENT)} bug kinds of paged engines, {len(CASES)} of which can be here, by their tests",
    pieces,
    attempt,
    least=len({test for tests in CASES.values() for test in tests}),
)
