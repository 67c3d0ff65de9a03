"""Every victim of every policy is the one that a search over all blocks finds, under any offers and withdrawals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.eviction.base import Entry, Retention
from pagedlab.eviction.leaf_first import LeafFirst
from tests.eviction.lab import VARIANTS, settings_of, variant
from tests.eviction.naive import MODELS

MODELLED = [name for name in VARIANTS if name.split()[0] in MODELS]
CAPACITY = 4
KEYS = 10
TOKENS = 4


def pair(name, capacity=CAPACITY):
    option = name.split()[0]
    return variant(name, capacity), MODELS[option](capacity, settings_of(option, **VARIANTS[name]))


RETENTIONS = [Retention(), Retention(), Retention(10), Retention(80), Retention(80, 2.0), Retention(35, 0.0)]
events = st.lists(
    st.tuples(
        st.sampled_from("aaaaaabbbbbooowwfrt"),  # how often each event comes
        st.integers(0, KEYS - 1),
        st.sampled_from(RETENTIONS),
    ),
    min_size=30,
    max_size=150,
)


class Bench:
    """A flat cache that tells policy and model the same events and compares whom they evict. Keys are offered and
    withdrawn at random, as users come and go."""

    def __init__(self, name, program, capacity=CAPACITY):
        self.capacity = capacity
        self.policy, self.model = pair(name, capacity)
        self.cached, self.offered = set(), set()
        asked = [key for event, key, _ in program if event == "a"]
        if self.policy.needs_future:
            self.policy.foretell(asked)
            self.model.foretell(asked)

    def tell(self, event, key, *arguments):
        getattr(self.policy, event)(key, *arguments)
        getattr(self.model, event)(key, *arguments)

    def ask(self, key, retention):
        if key in self.cached:
            self.tell("hit", key, retention)
            return
        self.tell("miss", key)
        if len(self.cached) == self.capacity and not self.evict():
            return  # everything is in use: the reference is served without being cached
        self.tell("insert", key, Entry(None, key % 4, TOKENS), retention)
        self.cached.add(key)

    def evict(self):
        if not self.offered:
            return False
        announced = self.policy.peek()
        victim = self.policy.evict()
        assert victim == announced
        assert victim == self.model.evict(set(self.offered))
        self.cached.remove(victim)
        self.offer_only(self.offered - {victim})
        return True

    def offer_only(self, offered):
        self.offered = offered
        self.model.offered = offered

    def step(self, event, key, retention):
        if event == "a":
            self.ask(key, retention)
        elif event == "b":  # busy and idle again at once, as in a replay without sequences
            if key in self.cached - self.offered:
                self.policy.offer(key)
                self.offer_only(self.offered | {key})
        elif event == "w" and key in self.offered:
            self.policy.withdraw(key)
            self.offer_only(self.offered - {key})
        elif event == "o" and key in self.cached - self.offered:
            self.tell("free", key)
            self.policy.offer(key)
            self.offer_only(self.offered | {key})
        elif event == "f" and key in self.cached:
            self.offer_only(self.offered - {key})
            self.cached.remove(key)
            self.tell("forget", key)
        elif event == "r":
            self.evict()
        elif event == "t":
            self.policy.now_s = self.model.now_s = self.model.now_s + 1.0
        self.policy.audit()
        assert self.policy.num_offered == len(self.offered)


@pytest.mark.parametrize("name", MODELLED)
@settings(max_examples=30)
@given(program=events)
def test_the_victim_is_the_one_that_a_search_over_all_blocks_finds(name, program):
    bench = Bench(name, program)
    for event in program:
        bench.step(*event)
    while bench.evict():
        pass


def path(node):
    """From the root of a binary tree of prefixes to a node of it."""
    return [*path((node - 1) // 2), node] if node else [node]


class Tree:
    """A prefix cache in little: sequences take paths of a tree, share what they share, and let go of it again."""

    def __init__(self, name, program, capacity=CAPACITY):
        self.capacity = capacity
        inner, self.model = pair(name, capacity)
        self.policy = LeafFirst(inner)
        self.cached, self.users, self.running = set(), {}, []
        if inner.needs_future:
            asked = [block for event, node, _ in program if event == "a" for block in path(node)]
            self.policy.foretell(asked)
            self.model.foretell(asked)

    tell = Bench.tell

    def idle(self):
        return {block for block in self.cached if not self.users.get(block)}

    def leaves(self):
        return {block for block in self.idle() if not {2 * block + 1, 2 * block + 2} & self.cached}

    def start(self, node, retention):
        blocks = path(node)
        missing = [block for block in blocks if block not in self.cached]
        mine = [block for block in blocks if block in self.cached]
        self.model.offered = self.leaves() - set(mine)
        for block in mine:
            if not self.users.get(block):
                self.policy.withdraw(block)
            self.users[block] = self.users.get(block, 0) + 1
        for block in mine:
            self.tell("hit", block, retention)
        for block in missing:
            self.tell("miss", block)
        for block in missing:
            if len(self.cached) == self.capacity and not self.evict():
                break
            depth = blocks.index(block)
            self.tell("insert", block, Entry(blocks[depth - 1] if depth else None, depth, TOKENS), retention)
            self.cached.add(block)
            self.users[block] = 1
            mine.append(block)
        self.running.append(mine)

    def end(self, which):
        if not self.running:
            return
        blocks = self.running.pop(which % len(self.running))
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.tell("free", block)
                self.policy.offer(block)

    def evict(self):
        if not self.idle():
            return False
        may_go = self.leaves()
        victim = self.policy.evict()
        assert victim in may_go
        assert victim == self.model.evict(may_go)
        self.cached.remove(victim)
        return True

    def step(self, event, key, retention):
        if event == "a":
            self.start(key, retention)
        elif event in "bo":
            self.end(key)
        elif event == "r":
            self.evict()
        elif event == "t":
            self.policy.now_s = self.model.now_s = self.model.now_s + 1.0
        self.policy.audit()
        assert self.policy.num_offered == len(self.idle())


@pytest.mark.parametrize("name", MODELLED)
@settings(max_examples=30)
@given(program=events)
def test_under_leaf_first_the_victim_is_the_policys_own_among_idle_leaves(name, program):
    tree = Tree(name, program)
    for event in program:
        tree.step(*event)
    while tree.running:
        tree.end(0)
    while tree.evict():
        pass
    assert not tree.cached
