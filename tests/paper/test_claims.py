"""Verdicts on the claims, from points made up for it."""

from pagedlab.paper.claims import findings
from pagedlab.paper.points import Point


def point(figure, system, metric, x, value, workload="w"):
    return Point(figure, workload, "m", system, metric, x, value)


def test_a_claim_whose_figure_was_not_run_is_left_out():
    assert findings([]) == []


def test_waste_within_the_published_range_agrees_and_outside_it_differs():
    points = [point("2", "orca_max", "share_token_pct", 2.0, 25.0), point("2", "vllm", "share_token_pct", 2.0, 90.0)]
    before, after = findings(points)
    assert (before.ours, before.verdict) == ("75 %", "agrees")
    assert (after.published, after.ours, after.verdict) == ("under 4 %", "10 %", "differs")


def test_a_claim_can_hold_in_some_panels_only():
    points = [
        point("12a", "vllm", "capacity_req_s", None, 4.0),
        point("12a", "orca_oracle", "capacity_req_s", None, 2.0),
    ]
    points += [
        point("12b", "vllm", "capacity_req_s", None, 9.0),
        point("12b", "orca_oracle", "capacity_req_s", None, 1.0),
    ]
    [rate] = [found for found in findings(points) if found.said.startswith("rate over Orca (Oracle)")]
    assert (rate.ours, rate.verdict) == ("2 to 9 x", "agrees in 1 of 2")


def test_recomputing_is_held_against_swapping_in_and_out():
    points = [point("19a", "vllm", "recompute_ms", x, 36.0) for x in (1.0, 256.0)]
    points += [point("19a", "vllm", "swap_in_out_ms", 1.0, 137.0), point("19a", "vllm", "swap_in_out_ms", 256.0, 32.0)]
    [found] = findings(points)
    assert (found.ours, found.verdict) == ("12.5 %", "agrees")
