"""What a client asks for (`Request`) and the engine's state of serving it (`Sequence`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen from the logits.

    temperature 0 is greedy. top_k 0 and top_p 1 switch those filters off. `seed` belongs to one request: its
    i-th token depends on (seed, i) and the logits alone, never on what else is in the batch.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One generation request.

    id: position in the workload, unique. source: where it came from (a conversation id), for people.
    prompt: token ids, int32 [prompt_tokens]. max_tokens: the most tokens it may generate, which every allocator
    may know. true_output_tokens: the length at which generation will end, hidden: only an executor (to stop) and
    what is named an oracle may read it; None when only the model's end-of-sequence token decides.
    arrival_s: seconds after the start of the run.
    """

    id: int
    prompt: np.ndarray
    max_tokens: int
    true_output_tokens: int | None = None
    arrival_s: float = 0.0
    sampling: SamplingParams = SamplingParams()
    source: str = ""

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def max_slots(self) -> int:
        """KV slots it can need at most: the last generated token is never fed back, so it needs no slot."""
        return len(self.prompt) + self.max_tokens - 1


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request being served. Owned by the scheduler; everybody else only reads it.

    row: its row in the executor's block table while it runs, else -1.
    computed: tokens whose KV is in the cache.
    output: generated token ids. A preempted sequence keeps its output and feeds it again.
    slots_unused: of its last stay in the pool, slots it was promised and never filled.
    """

    request: Request
    status: Status = Status.WAITING
    row: int = -1
    computed: int = 0
    output: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    # What the recorder reports of it.
    token_s: list[float] = field(default_factory=list)
    finish_s: float | None = None
    preemptions: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    slots_unused: int = 0
    refusal: str = ""

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens known so far."""
        return len(self.request.prompt) + len(self.output)

    @property
    def to_compute(self) -> int:
        """Known tokens whose KV is not in the cache yet: more than one while a prompt is being prefilled."""
        return len(self.request.prompt) + len(self.output) - self.computed

    def token_ids(self) -> np.ndarray:
        """All known tokens, int32 [num_tokens]."""
        if not self.output:
            return self.request.prompt
        return np.concatenate([self.request.prompt, np.asarray(self.output, dtype=np.int32)])
