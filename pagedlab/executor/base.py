"""The executor contract: run a plan, say what was sampled and how long it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from pagedlab.core.clock import Clock
from pagedlab.core.errors import InvariantError
from pagedlab.core.plan import Coasted, Entry, Outcome, Plan, Together
from pagedlab.core.registry import Registry
from pagedlab.core.request import Request, SamplingParams, Sequence
from pagedlab.model.shape import ModelShape
from pagedlab.settings import Settings


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How large a KV cache to make. num_blocks(free bytes of the device once the model is loaded) decides N,
    host_blocks(free bytes of the host's memory besides) how many blocks may be swapped out. contiguous: whether every
    sequence is one run of consecutive blocks."""

    num_blocks: Callable[[int], int]
    block_size: int
    max_num_seqs: int
    max_model_len: int
    host_blocks: Callable[[int], int] = lambda free_bytes: 0
    contiguous: bool = False


class Executor(ABC):
    """Runs plans in order. All it knows of memory is the deltas of each plan; what it samples, and when a request
    ends, is its own business: it alone (beside oracles) may read a request's true output length."""

    clock: Clock
    num_blocks: int
    num_host_blocks: int
    kernel_name: str | None = None
    """The attention kernel it runs, where it runs one: what `kernel=auto` came to."""
    optimized: str | None = None
    """What `model.optimize=auto` came to, in words, where it was asked for and there is a model."""

    foretold: Callable[[Request, int, int], list[int]] | None = None
    """For an executor whose tokens depend on no KV: (request, start, stop) -> its output tokens start to stop. The
    scheduler may then advance decoding sequences together (`Plan.together`), and execute must follow that."""

    worth_loading: Callable[[int, int, Seq[str]], int] | None = None
    """For an executor that prices tiers: as `hardware.tiers.worth_loading` says, of its own cost model and tiers."""

    def coast(self, together: Together, grown: Iterator[int], until: float, through: bool) -> Coasted:
        """Run steps in which nobody but these runs, and move the clock: until one ends at `until` seconds or later, or
        no more is said of the blocks that their tables grow by (`grown`, for each step), or somebody ends; `through`:
        only if that is the last or asks again. Only for an executor that foretells its tokens. One step at least is
        run."""
        raise InvariantError(f"executor {type(self).__name__} foretells no token, so each of its steps is planned")

    def enter(self, entry: Entry) -> tuple[float, list[Sequence]]:
        """Run a step that nobody planned, of prompts: its seconds, and who ends with the token that it gets. Only for
        an executor that foretells its tokens."""
        raise InvariantError(f"executor {type(self).__name__} foretells no token, so each of its steps is planned")

    @classmethod
    @abstractmethod
    def create(cls, settings: Settings, folder: Path | None, shape: ModelShape, cache: CachePlan) -> Executor:
        """Load what is to be run and allocate its KV cache."""

    @abstractmethod
    def execute(self, plan: Plan) -> Outcome: ...

    def close(self) -> None:  # noqa: B027 - most executors have nothing to give back
        """Give back what it holds."""


EXECUTORS: Registry[type[Executor]] = Registry("executor", "pagedlab.executor", ("torch", "fingerprint", "simulated"))


def num_candidates(sampling: SamplingParams, num_eos_tokens: int) -> int:
    """How many continuations a beam search looks at: however many of them end a sequence, beam_width go on (as
    transformers' `_beam_search`)."""
    return sampling.beam_width * max(2, 1 + (0 if sampling.ignore_eos else num_eos_tokens))


def finish_reason(seq: Sequence, token: int, eos_token_ids: frozenset[int]) -> str | None:
    """Whether `token`, just sampled, ends the sequence: "stop" at an end-of-sequence token (unless ignore_eos),
    "length" at the true length, where it is known, or at max_tokens."""
    if token in eos_token_ids and not seq.request.sampling.ignore_eos:
        return "stop"
    return "length" if len(seq.output) + 1 >= output_limit(seq.request) else None


def output_limit(request: Request) -> int:
    """The most tokens that the request will generate: its true length, where it is known, or max_tokens."""
    if request.true_output_tokens is None:
        return request.max_tokens
    return min(request.max_tokens, request.true_output_tokens)
