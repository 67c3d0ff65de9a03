"""Golden numbers: runs so small that every slot of every second is worked out by hand, in the comments.

R(p, g): p prompt tokens, g new ones. B = 4. A step takes a second unless said. A request is admitted at the first
step that starts at or after its arrival; its prompt is fed whole and yields its first token at the end of that step;
every later step feeds one token and yields the next, so that it needs p + g - 1 slots.
Rows are (token_states, reserved, internal, block_tail, cached_idle, free, external), as in SPLIT.
"""

import math
from array import array
from itertools import pairwise

import numpy as np
import pytest

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.request import Sequence
from pagedlab.core.told import Stamps
from pagedlab.recorder import metrics
from pagedlab.recorder.metrics import SPLIT, durations, latencies, split_over_time
from tests.lab import naive_output, request
from tests.recorder.served import FRACTIONS, served, split_rows

NOTHING = {"mean": None, "p50": None, "p90": None, "p99": None}


def about(expected):
    return pytest.approx(expected, rel=1e-12)


# ---- two requests that overlap: the same times with and without paging --------------------------------------------
#
# A = R(5, 6) at 0, which ends after 4 tokens (its true length), and B = R(6, 3) at 2.5. N = 8, 32 slots.
#   second   0    1    2    3    4    5
#   A feeds  5    1    1    1              holds 5 6 7 8; its tokens come at 1 2 3 4
#   B feeds                 6    1    1    holds 6 7 8;   its tokens come at 4 5 6


def two_that_overlap():
    return [request(5, 6, id=0, true=4), request(6, 3, id=1, arrival=2.5)]


@pytest.mark.parametrize("allocator", ["reserve_output", "paged"])
def test_latencies_of_two_requests_that_overlap(allocator):
    recorder, summary = served(two_that_overlap(), 8, allocator=allocator)
    a, b = map(latencies, recorder.sequences)
    assert a == about({"ttft_s": 1, "tpot_s": 1, "e2e_s": 4, "normalized_latency_s_per_token": 1})
    assert b == about({"ttft_s": 1.5, "tpot_s": 1, "e2e_s": 3.5, "normalized_latency_s_per_token": 3.5 / 3})
    # Percentiles of two numbers lie on the line between them.
    assert summary["ttft_s"] == about({"mean": 1.25, "p50": 1.25, "p90": 1.45, "p99": 1.495})
    assert summary["e2e_s"] == about({"mean": 3.75, "p50": 3.75, "p90": 3.95, "p99": 3.995})
    assert summary["tpot_s"] == summary["itl_s"] == about({"mean": 1, "p50": 1, "p90": 1, "p99": 1})
    assert summary["normalized_latency_s_per_token"]["mean"] == about((1 + 3.5 / 3) / 2)


@pytest.mark.parametrize("allocator", ["reserve_output", "paged"])
def test_throughput_of_two_requests_that_overlap(allocator):
    _, summary = served(two_that_overlap(), 8, allocator=allocator)
    assert (summary["num_requests"], summary["completed"], summary["refused"]) == (2, 2, 0)
    assert (summary["duration_s"], summary["steps"]) == (6, 6)
    assert (summary["prompt_tokens"], summary["output_tokens"]) == (11, 7)
    assert summary["computed_tokens"] == 5 + 3 + 6 + 2
    assert summary["output_tokens_per_s"] == about(7 / 6)
    assert summary["total_tokens_per_s"] == about(18 / 6)
    assert summary["requests_per_s"] == about(2 / 6)
    assert summary["mean_batch_size"] == about((1 + 1 + 1 + 2 + 1 + 1) / 6)
    assert summary["peak_batch_size"] == 2
    assert (summary["preemptions"], summary["recomputed_tokens"], summary["recompute_tax"]) == (0, 0, 0)


def test_a_reservation_splits_into_used_later_and_never_used():
    """A is promised 5 + 6 - 1 = 10 slots in 3 blocks (a tail of 2) and fills 8: 2 are internal as long as it stays.
    B is promised 8 and fills them all."""
    recorder, summary = served(two_that_overlap(), 8, allocator="reserve_output")
    assert split_rows(recorder) == [
        (5, 3, 2, 2, 0, 20, 0),
        (6, 2, 2, 2, 0, 20, 0),
        (7, 1, 2, 2, 0, 20, 0),
        (8 + 6, 0 + 2, 2, 2, 0, 12, 0),
        (7, 1, 0, 0, 0, 24, 0),
        (8, 0, 0, 0, 0, 24, 0),
    ]
    slot_seconds = (47, 9, 8, 8, 0, 120, 0)  # of 32 x 6 = 192
    assert [summary[name] for name in FRACTIONS] == about([s / 192 for s in slot_seconds])
    assert summary["kv_waste_fraction"] == about(1 - 47 / (47 + 9 + 8 + 8))
    assert summary["kv_peak_held_fraction"] == about(20 / 32)
    assert summary["memory_blocked_fraction"] == 0
    assert summary["kv_waste_fraction_when_full"] is None


def test_paging_wastes_the_tail_of_a_last_block_and_nothing_else():
    """A: 5 6 7 8 tokens in 2 blocks; B: 6 7 8 in 2 blocks."""
    recorder, summary = served(two_that_overlap(), 8, allocator="paged")
    assert split_rows(recorder) == [
        (5, 0, 0, 3, 0, 24, 0),
        (6, 0, 0, 2, 0, 24, 0),
        (7, 0, 0, 1, 0, 24, 0),
        (8 + 6, 0, 0, 2, 0, 16, 0),
        (7, 0, 0, 1, 0, 24, 0),
        (8, 0, 0, 0, 0, 24, 0),
    ]
    assert [summary[name] for name in FRACTIONS] == about([s / 192 for s in (47, 0, 0, 9, 0, 136, 0)])
    assert summary["kv_waste_fraction"] == about(9 / 56)
    assert summary["kv_peak_held_fraction"] == about(16 / 32)


# ---- the other reservations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocator", "rows"),
    [
        # 7 + 3 - 1 = 9 slots, known beforehand: 3 blocks, a tail of 3.
        ("oracle", [(7, 2, 0, 3, 0, 4, 0), (8, 1, 0, 3, 0, 4, 0), (9, 0, 0, 3, 0, 4, 0)]),
        # 3 becomes 4: 10 slots in 3 blocks, of which the buddy makes 4. Promised are 10 + 4, never used 5.
        ("power_of_two", [(7, 2, 5, 2, 0, 0, 0), (8, 1, 5, 2, 0, 0, 0), (9, 0, 5, 2, 0, 0, 0)]),
        # max_model_len = 15: 4 blocks, a tail of 1, never used 6.
        ("reserve_max", [(7, 2, 6, 1, 0, 0, 0), (8, 1, 6, 1, 0, 0, 0), (9, 0, 6, 1, 0, 0, 0)]),
    ],
)
def test_each_reservation_of_r_7_5_that_ends_after_3_tokens(allocator, rows):
    recorder, summary = served([request(7, 5, true=3)], 4, allocator=allocator, max_model_len=15)
    assert split_rows(recorder) == rows
    assert summary["kv_waste_fraction"] == about(1 - 24 / (48 - sum(row[5] for row in rows)))


# ---- a request that waits for memory: external --------------------------------------------------------------------
#
# N = 4, reserve_output. A = R(6, 3) reserves 8 slots, B = R(9, 4) 12 slots: together 5 blocks. B waits till A has left.
#   second   0  1  2  3  4  5  6
#   A holds  6  7  8
#   B holds           9 10 11 12          tokens of B at 4 5 6 7


def test_free_slots_are_external_while_a_request_was_refused_its_blocks():
    recorder, summary = served([request(6, 3, id=0), request(9, 4, id=1)], 4, allocator="reserve_output")
    assert split_rows(recorder) == [
        (6, 2, 0, 0, 0, 0, 8),
        (7, 1, 0, 0, 0, 0, 8),
        (8, 0, 0, 0, 0, 0, 8),
        (9, 3, 0, 0, 0, 4, 0),
        (10, 2, 0, 0, 0, 4, 0),
        (11, 1, 0, 0, 0, 4, 0),
        (12, 0, 0, 0, 0, 4, 0),
    ]
    assert [summary[name] for name in FRACTIONS] == about([s / 112 for s in (63, 9, 0, 0, 0, 16, 24)])
    assert summary["memory_blocked_fraction"] == about(3 / 7)
    assert summary["kv_waste_fraction"] == about(9 / 72)
    assert summary["kv_waste_fraction_when_full"] == about(3 / 24)  # of the first three seconds alone
    assert summary["kv_peak_held_fraction"] == about(12 / 16)
    assert summary["mean_batch_size"] == 1
    assert latencies(recorder.sequences[1])["ttft_s"] == 4


def test_free_slots_stay_free_while_a_request_waits_for_a_row_and_not_for_memory():
    recorder, summary = served([request(4, 1, id=0), request(4, 1, id=1)], 8, max_num_seqs=1)
    assert split_rows(recorder) == [(4, 0, 0, 0, 0, 28, 0)] * 2
    assert (summary["memory_blocked_fraction"], summary["kv_waste_fraction_when_full"]) == (0, None)


# ---- E43: a preemption --------------------------------------------------------------------------------------------
#
# N = 8, paged, A = B = R(14, 18) at 0.
#   seconds 0, 1, 2:   both hold 14, 15, 16 tokens in 4 blocks each: 28 + 4, 30 + 2, 32 + 0
#   second 3:          A needs a 5th block; B, the younger, loses its 4 blocks and 16 tokens
#   seconds 3 to 17:   A alone holds 17 to 31 tokens, and ends at 18. B knows 17 tokens and needs 5 blocks: refused
#   seconds 18 to 32:  B alone holds 17 to 31 tokens: feeds 17 (16 of them again), then one a second; ends at 33
#   17..31 sum to 360; their blocks hold 4x20 + 4x24 + 4x28 + 3x32 = 384 slots: a tail of 24, and 15x32 - 384 = 96 left


@pytest.fixture(scope="module")
def thrash():
    return served([request(14, 18, id=0), request(14, 18, id=1)], 8)


def test_e43_where_every_slot_was(thrash):
    recorder, summary = thrash
    rows = split_rows(recorder)
    assert rows[:5] == [
        (28, 0, 0, 4, 0, 0, 0),
        (30, 0, 0, 2, 0, 0, 0),
        (32, 0, 0, 0, 0, 0, 0),
        (17, 0, 0, 3, 0, 0, 12),
        (18, 0, 0, 2, 0, 0, 12),
    ]
    assert rows[17] == (31, 0, 0, 1, 0, 0, 0)
    assert rows[18] == (17, 0, 0, 3, 0, 12, 0)
    assert rows[32] == (31, 0, 0, 1, 0, 0, 0)
    slot_seconds = (90 + 360 + 360, 0, 0, 6 + 24 + 24, 0, 96, 96)
    assert sum(slot_seconds) == 33 * 32
    assert [summary[name] for name in FRACTIONS] == about([s / (33 * 32) for s in slot_seconds])


def test_e43_what_the_preemption_cost(thrash):
    _, summary = thrash
    assert (summary["preemptions"], summary["recomputed_tokens"]) == (1, 16)
    # The prompts, 17 more tokens each (the last is never fed), and the 16 once more.
    assert summary["computed_tokens"] == 14 + 14 + 17 + 17 + 16 == 78
    assert summary["recompute_tax"] == about(16 / 78)
    assert summary["kv_waste_fraction"] == about(54 / 864)
    assert summary["kv_waste_fraction_when_full"] == about(24 / 384)
    assert summary["memory_blocked_fraction"] == about(15 / 33)
    assert summary["kv_peak_held_fraction"] == 1
    assert summary["mean_batch_size"] == about((3 * 2 + 30 * 1) / 33)
    assert summary["output_tokens_per_s"] == about(36 / 33)


def test_e43_the_wait_shows_in_the_latencies_of_the_victim(thrash):
    recorder, summary = thrash
    a, b = map(latencies, recorder.sequences)
    assert a == about({"ttft_s": 1, "tpot_s": 1, "e2e_s": 18, "normalized_latency_s_per_token": 1})
    assert b == about({"ttft_s": 1, "tpot_s": 32 / 17, "e2e_s": 33, "normalized_latency_s_per_token": 33 / 18})
    # 34 gaps: B waits from 3 to 19 for its 4th token, all others are a second. p99 is at place 0.99 x 33 = 32.67.
    assert summary["itl_s"] == about({"mean": (33 + 16) / 34, "p50": 1, "p90": 1, "p99": 1 + 0.67 * 15})


# ---- chunks, and a preemption in the middle of a prompt -----------------------------------------------------------


def test_a_prompt_in_chunks_holds_all_its_blocks_from_its_admission():
    """R(10, 2) with 4 tokens a step: 4, 8, 10 fed, the first token at 3; then one more in the last slot but one."""
    recorder, summary = served([request(10, 2)], 4, tokens=4)
    assert split_rows(recorder) == [
        (4, 6, 0, 2, 0, 4, 0),
        (8, 2, 0, 2, 0, 4, 0),
        (10, 0, 0, 2, 0, 4, 0),
        (11, 0, 0, 1, 0, 4, 0),
    ]
    assert [(s.tokens, s.prefill_tokens) for s in recorder.steps] == [(4, 4), (4, 4), (2, 2), (1, 0)]
    assert summary["ttft_s"]["mean"] == 3
    assert summary["tpot_s"]["mean"] == 1


def test_what_a_preempted_prompt_was_promised_and_not_fed_was_internal():
    """N = 5, 3 tokens a step: A = R(4, 6) and B = R(12, 2), with the blocks of its 12 tokens from its admission.

    second   0   1   2   3   4   5   6   7   8   9   10  11
    A holds  3   4   5   6   7   8   9                       of 4, then 8, then 12 slots; tokens at 2 to 7
    B holds      2   4   6   8   10  -   3   6   9   12  13  preempted in second 6: of its 12 promised, 2 never used
    """
    recorder, summary = served([request(4, 6, id=0), request(12, 2, id=1)], 5, tokens=3)
    assert split_rows(recorder) == [
        (3, 1, 0, 0, 0, 16, 0),
        (4 + 2, 8, 2, 0, 0, 4, 0),
        (5 + 4, 6, 2, 3, 0, 0, 0),
        (6 + 6, 4, 2, 2, 0, 0, 0),
        (7 + 8, 2, 2, 1, 0, 0, 0),
        (8 + 10, 0, 2, 0, 0, 0, 0),
        (9, 0, 0, 3, 0, 0, 8),
        (3, 9, 0, 0, 0, 8, 0),
        (6, 6, 0, 0, 0, 8, 0),
        (9, 3, 0, 0, 0, 8, 0),
        (12, 0, 0, 0, 0, 8, 0),
        (13, 0, 0, 3, 0, 4, 0),
    ]
    assert [summary[name] for name in FRACTIONS] == about([s / 240 for s in (115, 39, 10, 12, 0, 56, 8)])
    assert (summary["recomputed_tokens"], summary["computed_tokens"]) == (10, 9 + 10 + 13)
    assert summary["recompute_tax"] == about(10 / 32)
    assert latencies(recorder.sequences[1])["ttft_s"] == 11


# ---- time ---------------------------------------------------------------------------------------------------------


def test_while_nobody_is_there_the_pool_is_free_and_the_time_counts():
    """N = 4. R(4, 2) at 0 and at 10: held in seconds 0, 1, 10 and 11, 4 then 5 tokens in 1 then 2 blocks."""
    recorder, summary = served([request(4, 2, id=0), request(4, 2, id=1, arrival=10.0)], 4)
    assert split_rows(recorder) == [
        (4, 0, 0, 0, 0, 12, 0),
        (5, 0, 0, 3, 0, 8, 0),
        (0, 0, 0, 0, 0, 16, 0),
        (4, 0, 0, 0, 0, 12, 0),
        (5, 0, 0, 3, 0, 8, 0),
    ]
    assert durations(recorder).tolist() == [1, 1, 8, 1, 1]
    assert (summary["duration_s"], summary["steps"]) == (12, 4)
    assert summary["mean_batch_size"] == about(4 / 12)
    assert [summary[name] for name in FRACTIONS] == about([s / 192 for s in (18, 0, 0, 6, 0, 168, 0)])
    assert summary["kv_waste_fraction"] == about(6 / 24)  # of what was held: the idle time does not thin it
    assert summary["ttft_s"]["mean"] == 1
    assert summary["itl_s"]["p99"] == 1  # not the gap between two requests


def test_time_counts_from_the_start_and_not_from_the_first_arrival():
    recorder, summary = served([request(4, 2, arrival=3.0)], 4)
    assert durations(recorder).tolist() == [3, 1, 1]
    assert summary["duration_s"] == 5
    assert summary["output_tokens_per_s"] == about(2 / 5)
    assert latencies(recorder.sequences[0]) == about(
        {"ttft_s": 1, "tpot_s": 1, "e2e_s": 2, "normalized_latency_s_per_token": 1}
    )


def test_a_step_weighs_by_its_length():
    """A second and half a second a token: R(4, 2) takes 3 s with 4 tokens held, then 1.5 s with 5. N = 4, 16 slots."""
    recorder, summary = served([request(4, 2)], 4, token_s=0.5)
    assert durations(recorder).tolist() == [3, 1.5]
    assert summary["kv_token_states_fraction"] == about((4 * 3 + 5 * 1.5) / (16 * 4.5))
    assert summary["kv_block_tail_fraction"] == about(3 * 1.5 / (16 * 4.5))
    assert (summary["ttft_s"]["mean"], summary["tpot_s"]["mean"], summary["e2e_s"]["mean"]) == (3, 1.5, 4.5)


def test_the_run_ends_with_its_last_step_though_a_request_arrives_later_and_is_refused():
    requests = [request(4, 2, id=0), request(4, 90, id=1, arrival=50.0)]
    recorder, summary = served(requests, 4, max_model_len=100)
    assert len(recorder.steps) == 3  # the wait for the second one is on the timeline
    assert durations(recorder).tolist() == [1, 1, 0]
    assert (summary["refused"], summary["duration_s"], summary["mean_batch_size"]) == (1, 2, 1)
    assert sum(summary[name] for name in FRACTIONS) == about(1)


# ---- who counts ---------------------------------------------------------------------------------------------------


def test_a_refused_request_is_counted_and_in_no_mean():
    """R(20, 5) can need 6 blocks of 2. R(4, 2) is served."""
    recorder, summary = served([request(20, 5, id=0), request(4, 2, id=1)], 2, max_model_len=100)
    assert (summary["num_requests"], summary["completed"], summary["refused"]) == (2, 1, 1)
    assert (summary["prompt_tokens"], summary["output_tokens"]) == (4, 2)
    assert summary["e2e_s"]["mean"] == 2
    assert set(latencies(recorder.sequences[0]).values()) == {None}


def test_when_all_are_refused_there_is_no_time_and_no_latency():
    _, summary = served([request(20, 5, id=i) for i in range(3)], 2, max_model_len=100)
    assert (summary["refused"], summary["completed"], summary["steps"], summary["duration_s"]) == (3, 0, 0, 0)
    assert [summary[name] for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")] == [NOTHING] * 4
    assert (summary["output_tokens_per_s"], summary["mean_batch_size"], summary["recompute_tax"]) == (0, 0, 0)
    assert (summary["kv_waste_fraction"], summary["kv_peak_held_fraction"]) == (0, 0)


def test_a_request_of_one_token_has_a_first_token_and_no_time_per_output_token():
    recorder, summary = served([request(4, 1)], 4)
    assert latencies(recorder.sequences[0]) == {
        "ttft_s": 1.0,
        "tpot_s": None,
        "e2e_s": 1.0,
        "normalized_latency_s_per_token": 1.0,
    }
    assert summary["tpot_s"] == summary["itl_s"] == NOTHING
    assert summary["ttft_s"] == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0}


def test_a_request_of_one_token_does_not_thin_the_time_per_output_token_of_the_others():
    _, summary = served([request(4, 1, id=0), request(4, 3, id=1)], 4, step_s=2.0)
    assert summary["tpot_s"]["mean"] == 2
    assert summary["ttft_s"]["mean"] == 2


# ---- a run that is interrupted ------------------------------------------------------------------------------------


def test_what_is_never_used_is_known_only_once_the_stay_has_ended():
    """R(4, 10) that ends after 3 tokens is promised 13 slots in 4 blocks and fills 6."""
    whole, _ = served([request(4, 10, true=3)], 4, allocator="reserve_output")
    assert split_rows(whole) == [(4, 2, 7, 3, 0, 0, 0), (5, 1, 7, 3, 0, 0, 0), (6, 0, 7, 3, 0, 0, 0)]
    cut, summary = served([request(4, 10, true=3)], 4, allocator="reserve_output", stop_after=2)
    assert split_rows(cut) == [(4, 9, 0, 3, 0, 0, 0), (5, 8, 0, 3, 0, 0, 0)]
    assert summary["status"] == "interrupted"
    assert summary["kv_waste_fraction"] == about(1 - 9 / 32)


def test_latencies_cover_completed_requests_and_the_tokens_made_all_of_them():
    """A = R(4, 2) ends at 2. B = R(4, 9) has made 3 tokens when the run is stopped at 3."""
    recorder, summary = served([request(4, 2, id=0), request(4, 9, id=1)], 8, stop_after=3)
    assert (summary["completed"], summary["num_requests"], summary["duration_s"]) == (1, 2, 3)
    assert (summary["output_tokens"], summary["prompt_tokens"]) == (2 + 3, 4)
    assert summary["e2e_s"]["mean"] == 2
    assert latencies(recorder.sequences[1]) == {
        "ttft_s": 1.0,
        "tpot_s": None,
        "e2e_s": None,
        "normalized_latency_s_per_token": None,
    }


def test_gaps_between_tokens_are_those_of_completed_requests():
    """The only request has made two tokens when the run is stopped."""
    _, summary = served([request(4, 9)], 8, stop_after=2)
    assert summary["output_tokens"] == 2
    assert summary["itl_s"] == NOTHING


# ---- any run at all -----------------------------------------------------------------------------------------------


def percentile(values, share):
    """Linear interpolation between the two nearest of the sorted values, in words."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread_of(values):
    return {
        "mean": sum(values) / len(values),
        "p50": percentile(values, 0.5),
        "p90": percentile(values, 0.9),
        "p99": percentile(values, 0.99),
    }


def some_requests(seed):
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, 6, 40))
    return [
        request(int(rng.integers(1, 30)), int(new), id=i, arrival=float(at), true=int(rng.integers(1, new + 1)))
        for i, (at, new) in enumerate(zip(arrivals, rng.integers(1, 30, 40), strict=True))
    ]


ANY_RUN = [(allocator, seed) for allocator in ALLOCATORS for seed in (0, 1)]


@pytest.fixture(scope="module")
def any_run():
    done = {}

    def run(allocator, seed):
        if (allocator, seed) not in done:
            choices = {"allocator": allocator, "max_model_len": 60, "tokens": 24}
            done[allocator, seed] = served(some_requests(seed), 24, 0.05, 0.003, **choices)
        return done[allocator, seed]

    return run


@pytest.mark.parametrize(("allocator", "seed"), ANY_RUN)
def test_percentiles_are_those_of_the_token_times(any_run, allocator, seed):
    recorder, summary = any_run(allocator, seed)
    done = [seq for seq in recorder.sequences if seq.finish_reason]
    times = [(seq.request.arrival_s, seq.token_s) for seq in done]
    assert len(done) == summary["completed"] == 40
    assert summary["ttft_s"] == about(spread_of([t[0] - at for at, t in times]))
    assert summary["e2e_s"] == about(spread_of([t[-1] - at for at, t in times]))
    assert summary["tpot_s"] == about(spread_of([(t[-1] - t[0]) / (len(t) - 1) for _, t in times if len(t) > 1]))
    assert summary["normalized_latency_s_per_token"] == about(spread_of([(t[-1] - at) / len(t) for at, t in times]))
    gaps = [later - earlier for _, t in times for earlier, later in pairwise(t)]
    assert summary["itl_s"] == about(spread_of(gaps))
    assert summary["itl_s"]["p90"] == about(float(np.quantile(gaps, 0.9)))


@pytest.mark.parametrize(("allocator", "seed"), ANY_RUN)
def test_every_slot_is_accounted_for_at_every_step_and_over_time(any_run, allocator, seed):
    recorder, summary = any_run(allocator, seed)
    split = split_over_time(recorder)
    assert list(split) == list(SPLIT)
    assert all(sum(row) == 24 * 4 for row in split_rows(recorder))
    assert all((slots >= 0).all() for slots in split.values())
    assert sum(summary[name] for name in FRACTIONS) == about(1)
    ends = [step.start_s for step in recorder.steps[1:]] + [recorder.steps[-1].end_s]
    for kind in SPLIT:
        area = sum(
            slots * (end - step.start_s)
            for slots, end, step in zip(split[kind].tolist(), ends, recorder.steps, strict=True)
        )
        assert summary[f"kv_{kind}_fraction"] == pytest.approx(area / (96 * summary["duration_s"]), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("allocator", "seed"), ANY_RUN)
def test_tokens_fed_are_prompts_outputs_and_what_was_fed_again(any_run, allocator, seed):
    recorder, summary = any_run(allocator, seed)
    once = sum(seq.request.prompt_tokens + len(seq.output) - 1 for seq in recorder.sequences)
    assert summary["computed_tokens"] == once + summary["recomputed_tokens"]
    assert summary["recompute_tax"] == about(summary["recomputed_tokens"] / summary["computed_tokens"])
    assert summary["preemptions"] == sum(seq.preemptions for seq in recorder.sequences)


def test_the_runs_above_hold_what_they_are_for(any_run):
    """Preemptions where there can be some, waiting for memory, and idle time."""
    assert any_run("paged", 0)[1]["preemptions"] > 0
    for allocator, seed in ANY_RUN:
        recorder, summary = any_run(allocator, seed)
        assert summary["memory_blocked_fraction"] > 0
        assert any(step.batch == 0 for step in recorder.steps)


def test_gaps_are_those_of_each_sequence_alone_also_where_steps_are_shared():
    rng = np.random.default_rng(0)
    shared = array("d", np.cumsum(rng.random(40)))
    seqs, alone = [], []
    for number, tokens in enumerate((1, 5, 0, 2, 9, 3, 1, 4)):
        seq = Sequence(request(3, 10))
        seq.token_s = np.cumsum(rng.random(tokens)).tolist()
        if number % 2:
            seq.token_s = Stamps(shared, [shared[0] / 2] if number % 3 else [])
            seq.token_s.stretch(number, number + 8)
            seq.token_s.stretch(number + 8, number + 9)
            seq.token_s.append(shared[number + 9])
            seq.token_s.stretch(number + 20, number + 21)
        seqs.append(seq)
        alone += np.diff(np.array(list(seq.token_s))).tolist()
    values, counts = metrics.Gaps(seqs).counted()
    assert sorted(np.repeat(values, counts)) == pytest.approx(sorted(alone), abs=1e-15)
    assert metrics.spread(values, counts) == pytest.approx(metrics.spread(alone), rel=1e-12)
    assert metrics.spread(*metrics.Gaps([]).counted()) == dict.fromkeys(("mean", "p50", "p90", "p99"))


# ---- sharing ------------------------------------------------------------------------------------------------------
#
# R(10, 3) with four samples, N = 16, 64 slots. The prompt takes 3 blocks, the last with 2 tokens.
#   second   feeds   tables            held   tokens                  saved
#   0        10      1 x 3 blocks      3      10                      0 of 3
#   1        4 x 1   4 x 3 blocks      6      8 + 4 x 3 (three tails copied)   6 of 12
#   2        4 x 1   4 x 3 blocks      6      8 + 4 x 4               6 of 12


def four_samples(**choices):
    return served([request(10, 3, n=4, temperature=1.0)], 16, **choices)


def test_a_shared_slot_is_counted_once():
    recorder, _ = four_samples()
    assert split_rows(recorder) == [(10, 0, 0, 2, 0, 52, 0), (20, 0, 0, 4, 0, 40, 0), (24, 0, 0, 0, 0, 40, 0)]


def test_what_sharing_saves_now_at_most_and_over_time():
    recorder, summary = four_samples()
    assert [(s.sharing.mapped, s.sharing.saved) for s in recorder.steps] == [(3, 0), (12, 6), (12, 6)]
    assert summary["blocks_saved_fraction"] == about(12 / 27)
    assert summary["blocks_saved_fraction_peak"] == about(6 / 12)
    assert summary["blocks_copied"] == 3
    assert summary["copy_s"] == 0


def test_copies_take_their_time_of_the_step_that_waits_for_them():
    """A quarter of a second a block: the second step lasts 1.75 s."""
    recorder, summary = four_samples(copy_s=0.25)
    assert [s.copy_s for s in recorder.steps] == [0, 0.75, 0]
    assert summary["copy_s"] == 0.75
    assert summary["duration_s"] == about(3.75)
    assert summary["blocks_saved_fraction"] == about((6 * 1.75 + 6) / (3 + 12 * 1.75 + 12))


def test_several_outputs_make_more_tokens_but_one_latency():
    """TTFT is that of the first output, and a step that makes four tokens is one gap."""
    recorder, summary = four_samples()
    assert summary["output_tokens"] == 12
    assert summary["output_tokens_per_s"] == about(4)
    assert latencies(recorder.sequences[0]) == about(
        {"ttft_s": 1, "tpot_s": 1, "e2e_s": 3, "normalized_latency_s_per_token": 1}
    )
    assert summary["mean_batch_size"] == about(3)  # 1, 4, 4


def test_a_sample_that_ends_early_stops_promising():
    """A reserving allocator: an early end gives back its run, and what it never filled counts as long as it stayed."""
    eos = naive_output(request(6, 8, n=2, temperature=1.0))[1]
    recorder, _ = served(
        [request(6, 8, n=2, temperature=1.0, ignore_eos=False)], 16, eos=eos, allocator="reserve_output"
    )
    first, second = recorder.sequences[0].branches
    assert (len(first.output), len(second.output)) == (2, 8)
    assert sorted(recorder.stays) == [(0, 2, 13 - 7), (0, 8, 0)]
    assert {sum(row) for row in split_rows(recorder)} == {64}


def test_nothing_is_saved_where_nothing_is_shared():
    _, summary = served(two_that_overlap(), 8)
    assert summary["blocks_saved_fraction"] == summary["blocks_saved_fraction_peak"] == summary["blocks_copied"] == 0
