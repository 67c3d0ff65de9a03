from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pagedlab.tracker import rundata


def test_summary_is_flat_and_holds_only_what_is_known(make_run: Callable[..., Path]) -> None:
    assert rundata.summary(make_run()) == {
        "status": "completed",
        "output_tokens_per_s": 125.5,
        "kv_waste_fraction": 0.04,
        "preemptions": 3,
        "ttft_s/mean": 0.25,
        "ttft_s/p50": 0.2,
        "ttft_s/p90": 0.4,
        "ttft_s/p99": 0.5,
    }


def test_timeline_is_shares_of_the_pool_over_time(make_run: Callable[..., Path]) -> None:
    points = rundata.timeline(make_run(steps=40), limit=2_000)
    assert len(points) == 40
    assert points[31] == {
        "time_s": 7.75,
        "kv/token_states": 0.5,
        "kv/reserved": 0.0,
        "kv/internal": 0.0,
        "kv/block_tail": 0.0,
        "kv/cached_idle": 0.0,
        "kv/free": 0.5,
        "kv/external": 0.0,
        "batch/running": 32,
        "batch/waiting": 0,
        "batch/preemptions": 3,
    }


def test_a_long_timeline_is_thinned_and_keeps_its_ends(make_run: Callable[..., Path]) -> None:
    points = rundata.timeline(make_run(steps=10_001), limit=101)
    assert [point["time_s"] for point in points] == [i * 25 for i in range(101)]


def test_requests_leave_out_lists_and_unknown_values(make_run: Callable[..., Path]) -> None:
    columns, rows = rundata.requests(make_run(requests=6), limit=3)
    assert columns == ["id", "ttft_s", "tpot_s", "finish_reason"]
    assert rows == [[0, 0.0, None, "length"], [2, 1.0, 0.01, "length"], [5, 2.5, 0.01, "length"]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9, 10, 11, 1_000])
def test_evenly_keeps_order_ends_and_limit(count: int) -> None:
    kept = rundata.evenly(count, 10)
    assert len(kept) == min(count, 10)
    assert kept == sorted(set(kept))
    assert count == 0 or (kept[0], kept[-1]) == (0, count - 1)
