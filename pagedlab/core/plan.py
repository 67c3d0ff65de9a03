"""What the scheduler hands to an executor each step (`Plan`) and what comes back (`Outcome`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pagedlab.core.request import Request, Sequence


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence that enters the batch: the executor fills its row from this, and from nothing else."""

    row: int
    request: Request
    token_ids: np.ndarray  # int32 [num_tokens]: the prompt, and after a preemption what was generated before
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class Growth:
    """Blocks appended to a row's block table, starting at table entry `start`."""

    row: int
    start: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class Preemption:
    """One preemption: who lost its blocks, for whom, why, and what it cost."""

    victim: int
    beneficiary: int
    reason: str
    blocks_freed: int
    tokens_lost: int


@dataclass(slots=True)
class Together:
    """The decoding sequences that advance as one, so that a step need not look at each: only for an executor that
    foretells its tokens. They are not in the plan's batch.

    count: of them, each feeds one token in this step; 0: none of them runs. joined: those that came to them since the
    plan before. dissolved: before that, all who were among them went back to run on their own.
    """

    count: int
    joined: list[Sequence]
    dissolved: bool


@dataclass(slots=True)
class Plan:
    """One step. Deltas of the block tables come in the order released, admitted, grown; then the work is run.

    batch: the sequences that run. num_tokens[i]: tokens that batch[i] feeds, starting at its `computed`; they sum
    to total_tokens.
    batch[i] yields a sampled token exactly when it feeds its last known token (`samples`).
    memory_blocked: a waiting request was refused its blocks in this step, so free slots are of no use to it.
    """

    released: list[int] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    memory_blocked: bool = False
    total_tokens: int = 0
    together: Together | None = None

    @property
    def num_sequences(self) -> int:
        """How many sequences run in this step."""
        return len(self.batch) + (self.together.count if self.together else 0)

    def add(self, seq: Sequence, num_tokens: int) -> None:
        self.batch.append(seq)
        self.num_tokens.append(num_tokens)
        self.total_tokens += num_tokens

    def drop(self, seq: Sequence) -> None:
        """Take a sequence out again, if it is in: it was preempted after it had got its place."""
        if seq in self.batch:
            i = self.batch.index(seq)
            del self.batch[i]
            self.total_tokens -= self.num_tokens.pop(i)
            self.grown = [growth for growth in self.grown if growth.row != seq.row]

    def samples(self, i: int) -> bool:
        return self.num_tokens[i] == self.batch[i].to_compute


@dataclass(slots=True)
class Outcome:
    """What a step did.

    tokens[i]: the token sampled for batch[i], or -1 where it sampled none. finish[i]: "stop" (end-of-sequence),
    "length", or None to go on. seconds: how long it took, on the executor's clock. ended: of the sequences that
    advanced together, those that ended, by length.
    """

    tokens: list[int]
    finish: list[str | None]
    seconds: float
    ended: list[Sequence] = field(default_factory=list)
