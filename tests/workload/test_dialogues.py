"""Dialogues: a turn comes a think time after the answer to the one before, and its prompt is all that was said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pagedlab.core.arrivals import Arrivals
from pagedlab.core.errors import ConfigError, WorkloadError
from pagedlab.core.request import Status
from pagedlab.engine import serve
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.settings import ArrivalSettings, DialoguesSettings, LengthSettings, ThinkSettings
from pagedlab.workload.base import WORKLOADS
from tests.hardware.devices import cost_model
from tests.lab import VOCAB, make_executor, make_scheduler, naive_output, request
from tests.workload.conftest import GREEDY

BLOCK = 4
# System prompts of 10 tokens, messages of 6, answers of 9: of no round number of blocks.
THREE_TURNS = DialoguesSettings(
    name="dialogues",
    num_dialogues=4,
    turns=LengthSettings("fixed", mean=3),
    think=ThinkSettings("fixed", 2.0),
    prompt=LengthSettings("fixed", mean=6),
    output=LengthSettings("fixed", mean=9),
    max_tokens=None,
    system_tokens=10,
    system_prompts=2,
    pin_system=False,
    clients=1,
    priorities=[0],
    arrival=ArrivalSettings("constant", rate=0.01),
)


class Words:
    vocab_size = VOCAB


def dialogues(seed=0, sampling=GREEDY, **changes):
    return WORKLOADS["dialogues"](replace(THREE_TURNS, **changes), sampling, Words(), seed)


def served(requests, executor="fingerprint", skip=True, blocks=400, **choices):
    made = None
    if executor == "simulated":
        made = SimulatedExecutor(cost_model(block_size=BLOCK), blocks, VOCAB)
    scheduler = make_scheduler(
        blocks,
        BLOCK,
        max_model_len=300,
        foretold=made.foretold if made else None,
        skip=skip and made is not None,
        **choices,
    )
    recorder = Recorder()
    assert serve(requests, scheduler, made or make_executor(scheduler), recorder, audit_every=1)
    return recorder


def facts(recorder):
    return [
        (s.id, s.request.source, s.request.arrival_s, s.request.prompt.tolist(), list(s.output), list(s.token_s))
        for s in recorder.sequences
    ]


def test_each_dialogue_begins_with_one_request_and_the_ids_count_all_turns():
    requests = dialogues()
    assert [r.id for r in requests] == [0, 3, 6, 9]
    assert [r.follow_up.turns for r in requests] == [2, 2, 2, 2]
    assert [r.arrival_s for r in requests] == [100, 200, 300, 400]
    systems = [r.prompt[:10].tolist() for r in requests]
    assert systems[0] == systems[2] != systems[1] == systems[3]
    assert {len(r.prompt) for r in requests} == {16}


@pytest.mark.parametrize("executor", ["fingerprint", "simulated"])
def test_a_prompt_is_the_history_as_it_was_generated_and_comes_a_think_time_after_it(executor):
    recorder = served(dialogues(), executor, prefix_cache="hash_chain")
    assert [s.status for s in recorder.sequences] == [Status.FINISHED] * 12
    by_id = {s.id: s for s in recorder.sequences}
    for first in (0, 3, 6, 9):
        for turn in (1, 2):
            before, seq = by_id[first + turn - 1], by_id[first + turn]
            said = [*before.request.prompt.tolist(), *before.output]
            assert seq.request.prompt[: len(said)].tolist() == said
            assert len(seq.request.prompt) == len(said) + 6
            assert seq.request.arrival_s == before.finish_s + 2.0
            assert seq.request.source == f"dialogue#{first // 3}.{turn}"
            if executor == "fingerprint":
                assert list(seq.output) == naive_output(seq.request)


@pytest.mark.parametrize("executor", ["fingerprint", "simulated"])
def test_the_hit_rate_is_the_one_worked_out_by_hand(executor):
    """With room for all, one dialogue at a time: of a later turn what the turn before has computed is hit, in whole
    blocks (its last token was never fed); of a first turn the system prompt, if it was seen before."""
    expected, known = 0, 0
    for dialogue in range(4):
        history = 10
        for turn in range(3):
            prompt = history + 6
            cached = history - 1 if turn else (10 if dialogue >= 2 else 0)
            expected += min(cached, prompt - 1) // BLOCK * BLOCK
            known += prompt
            history = prompt + 9
    summary = summarize(served(dialogues(), executor, prefix_cache="hash_chain"), 400, BLOCK, "completed")
    assert (summary["prefix_hit_tokens"], summary["prefix_queried_tokens"]) == (expected, known)
    assert summary["prefix_hit_rate"] == expected / known


def test_skipping_steps_changes_nothing():
    asked = {"arrival": ArrivalSettings("poisson", rate=20.0), "think": ThinkSettings("exponential", 0.05)}
    for cache in ({}, {"prefix_cache": "radix"}):
        runs = [served(dialogues(num_dialogues=8, **asked), "simulated", skip, 60, **cache) for skip in (False, True)]
        assert facts(runs[0]) == facts(runs[1])
        assert list(runs[0].steps) == list(runs[1].steps)
        assert len(runs[0].sequences) == 24


def test_the_same_seed_gives_the_same_and_more_dialogues_begin_as_fewer_do():
    asked = {"turns": LengthSettings("uniform", low=1, high=4), "think": ThinkSettings("exponential", 3.0)}
    asked["prompt"] = asked["output"] = LengthSettings("uniform", low=2, high=9)
    few, again, many, other = (
        dialogues(seed, num_dialogues=n, **asked) for seed, n in ((1, 4), (1, 4), (1, 9), (2, 4))
    )
    told = [facts(served(requests)) for requests in (few, again)]
    assert told[0] == told[1]
    assert [r.prompt.tolist() for r in few] == [r.prompt.tolist() for r in many[:4]]
    assert [r.prompt.tolist() for r in few] != [r.prompt.tolist() for r in other]


def test_a_history_that_outgrows_the_model_ends_its_dialogue():
    recorder = served(dialogues(turns=LengthSettings("fixed", mean=40), num_dialogues=1))
    *answered, last = recorder.sequences
    assert [s.status for s in answered] == [Status.FINISHED] * 19
    assert last.status is Status.REFUSED
    assert "301 prompt tokens, max_model_len is 300" in last.refusal


def test_of_several_outputs_the_best_becomes_history():
    sampling = replace(GREEDY, temperature=1.0, n=2)
    recorder = served(dialogues(sampling=sampling, num_dialogues=1))
    first, second, _ = recorder.sequences
    assert second.request.prompt[16:25].tolist() == list(first.outputs()[0].token_ids)


def test_arrivals_come_by_time_then_id_whether_known_or_following():
    known = [request(3, 1, id=5, arrival=1.0), request(3, 1, id=6, arrival=2.0)]
    (first,) = dialogues(num_dialogues=1, arrival=ArrivalSettings("at_once"))
    queue = Arrivals([first, *known])
    seq = type("Ended", (), {"request": queue.pop(), "trunk": None, "finish_s": -1.0, "outputs": lambda self: [self]})()
    seq.token_ids = np.arange(9)
    assert queue.next_s == 1.0
    queue.ended([seq])  # asked again at 1.0, as id 1
    assert [(queue.next_s, queue.pop().id) for _ in range(3)] == [(1.0, 1), (1.0, 5), (2.0, 6)]
    assert not queue
    assert queue.next_s == float("inf")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_dialogues": 0}, "workload.num_dialogues=0: expected a whole number from 1 to"),
        ({"think": ThinkSettings("uniform", 1.0)}, "workload.think.distribution=uniform: expected one of fixed, expon"),
        ({"think": ThinkSettings("fixed", float("nan"))}, "workload.think.mean_s=nan: expected a number from 0"),
        ({"turns": LengthSettings("paper_alpaca")}, "workload.turns.distribution=paper_alpaca: expected one of fixed"),
        ({"system_tokens": -1}, "workload.system_tokens=-1: expected a whole number from 0"),
        ({"priorities": []}, "workload.priorities=[]: expected at least one"),
    ],
)
def test_a_bad_value_is_named(changes, said):
    with pytest.raises(ConfigError) as raised:
        dialogues(**changes)
    assert str(raised.value).startswith(said)


def test_histories_too_long_to_hold_are_refused_before_they_are_made():
    with pytest.raises(WorkloadError, match="prompts hold"):
        dialogues(turns=LengthSettings("fixed", mean=20000), max_tokens=9)
