"""Admission: whether the next waiting sequence may have its blocks now."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

from pagedlab.allocator.base import Allocator
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence
from pagedlab.settings import SchedulerSettings


class Admission(ABC):
    """Asked once for each candidate. Never says no to a candidate that fits an empty pool: it would wait for ever."""

    refuses_for_memory = True
    """Whether a refusal means that memory is short: free slots then count as external."""
    overcommits = True
    """Whether those it lets in may come to need more blocks than there are, so that some must be preempted."""
    watches = False
    """Whether it asks what those that run have generated so far: they are then looked at in every step, also where
    they could advance together."""
    needs_paging = False
    """Whether it counts blocks that are taken on demand: an allocator that reserves leaves it nothing to decide."""
    estimate: float | None = None
    """The share of its remaining max_tokens that a request is expected to generate, where that is guessed."""

    def __init__(self, settings: SchedulerSettings, allocator: Allocator):
        self.settings = settings
        self.allocator = allocator

    @abstractmethod
    def allows(self, seq: Sequence, running: Seq[Sequence], freed: int = 0) -> bool:
        """running: the requests beside which it would run. freed: blocks that become available before it enters."""

    def planned(self, running: Seq[Sequence], ran_out: bool) -> None:  # noqa: B027 - of use to those that guess
        """A step is planned. ran_out: somebody was preempted in it for want of a block."""

    def next_wakeup(self, now: float) -> float:
        """Until when (seconds) it decides the same over and over, if nobody arrives, is admitted or ends, and free
        blocks only become fewer: steps may be skipped until then. `now`, the default, is never."""
        return now


ADMISSIONS: Registry[type[Admission]] = Registry(
    "scheduler.admission",
    "pagedlab.scheduler.admission",
    ("on_demand", "one_at_a_time", "reserve_output", "estimated_peak"),
)
