"""What the scheduler hands to an executor each step (`Plan`) and what comes back (`Outcome`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pagedlab.core.request import Request, Sequence


@dataclass(slots=True)
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
    """One preemption: who lost its blocks, for whom, why, and what it cost.

    kind: recompute, or swap: bytes_moved were copied to the host, in blocks_moved blocks. fallback: it was to be a
    swap, and the host had no room. swap_estimate_s, recompute_estimate_s: what each was expected to cost, by a policy
    that compares them.
    """

    victim: int
    beneficiary: int
    reason: str
    blocks_freed: int
    tokens_lost: int
    kind: str = "recompute"
    blocks_moved: int = 0
    bytes_moved: int = 0
    fallback: bool = False
    swap_estimate_s: float | None = None
    recompute_estimate_s: float | None = None


@dataclass(frozen=True, slots=True)
class Return:
    """A swapped request that is back. blocks_moved, bytes_moved: from the host. blocks_attached: found in the prefix
    cache instead."""

    request_id: int
    blocks_moved: int
    bytes_moved: int
    blocks_attached: int


@dataclass(frozen=True, slots=True)
class Load:
    """Blocks that a request found in a tier below the device, to be brought up before the step."""

    request_id: int
    tier: str
    blocks: int


@dataclass(slots=True)
class Together:
    """The decoding sequences that advance as one, so that a step need not look at each: only for an executor that
    foretells its tokens. They are not in the plan's batch.

    count: of them, each feeds one token in this step; 0: none of them runs. joined: those that came to them since the
    plan before. dissolved: before that, all who were among them went back to run on their own. owed: blocks that their
    tables grow by in this step and that nobody has numbered yet. ended: where they coast, who has ended meanwhile: the
    executor says so before it asks for the growth in the next step.
    """

    count: int
    joined: list[Sequence]
    dissolved: bool
    owed: int = 0
    ended: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """One step. Deltas of the block tables come in the order released, forked, admitted, grown. Then blocks are moved:

    1. swapped_out, (block, host block): of preempted requests. First, since what they leave may be overwritten from
       here on, by whoever the step gives it to.
    2. swapped_in, (host block, block): of requests that return. No host block is a destination of 1.
    3. copies, also of what has just come back.

    No destination comes twice, of 2 and 3 together, and within one of the three no block is source and destination:
    each of them may be done in any order. Then the work is run.

    batch: the sequences that run. num_tokens[i]: tokens that batch[i] feeds, starting at its `computed`; they sum
    to total_tokens.
    batch[i] yields a sampled token exactly when it feeds its last known token (`samples`).
    memory_blocked: a waiting request was refused its blocks in this step, so free slots are of no use to it.
    loads: of the admitted, what comes from tiers below the device, for an executor that simulates them. stores: what
    goes down for it, (tier, blocks).
    admission_estimate: as in `Admission.estimate`, when the step was planned.
    """

    released: list[int] = field(default_factory=list)
    forked: list[Fork] = field(default_factory=list)
    admitted: list[Admission] = field(default_factory=list)
    grown: list[Growth] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    swapped_out: list[tuple[int, int]] = field(default_factory=list)
    swapped_in: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)
    returned: list[Return] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    stores: list[tuple[str, int]] = field(default_factory=list)
    batch: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    memory_blocked: bool = False
    admission_estimate: float | None = None
    total_tokens: int = 0
    together: Together | None = None

    @property
    def num_sequences(self) -> int:
        """How many sequences run in this step."""
        return len(self.batch) + (self.together.count if self.together else 0)

    @property
    def moves(self) -> bool:
        """Whether blocks are moved before the step."""
        return bool(self.copies or self.swapped_out or self.swapped_in or self.loads or self.stores)

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
    "length", or None to go on. seconds: how long it took, on the executor's clock, copy_s of them for the copies,
    swap_out_s and swap_in_s for what went to the host and came back, load_s for what came from tiers, store_s for what
    went down to them, as far as that was waited for.
    choices: for each batch[i] of a request of several outputs that sampled. Of a trunk: one for each branch; of a
    branch: its token; of a beam search: the best candidates, best first, at least 2 x beam_width, of which tokens[i]
    is the first. ended: of the sequences that advanced together, those that ended, by length.
    """

    tokens: list[int]
    finish: list[str | None]
    seconds: float
    choices: dict[int, list[Choice]] = field(default_factory=dict)
    copy_s: float = 0.0
    ended: list[Sequence] = field(default_factory=list)
    swap_out_s: float = 0.0
    swap_in_s: float = 0.0
    load_s: float = 0.0
    store_s: float = 0.0

    @property
    def swap_s(self) -> float:
        return self.swap_out_s + self.swap_in_s


@dataclass(slots=True)
class Entry:
    """A step that feeds prompts and nothing else, of requests of one output: all that such a plan would say.

    num_tokens[i]: of the prompt of seqs[i]; they sum to total_tokens. new: of these, those that enter the batch, to
    which so many blocks were given. together: as in Plan, none of them runs. memory_blocked: as in Plan.
    """

    seqs: list[Sequence] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    total_tokens: int = 0
    new: list[Sequence] = field(default_factory=list)
    blocks: int = 0
    together: Together | None = None
    memory_blocked: bool = False


@dataclass(slots=True)
class Coasted:
    """Steps that those who advance together took with nothing to decide between them.

    ends: when each step ended. pieces: (steps taken by then, who ended in the last of them), in order, up to all of
    them: within a piece the same sequences run. grown: blocks that their tables have grown by after each step, since
    its piece began.
    """

    ends: list[float]
    grown: list[int]
    pieces: list[tuple[int, list[Sequence]]]
