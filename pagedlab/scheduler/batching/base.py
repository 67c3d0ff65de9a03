"""Batching: what runs in a step, and how many tokens each sequence feeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pagedlab.core.plan import Entry, Plan
from pagedlab.core.registry import Registry

if TYPE_CHECKING:
    from pagedlab.scheduler.scheduler import Scheduler


class Batching(ABC):
    """Fills a plan by the scheduler's primitives `decode_all`, `prefill`, `admit_next`, within `max_tokens` tokens."""

    answers_together = False
    """Whether a request is answered only when all of its batch have ended. Latencies of the recorder do not know it."""

    def __init__(self, max_tokens: int):
        self.max_tokens = max_tokens

    @abstractmethod
    def fill(self, plan: Plan, scheduler: Scheduler) -> None: ...

    @property
    def closed(self) -> bool:
        """Whether nobody is let in, whatever the memory, before somebody ends."""
        return False

    def left(self, plan: Plan) -> int:
        """Tokens that the step may still feed. Asked anew each time: who yields to somebody takes its own back."""
        return self.max_tokens - plan.total_tokens

    def enter(self, entry: Entry, scheduler: Scheduler) -> None:  # noqa: B027 - of use where prompts have steps alone
        """Where all who run decode, but for those in the middle of their prompts, and none who wait ever ran: the
        prompts, if they are all that the next step feeds, by the scheduler's `feed` and `enter_next`. Where it feeds
        none the step is planned."""

    def next_wakeup(self, now: float) -> float:
        """Until when (seconds) it decides the same over and over, if nobody arrives, is admitted or ends, and free
        blocks only become fewer: steps may be skipped until then. `now`, the default, is never."""
        return now


BATCHINGS: Registry[type[Batching]] = Registry(
    "scheduler.batching", "pagedlab.scheduler.batching", ("prefill_first", "chunked", "static", "iteration")
)
