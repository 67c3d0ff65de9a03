"""Random programs of the memory and scheduling core, every invariant checked after each action of each."""

from __future__ import annotations

from collections.abc import Callable

from tests.audit.harness import Check, Found
from tests.engine.machine import random_program as of_the_core
from tests.preemption.test_mutations import program_with_a_cache as that_swap
from tests.prefix_cache.watched import random_program as with_a_prefix_cache

KINDS: dict[str, tuple[Callable[[int], object], int]] = {  # and how many of them
    "core": (of_the_core, 5000),
    "prefix cache": (with_a_prefix_cache, 5000),
    "swapping": (that_swap, 3000),
}
FIRST = 1_000_000  # seeds that no test runs
AT_A_TIME = 1000


def pieces(short: bool) -> list[tuple[str, int, int]]:
    if short:
        return [(kind, FIRST, 25) for kind in KINDS]
    return [(kind, FIRST + at, AT_A_TIME) for kind, (_, many) in KINDS.items() for at in range(0, many, AT_A_TIME)]


def attempt(piece: tuple[str, int, int]) -> Found:
    kind, first, many = piece
    program, found = KINDS[kind][0], Found()
    for seed in range(first, first + many):
        try:
            program(seed)
            found.attempt(f"{kind} {seed}", True)
        except Exception as error:  # a violation, or the product fell over by itself
            found.attempt(f"{kind} {seed}", False, f"{type(error).__name__}: {error}")
    found.figures[f"of {kind}"] = many
    return found


CHECK = Check("programs of the state machines, every invariant after each action", pieces, attempt, 13_000)
