"""Each policy once more from its definition, with plain lists and a search of all blocks for every victim.

A model is told the same events as the policy; `evict(offered)` chooses among the keys given. It keeps nothing about who
is offered and uses nothing of pagedlab.eviction but the two dataclasses of its events.
"""

from __future__ import annotations

import math


class Model:
    """Facts about every cached key; a policy is the `rank` whose lowest goes."""

    def __init__(self, capacity, settings=None):
        self.capacity, self.settings = capacity, settings
        self.time, self.now_s = 0, 0.0
        self.facts = {}

    def tick(self):
        self.time += 1
        return self.time

    def miss(self, key):
        pass

    def insert(self, key, entry, retention):
        now = self.tick()
        self.facts[key] = {"in": now, "last": now, "uses": 1, "entry": entry, "asked": retention}
        self.facts[key] |= {"priority": retention.priority, "at_s": self.now_s}

    def hit(self, key, retention):
        facts = self.facts[key]
        facts["last"], facts["at_s"], facts["asked"] = self.tick(), self.now_s, retention
        facts["uses"] += 1
        facts["priority"] = max(facts["priority"], retention.priority)

    def free(self, key):
        self.facts[key]["last"], self.facts[key]["at_s"] = self.tick(), self.now_s

    def forget(self, key):
        del self.facts[key]

    def evict(self, offered):
        victim = min(offered, key=lambda key: self.rank(self.facts[key], key))
        self.leave(self.facts[victim], victim)
        del self.facts[victim]
        return victim

    def leave(self, facts, key):
        pass


class Lru(Model):
    def rank(self, facts, key):
        return facts["last"]


class Fifo(Model):
    def rank(self, facts, key):
        return facts["in"]


class Lfu(Model):
    def rank(self, facts, key):
        return facts["uses"], facts["last"]


class Mru(Model):
    def rank(self, facts, key):
        return -facts["last"]


class Filo(Model):
    def rank(self, facts, key):
        return -facts["in"]


class Priority(Model):
    def rank(self, facts, key):
        return facts["priority"], facts["last"]


class PriorityTtl(Model):
    def rank(self, facts, key):
        asked = facts["asked"]
        over = asked.ttl_s is not None and facts["at_s"] + asked.ttl_s <= self.now_s
        return 35 if over else asked.priority, facts["last"]


class TtlPin(Model):
    def rank(self, facts, key):
        asked = facts["asked"].ttl_s
        ends = facts["at_s"] + (self.settings.ttl_s if asked is None else asked)
        return (0, facts["last"]) if ends <= self.now_s else (1, ends, facts["last"])


def cost(entry, attention_tokens):
    before = entry.depth * entry.tokens
    each = [1 + (before + i + 0.5) / attention_tokens for i in range(entry.tokens)]
    return sum(each) / sum(1 + (i + 0.5) / attention_tokens for i in range(entry.tokens))


class CostAware(Model):
    def rank(self, facts, key):
        weight = self.settings.alpha * self.capacity
        return round(facts["last"] + weight * cost(facts["entry"], self.settings.attention_tokens), 6), facts["last"]


class Gdsf(Model):
    age = 0.0

    def insert(self, key, entry, retention):
        super().insert(key, entry, retention)
        self.score(key)

    def hit(self, key, retention):
        super().hit(key, retention)
        self.score(key)

    def free(self, key):
        """Frequency and cost only."""

    def score(self, key):
        facts = self.facts[key]
        price = cost(facts["entry"], self.settings.attention_tokens) if self.settings.cost == "recompute" else 1
        facts["score"] = self.age + facts["uses"] * price

    def rank(self, facts, key):
        return round(facts["score"], 9), facts["last"]

    def leave(self, facts, key):
        self.age = facts["score"]


class Belady(Model):
    def foretell(self, references):
        self.to_come = list(references)

    def passed(self, key):
        if key in self.to_come:
            self.to_come[self.to_come.index(key)] = None

    def miss(self, key):
        self.passed(key)

    def hit(self, key, retention):
        self.passed(key)
        super().hit(key, retention)

    def free(self, key):
        """The past is no matter."""

    def rank(self, facts, key):
        return -(self.to_come.index(key) if key in self.to_come else math.inf), facts["last"]


class Lists(Model):
    """A policy of lists, of which the first element is the oldest."""

    def without(self, key):
        for queue in self.lists():
            if key in queue:
                queue.remove(key)

    def forget(self, key):
        self.without(key)


def first(queue, offered):
    return next((key for key in queue if key in offered), None)


class Clock(Lists):
    def __init__(self, capacity, settings):
        super().__init__(capacity, settings)
        self.ring, self.count = [], {}

    def lists(self):
        return [self.ring]

    def insert(self, key, entry, retention):
        self.ring.append(key)
        self.count[key] = 0

    def hit(self, key, retention):
        self.count[key] = min(self.count[key] + 1, 2**self.settings.bits - 1)

    def free(self, key):
        pass

    def evict(self, offered):
        while True:
            key = first(self.ring, offered)
            self.ring.remove(key)
            if self.count[key] == 0:
                return key
            self.count[key] -= 1
            self.ring.append(key)


class Slru(Lists):
    def __init__(self, capacity, settings):
        super().__init__(capacity, settings)
        self.probation, self.protected, self.hits = [], [], {}
        self.offered = set()  # demotion asks who may go

    def lists(self):
        return [self.probation, self.protected]

    def insert(self, key, entry, retention):
        self.probation.append(key)
        self.hits[key] = 0

    def free(self, key):
        queue = self.protected if key in self.protected else self.probation
        queue.remove(key)
        queue.append(key)

    def hit(self, key, retention):
        self.free(key)
        if key in self.protected:
            return
        self.hits[key] += 1
        if self.hits[key] == self.settings.promote_hits:
            self.probation.remove(key)
            self.protected.append(key)
            while len(self.protected) > int(self.capacity * self.settings.protected_fraction):
                demoted = first(self.protected, self.offered)
                if demoted is None:
                    return
                self.protected.remove(demoted)
                self.probation.append(demoted)
                self.hits[demoted] = 0

    def evict(self, offered):
        key = first(self.probation + self.protected, offered)
        self.without(key)
        return key


class Sieve(Lists):
    def __init__(self, capacity, settings):
        super().__init__(capacity, settings)
        self.order, self.used, self.passed = [], set(), set()

    def lists(self):
        return [self.order]

    def insert(self, key, entry, retention):
        self.order.append(key)

    def hit(self, key, retention):
        self.used.add(key)

    def free(self, key):
        pass

    def forget(self, key):
        self.order.remove(key)
        self.used.discard(key)
        self.passed.discard(key)

    def lap(self, offered):
        """What the hand can still come to in this lap; a new one where there is nothing."""
        if offered and not [key for key in self.order if key in offered - self.passed]:
            self.passed = set()
        return offered - self.passed

    def evict(self, offered):
        while True:
            key = first(self.order, self.lap(offered))
            if key not in self.used:
                self.forget(key)
                self.lap(offered - {key})
                return key
            self.used.remove(key)
            self.passed.add(key)


class S3Fifo(Lists):
    def __init__(self, capacity, settings):
        super().__init__(capacity, settings)
        self.small, self.main, self.ghosts, self.back, self.uses = [], [], [], [], {}
        self.most_small = max(1, int(capacity * settings.small_fraction))
        self.evicted = False

    def lists(self):
        return [self.small, self.main]

    def miss(self, key):
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.back = [*self.back, key][-self.capacity :]

    def insert(self, key, entry, retention):
        early = self.settings.warmup == "libcachesim" and not self.evicted and len(self.small) >= self.most_small
        known = key in self.back + self.ghosts
        (self.main if known or early else self.small).append(key)
        self.uses[key] = 0
        self.back = [k for k in self.back if k != key]
        self.ghosts = [k for k in self.ghosts if k != key]

    def hit(self, key, retention):
        self.uses[key] += 1

    def free(self, key):
        pass

    def evict(self, offered):
        self.evicted = True
        while True:
            over = len(self.main) > self.capacity - self.most_small
            main, small = first(self.main, offered), first(self.small, offered)
            if main is not None and (over or small is None):
                self.main.remove(main)
                if self.uses[main] == 0:
                    return main
                self.uses[main] = min(self.uses[main], 3) - 1
                self.main.append(main)
                while self.uses[first(self.main, offered)]:  # once begun, the main queue gives the victim
                    key = first(self.main, offered)
                    self.uses[key] = min(self.uses[key], 3) - 1
                    self.main.remove(key)
                    self.main.append(key)
                key = first(self.main, offered)
                self.main.remove(key)
                return key
            while small is not None:
                self.small.remove(small)
                if self.uses[small] < self.settings.promote_hits:
                    most = int(self.capacity * self.settings.ghost_fraction)
                    self.ghosts = [*self.ghosts, small][-most:] if most else []
                    return small
                self.uses[small] = 0
                self.main.append(small)
                small = first(self.small, offered)


class Arc(Lists):
    """In the paper's order: what is trimmed is trimmed before the victim is chosen."""

    def __init__(self, capacity, settings):
        super().__init__(capacity, settings)
        self.t1, self.t2, self.b1, self.b2, self.back, self.p = [], [], [], [], [], 0.0
        self.in_b2 = False

    def lists(self):
        return [self.t1, self.t2]

    def miss(self, key):
        self.in_b2 = key in self.b2
        if key in self.b1:
            self.p = min(self.p + max(len(self.b2) / len(self.b1), 1), self.capacity)
        elif key in self.b2:
            self.p = max(self.p - max(len(self.b1) / len(self.b2), 1), 0)
        else:
            return
        self.drop_ghost(key)
        self.back = [*self.back, key][-self.capacity :]

    def drop_ghost(self, key):
        self.b1 = [k for k in self.b1 if k != key]
        self.b2 = [k for k in self.b2 if k != key]

    def insert(self, key, entry, retention):
        known = key in self.back + self.b1 + self.b2
        self.drop_ghost(key)
        self.back = [k for k in self.back if k != key]
        (self.t2 if known else self.t1).append(key)
        self.b1 = self.b1[max(0, len(self.t1) + len(self.b1) - self.capacity) :]
        self.b2 = self.b2[max(0, len(self.t1 + self.t2 + self.b1 + self.b2) - 2 * self.capacity) :]

    def hit(self, key, retention):
        self.without(key)
        self.t2.append(key)

    def free(self, key):
        queue = self.t1 if key in self.t1 else self.t2
        queue.remove(key)
        queue.append(key)

    def evict(self, offered):
        once, again = first(self.t1, offered), first(self.t2, offered)
        wants_once = len(self.t1) > self.p or (len(self.t1) == self.p and self.in_b2)
        if once is not None and (wants_once or again is None):
            self.t1.remove(once)
            self.b1 = [*self.b1, once][-self.capacity :]
            return once
        self.t2.remove(again)
        self.b2 = [*self.b2, again][-2 * self.capacity :]
        return again


class Lirs(Lists):
    def __init__(self, capacity, settings):
        super().__init__(capacity, settings)
        self.stack, self.lir, self.hir, self.ghosts = [], set(), [], []
        self.most_lir = capacity - max(1, int(capacity * settings.hir_fraction))

    def top(self, key):
        self.stack = [k for k in self.stack if k != key] + [key]
        self.prune()
        while len(self.lir) > self.most_lir:
            self.lir.remove(self.stack[0])
            self.hir.append(self.stack.pop(0))
            self.prune()

    def prune(self):
        while self.stack and self.stack[0] not in self.lir:
            self.ghosts = [k for k in self.ghosts if k != self.stack[0]]
            self.stack.pop(0)

    def insert(self, key, entry, retention):
        if key in self.ghosts or len(self.lir) < self.most_lir:
            self.ghosts = [k for k in self.ghosts if k != key]
            self.lir.add(key)
        else:
            self.hir.append(key)
        self.top(key)

    def hit(self, key, retention):
        if key not in self.lir:
            self.hir.remove(key)
            if key in self.stack:
                self.lir.add(key)
            else:
                self.hir.append(key)
        self.top(key)

    def free(self, key):
        pass

    def forget(self, key):
        self.lir.discard(key)
        self.hir = [k for k in self.hir if k != key]
        self.stack = [k for k in self.stack if k != key]
        self.prune()

    def evict(self, offered):
        key = first(self.hir, offered)
        if key is None or key not in self.stack:
            key = first([k for k in self.stack if k in self.lir], offered) if key is None else key
            self.forget(key)
            return key
        self.hir.remove(key)
        self.ghosts.append(key)
        if len(self.ghosts) > int(self.capacity * self.settings.ghost_fraction):
            self.stack.remove(self.ghosts.pop(0))
        return key


MODELS = {
    "lru": Lru,
    "fifo": Fifo,
    "lfu": Lfu,
    "mru": Mru,
    "filo": Filo,
    "clock": Clock,
    "slru": Slru,
    "sieve": Sieve,
    "s3fifo": S3Fifo,
    "arc": Arc,
    "lirs": Lirs,
    "gdsf": Gdsf,
    "priority": Priority,
    "priority_ttl": PriorityTtl,
    "cost_aware": CostAware,
    "ttl_pin": TtlPin,
    "belady": Belady,
}
