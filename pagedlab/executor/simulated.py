"""No forward at all: each step costs what the cost model says of `hardware`, on a virtual clock.

The scheduler, the allocator and every policy run as they do with a model; only tokens are made up and time is priced.
No torch, no transformers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from math import log
from pathlib import Path

import psutil

from pagedlab.core.clock import VirtualClock
from pagedlab.core.errors import ConfigError, InvariantError
from pagedlab.core.mixing import mix, uniform
from pagedlab.core.plan import Choice, Coasted, Entry, Load, Outcome, Plan, Together
from pagedlab.core.request import Request, Sequence
from pagedlab.executor.base import EXECUTORS, CachePlan, Executor, finish_reason, num_candidates, output_limit
from pagedlab.hardware.cost import CostModel, StepWork
from pagedlab.hardware.tiers import load_s, store_s, tier_settings, worth_loading
from pagedlab.model.architecture import architecture_of
from pagedlab.model.config import read_config
from pagedlab.model.dtype import dtype_bytes
from pagedlab.model.shape import ModelShape
from pagedlab.settings import Settings, TierSettings

# Python holds each of the ints below 257 once, so a list of them takes 8 bytes a token and no object.
_DISTINCT = 256
_MOST_STEPS = 4096  # at a time, so that a run can be stopped between two
# SmolLM2-135M-Instruct's beams on ten questions of Alpaca's kind, 70 tokens, width 4: its likeliest token has a mean
# log probability of -0.69, the mean steps from candidate to candidate are 2.2, 0.99, 0.62, 0.49, 0.40, 0.32: as of
# exponentials in order, 2 / k. Of 4 beams 3.2 have a successor in a step; 2.95 of those made up so.
_FIRST_CANDIDATE, _CANDIDATE_STEP = 0.7, 2.0
_BYTES_OF_A_BLOCK = 256  # of this machine's memory: its entries in the pool and in a table


@EXECUTORS.register("simulated")
class SimulatedExecutor(Executor):
    """Every request generates its true length, where it is known, else max_tokens; there is no end-of-sequence token.

    Follows `Plan.together`: what it needs of those sequences (how many, how many whole blocks of context, who ends
    when) it keeps up to date with what changes, so a decode step costs the same for 1 as for 256.
    """

    name = "simulated"

    def __init__(
        self,
        cost: CostModel,
        num_blocks: int,
        vocab_size: int,
        overlap: bool = False,
        num_host_blocks: int = 0,
        tiers: dict[str, TierSettings] | None = None,
        stores: str = "beside",
    ):
        """tiers: by name, those that blocks are brought up from. stores: how what goes down to them is priced, as
        `TiersSettings.store`."""
        self.clock = VirtualClock()
        self.cost = cost
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.overlap = overlap
        self._tiers = tiers or {}
        self._stores = stores
        self.worth_loading = partial(worth_loading, cost, self._tiers)
        distinct = min(vocab_size, _DISTINCT)
        self._ring = list(range(distinct))
        self._vocab_size = vocab_size
        self._together = _Followed(cost.block_size)
        self.foretold = self.output_tokens

    @classmethod
    def create(cls, settings: Settings, folder: Path | None, shape: ModelShape, cache: CachePlan) -> Executor:
        width = dtype_bytes(settings.model.dtype)
        model = architecture_of(read_config(settings.model, folder))
        cost = CostModel(model, settings.hardware, width, cache.block_size, cache.contiguous)
        free = cost.free_bytes(settings.scheduler.max_num_batched_tokens, cache.max_num_seqs)
        num_blocks = cache.num_blocks(free)
        available = psutil.virtual_memory().available
        num_host_blocks = cache.host_blocks(available)
        if (num_blocks + num_host_blocks) * _BYTES_OF_A_BLOCK > available:
            raise ConfigError(
                f"{num_blocks + num_host_blocks} blocks: a simulation takes {_BYTES_OF_A_BLOCK} bytes for each, this "
                f"machine has {available} free"
            )
        tiers = tier_settings(settings.tiers)
        overlap, stores = settings.executor.overlap, settings.tiers.store
        return cls(cost, num_blocks, shape.vocab_size, overlap, num_host_blocks, tiers, stores)

    def output_tokens(self, request: Request, start: int, stop: int) -> list[int]:
        """Made-up tokens: they count up from a number of the request's own, in a ring of at most 256."""
        ring = self._ring
        first = (mix(request.sampling.seed) + start) % len(ring)
        tokens = ring[first : first + stop - start]
        while len(tokens) < stop - start:
            tokens += ring[: stop - start - len(tokens)]
        return tokens

    def execute(self, plan: Plan) -> Outcome:
        batch, together, ring = plan.batch, plan.together, self._ring
        ended: list[Sequence] = []
        count = slots = blocks = 0
        if together is not None:
            ended, count = self._together.follow(together), together.count
            if count:
                slots, blocks = self._together.slots, together.owed
        for new in plan.admitted:
            blocks += len(new.block_ids)
        for growth in plan.grown:
            blocks += len(growth.block_ids)
        work = StepWork(plan.total_tokens, len(batch) + count, count, slots, count, len(plan.admitted), blocks)
        tokens: list[int] = [-1] * len(batch)
        finish: list[str | None] = [None] * len(batch)
        choices: dict[int, list[Choice]] = {}
        size = self.cost.block_size
        for i, (seq, fed) in enumerate(zip(batch, plan.num_tokens, strict=True)):
            request, computed, known = seq.request, seq.computed, len(seq.output)
            _feed(work, fed, computed, size)
            if fed < len(request.prompt) + known - computed:
                continue
            work.sampled += 1
            if seq.branches or seq.trunk is not None:
                choices[i] = self._choices(seq)
                tokens[i], finish[i] = choices[i][0].token, choices[i][0].finish
                continue
            tokens[i] = ring[(mix(request.sampling.seed) + known) % len(ring)]
            if known + 1 >= output_limit(request):
                finish[i] = "length"
        seconds = self.cost.step_s(work, self.overlap)
        if not plan.moves:
            return Outcome(tokens, finish, seconds, choices, ended=ended)
        copy_s = self.cost.copy_s(len(plan.copies))
        out_s, in_s = self.cost.swap_out_s(len(plan.swapped_out)), self.cost.swap_in_s(len(plan.swapped_in))
        up_s = sum([self._load_s(load) for load in plan.loads], 0.0)
        seconds = seconds + copy_s + out_s + in_s + up_s
        down_s = self._waited_s(plan.stores, seconds)
        return Outcome(tokens, finish, seconds + down_s, choices, copy_s, ended, out_s, in_s, up_s, down_s)

    def _load_s(self, load: Load) -> float:
        return load_s(self._tiers[load.tier], self.cost.hardware, load.blocks * self.cost.block_bytes)

    def _waited_s(self, stores: list[tuple[str, int]], seconds: float) -> float:
        """By how much what goes down makes a step of `seconds` longer. Each tier has a way of its own to it."""
        if not stores or self._stores == "free":
            return 0.0
        size, hardware = self.cost.block_bytes, self.cost.hardware
        slowest = max([store_s(name, self._tiers[name], hardware, blocks * size) for name, blocks in stores])
        return slowest if self._stores == "first" else max(0.0, slowest - seconds)

    def enter(self, entry: Entry) -> tuple[float, list[Sequence]]:
        if entry.together is not None:
            self._together.take_in(entry.together)
        work = StepWork(entry.total_tokens, len(entry.seqs), 0, 0, 0, len(entry.new), entry.blocks)
        ended, size = list[Sequence](), self.cost.block_size
        for seq, fed in zip(entry.seqs, entry.num_tokens, strict=True):
            request, computed = seq.request, seq.computed
            _feed(work, fed, computed, size)
            if computed + fed == len(request.prompt):
                work.sampled += 1
                if output_limit(request) <= 1:
                    ended.append(seq)
        return self.cost.step_s(work, self.overlap), ended

    def coast(self, together: Together, grown: Iterator[int], until: float, through: bool) -> Coasted:
        followed, now, count = self._together, self.clock.now(), together.count
        followed.take_in(together)
        ends, taken, pieces, grown_by = list[float](), list[int](), list[tuple[int, list[Sequence]]](), 0
        price, next_end = self.cost.of_decodes(count, self.overlap), followed.next_end
        steps, blocks, enter, size = followed.steps, followed.blocks, followed.enter, followed.size
        for new in grown:
            blocks += enter[steps % size]  # as `step`
            steps += 1
            now += price(blocks * size, new)
            grown_by += new
            ends.append(now)
            taken.append(grown_by)
            if steps == next_end:
                followed.steps, followed.blocks = steps, blocks
                ended = followed.ended()
                pieces.append((len(ends), ended))
                count -= len(ended)
                blocks, grown_by = followed.blocks, 0
                for seq in ended:
                    through = through and seq.request.follow_up is None
                if not through or not count:
                    break
                together.ended += ended
                price, next_end = self.cost.of_decodes(count, self.overlap), followed.next_end
            if now >= until or len(ends) == _MOST_STEPS:
                break
        followed.steps, followed.blocks = steps, blocks
        if not pieces or pieces[-1][0] < len(ends):
            pieces.append((len(ends), []))
        self.clock.wait_until(now)
        return Coasted(ends, taken, pieces)

    def _choices(self, seq: Sequence) -> list[Choice]:
        """Of a request of several outputs. What a beam search may go on with is less likely by a drawn step, from one
        candidate to the next, exponential in log probability: beams then die out and split as a language model's."""
        sampling, index = seq.sampling, len(seq.output)
        choices: list[Choice] = []
        if sampling.beam_width == 1:
            drawing = seq.branches or [seq]
            offer = [(self._ring[(mix(s.sampling.seed) + index) % len(self._ring)], s.sampling.seed) for s in drawing]
            return [
                Choice(token, log(uniform(seed, index)), finish_reason(seq, token, frozenset()))
                for token, seed in offer
            ]
        seed, logprob = mix(mix(sampling.seed) ^ seq.index), 0.0
        for k in range(num_candidates(sampling, 0)):
            logprob += log(1 - uniform(seed + k, index)) * (_CANDIDATE_STEP / k if k else _FIRST_CANDIDATE)
            token = (seed + index + k) % self._vocab_size
            choices.append(Choice(token, logprob, finish_reason(seq, token, frozenset())))
        return choices


def _feed(work: StepWork, fed: int, computed: int, block_size: int) -> None:
    """A sequence feeds so many tokens, behind those that it has computed."""
    if fed == 1:
        work.decodes += 1
        work.decode_slots += (computed // block_size + 1) * block_size
    else:
        work.chunks.append((fed, computed))


class _Followed:
    """The sequences that advance together. slots: their contexts in whole blocks, in the step followed last."""

    def __init__(self, block_size: int):
        self.size = block_size
        self._forget()

    def _forget(self) -> None:
        self.slots = 0
        self.steps = 0
        self.blocks = 0  # of all their contexts
        # A sequence enters a new block every `size` steps: how many do so at steps of each remainder.
        self.enter = [0] * self.size
        # (steps when it ends, id, its remainder, tokens in the cache less the steps taken then, the sequence).
        self._ends: list[tuple[int, int, int, int, Sequence]] = []

    def follow(self, together: Together) -> list[Sequence]:
        """Take in who joined, run the step if they run: those that end in it."""
        self.take_in(together)
        if not together.count:
            return []
        self.step()
        return self.ended()

    def take_in(self, together: Together) -> None:
        if together.dissolved:
            self._forget()
        for seq in together.joined:
            computed = seq.computed
            enter = (self.steps - computed) % self.size
            self.enter[enter] += 1
            self.blocks += -(-computed // self.size)
            ends = self.steps + output_limit(seq.request) - len(seq.output)
            heapq.heappush(self._ends, (ends, seq.id, enter, computed - self.steps, seq))
        if together.count and together.count != len(self._ends):
            raise InvariantError(f"{together.count} sequences advance together, {len(self._ends)} are known")

    def step(self) -> None:
        """All run a step."""
        self.blocks += self.enter[self.steps % self.size]
        self.steps += 1
        self.slots = self.blocks * self.size

    @property
    def next_end(self) -> int:
        """When somebody ends, who runs in the last of so many steps."""
        return self._ends[0][0]

    def ended(self) -> list[Sequence]:
        """Those that ended in the last step, who are followed no longer."""
        ended, ends = [], self._ends
        while ends and ends[0][0] == self.steps:
            _, _, enter, offset, seq = heapq.heappop(ends)
            self.enter[enter] -= 1
            self.blocks -= -(-(offset + self.steps) // self.size)
            ended.append(seq)
        return ended
