"""What a client asks for (`Request`) and the engine's state of serving it (`Sequence`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

import numpy as np

from pagedlab.core.mixing import mix
from pagedlab.core.told import Growing


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen from the logits.

    temperature 0 is greedy. top_k 0 and top_p 1 switch those filters off. `seed` belongs to one request: its
    i-th token depends on (seed, i) and the logits alone, never on what else is in the batch.

    best_of outputs are sampled (as many as n where it is None) and the n best are the answer: those of the highest
    log probability a token, as the OpenAI API defines it. beam_width above 1 is beam search instead, whose answer is
    all of its beams, best first, scored by log probability / length ** length_penalty. early_stopping: "false",
    "true" or "never", as in transformers.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = True
    n: int = 1
    best_of: int | None = None
    beam_width: int = 1
    length_penalty: float = 1.0
    early_stopping: str = "false"

    @property
    def width(self) -> int:
        """How many sequences of the request run side by side."""
        return self.beam_width if self.beam_width > 1 else self.best_of or self.n

    @property
    def ranks(self) -> bool:
        """Whether more is sampled than is asked for, so that log probabilities must choose."""
        return self.beam_width == 1 and self.width > self.n

    def of_child(self, index: int) -> SamplingParams:
        """Of the index-th sequence of the request: with a seed of its own, the first one's being the request's."""
        return self if index == 0 else replace(self, seed=mix(mix(self.seed & (2**64 - 1)) ^ index) >> 1)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One generation request.

    id: position in the workload, unique. source: where it came from (a conversation id), for people.
    prompt: token ids, int32 [prompt_tokens]. max_tokens: the most tokens it may generate, which every allocator
    may know. true_output_tokens: the length at which generation will end, hidden: only an executor (to stop) and
    what is named an oracle may read it; None when only the model's end-of-sequence token decides.
    arrival_s: seconds after the start of the run.

    To a scheduler: client is whom it is for, where service is to be fair; of two priorities the lower goes first.

    To a prefix cache: cache_salt and adapter keep requests apart that do not have the same. cache_priority (0 to 100)
    and cache_ttl_s (seconds) are for eviction policies that go by them. The blocks of its first pin_tokens tokens stay
    cached, as far as pins may.

    follow_up: what its client asks once it has the answer.
    """

    id: int
    prompt: np.ndarray
    max_tokens: int
    true_output_tokens: int | None = None
    arrival_s: float = 0.0
    sampling: SamplingParams = SamplingParams()
    source: str = ""
    cache_salt: str = ""
    adapter: str = ""
    cache_priority: int = 35
    cache_ttl_s: float | None = None
    pin_tokens: int = 0
    client: str = ""
    priority: int = 0
    follow_up: FollowUp | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def max_slots(self) -> int:
        """KV slots it can need at most: the last generated token is never fed back, so it needs no slot."""
        return len(self.prompt) + self.max_tokens - 1

    @property
    def width(self) -> int:
        """Sequences that run side by side to serve it."""
        return self.sampling.width


class FollowUp(Protocol):
    """The turns of a conversation that are still to come."""

    @property
    def turns(self) -> int:
        """How many, each after the answer to the one before."""

    def request(self, before: Request, answer: np.ndarray, ended_s: float) -> Request:
        """The next one. before: the turn that ended at ended_s seconds; answer: what was generated, int32 [tokens]."""


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Completion:
    """One output of a request. score: what ranks it among the others, None where nothing does."""

    token_ids: Growing[int]
    score: float | None
    finish_reason: str | None


Key = int | tuple[int, int]
"""By what an allocator knows a sequence: the request's id, and the index of the sequence unless that is 0."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A request being served. Owned by the scheduler; everybody else only reads it.

    row: its row in the executor's block table while it runs, else -1.
    computed: tokens whose KV is in the cache, or on the host while it is swapped out.
    output: generated token ids. A preempted sequence keeps its output and feeds it again.
    swapped: it waits, and its KV lies on the host.
    slots_unused: of its last stay in the pool, slots it was promised and never filled.

    A request of several outputs has a sequence for itself, the trunk, and one for each output, its branches. The
    trunk waits, is admitted, feeds the prompt and then forks: from there on the branches run, until they have ended
    or the request is preempted. The trunk's output is the first of the answer, once all have ended.
    """

    request: Request
    status: Status = Status.WAITING
    row: int = -1
    computed: int = 0
    output: Growing[int] = field(default_factory=list)
    finish_reason: str | None = None
    # Of a request of several outputs.
    index: int = 0
    trunk: Sequence | None = None
    branches: list[Sequence] = field(default_factory=list)
    forked: bool = False
    swapped: bool = False
    answer: list[Completion] = field(default_factory=list)
    # What a prefix cache knows of it.
    chain: Any = None
    # What the recorder reports of it.
    token_s: Growing[float] = field(default_factory=list)
    finish_s: float | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    slots_unused: int = 0
    refusal: str = ""
    # Of the request: asked for at every turn.
    id: int = field(init=False)
    sampling: SamplingParams = field(init=False)

    def __post_init__(self) -> None:
        self.id, self.sampling = self.request.id, self.request.sampling

    @property
    def key(self) -> Key:
        return (self.request.id, self.index) if self.index else self.request.id

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.request.prompt) + len(self.output)

    @property
    def to_compute(self) -> int:
        """Known tokens whose KV is not in the cache yet: more than one while a prompt is being prefilled."""
        return len(self.request.prompt) + len(self.output) - self.computed

    @property
    def parts(self) -> list[Sequence]:
        """The sequences that need memory and a row to serve it: itself, or its branches that have not ended."""
        if not self.branches:
            return [self]
        return [branch for branch in self.branches if branch.status is not Status.FINISHED]

    @property
    def num_parts(self) -> int:
        return len(self.parts) if self.branches else 1

    @property
    def generated(self) -> int:
        """Tokens that the request has got, each of its sequences, before a preemption included."""
        return len(self.token_s)

    @property
    def feeding(self) -> list[Sequence]:
        """The sequences that feed tokens now: itself, or, once it has forked, its branches that have not ended."""
        return self.parts if self.forked else [self]

    @property
    def num_feeding(self) -> int:
        return len(self.parts) if self.forked else 1

    @property
    def pending(self) -> int:
        """Tokens that the request still has to feed: once it has forked, of the branch that has the most."""
        return max(part.to_compute for part in self.parts) if self.forked else self.to_compute

    def token_ids(self) -> np.ndarray:
        """All known tokens, int32 [num_tokens]."""
        if not len(self.output):
            return self.request.prompt
        return np.concatenate([self.request.prompt, np.asarray(self.output, dtype=np.int32)])

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer, so far: of all n samples, of the best beam."""
        if not self.branches:
            return len(self.output)
        return sum(len(output.token_ids) for output in self.outputs()[: self.sampling.n])

    def outputs(self) -> list[Completion]:
        """What the request has come to: its answer, or as far as it is."""
        if self.answer:
            return self.answer
        return [Completion(seq.output, None, seq.finish_reason) for seq in self.branches or [self]]
