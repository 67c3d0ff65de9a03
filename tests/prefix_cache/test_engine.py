"""The engine with a prefix cache: what is hit, what is kept, and that no answer depends on it.

The case list by its numbers first (E6 to E60), then programs of any requests under every policy, beside the naive
account of `Watched`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.errors import OutOfBlocks
from pagedlab.core.request import Status
from pagedlab.engine import serve
from pagedlab.recorder.recorder import Recorder
from tests.lab import make_executor, make_scheduler, naive_answer, request, run
from tests.prefix_cache.watched import POLICIES, Watched, a_world

KINDS = ("hash_chain", "radix")
both = pytest.mark.parametrize("kind", KINDS)
A, B, C, X = [1] * 4, [2] * 4, [3] * 4, [9] * 4


class Engine:
    """A scheduler and an executor with blocks of four; requests one after the other, or step by step."""

    def __init__(self, kind, num_blocks=16, **choices):
        self.scheduler = make_scheduler(num_blocks, 4, prefix_cache=kind, **choices)
        self.executor = make_executor(self.scheduler)
        self.allocator, self.pool = self.scheduler.allocator, self.scheduler.allocator.pool
        self.index = self.allocator.prefixes.index
        self.number = 0

    def submit(self, prompt, new=1, **fields):
        self.number += 1
        return self.scheduler.submit(replace(request(prompt, new, id=self.number), **fields))

    def step(self):
        clock = self.executor.clock
        plan = self.scheduler.schedule(clock.now())
        outcome = self.executor.execute(plan)
        self.scheduler.commit(plan, outcome, clock.advance(outcome.seconds))
        self.scheduler.audit()
        return plan

    def ask(self, prompt, new=1, **fields):
        """Serve one request; returns how many of its tokens were cached."""
        seq = self.submit(prompt, new, **fields)
        while self.scheduler.has_work:
            self.step()
        assert seq.status is Status.FINISHED, seq.refusal
        assert seq.output == naive_answer(seq.request)[0].token_ids
        return seq.cached_tokens

    def cached(self):
        """Of every cached block, how many tokens it and those before it have; in order."""
        return sorted(node.depth * 4 + node.num_tokens for node in self.index.nodes.values())

    def state(self):
        sharing, free = self.allocator.sharing(), self.pool.free_ids()
        return free, list(self.pool.ref), dict(self.index.nodes), sharing, self.pool.eviction.num_offered


# ---- what is hit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "before", "asked", "hit"),
    [
        ("hash_chain", [A + B], A + B, 4),  # E23: never all of it, and blocks are shared whole
        ("radix", [A + B], A + B, 7),
        ("hash_chain", [A + B], [*A, *B, 9], 8),  # E24
        ("radix", [A + B], [*A, *B, 9], 8),
        ("hash_chain", [A + B], [*A, 2, 2, 9], 4),  # within a block
        ("radix", [A + B], [*A, 2, 2, 9], 6),
        ("hash_chain", [A + B], X + B + C, 0),  # E17: the same block behind another
        ("radix", [A + B], X + B + C, 0),
        ("hash_chain", [[*A, 2, 2]], [*A, 2, 2, 9], 4),  # what never became full
        ("radix", [[*A, 2, 2]], [*A, 2, 2, 9], 6),
        ("hash_chain", [[1]], [1], 0),
        ("radix", [[1]], [1], 0),
        ("radix", [[*A, 5, 6, 7, 8], [*A, 5, 6, 9, 9]], [*A, 5, 6, 9, 1], 7),  # from the one that has the most
    ],
)
def test_what_is_hit_after_what_was_asked(kind, before, asked, hit):
    engine = Engine(kind)
    for prompt in before:
        engine.ask(prompt)
    assert engine.ask(asked) == hit


def test_e23_of_a_full_hit_one_token_is_computed_in_a_block_of_its_own():
    for kind, copies in (("hash_chain", 0), ("radix", 1)):
        engine = Engine(kind)
        engine.ask(A + B)
        seq = engine.submit(A + B, 2)
        plan = engine.step()
        table = engine.allocator.holdings[seq.key].table
        assert (plan.total_tokens, len(table), len(plan.copies)) == (8 - seq.cached_tokens, 2, copies)
        assert not copies or plan.copies[0].destination == table[1]


@both
def test_a_conversation_reuses_its_history(kind):
    """A turn is the history, the reply and some words more: of it all is cached but the last token of the reply."""
    engine = Engine(kind)
    history, hits, sizes = [*A, 7, 7], [], []
    for _ in range(4):
        seq = engine.submit(history, 5)
        while engine.scheduler.has_work:
            engine.step()
        hits.append(seq.cached_tokens)
        sizes.append(len(history))
        history = [*history, *seq.output, 8, 8, 8]
    known = [size + 5 - 1 for size in sizes[:-1]]  # the last token of a reply was never fed
    assert hits == [0, *(known if kind == "radix" else [size // 4 * 4 for size in known])]


@both
def test_s18_and_e18_another_tenant_or_adapter_hits_nothing_and_the_same_does(kind):
    engine = Engine(kind, 32)
    prompt = [*A, *B, 5]
    assert engine.ask(prompt, cache_salt="a") == 0
    assert engine.ask(prompt, cache_salt="b") == 0
    assert engine.ask(prompt, cache_salt="a", adapter="lora") == 0
    assert engine.ask(prompt) == 0
    assert engine.ask(prompt, cache_salt="a") == 8
    assert engine.ask(prompt, cache_salt="b") == 8
    assert engine.ask(prompt, cache_salt="a", adapter="lora") == 8


@both
def test_e16_and_s19_contents_that_share_a_key_are_told_apart(kind):
    """Two bits: most blocks share their key with others. Fewer hits, no wrong one."""
    requests = [request([t, t, t, t, u, u, u, u, 1], 3, id=5 * t + u) for t in range(5) for u in range(5)] * 2
    requests = [replace(r, id=i, arrival_s=i / 4) for i, r in enumerate(requests)]
    hits = {}
    for bits in (128, 2):
        recorder, scheduler = run(requests, 300, prefix_cache=kind, hash_bits=bits)
        hits[bits] = scheduler.allocator.sharing().hit_tokens
        for seq in recorder.sequences:
            assert seq.output == naive_answer(seq.request)[0].token_ids
    assert 0 < hits[2] < hits[128]


# ---- when it is cached ----------------------------------------------------------------------------------------------


@both
def test_e22_a_block_is_found_once_its_step_is_over_and_not_before(kind):
    engine = Engine(kind, tokens=4)
    engine.submit([*A, *B, *C, 5], 1)
    seen = []
    while engine.scheduler.has_work:
        clock = engine.executor.clock
        plan = engine.scheduler.schedule(clock.now())
        seen.append(engine.cached())
        outcome = engine.executor.execute(plan)
        engine.scheduler.commit(plan, outcome, clock.advance(outcome.seconds))
    assert seen == [[], [4], [4, 8], [4, 8, 12]]
    assert engine.cached() == [4, 8, 12] + ([13] if kind == "radix" else [])


@both
def test_requests_of_one_step_with_the_same_new_prompt_compute_it_each_and_keep_it_once(kind):
    engine = Engine(kind)
    first, second = engine.submit([*A, *B, 5], 3), engine.submit([*A, *B, 5], 3)
    assert engine.step().total_tokens == 18
    assert engine.cached() == [4, 8]
    third = engine.submit([*A, *B, 5], 3)
    assert engine.step().total_tokens == 1 + 1 + 1
    while engine.scheduler.has_work:
        engine.step()
    assert [seq.cached_tokens for seq in (first, second, third)] == [0, 0, 8]
    assert first.output == second.output == third.output
    assert len(engine.index.nodes) == engine.pool.num_idle == (3 if kind == "radix" else 2)
    assert engine.pool.num_free == 16 - engine.pool.num_idle  # the second copy went back


@both
def test_chunks_of_a_prompt_are_hit_while_the_rest_is_computed(kind):
    engine = Engine(kind, tokens=4)
    engine.submit([*A, *B, *C, 5], 1)
    engine.step()
    engine.step()
    second = engine.submit([*A, *B, 7], 1)
    while engine.scheduler.has_work:
        engine.step()
    assert second.cached_tokens == 8


@both
def test_e6_a_request_that_ends_gives_back_its_blocks_whether_they_are_cached_or_not(kind):
    engine = Engine(kind)
    engine.submit(A + B)
    engine.step()
    assert (engine.pool.num_held, engine.pool.num_idle, engine.pool.num_free) == (0, 2, 14)
    assert engine.allocator.usage().cached_idle == 8


@both
def test_e20_a_block_used_again_is_no_longer_found_by_its_old_name(kind):
    engine = Engine(kind, 2)
    engine.ask(A)
    engine.ask(B + C)
    assert engine.ask(A) == 0
    assert 4 in engine.cached()
    engine.index.audit()


@both
def test_e48_a_preempted_request_comes_back_to_the_blocks_that_are_still_there(kind):
    engine = Engine(kind, 5)
    elder, younger = engine.submit([*A, 5], 12), engine.submit([*A, 6], 9)
    while not younger.preemptions:
        engine.step()
    assert engine.pool.ref[engine.allocator.holdings[elder.key].table[0]] == 1  # the block stays with the elder
    while engine.scheduler.has_work:
        engine.step()
    assert younger.cached_tokens >= 4
    assert [s.output for s in (elder, younger)] == [naive_answer(s.request)[0].token_ids for s in (elder, younger)]


# ---- what goes ------------------------------------------------------------------------------------------------------


@both
def test_e27_the_end_of_a_chain_goes_first(kind):
    engine = Engine(kind, 4)
    engine.ask(A + B + C)
    engine.ask(X + X[:3])
    assert engine.ask([*A, *B, *C, 5]) == 8
    assert engine.allocator.sharing().regretted == 1


def test_e27_without_leaf_first_the_whole_chain_goes_with_its_beginning():
    engine = Engine("hash_chain", 4, eviction="fifo", leaf_first=False)
    engine.ask(A + B + C)
    engine.ask(X + X)
    assert engine.allocator.sharing().evictions == 3
    assert engine.ask([*A, *B, *C, 5]) == 0


def test_e31_a_block_that_never_became_full_goes_before_the_full_one():
    engine = Engine("radix", 3)
    engine.ask([*A, 5, 6])
    assert engine.cached() == [4, 6]
    engine.ask(X + X)
    assert engine.cached() == [4, 4, 8]


def test_a_tail_that_another_sample_goes_on_writing_to_is_not_cached():
    scheduler = make_scheduler(8, prefix_cache="radix")
    executor = make_executor(scheduler)
    trunk = scheduler.submit(request(3, 5, n=2, temperature=1.0))
    plan = scheduler.schedule()
    scheduler.commit(plan, executor.execute(plan), 0.01)
    first, second = trunk.branches
    allocator = scheduler.allocator
    assert allocator.holdings[first.key].table == allocator.holdings[second.key].table
    allocator.settle(first)
    assert not allocator.prefixes.index.nodes
    allocator.release(first.key)
    allocator.settle(second)
    assert [node.num_tokens for node in allocator.prefixes.index.nodes.values()] == [3]


@both
def test_e28_what_cannot_be_had_is_refused_and_evicts_nothing(kind):
    engine = Engine(kind, 4, pin_blocks=2)
    engine.ask(A + B, pin_tokens=8)
    engine.ask(X)
    assert engine.pool.num_available == 2
    before = engine.state()
    with pytest.raises(OutOfBlocks, match="3 blocks asked, 1 free and 1 evictable"):
        engine.pool.allocate(3)
    assert engine.state() == before
    engine.pool.release(engine.pool.allocate(2))
    assert engine.pool.num_pinned == 2
    assert engine.ask(A + B) == (7 if kind == "radix" else 4)


@both
def test_e7_a_refused_admission_changes_nothing(kind):
    """Six blocks: two cached and idle, one free, three in use. A hit of two, three more are needed, one can be had."""
    engine = Engine(kind, 6)
    engine.ask(A + B)
    engine.submit(X + X + X[:2], 2)
    engine.step()
    assert (engine.pool.num_idle, engine.pool.num_free, engine.pool.num_held) == (2, 1, 3)
    seq = make_scheduler(64).submit(request([*A, *B, *C, *C, *C], 1, id=99))
    before = engine.state()
    assert not engine.allocator.can_admit(seq)
    with pytest.raises(OutOfBlocks, match="5 blocks asked, 3 free or evictable"):
        engine.allocator.admit(seq)
    assert engine.state() == before
    engine.scheduler.audit()


def test_where_there_is_no_room_beside_the_copy_it_is_computed_instead():
    """Three blocks, all that the request needs: one of them is what would be copied."""
    engine = Engine("radix", 3)
    engine.ask(A + B + C)
    assert engine.ask([*A, *B, 3, 3, 9, 9]) == 8
    assert engine.allocator.sharing().lost_tokens == 2


# ---- pins, priorities, time -----------------------------------------------------------------------------------------


@both
def test_i27_a_pinned_system_prompt_outlives_everything(kind):
    engine = Engine(kind, 6, pin_blocks=2)
    engine.ask([*A, *B, 5], pin_tokens=8)
    for t in range(10, 20):
        engine.ask([t] * 16)
    assert engine.pool.num_pinned == 2
    assert engine.ask([*A, *B, 6]) == 8


@both
def test_pins_are_bounded_and_take_the_beginning(kind):
    engine = Engine(kind, 8, pin_blocks=1)
    engine.ask([*A, *B, 5], pin_tokens=8)
    assert engine.pool.num_pinned == 1
    for t in range(10, 20):
        engine.ask([t] * 20)
    assert engine.ask([*A, *B, 6]) == 4


@both
def test_a_pin_asked_for_by_a_later_request_holds_too(kind):
    engine = Engine(kind, 6, pin_blocks=2)
    engine.ask([*A, *B, 5])
    engine.ask([*A, *B, 6], pin_tokens=8)
    for t in range(10, 20):
        engine.ask([t] * 16)
    assert engine.ask([*A, *B, 7]) == 8


@both
def test_a_request_that_pins_might_keep_from_running_is_refused_with_the_numbers(kind):
    scheduler = make_scheduler(6, 4, prefix_cache=kind, pin_blocks=2)
    seq = scheduler.submit(request(17, 1))
    assert seq.status is Status.REFUSED
    assert "can need 5 blocks" in seq.refusal
    assert "the pool can give 4 at most (of 6)" in seq.refusal


@both
@pytest.mark.parametrize(("policy", "kept"), [("priority", {1, 3}), ("lru", {2, 3})])
def test_the_priority_of_a_request_reaches_the_policy(kind, policy, kept):
    """The important one is the older, which lru would take."""
    engine = Engine(kind, 2, eviction=policy)
    engine.ask(A, cache_priority=80)
    engine.ask(B, cache_priority=10)
    engine.ask(C, cache_priority=35)
    assert {node.tokens[3] for node in engine.index.nodes.values()} == kept


@both
@pytest.mark.parametrize(("pause_s", "kept"), [(0.0, {1, 3}), (1.0, {2, 3})])
def test_the_seconds_of_the_engine_reach_a_policy_that_goes_by_them(kind, pause_s, kept):
    """Of two pins that hold the one that ends first is broken, of two that have ended the older block goes."""
    engine = Engine(kind, 2, eviction="ttl_pin")
    engine.ask(A, cache_ttl_s=0.5)
    engine.ask(B, cache_ttl_s=0.2)
    engine.executor.clock.advance(pause_s)
    engine.ask(C)
    assert {node.tokens[3] for node in engine.index.nodes.values()} == kept


# ---- what is counted ------------------------------------------------------------------------------------------------


def test_every_count_of_a_small_run_by_hand():
    for kind, copied, lost in (("hash_chain", 0, 3 + 2), ("radix", 3 + 2, 0)):
        engine = Engine(kind, 4)
        engine.ask(A + B)  # 8 asked, nothing hit
        engine.ask(A + B)  # 4, and 3 more in the second block
        engine.ask([*A, 2, 2, 9])  # 4, and 2 more
        sharing = engine.allocator.sharing()
        assert sharing.queried_tokens == 8 + 8 + 7
        assert sharing.hit_tokens == 4 + 4 + copied
        assert (sharing.copied_tokens, sharing.lost_tokens) == (copied, lost)
        engine.ask(X * 4)  # everything goes
        engine.ask(A + B)
        assert engine.allocator.sharing().regretted == 2


@both
def test_tokens_computed_and_cached_make_up_what_is_needed(kind):  # I33
    requests = [request([*A, *B, t % 3], 6, id=t, arrival=t / 100) for t in range(12)]
    recorder, _ = run(requests, 8, prefix_cache=kind, eviction="lru", tokens=6)
    lost = sum(record.tokens_lost for _, _, record in recorder.preemptions)
    cached = sum(seq.cached_tokens for seq in recorder.sequences)
    assert recorder.preemptions
    assert sum(step.tokens for step in recorder.steps) + cached == 12 * (9 + 6 - 1) + lost
    assert (
        sum(step.tokens for step in recorder.steps)
        == sum(9 + 6 - 1 - seq.cached_tokens for seq in recorder.sequences) + lost
    )


@both
def test_n_samples_and_beams_begin_from_the_cache(kind):
    for sampling in ({"n": 3, "temperature": 1.0}, {"beam_width": 3}):
        requests = [request([*A, *B, 5], 4, id=i, arrival=i, **sampling) for i in range(2)]
        recorder, _ = run(requests, 24, prefix_cache=kind)
        assert [seq.cached_tokens for seq in recorder.sequences] == [0, 8]
        for seq in recorder.sequences:
            want = naive_answer(seq.request)
            assert [done.token_ids for done in seq.outputs()] == [done.token_ids for done in want]


# ---- E58, E60: any program, any policy ------------------------------------------------------------------------------


def drawn(make, *args):
    """Hypothesis makes the choices."""

    @st.composite
    def strategy(draw):
        return make(lambda options: draw(st.sampled_from(options)), *args)

    return strategy()


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_no_answer_and_no_block_depends_on_the_policy(policy, data):
    Watched(data.draw(drawn(a_world, [policy]))).serve()


@settings(max_examples=25, deadline=None)
@given(world=drawn(a_world))
def test_answers_are_the_same_without_a_cache(world):
    asked = [replace(r, pin_tokens=0) for r in world.requests]
    choices = {"batching": world.batching, "tokens": world.tokens, "victim": world.victim}
    answers = []
    for cache in ({}, {"prefix_cache": world.prefix_cache, "eviction": world.eviction}):
        recorder, _ = run(asked, world.num_blocks, world.block_size, world.eos, **choices, **cache)
        answers.append([[done.token_ids for done in seq.outputs()] for seq in recorder.sequences])
    assert answers[0] == answers[1]


def test_the_same_run_gives_the_same_steps():
    world = [request([*A, *B, t % 4], 5, id=t, arrival=t / 200) for t in range(20)]
    steps = []
    for _ in range(2):
        scheduler = make_scheduler(9, 4, prefix_cache="radix", eviction="random")
        recorder = Recorder()
        serve(world, scheduler, make_executor(scheduler), recorder)
        steps.append(recorder.steps)
    assert steps[0] == steps[1]


# ---- a policy that fails --------------------------------------------------------------------------------------------


def fail_at(number, owner, name, monkeypatch):
    """The call of that number raises instead."""
    real, calls = getattr(owner, name), count(1)

    def call(*what):
        if next(calls) == number:
            raise RuntimeError("a fault of the policy")
        return real(*what)

    monkeypatch.setattr(owner, name, call)


def serve_some(engine, seqs):
    for prompt in ([*A, *B, 1], [*A, *B, 2], X + C + B, [*A, *B, 1], [*A, *X, 3], C + X + C, B + B + X):
        seqs.append(engine.submit(prompt, 3))
        while engine.scheduler.has_work:
            engine.step()


@both
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("call", ["miss", "insert", "hit", "free", "offer", "withdraw", "evict"])
def test_no_block_is_lost_when_a_policy_fails_in_any_call(kind, call, number, monkeypatch):
    """A policy may be anybody's. Whoever is served when it fails is aborted, and every block is free or idle."""
    engine, seqs = Engine(kind, num_blocks=6), []
    fail_at(number, engine.pool.eviction, call, monkeypatch)
    with pytest.raises(RuntimeError, match="a fault of the policy"):
        serve_some(engine, seqs)
    for seq in seqs:
        engine.scheduler.abort(seq)
    engine.allocator.step_over()
    assert engine.pool.num_free + engine.pool.num_idle == 6
    assert not any(engine.pool.ref)
    assert not engine.allocator.holdings
