"""Clients and priorities: in turn where requests are drawn, by the conversation where they are recorded."""

import dataclasses
import json
from collections import defaultdict

from pagedlab.workload import sharegpt, synthetic
from tests.workload.conftest import GREEDY, NO_LIMITS, TEN_OF_TEN


def test_synthetic_requests_take_them_in_turn(tokenizer):
    settings = dataclasses.replace(TEN_OF_TEN, clients=3, priorities=[5, -1])
    requests = synthetic.build(settings, GREEDY, tokenizer, 0)
    assert [r.client for r in requests[:4]] == ["client 0", "client 1", "client 2", "client 0"]
    assert [r.priority for r in requests[:3]] == [5, -1, 5]


def test_one_client_is_nobody_in_particular(tokenizer):
    assert {(r.client, r.priority) for r in synthetic.build(TEN_OF_TEN, GREEDY, tokenizer, 0)} == {("", 0)}


def test_a_conversation_has_one_client_and_one_priority_wherever_it_stands(tokenizer, tmp_path):
    talks = [
        {"id": f"talk {i}", "conversations": [{"from": f, "value": "well " * 5} for f in ("human", "gpt") * 3]}
        for i in range(40)
    ]
    found = []
    for order in (talks, talks[::-1]):
        path = tmp_path / "talks.json"
        path.write_text(json.dumps(order))
        settings = dataclasses.replace(NO_LIMITS, path=str(path), clients=4, priorities=[0, 1, 2])
        of = defaultdict(set)
        for r in sharegpt.build(settings, GREEDY, tokenizer, 0):
            of[r.source.rpartition("#")[0]].add((r.client, r.priority))
        assert all(len(callers) == 1 for callers in of.values())
        found.append(dict(of))
    assert found[0] == found[1]
    callers = [next(iter(each)) for each in found[0].values()]
    assert {client for client, _ in callers} == {f"client {i}" for i in range(4)}
    assert {priority for _, priority in callers} == {0, 1, 2}
    assert len(set(callers)) > 8  # the one does not follow from the other
