"""Tiers below the device: what the prefix cache evicts is found again, where a model with three lists finds it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.allocator.tiers import Tier, Tiers
from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Request, SamplingParams, Status
from pagedlab.engine import serve
from pagedlab.eviction.base import EVICTIONS
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.settings import NameOnlySettings, TierSettings
from tests.executor.policies import policies, requests_of
from tests.hardware.devices import cost_model
from tests.lab import VOCAB, make_scheduler

BLOCK = 4
PRICES = {"host": TierSettings(1.0, 2.0, 50.0, "lru"), "disk": TierSettings(1.0, 0.5, 900.0, "lru")}
ABLE = ("lru", "fifo", "lfu", "mru", "filo", "random", "sieve", "arc")


def tier(name, capacity, eviction="lru"):
    return Tier(name, capacity, EVICTIONS[eviction](capacity, NameOnlySettings(eviction), 0))


def served(
    requests,
    blocks,
    host,
    disk,
    kept_by="lru",
    skip=True,
    max_num_seqs=4,
    audit=1,
    store="free",
    prices=None,
    **choices,
):
    """host, disk: capacities in blocks; 0 is none. prices: of tiers, loaded from where that is cheaper than computing;
    None: always, at PRICES."""
    cost = cost_model(block_size=BLOCK)
    executor = SimulatedExecutor(cost, blocks, VOCAB, False, blocks, prices or PRICES, store)
    scheduler = make_scheduler(
        blocks,
        BLOCK,
        max_num_seqs=max_num_seqs,
        max_model_len=64,
        foretold=executor.foretold,
        skip=skip,
        **{"prefix_cache": "hash_chain"} | choices,
    )
    levels = [tier(name, size, kept_by) for name, size in (("host", host), ("disk", disk)) if size]
    scheduler.allocator.prefixes.tiers = Tiers(levels)
    scheduler.allocator.prefixes.worth = executor.worth_loading if prices else None
    recorder = Recorder()
    assert serve(requests, scheduler, executor, recorder, audit_every=audit)
    return recorder, scheduler.allocator


class ThreeLists:
    """One request at a time on a device of LRU blocks, leaves first, over two LRU lists. Contents are named by all
    tokens up to their end. Written from the description, with searches for everything."""

    def __init__(self, blocks, host, disk):
        self.blocks, self.sizes = blocks, (host, disk)
        self.device: dict[tuple[int, ...], int] = {}  # content -> when it was last used
        self.lists: tuple[list, list] = ([], [])  # the next to go first
        self.used = 0  # blocks of the running request that are not cached (yet)
        self.now = 0

    def use(self, content):
        self.now += 1
        self.device[content] = self.now

    def down(self, content):
        for size, kept in zip(self.sizes, self.lists, strict=True):
            kept.append(content)
            if len(kept) <= size:
                return
            content = kept.pop(0)

    def where(self, content):
        return next((i for i, kept in enumerate(self.lists) if content in kept), None)

    def take_block(self, running):
        if len(self.device) + self.used == self.blocks:
            leaves = [
                c for c in self.device if c not in running and not any(d[: len(c)] == c != d for d in self.device)
            ]
            gone = min(leaves, key=self.device.__getitem__)
            del self.device[gone]
            self.down(gone)
        self.used += 1

    def cache(self, running, content):
        """One of the request's own blocks is full, and can be found from now on."""
        for kept in self.lists:
            if content in kept:
                kept.remove(content)
        self.used -= 1
        self.use(content)
        running.append(content)

    def publish(self, running, full):
        """full: contents of its full blocks that are not cached: up to the first that is cached in another block."""
        while full and full[0] not in self.device:
            self.cache(running, full.pop(0))

    def serve(self, prompt, output):
        """Returns the tokens that were hit on the device, the host and the disk."""
        text = (*prompt, *output)
        most = (len(prompt) - 1) // BLOCK
        names = [text[: BLOCK * (i + 1)] for i in range(len(text) // BLOCK)]
        running: list[tuple[int, ...]] = []
        while len(running) < most and names[len(running)] in self.device:
            running.append(names[len(running)])
        for content in running:
            self.use(content)
        hits = [len(running) * BLOCK, 0, 0]
        found = []
        for content in names[len(running) : most]:
            if (level := self.where(content)) is None:
                break
            found.append((level, content))
        for level, content in found:
            self.lists[level].remove(content)
            hits[1 + level] += BLOCK
        for _ in range(-(-len(prompt) // BLOCK) - len(running)):
            self.take_block(running)
        full = names[len(running) : len(prompt) // BLOCK]
        self.publish(running, full)
        for position in range(len(prompt), len(text) - 1):  # the last one is never fed
            if position % BLOCK == 0:
                self.take_block(running)
            if (position + 1) % BLOCK == 0:
                full.append(names[position // BLOCK])
            self.publish(running, full)
        for content in full:  # at the end behind blocks of others as well
            if content not in self.device:
                self.cache(running, content)
        self.used = 0
        for content in reversed(running):
            self.use(content)
        return hits


TRACES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 7), st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=30
)


@given(rows=TRACES, blocks=st.integers(10, 16), host=st.integers(0, 8), disk=st.integers(0, 12))
@settings(max_examples=150)
def test_hits_by_tier_are_those_of_three_lru_lists(rows, blocks, host, disk):
    """Prompts of few different beginnings, lengths and ends, one request after the other."""
    requests = []
    for i, (beginning, length, end, new) in enumerate(rows):
        prompt = [*(50 * beginning + j for j in range(3 * length)), *(7000 + 10 * i + j for j in range(end))]
        requests.append(Request(i, np.array(prompt, dtype=np.int32), new, new, 100.0 * i, SamplingParams(seed=i)))
    recorder, _ = served(requests, blocks, host, disk)
    naive, expected = ThreeLists(blocks, host, disk), np.zeros(3, dtype=int)
    for seq in recorder.sequences:
        hits = naive.serve(seq.request.prompt.tolist(), list(seq.output))
        assert seq.cached_tokens == sum(hits), seq.id
        expected += hits
    summary = summarize(recorder, blocks, BLOCK, "completed")
    assert list(summary["tier_hit_tokens"].values()) == expected.tolist()


def chain(i, first, tokens=9, arrival=0.0):
    return Request(i, np.arange(first, first + tokens, dtype=np.int32), 1, 1, arrival)


def test_a_hit_costs_latency_and_bytes_by_bandwidth_each_tier_once_a_request():
    # Each takes three blocks of the device's three and leaves two full ones, which the next one pushes down.
    requests = [chain(i, 100 * (i % 2), arrival=10.0 * i) for i in range(3)]
    recorder, _ = served(requests, 3, 1, 1)
    summary = summarize(recorder, 3, BLOCK, "completed")
    # Of the third's two blocks, that of its beginning was pushed down last: it is on the host, the other on the disk.
    assert summary["tier_hit_tokens"] == {"device": 0, "host": 4, "disk": 4}
    block = cost_model(block_size=BLOCK).block_bytes
    price = (50e-6 + block / 2e9) + (900e-6 + block / 0.5e9)
    loads = [step.load_s for step in recorder.steps]
    assert loads == [pytest.approx(price) if load else 0.0 for load in loads]
    assert sum(load > 0 for load in loads) == 1
    assert summary["tier_load_s"] == pytest.approx(price)
    # Beside that the step costs what one does that finds the same on the device.
    alone, _ = served([chain(0, 0), chain(1, 0, arrival=9.0)], 6, 0, 0)
    (up,), (step,) = ([s for s in steps if s.tokens == 1] for steps in (recorder.steps, alone.steps))
    # ... but for two more blocks of a table to be written, host time that the cost model of the tests prices.
    h = cost_model(block_size=BLOCK).hardware
    assert h.host_block_us == 0 or up.end_s - up.start_s > step.end_s - step.start_s
    assert up.end_s - up.start_s == pytest.approx(step.end_s - step.start_s + price, rel=1e-3)


def test_what_goes_down_is_written_beside_the_step_or_first_or_for_nothing():
    requests = [chain(i, 100 * i, arrival=10.0 * i) for i in range(3)]  # the second and third push down two blocks each
    kept = {store: served(requests, 3, 9, 0, store=store)[0] for store in ("free", "beside", "first")}
    block = cost_model(block_size=BLOCK).block_bytes
    price = 50e-6 + 2 * block / 2e9
    of = {store: [s.end_s - s.start_s for s in recorder.steps if s.batch] for store, recorder in kept.items()}
    assert [s.store_s for s in kept["first"].steps if s.batch] == [0.0, pytest.approx(price), pytest.approx(price)]
    assert of["first"] == pytest.approx([a + b for a, b in zip(of["free"], (0.0, price, price), strict=True)])
    assert of["beside"] == pytest.approx([of["free"][0], *(max(a, price) for a in of["free"][1:])])
    assert not any(s.store_s for s in kept["free"].steps)
    summary = summarize(kept["first"], 3, BLOCK, "completed")
    assert summary["tier_store_s"] == pytest.approx(2 * price)


@pytest.mark.parametrize(
    ("host_gb_s", "disk_gb_s", "hits"), [(1e6, 1e6, (4, 4)), (1e6, 1e-6, (4, 0)), (1e-6, 1e6, (0, 0))]
)
def test_what_is_cheaper_to_compute_is_not_brought_up(host_gb_s, disk_gb_s, hits):
    """The third finds its first block on the host and its second on the disk."""
    requests = [chain(i, 100 * (i % 2), arrival=10.0 * i) for i in range(3)]
    prices = {"host": TierSettings(1.0, host_gb_s, 0.0, "lru"), "disk": TierSettings(1.0, disk_gb_s, 0.0, "lru")}
    recorder, _ = served(requests, 3, 1, 1, prices=prices)
    summary = summarize(recorder, 3, BLOCK, "completed")
    assert (summary["tier_hit_tokens"]["host"], summary["tier_hit_tokens"]["disk"]) == hits
    assert [s.computed for s in recorder.sequences] == [9] * 3
    assert summary["computed_tokens"] == 27 - sum(hits)


def facts(recorder):
    seqs = [(s.id, s.status, list(s.token_s), s.cached_tokens, s.preemptions) for s in recorder.sequences]
    return seqs, list(recorder.steps), recorder.preemptions, recorder.stays


ROWS = st.lists(
    st.tuples(st.integers(1, 24), st.integers(1, 30), st.integers(1, 30), st.sampled_from([0.0, 0.01, 0.3])),
    min_size=1,
    max_size=14,
)


@given(
    rows=ROWS,
    blocks=st.sampled_from([16, 20, 40]),
    host=st.integers(0, 6),
    disk=st.integers(0, 9),
    kept_by=st.sampled_from(ABLE),
    chosen=policies(),
)
@settings(max_examples=120)
def test_whatever_the_policies_nothing_is_in_two_places_and_skipping_changes_nothing(
    rows, blocks, host, disk, kept_by, chosen
):
    chosen = chosen | {"allocator": "paged", "admission": "on_demand"}
    if chosen["preemption"] == "none":
        chosen["preemption"] = "recompute"
    requests = requests_of(rows, True)
    runs = [served(requests, blocks, host, disk, kept_by, skip, **chosen) for skip in (True, False)]
    assert facts(runs[0][0]) == facts(runs[1][0])
    assert all(s.status in (Status.FINISHED, Status.REFUSED) for s in runs[0][0].sequences)


def test_more_tiers_hit_no_less_where_requests_come_one_by_one():
    requests = [chain(i, 100 * (i * i % 11), 13, 10.0 * i) for i in range(60)]
    hits = [
        sum(s.cached_tokens for s in served(requests, 8, host, disk)[0].sequences)
        for host, disk in ((0, 0), (6, 0), (6, 20))
    ]
    assert hits[0] < hits[1] < hits[2]
    assert hits[2] == 12 * (60 - len({i * i % 11 for i in range(60)}))  # all but what is asked for the first time


def test_the_audit_sees_a_content_in_two_places_and_a_tier_that_is_too_full():
    _, allocator = served([chain(i, 100 * i, arrival=10.0 * i) for i in range(4)], 3, 2, 2)
    tiers = allocator.prefixes.tiers
    key = next(iter(tiers.levels[0].entries))
    allocator.audit()
    tiers.levels[1].capacity += 1
    tiers.levels[1].put(key, tiers.levels[0].entries[key])
    with pytest.raises(InvariantError, match="is in tier disk and in host"):
        allocator.audit()
    tiers.levels[1].remove(key)
    tiers.levels[0].capacity = 1
    with pytest.raises(InvariantError, match="tier host: 2 blocks of 1"):
        allocator.audit()
