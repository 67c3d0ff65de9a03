"""Who is next, worked out from what was told: the orders once more, over plain lists, for the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.engine.machine import Account

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


class NaiveOrder:
    """Told of every arrival, every wait, every token; asked for the rank of a request."""

    def __init__(self, order: str, quantum: int, levels: int, ageing_s: float):
        self.order, self.quantum, self.levels, self.ageing_s = order, quantum, levels, ageing_s
        self.now = 0.0
        self.turns = 0
        self.level: dict[int, int] = {}
        self.turn: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.since: dict[int, float] = {}
        self.service: dict[str, float] = {}
        self.last: str | None = None  # the client that was the last to have nobody waiting

    def rank(self, account: Account) -> tuple[Any, ...]:
        r, arrived = account.request, account.arrived
        true = min(r.max_tokens, r.true_output_tokens or r.max_tokens)
        ranks: dict[str, tuple[Any, ...]] = {
            "fcfs": arrived,
            "priority": (r.priority, *arrived),
            "sjf": (true, *arrived),
            "srtf": (max(true - account.steps, 1), *arrived),
            "random": (np.random.default_rng((0, r.id)).random(), r.id),
            "mlfq": (self.level.get(r.id), self.turn.get(r.id)),
            "vtc": (self.service.get(r.client), *arrived),
        }
        return ranks[self.order]

    def first(self, waiting: Sequence[Account]) -> Account:
        if self.order != "vtc":
            return min(waiting, key=self.rank)
        heads = {
            c: min((a for a in waiting if a.request.client == c), key=lambda a: a.arrived) for c in clients(waiting)
        }
        return min(heads.values(), key=self.rank)

    def _goes_to(self, id: int, level: int) -> None:
        self.turns += 1
        self.level[id], self.turn[id], self.used[id] = level, self.turns, 0

    def waits(self, account: Account, others: Sequence[Account]) -> None:
        """It joins `others`, who wait: new, or preempted."""
        id, client = account.id, account.request.client
        if id not in self.level:
            prompt = len(account.request.prompt)
            fitting = [n for n in range(self.levels - 1) if self.quantum * 2**n >= prompt]
            self._goes_to(id, fitting[0] if fitting else self.levels - 1)
        self.since[id] = self.now
        if client not in clients(others):
            known = [self.service[c] for c in clients(others)] or ([self.service[self.last]] if self.last else [0.0])
            self.service[client] = max(self.service.get(client, 0.0), min(known))

    def time(self, now: float, waiting: Sequence[Account]) -> None:
        self.now = now
        for account in sorted(waiting, key=lambda a: (self.level[a.id], self.turn[a.id])):
            if self.level[account.id] > 0 and now - self.since[account.id] >= self.ageing_s:
                self._goes_to(account.id, 0)
                self.since[account.id] = now

    def leaves(self, account: Account, others: Sequence[Account], admitted: bool) -> None:
        """It waits no more, `others` do."""
        client = account.request.client
        if client not in clients(others):
            self.last = client
        if admitted and not account.preempted:
            self.service[client] += INPUT_WEIGHT * len(account.request.prompt)

    def served(self, account: Account, fed: int, generated: int) -> None:
        self.service[account.request.client] += OUTPUT_WEIGHT * generated
        self.used[account.id] += fed + generated
        level = self.level[account.id]
        if level < self.levels - 1 and self.used[account.id] >= self.quantum * 2**level:
            self._goes_to(account.id, level + 1)


def clients(accounts: Sequence[Account]) -> list[str]:
    return sorted({account.request.client for account in accounts})
