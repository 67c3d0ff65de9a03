"""Replicas: each serves what it is sent as if it were alone, and it is sent what the router knows at that moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.cluster import serve_replicas
from pagedlab.core.request import Status
from pagedlab.engine import serve
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.recorder.replicas import shared_out
from pagedlab.router.base import ROUTERS
from pagedlab.settings import (
    ArrivalSettings,
    LeastLoadedSettings,
    LengthSettings,
    NameOnlySettings,
    PrefixAwareSettings,
    ThinkSettings,
)
from tests.executor.policies import requests_of
from tests.hardware.devices import cost_model
from tests.lab import VOCAB, make_executor, make_scheduler
from tests.workload.test_dialogues import dialogues

BLOCK = 4
SETTINGS = {
    "least_loaded": LeastLoadedSettings("least_loaded", "requests"),
    "prefix_aware": PrefixAwareSettings("prefix_aware", 0.5, 8, 1.5),
}


def engine(executor, blocks, skip, **choices):
    made = SimulatedExecutor(cost_model(block_size=BLOCK), blocks, VOCAB) if executor == "simulated" else None
    foretold = made.foretold if made else None
    scheduler = make_scheduler(
        blocks, BLOCK, max_num_seqs=4, max_model_len=120, foretold=foretold, skip=skip and made is not None, **choices
    )
    return scheduler, made or make_executor(scheduler)


def behind(router, requests, replicas, executor="simulated", blocks=40, skip=True, seed=0, **choices):
    parts = [(*engine(executor, blocks, skip, **choices), Recorder(replica=i)) for i in range(replicas)]
    chosen = ROUTERS[router](SETTINGS.get(router, NameOnlySettings(router)), replicas, BLOCK, blocks, seed)
    assert serve_replicas(requests, parts, chosen, audit_every=3)
    return [recorder for _, _, recorder in parts]


def alone(requests, executor="simulated", blocks=40, skip=True, **choices):
    recorder = Recorder()
    assert serve(requests, *engine(executor, blocks, skip, **choices), recorder, audit_every=3)
    return recorder


def facts(recorder):
    seqs = [
        (s.id, s.status, s.request.arrival_s, s.request.prompt.tolist(), list(s.output), list(s.token_s))
        for s in recorder.sequences
    ]
    counts = [(s.finish_s, s.preemptions, s.recomputed_tokens, s.cached_tokens) for s in recorder.sequences]
    return seqs, counts, list(recorder.steps), recorder.preemptions, recorder.stays, recorder.admitted_s


ROWS = st.lists(
    st.tuples(
        st.integers(1, 24),
        st.integers(1, 30),
        st.integers(1, 30),
        st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]),
        st.sampled_from([("n", 1)] * 6 + [("n", 2)]),
    ),
    min_size=1,
    max_size=16,
)
CACHES = st.sampled_from([{}, {"prefix_cache": "hash_chain"}, {"prefix_cache": "radix"}])
CLOSED = {
    "arrival": ArrivalSettings("poisson", rate=30.0),
    "think": ThinkSettings("exponential", 0.02),
    "turns": LengthSettings("uniform", low=1, high=4),
    "output": LengthSettings("uniform", low=1, high=12),
}


@given(rows=ROWS, router=st.sampled_from(list(ROUTERS)), cache=CACHES, skip=st.booleans())
@settings(max_examples=40)
def test_one_replica_behind_any_router_is_none(rows, router, cache, skip):
    requests = requests_of(rows, bool(cache))
    (recorder,) = behind(router, requests, 1, skip=skip, **cache)
    single = alone(requests, skip=skip, **cache)
    assert facts(recorder) == facts(single)
    assert summarize([recorder], 40, BLOCK, "completed") == summarize(single, 40, BLOCK, "completed")


@given(
    rows=ROWS,
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(2, 4),
    executor=st.sampled_from(["simulated", "simulated", "fingerprint"]),
    cache=CACHES,
)
@settings(max_examples=60)
def test_each_replica_serves_what_it_was_sent_as_if_it_were_alone(rows, router, replicas, executor, cache):
    requests = requests_of(rows, bool(cache))
    recorders = behind(router, requests, replicas, executor, **cache)
    assert sorted(s.id for r in recorders for s in r.sequences) == [r.id for r in requests]
    for recorder in recorders:
        sent = [requests[s.id] for s in recorder.sequences]
        assert facts(recorder) == facts(alone(sent, executor, skip=False, **cache))


@given(seed=st.integers(0, 99), router=st.sampled_from(list(ROUTERS)), replicas=st.integers(1, 3), cache=CACHES)
@settings(max_examples=40)
def test_where_clients_ask_again_lazily_is_the_same_as_step_by_step(seed, router, replicas, cache):
    requests = dialogues(seed, num_dialogues=7, **CLOSED)
    runs = [behind(router, requests, replicas, skip=skip, **cache) for skip in (True, False)]
    for skipped, stepped in zip(*runs, strict=True):
        assert facts(skipped) == facts(stepped)
        # And it is as if all that came to it had been known beforehand.
        sent = [replace(s.request, follow_up=None) for s in stepped.sequences]
        assert facts(stepped) == facts(alone(sent, skip=False, **cache))
    assert sum(len(r.sequences) for r in runs[0]) == sum(
        1 + (r.follow_up.turns if r.follow_up else 0) for r in requests
    )


@given(rows=ROWS, seed=st.integers(0, 9), replicas=st.integers(2, 4), closed=st.booleans())
@settings(max_examples=60)
def test_the_least_loaded_is_so_by_every_answer_given_before(rows, seed, replicas, closed):
    """Told anew from arrivals and ends alone."""
    requests = dialogues(seed, num_dialogues=8, **CLOSED) if closed else requests_of(rows, False)
    recorders = behind("least_loaded", requests, replicas)
    served = sorted(
        ((s.request.arrival_s, s.id, r.replica, s.finish_s) for r in recorders for s in r.sequences),
        key=lambda s: s[:2],
    )
    for i, (now, _, replica, _) in enumerate(served):
        loads = [sum(r == each and end > now for _, _, r, end in served[:i]) for each in range(replicas)]
        assert replica == loads.index(min(loads))


def test_round_robin_splits_as_it_says():
    recorders = behind("round_robin", requests_of([(5, 6, 6, 0.1, ("n", 1))] * 11, False), 3)
    assert [[s.id for s in r.sequences] for r in recorders] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8]]


def test_least_loaded_is_more_even_than_random():
    rows = [(5 + i % 13, 30, 1 + 7 * i % 30, 0.002, ("n", 1)) for i in range(80)]
    most = dict.fromkeys(("random", "least_loaded"), 0)
    for name in most:
        recorders = behind(name, requests_of(rows, False), 4, blocks=200)
        most[name] = max(len(r.sequences) for r in recorders)
    assert most["least_loaded"] < most["random"]


def test_prefix_aware_hits_more_than_random():
    rates = {}
    for name in ("random", "prefix_aware"):
        requests = dialogues(3, num_dialogues=12, system_prompts=4, **CLOSED)
        recorders = behind(name, requests, 4, prefix_cache="hash_chain")
        summary = summarize(recorders, 40, BLOCK, "completed")
        rates[name] = summary["prefix_hit_rate"]
    assert rates["prefix_aware"] > rates["random"] + 0.1


def test_what_is_refused_has_come_back():
    rows = [(130, 4, 4, 0.0, ("n", 1)), *[(5, 4, 4, 1.0, ("n", 1))] * 3]  # longer than the model takes
    recorders = behind("least_loaded", requests_of(rows, False), 2)
    assert [s.status for s in recorders[0].sequences].count(Status.REFUSED) == 1
    assert [[s.id for s in r.sequences] for r in recorders] == [[0, 1, 2, 3], []]


def test_the_summary_of_all_adds_up_and_says_who_did_what():
    requests = requests_of([(5 + i, 20, 3 + i, 0.05, ("n", 1)) for i in range(9)], False)
    recorders = behind("round_robin", requests, 2)
    parts = [summarize(recorder, 40, BLOCK, "completed") for recorder in recorders]
    whole = summarize(recorders, 40, BLOCK, "completed")
    for name in (
        "num_requests",
        "completed",
        "steps",
        "prompt_tokens",
        "output_tokens",
        "computed_tokens",
        "preemptions",
    ):
        assert whole[name] == sum(part[name] for part in parts), name
    assert whole["duration_s"] == max(part["duration_s"] for part in parts)
    assert whole["output_tokens_per_s"] == whole["output_tokens"] / whole["duration_s"]
    ran = sum(part["duration_s"] for part in parts)
    tokens = sum(part["kv_token_states_fraction"] * part["duration_s"] for part in parts) / ran
    assert whole["kv_token_states_fraction"] == pytest.approx(tokens)
    kinds = ("token_states", "reserved", "internal", "block_tail", "cached_idle", "free", "external")
    assert sum(whole[f"kv_{kind}_fraction"] for kind in kinds) == pytest.approx(1)
    ttft = [s.token_s[0] - s.request.arrival_s for r in recorders for s in r.sequences]
    assert whole["ttft_s"]["mean"] == pytest.approx(sum(ttft) / 9)
    # The most at once, told from when each came and went.
    spans = [(r.admitted_s[s.id], s.finish_s) for r in recorders for s in r.sequences]
    assert whole["peak_batch_size"] == max(sum(a <= start < end for a, end in spans) for start, _ in spans)
    out = shared_out(parts)
    assert out["per_replica"]["num_requests"] == [5, 4]
    computed = [part["computed_tokens"] for part in parts]
    assert out["replica_balance"] == sum(computed) / 2 / max(computed)


def test_a_run_is_stopped_between_two_steps():
    parts = [(*engine("simulated", 40, True), Recorder(replica=i)) for i in range(2)]
    chosen = ROUTERS["round_robin"](NameOnlySettings("round_robin"), 2, BLOCK, 40, 0)
    asked = iter([False] * 12)
    requests = requests_of([(5, 6, 6, 0.1, ("n", 1))] * 11, False)
    assert not serve_replicas(requests, parts, chosen, lambda: next(asked, True))
    assert 0 < sum(len(recorder.sequences) for _, _, recorder in parts) < 11
