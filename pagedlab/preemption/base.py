"""Preemption: what becomes of a victim."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pagedlab.allocator.base import Allocator
from pagedlab.core.plan import Outcome, Plan
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence


@dataclass(frozen=True, slots=True)
class Taken:
    """What a preemption did. swapped_out: (block, host block) to be copied, none where the KV is lost instead: that of
    tokens_lost tokens. The rest as in the plan's record of it."""

    blocks_freed: int
    tokens_lost: int
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    fallback: bool = False
    swap_estimate_s: float | None = None
    recompute_estimate_s: float | None = None


class Preemption(ABC):
    """Takes the blocks of a running request, of all of its sequences together. They keep every prompt and generated
    token, and run again later."""

    needs_host = False
    """Whether it needs an allocator with a host pool."""
    preempts = True
    """False of the one that never does: what may need it is refused."""

    def __init__(self, allocator: Allocator, settings: Any = None):
        """settings: those of `preemption`, of an option that has any of its own."""
        self.allocator = allocator

    @abstractmethod
    def preempt(self, seq: Sequence, copied: Mapping[int, int]) -> Taken:
        """Release its blocks. Updates what its sequences have computed, or marks it swapped.

        copied: of the blocks that it was to get as copies in this step, destination to source. They are not copied.
        """

    def next_wakeup(self, now: float) -> float:
        """As `Order.next_wakeup`: of one that looks at every step the default, `now`."""
        return now

    def saw(self, plan: Plan, outcome: Outcome) -> None:  # noqa: B027 - of use to one that measures
        """A step was executed."""

    def recompute(self, seq: Sequence) -> tuple[int, int]:
        """Free all blocks. Returns how many, and how many tokens' KV is lost."""
        lost = seq.feeding[0].computed + sum(part.computed - seq.computed for part in seq.feeding[1:])
        for part in (seq, *seq.feeding):
            part.computed = 0
        return sum(self.allocator.release(part.key) for part in seq.parts), lost

    def swap(self, seq: Sequence, copied: Mapping[int, int]) -> Taken | None:
        """Move all to the host. None, and nothing changed, where that has no room."""
        free = self.allocator.pool.num_free + self.allocator.pool.num_idle
        pairs = self.allocator.swap_out(seq, copied)
        if pairs is None:
            return None
        seq.swapped = True
        return Taken(self.allocator.pool.num_free + self.allocator.pool.num_idle - free, 0, pairs)


PREEMPTIONS: Registry[type[Preemption]] = Registry(
    "preemption", "pagedlab.preemption", ("recompute", "swap", "adaptive", "none")
)
