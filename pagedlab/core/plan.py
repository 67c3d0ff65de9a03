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
    computed: int = 0  # of the tokens, so many have their KV in these blocks already


@dataclass(frozen=True, slots=True)
class Fork:
    """A row goes on from what another one holds, or itself: the first `num_tokens` tokens of row `parent`, whose KV is
    in the cache, then `token_ids`. block_ids: its block table from now on, empty where it keeps its own."""

    row: int
    parent: int
    num_tokens: int
    token_ids: list[int]
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class Copy:
    """A block to be copied before the step writes anything, for the sequence in `row`."""

    row: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Blocks of a row's block table, from entry `start` on. All are new entries, but that the first may take the place
    of a shared block, of which it gets a copy (copy-on-write)."""

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
class Plan:
    """One step. Deltas of the block tables come in the order released, forked, admitted, grown; then the blocks are
    copied, no destination of which is a source or comes twice; then the work is run.

    batch: the sequences that run. num_tokens[i]: tokens that batch[i] feeds, starting at its `computed`; they sum
    to total_tokens.
    batch[i] yields a sampled token exactly when it feeds its last known token (`samples`).
    memory_blocked: a waiting request was refused its blocks in this step, so free slots are of no use to it.
    admission_estimate: as in `Admission.estimate`, when the step was planned.
    """

    released: list[int] = field(default_factory=list)
    forked: list[Fork] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    memory_blocked: bool = False
    admission_estimate: float | None = None
    total_tokens: int = 0

    def add(self, seq: Sequence, num_tokens: int) -> None:
        self.batch.append(seq)
        self.num_tokens.append(num_tokens)
        self.total_tokens += num_tokens

    def drop(self, seq: Sequence) -> None:
        """Take a request out again, as far as it is in: it was preempted after it had got its place."""
        for part in seq.feeding:
            if part in self.batch:
                i = self.batch.index(part)
                del self.batch[i]
                self.total_tokens -= self.num_tokens.pop(i)
            self.forked = [fork for fork in self.forked if fork.row != part.row]
            self.grown = [growth for growth in self.grown if growth.row != part.row]
            self.copies = [copy for copy in self.copies if copy.row != part.row]

    def samples(self, i: int) -> bool:
        return self.num_tokens[i] == self.batch[i].to_compute


@dataclass(frozen=True, slots=True)
class Choice:
    """A token that may come next. logprob: its natural logarithm of probability, of the model, before temperature and
    filters; 0 where nobody asks. finish: as in Outcome, should it be taken."""

    token: int
    logprob: float
    finish: str | None


@dataclass(slots=True)
class Outcome:
    """What a step did.

    tokens[i]: the token sampled for batch[i], or -1 where it sampled none. finish[i]: "stop" (end-of-sequence),
    "length", or None to go on. seconds: how long it took, on the executor's clock, copy_s of them for the copies.
    choices: for each batch[i] of a request of several outputs that sampled. Of a trunk: one for each branch; of a
    branch: its token; of a beam search: the best candidates, best first, at least 2 x beam_width, of which tokens[i]
    is the first.
    """

    tokens: list[int]
    finish: list[str | None]
    seconds: float
    choices: dict[int, list[Choice]] = field(default_factory=dict)
    copy_s: float = 0.0
