"""Admit by the memory that a guess of the outputs will take at its peak (LightLLM; SGLang's new_token_ratio)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import accumulate

from pagedlab.allocator.base import Allocator
from pagedlab.core.request import Sequence
from pagedlab.scheduler.admission.base import ADMISSIONS, Admission
from pagedlab.settings import SchedulerSettings


@ADMISSIONS.register("estimated_peak")
class EstimatedPeak(Admission):
    """Each request is expected to generate `estimate` of what it may still generate. Sorted by that, the longest first,
    the pool is fullest when one of them ends: then it and those that go on longer hold what they hold now and have each
    grown by as much as it (LightLLM's `_estimate_max_token`; ASPLOS 2025). The peak must not exceed the pool.

    The estimate falls evenly from `initial` to `minimum` in decay_steps steps, and is raised when blocks run out: to
    what those that run have generated of their max_tokens, as if retract_steps steps later (SGLang's
    `new_token_ratio`, which is set to that also where it is lower, and begins anew in an idle engine).
    What prefixes share is counted once for each request.
    """

    needs_paging = True
    watches = True

    def __init__(self, settings: SchedulerSettings, allocator: Allocator):
        super().__init__(settings, allocator)
        self.guess = settings.estimated_peak
        self.estimate: float = self.guess.initial

    def allows(self, seq: Sequence, running: Seq[Sequence], freed: int = 0) -> bool:
        if not self.allocator.can_admit(seq, -freed):
            return False
        return not running or self.peak([*running, seq]) <= self.allocator.max_run * self.allocator.pool.block_size

    def peak(self, seqs: Seq[Sequence]) -> float:
        """Slots, the tails of last blocks included."""
        tail = self.allocator.pool.block_size - 1
        expected = sorted(
            (
                (
                    self.estimate * (seq.request.max_tokens - seq.generated),
                    len(seq.parts),
                    seq.request.prompt_tokens + len(seq.parts) * (seq.generated + tail),
                )
                for seq in seqs
            ),
            reverse=True,
        )
        widths = accumulate(width for _, width, _ in expected)
        held = accumulate(slots for _, _, slots in expected)
        return max(slots + left * width for (left, _, _), width, slots in zip(expected, widths, held, strict=True))

    def planned(self, running: Seq[Sequence], ran_out: bool) -> None:
        guess = self.guess
        if ran_out and running:
            generated = sum(seq.generated + guess.retract_steps for seq in running)
            seen = generated / sum(seq.request.max_tokens for seq in running)
            self.estimate = max(self.estimate, min(seen, 1.0))
        else:
            fall = (guess.initial - guess.minimum) / guess.decay_steps
            self.estimate = max(self.estimate - fall, guess.minimum)
