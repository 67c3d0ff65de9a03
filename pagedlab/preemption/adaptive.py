"""The cheaper of recomputation and swapping, for each victim (their trade: PagedAttention, SOSP 2023, section 7.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pagedlab.allocator.base import Allocator, blocks_for
from pagedlab.core.plan import Outcome, Plan
from pagedlab.core.request import Sequence
from pagedlab.preemption.base import PREEMPTIONS, Preemption, Taken
from pagedlab.settings import AdaptiveSettings


@dataclass(slots=True)
class Rate:
    """Seconds a unit: as measured since the start, `initial` until then."""

    initial: float
    seconds: float = 0.0
    units: float = 0.0

    def add(self, seconds: float, units: float) -> None:
        self.seconds += seconds
        self.units += units

    @property
    def value(self) -> float:
        return self.seconds / self.units if self.units else self.initial


@PREEMPTIONS.register("adaptive")
class Adaptive(Preemption):
    """Swaps where bytes / out + bytes / in is expected to take less time than computing the tokens again.

        swap_s = bytes x (seconds a byte out + seconds a byte in),  bytes: of the victim's blocks, each once
        recompute_s = tokens x seconds a token + pairs x seconds a pair,  pairs: of a token and one before it

    The pairs are the quadratic part, attention: tokens^2 / 2 for a prompt. With cost=model all constants are those of
    the settings. With cost=measured those of bytes and tokens are what the run has measured so far, the settings'
    until something was: swaps by themselves, tokens as the share of steps that fed prompts, as recomputation does,
    whose seconds hold the attention of such prompts already.

    What a prefix cache has of the victim is not subtracted, since room is needed, so that it may be gone.
    """

    needs_host = True

    def __init__(self, allocator: Allocator, settings: AdaptiveSettings):
        super().__init__(allocator, settings)
        self.measures = settings.cost == "measured"
        self.pair_s = 0.0 if self.measures else settings.pair_s
        self.token_s = Rate(settings.token_s)
        self.out_s = Rate(1 / settings.bytes_per_s)
        self.in_s = Rate(1 / settings.bytes_per_s)

    def preempt(self, seq: Sequence, copied: Mapping[int, int]) -> Taken:
        swap_s, recompute_s = self.estimate(seq)
        cheaper = swap_s < recompute_s
        taken = self.swap(seq, copied) if cheaper else None
        if taken is None:
            taken = Taken(*self.recompute(seq), fallback=cheaper)
        return replace(taken, swap_estimate_s=swap_s, recompute_estimate_s=recompute_s)

    def estimate(self, seq: Sequence) -> tuple[float, float]:
        """Seconds that it would cost to swap a running request out and in, and to compute it again."""
        size, holdings = self.allocator.pool.block_size, self.allocator.holdings
        blocks = {
            block for part in seq.feeding for block in holdings[part.key].table[: blocks_for(part.computed, size)]
        }
        num_bytes = len(blocks) * (self.allocator.host.block_bytes if self.allocator.host else 0)
        # The prompt once, then what each sequence has generated, to which the prompt comes before.
        begun = [0] + [seq.computed] * (len(seq.feeding) - 1)
        spans = [(start, part.computed) for start, part in zip(begun, seq.feeding, strict=True)]
        tokens = sum(end - start for start, end in spans)
        pairs = sum(end * end - start * start for start, end in spans) / 2
        return (
            num_bytes * (self.out_s.value + self.in_s.value),
            tokens * self.token_s.value + pairs * self.pair_s,
        )

    def saw(self, plan: Plan, outcome: Outcome) -> None:
        if not self.measures:
            return
        block_bytes = self.allocator.host.block_bytes if self.allocator.host else 0
        self.out_s.add(outcome.swap_out_s, len(plan.swapped_out) * block_bytes)
        self.in_s.add(outcome.swap_in_s, len(plan.swapped_in) * block_bytes)
        prompts = sum(n for n in plan.num_tokens if n > 1)
        if prompts:
            seconds = outcome.seconds - outcome.copy_s - outcome.swap_s
            self.token_s.add(seconds * prompts / plan.total_tokens, prompts)
