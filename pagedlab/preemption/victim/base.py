"""Victim: whose blocks are taken when the pool runs out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

from pagedlab.allocator.base import Allocator
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence


class Victim(ABC):
    """Chooses one of the running requests, the one that needs the blocks included. All of its sequences yield."""

    needs_true_length = False
    """Whether it must know how long outputs will be (an oracle)."""

    def __init__(self, allocator: Allocator):
        self.allocator = allocator

    @abstractmethod
    def choose(self, running: Seq[Sequence]) -> Sequence: ...


VICTIMS: Registry[type[Victim]] = Registry(
    "preemption.victim",
    "pagedlab.preemption.victim",
    ("last_arrived", "lowest_priority", "fewest_computed", "shortest_output", "longest_remaining", "most_blocks"),
)
