"""A hundred thousand requests with aborts at random steps, under every pair of policies: at the end every block is free
or cached and idle, and the process has not grown."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import psutil

from pagedlab.core.request import Sequence, Status
from pagedlab.eviction.base import EVICTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from tests.audit.harness import Check, Found
from tests.lab import make_executor, make_scheduler, request

REQUESTS = 100_000
BLOCKS = 24
MOST_BYTES = 1024.0  # of a request, that the process may keep

CHOICES: dict[str, list[str | None]] = {
    "order": list(ORDERS),
    "batching": list(BATCHINGS),
    "admission": list(ADMISSIONS),
    "victim": list(VICTIMS),
    "preemption": ["recompute", "swap", "adaptive"],
    "prefix_cache": [None, "hash_chain", "radix"],
    "eviction": [name for name in EVICTIONS if not EVICTIONS[name].needs_future],
}
Choice = dict[str, str | None]


def pairs(choice: Choice) -> set[Any]:
    return set(combinations(choice.items(), 2))


def can_be(choice: Choice) -> bool:
    return choice["prefix_cache"] is not None or not ORDERS[str(choice["order"])].needs_prefix_cache


def every_pair() -> list[Choice]:
    """Few choices in which every two options of two groups that can go together do."""
    rng = random.Random(0)

    def drawn() -> Iterator[Choice]:
        while True:
            choice = {group: rng.choice(options) for group, options in CHOICES.items()}
            if can_be(choice):
                yield choice

    draw = drawn()
    left = {
        ((a, one), (b, other))
        for a, b in combinations(CHOICES, 2)
        for one in CHOICES[a]
        for other in CHOICES[b]
        if {a, b} != {"order", "prefix_cache"} or other is not None or not ORDERS[str(one)].needs_prefix_cache
    }
    chosen = []
    while left:
        (a, one), (b, other) = min(left, key=repr)
        wanted = [choice for _ in range(60) if can_be(choice := next(draw) | {a: one, b: other})]
        best = max(wanted, key=lambda choice: len(pairs(choice) & left))
        left -= pairs(best)
        chosen.append(best)
    return chosen


def serve(choice: Choice, many: int, seed: int, found: Found) -> None:
    rng, name = random.Random(seed), ", ".join(map(str, choice.values()))
    given = {group: option for group, option in choice.items() if group != "eviction" or choice["prefix_cache"]}
    scheduler = make_scheduler(BLOCKS, 4, tokens=24, max_num_seqs=8, host_blocks=12, **given)
    executor, live, now, submitted, aborted = make_executor(scheduler), list[Sequence](), 0.0, 0, 0
    while submitted < many or scheduler.has_work:
        while submitted < many and scheduler.num_waiting < 6:
            live.append(scheduler.submit(drawn_request(rng, submitted, now)))
            submitted += 1
        live = [seq for seq in live if seq.status not in (Status.FINISHED, Status.REFUSED)]
        if live and rng.random() < 0.2:
            scheduler.abort(rng.choice(live))
            aborted += 1
        if scheduler.has_work:
            plan = scheduler.schedule(now)
            if not plan.num_sequences:
                found.attempt(name, False, f"nothing can run: {scheduler.running} of {scheduler.num_waiting}")
                return
            outcome = executor.execute(plan)
            now += outcome.seconds
            scheduler.commit(plan, outcome, now)
    scheduler.audit()
    pool = scheduler.allocator.pool
    whole = pool.num_free + pool.num_idle == BLOCKS and scheduler.allocator.host_blocks == 0
    found.attempt(name, whole, f"{pool.num_free} free, {pool.num_idle} idle, {scheduler.allocator.host_blocks} on host")
    found.figures["requests"] = found.figures.get("requests", 0) + submitted
    found.figures["aborts"] = found.figures.get("aborts", 0) + aborted


def drawn_request(rng: random.Random, id: int, now: float) -> Any:
    kinds: list[dict[str, Any]] = [{}, {}, {}, {"temperature": 1.0, "n": 2}, {"beam_width": 2}]
    prompt = [0, 1, 2, 3, 1, 0][: rng.choice([0, 4, 6])] + [rng.randrange(4) for _ in range(rng.randint(1, 9))]
    new = rng.randint(1, 9)
    more = {"true": rng.randint(1, new), "client": rng.choice("ab"), "priority": rng.randrange(3), "seed": 1}
    return request(prompt, new, id=id, arrival=now, **more, **rng.choice(kinds))


def pieces(short: bool) -> list[tuple[int, int, int]]:
    """(the first choice, every how many, requests of each): all choices are in one of the pieces."""
    if short:
        return [(0, 24, 40)]
    return [(first, 4, -(-REQUESTS // len(every_pair()))) for first in range(4)]


def attempt(piece: tuple[int, int, int]) -> Found:
    first, stride, many = piece
    found, process = Found(), psutil.Process()
    done, memory = [0], [process.memory_info().rss]
    for number, choice in enumerate(every_pair()[first::stride]):
        try:
            serve(choice, many, number, found)
        except Exception as error:
            found.attempt(str(choice), False, f"{type(error).__name__}: {error}")
        done.append(done[-1] + many)
        memory.append(process.memory_info().rss)
    later = slice(len(done) // 3, None)  # once all code and tables are there
    if many > 100:
        slope = float(np.polyfit(done[later], memory[later], 1)[0])
        found.figures["most bytes kept a request"] = round(slope, 1)
        found.attempt("memory", slope < MOST_BYTES, f"{slope:.0f} bytes more a request")
    return found


CHECK = Check("requests aborted at random, every pair of policies: all blocks back, memory flat", pieces, attempt, 140)
