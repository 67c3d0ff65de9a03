"""Tokens are what they would be alone, for every order x batching x admission x victim, in tiny pools; with several
outputs of a request, beams and prefix caches. And each of these options is seen to act."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS
from tests.engine.test_sharing import blocks_needed, check, samplings
from tests.lab import request, run


@st.composite
def workloads(draw):
    """Requests of one output or several, of clients and priorities; some begin alike."""
    requests = []
    for i in range(draw(st.integers(1, 6))):
        new = draw(st.integers(1, 12))
        shared = draw(st.sampled_from([[], [1, 2, 3, 0], [1, 2, 3, 0, 2, 2, 1, 1]]))
        requests.append(
            request(
                shared + draw(st.lists(st.integers(0, 3), min_size=1, max_size=8)),
                new,
                id=i,
                arrival=draw(st.sampled_from([0.0, 0.0, 0.015, 0.05, 0.1])),
                true=draw(st.integers(1, new)),
                client=draw(st.sampled_from("abc")),
                priority=draw(st.integers(0, 2)),
                **draw(st.one_of(st.just({}), st.just({"temperature": 1.0, "seed": i}), samplings())),
            )
        )
    return sorted(requests, key=lambda r: r.arrival_s)


@st.composite
def policies(draw):
    order, batching = draw(st.sampled_from(list(ORDERS))), draw(st.sampled_from(list(BATCHINGS)))
    able = ORDERS[order].preempts and batching != "static"
    prefixes = draw(
        st.sampled_from(["hash_chain", "radix"] if ORDERS[order].needs_prefix_cache else [None, None, "radix"])
    )
    admission = draw(st.sampled_from(list(ADMISSIONS)))
    never = not ADMISSIONS[admission].overcommits and draw(st.booleans())
    return {
        "order": order,
        "batching": batching,
        "admission": admission,
        "victim": draw(st.sampled_from(list(VICTIMS))),
        "preemptive": able and not never and draw(st.booleans()),
        "preemption": "none" if never else draw(st.sampled_from(["recompute", "recompute", "swap", "adaptive"])),
        "host_blocks": draw(st.sampled_from([0, 3, 40])),
        "prefix_cache": prefixes,
        "predictor": draw(st.sampled_from(list(PREDICTORS))),
        "max_num_seqs": draw(st.sampled_from([4, 6, 8])),
        "tokens": draw(st.sampled_from([4, 8, 64])),
        "watermark": draw(st.sampled_from([0.0, 0.2])),
        "lpm_max_waiting": draw(st.sampled_from([1, 128])),
        "mlfq": {"levels": 3, "quantum": draw(st.sampled_from([1, 4])), "ageing_s": draw(st.sampled_from([0.02, 9.0]))},
        "estimated_peak": {"initial": 0.5, "minimum": 0.0, "decay_steps": 5, "retract_steps": 1},
    }


@settings(max_examples=250, deadline=None, derandomize=True)
@given(workloads(), policies(), st.sampled_from([1, 2, 4]), st.integers(0, 8))
def test_tokens_do_not_depend_on_any_policy(requests, policies, block_size, spare):
    blocks = max(blocks_needed(r, block_size, "paged") for r in requests) + spare // block_size
    recorder, scheduler = run(requests, blocks, block_size, **policies)
    check(recorder)
    if not ADMISSIONS[policies["admission"]].overcommits and not policies["preemptive"]:
        assert recorder.preemptions == []
    for step in recorder.steps:
        assert step.tokens <= policies["tokens"]
        assert step.running <= policies["max_num_seqs"]
    # Nothing is remembered of those that have ended.
    assert not getattr(scheduler.order, "_places", None)
    assert len(scheduler.order) == 0


# ---- each is seen to act -------------------------------------------------------------------------------------------

CROWD = [
    request(6 + i % 5, 4 + 3 * (i % 4), id=i, true=4 + 3 * (i % 4), client="ab"[i % 3 == 0], priority=-i % 3)
    for i in range(16)
]


def admitted(**choices):
    recorder, scheduler = run(CROWD, 14, tokens=24, max_num_seqs=6, **choices)
    return list(recorder.admitted_s), recorder, scheduler


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "fcfs"])
def test_every_order_is_another_than_fcfs(order):
    alike = [request([*range(8), 20 + i], 3, id=i) if i % 3 == 0 else request(9, 3, id=i) for i in range(12)]
    if order == "lpm":
        ids = [
            list(run(alike, 64, max_num_seqs=1, order=o, prefix_cache="radix")[0].admitted_s) for o in ("fcfs", "lpm")
        ]
        assert ids[0] != ids[1]
        return
    mlfq = {"levels": 3, "quantum": 8, "ageing_s": 9.0}
    assert admitted(order=order, mlfq=mlfq)[0] != admitted(order="fcfs")[0]


@pytest.mark.parametrize("order", ["priority", "srtf", "mlfq"])
def test_a_preemptive_order_has_somebody_yield(order):
    late = [request(5, 2, id=99 - i, true=2, arrival=0.02 + i / 100, priority=-9) for i in range(4)]
    mlfq = {"levels": 3, "quantum": 12, "ageing_s": 9.0}
    recorder, _ = run(CROWD + late, 14, tokens=24, max_num_seqs=6, order=order, preemptive=True, mlfq=mlfq)
    reasons = {record.reason for _, _, record in recorder.preemptions}
    assert "outranked" in reasons
    if order == "priority":
        assert [seq.preemptions for seq in recorder.sequences if seq.id == 99] == [0]


def test_mlfq_promotes_and_vtc_lifts():
    _, _, scheduler = admitted(order="mlfq", mlfq={"levels": 3, "quantum": 2, "ageing_s": 0.05})
    assert scheduler.order.promotions > 0
    late = [request(5, 2, id=40 + i, arrival=0.2, client="late") for i in range(3)]
    _, scheduler = run(CROWD + late, 14, tokens=24, max_num_seqs=6, order="vtc")
    assert scheduler.order.lifts > 0


def test_every_batching_makes_other_steps():
    shapes = {b: [(s.tokens, s.prefill_tokens) for s in admitted(batching=b)[1].steps] for b in BATCHINGS}
    assert len({tuple(shape) for shape in shapes.values()}) == len(list(BATCHINGS))


def test_every_admission_lets_in_others():
    peaks = {a: [s.running for s in admitted(admission=a)[1].steps] for a in ADMISSIONS}
    assert len({tuple(peak) for peak in peaks.values()}) == len(list(ADMISSIONS))


def test_every_victim_policy_takes_from_another():
    taken = {}
    for victim in VICTIMS:
        _, recorder, _ = admitted(victim=victim, order="random")
        taken[victim] = tuple(record.victim for _, _, record in recorder.preemptions)
        assert taken[victim], victim
    assert len(set(taken.values())) == len(taken), taken
