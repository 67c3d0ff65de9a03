"""A fake forward that depends on every slot it should, so that any fault of memory shows in the tokens.

KV of a token is a 64-bit fingerprint of (token, position, fingerprint of the token before), written through the slot
mapping; the next token, and the log probabilities of all tokens, are a function of all fingerprints of the sequence,
gathered through the block table. A stale table, an early free, a missed or late copy or a wrong slot changes what is
generated. No model, no torch, virtual time.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
import psutil

from pagedlab.core.clock import VirtualClock
from pagedlab.core.mixing import mix
from pagedlab.core.plan import Choice, Outcome, Plan
from pagedlab.core.request import SamplingParams, Sequence
from pagedlab.executor.base import EXECUTORS, CachePlan, Executor, finish_reason, num_candidates
from pagedlab.executor.inputs import InputBuilder
from pagedlab.model.shape import ModelShape
from pagedlab.settings import FingerprintExecutorSettings, Settings

_POISON = 0xDEADBEEFDEADBEEF
_GOLDEN = 0x9E3779B97F4A7C15
_SHARPNESS = 4.0  # between the most and the least likely token, in natural logarithms


def fingerprint(token: int, position: int, before: int) -> int:
    return mix(mix(before ^ mix(position)) ^ token)


def next_token(fingerprints: Seq[int] | np.ndarray, sampling: SamplingParams, index: int, vocab_size: int) -> int:
    """The index-th output token. Greedy when temperature is 0, else it depends on the request's seed as well."""
    total = int(np.bitwise_xor.reduce(np.asarray(fingerprints, dtype=np.uint64)))
    noise = mix(mix(sampling.seed) ^ index) if sampling.temperature > 0 else 0
    return mix(total ^ noise) % vocab_size


def log_probs(fingerprints: Seq[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    """float64 [vocab_size]: of each token as the next one, logarithms of probabilities that sum to 1."""
    total = np.bitwise_xor.reduce(np.asarray(fingerprints, dtype=np.uint64))
    x = total ^ (np.arange(vocab_size, dtype=np.uint64) * np.uint64(_GOLDEN))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)  # the finaliser of splitmix64, as in `mix`
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    logits: np.ndarray = (x >> np.uint64(40)).astype(np.float64) * (_SHARPNESS * 2.0**-24)
    logits -= np.log(np.exp(logits).sum())
    return logits


@EXECUTORS.register("fingerprint")
class FingerprintExecutor(Executor):
    name = "fingerprint"

    def __init__(self, settings: FingerprintExecutorSettings, cache: CachePlan):
        self.settings = settings
        self.clock = VirtualClock()
        self.num_blocks = cache.num_blocks(psutil.virtual_memory().available)
        self.kv = np.full(self.num_blocks * cache.block_size, _POISON, dtype=np.uint64)
        self.num_host_blocks = cache.host_blocks(psutil.virtual_memory().available - self.kv.nbytes)
        self.host_kv = np.full(self.num_host_blocks * cache.block_size, _POISON, dtype=np.uint64)
        self.inputs = InputBuilder(cache.max_num_seqs, cache.max_model_len, cache.block_size)
        self._eos = frozenset(() if settings.eos_token_id is None else (settings.eos_token_id,))

    @classmethod
    def create(cls, settings: Settings, folder: Path | None, shape: ModelShape, cache: CachePlan) -> Executor:
        return cls(settings.executor, cache)

    def execute(self, plan: Plan) -> Outcome:
        self.inputs.apply(plan)
        for block, host in plan.swapped_out:
            self._host_block(host)[:] = self._block(block)
        for host, block in plan.swapped_in:
            self._block(block)[:] = self._host_block(host)
            self._host_block(host)[:] = _POISON  # it is free now
        for copy in plan.copies:
            self._block(copy.destination)[:] = self._block(copy.source)
        step = self.inputs.build(plan)
        tokens: list[int] = [-1] * len(plan.batch)
        finish: list[str | None] = [None] * len(plan.batch)
        choices: dict[int, list[Choice]] = {}
        for s, i in enumerate(step.order):
            seq = plan.batch[i]
            slots = self._slots(step.block_tables[s], step.context_lens[s])
            before = int(self.kv[slots[seq.computed - 1]]) if seq.computed else 0
            for t in range(step.query_start[s], step.query_start[s + 1]):
                before = fingerprint(int(step.token_ids[t]), int(step.positions[t]), before)
                self.kv[step.slot_mapping[t]] = before
            if plan.samples(i):
                if seq.branches or seq.trunk is not None:
                    choices[int(i)] = self._choices(seq, self.kv[slots])
                    tokens[i], finish[i] = choices[int(i)][0].token, choices[int(i)][0].finish
                    continue
                tokens[i] = next_token(self.kv[slots], seq.sampling, len(seq.output), self.settings.vocab_size)
                finish[i] = finish_reason(seq, tokens[i], self._eos)
        self.inputs.append(step.sampled_seqs, np.array([tokens[i] for i in step.sampled_seqs], dtype=np.int32))
        copy_s = self.settings.copy_s * len(plan.copies)
        out_s, in_s = (self.settings.swap_s * len(pairs) for pairs in (plan.swapped_out, plan.swapped_in))
        seconds = self.settings.step_s + self.settings.token_s * plan.total_tokens + copy_s + out_s + in_s
        return Outcome(tokens, finish, seconds, choices, copy_s, swap_out_s=out_s, swap_in_s=in_s)

    def _choices(self, seq: Sequence, fingerprints: np.ndarray) -> list[Choice]:
        sampling, vocab_size = seq.sampling, self.settings.vocab_size
        if sampling.beam_width == 1 and not sampling.ranks:
            logprobs = np.zeros(vocab_size)
        else:
            logprobs = log_probs(fingerprints, vocab_size)
        if sampling.beam_width > 1:
            count = num_candidates(sampling, len(self._eos))
            likely = np.flatnonzero(logprobs >= np.partition(logprobs, -count)[-count])
            tokens = likely[np.argsort(-logprobs[likely], kind="stable")][:count].tolist()
        else:
            drawing = seq.branches or [seq]
            tokens = [next_token(fingerprints, s.sampling, len(seq.output), vocab_size) for s in drawing]
        return [Choice(token, float(logprobs[token]), finish_reason(seq, token, self._eos)) for token in tokens]

    def _block(self, block: int) -> np.ndarray:
        return self.kv[block * self.inputs.block_size : (block + 1) * self.inputs.block_size]

    def _host_block(self, block: int) -> np.ndarray:
        return self.host_kv[block * self.inputs.block_size : (block + 1) * self.inputs.block_size]

    def _slots(self, table: np.ndarray, context: int) -> np.ndarray:
        """Slots of the first `context` positions, through the block table: int64 [context]."""
        positions = np.arange(context)
        return table[positions // self.inputs.block_size].astype(np.int64) * self.inputs.block_size + (
            positions % self.inputs.block_size
        )
