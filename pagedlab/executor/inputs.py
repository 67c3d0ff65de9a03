"""The inputs of a step, built from deltas: persistent block table, slot mapping, positions, token ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagedlab.core.plan import Fork, Plan


@dataclass(slots=True)
class StepInputs:
    """A ragged batch, flattened without padding. T tokens of S sequences, decodes first.

    token_ids int32 [T], positions int64 [T], slot_mapping int64 [T]: slot of each fed token in the flat cache.
    query_start int32 [S + 1]: token i of sequence s is at query_start[s] + i. context_lens int32 [S]: tokens in
    the cache once this step has written. block_tables int32 [S, M]: M the longest table in use, the rest of a row
    is stale and must not be read. order int64 [S]: index into plan.batch of each sequence here.
    num_decodes: the first so many sequences feed one token. sampled int64 [R]: index into T of each token whose
    logits are sampled, in order of S; sampled_seqs int64 [R]: the index into plan.batch it belongs to.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray
    query_start: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    order: np.ndarray
    num_decodes: int
    sampled: np.ndarray
    sampled_seqs: np.ndarray

    @property
    def is_decode(self) -> bool:
        """Whether each sequence feeds one token, the one whose successor is sampled."""
        return self.num_decodes == len(self.sampled) == len(self.order)


class InputBuilder:
    """Keeps one row a running sequence: its block table and its token ids. A step touches only what changed."""

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int):
        self.block_size, self.max_model_len = block_size, max_model_len
        self.block_table = np.zeros((max_num_seqs, -(-max_model_len // block_size) + 1), dtype=np.int32)
        self.tokens = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        self.known = np.zeros(max_num_seqs, dtype=np.int64)  # tokens of each row so far
        self.computed = np.zeros(max_num_seqs, dtype=np.int64)  # of these, tokens already fed
        self._rows = np.zeros(0, dtype=np.int64)  # of the plan built last

    def apply(self, plan: Plan) -> None:
        """Take in the plan's deltas. A released row needs no wiping: its next owner overwrites what it will read."""
        for fork in plan.forked:
            self._fork(fork)
        for new in plan.admitted:
            self.tokens[new.row, : len(new.token_ids)] = new.token_ids
            self.known[new.row], self.computed[new.row] = len(new.token_ids), new.computed
            self._write_table(new.row, 0, new.block_ids)
        for growth in plan.grown:
            self._write_table(growth.row, growth.start, growth.block_ids)

    def _fork(self, fork: Fork) -> None:
        """Of the parent's row no fork changes what another one copies: its first tokens, whose KV it shares."""
        shared, known = fork.num_tokens, fork.num_tokens + len(fork.token_ids)
        if fork.row != fork.parent:
            self.tokens[fork.row, :shared] = self.tokens[fork.parent, :shared]
        self.tokens[fork.row, shared:known] = fork.token_ids
        self.known[fork.row], self.computed[fork.row] = known, shared
        self._write_table(fork.row, 0, fork.block_ids)

    def _write_table(self, row: int, start: int, block_ids: list[int]) -> None:
        end = start + len(block_ids)
        if end > self.block_table.shape[1]:  # a buddy may hand out more than the longest sequence needs
            wider = np.zeros((self.block_table.shape[0], end), dtype=np.int32)
            wider[:, : self.block_table.shape[1]] = self.block_table
            self.block_table = wider
        self.block_table[row, start:end] = block_ids

    def build(self, plan: Plan) -> StepInputs:
        """The step's arrays, and the rows moved on by what they feed. No Python loop over tokens."""
        counts = np.array(plan.num_tokens, dtype=np.int64)
        rows = self._rows = np.array([seq.row for seq in plan.batch], dtype=np.int64)
        num_decodes = int((counts == 1).sum())
        order = np.arange(len(rows))
        if num_decodes < len(rows):
            order = np.argsort(counts > 1, kind="stable")
            counts, rows = counts[order], rows[order]
        computed = self.computed[rows]
        context = computed + counts
        query_start = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(counts, out=query_start[1:])
        if num_decodes == len(rows):
            token_rows, positions = rows, computed
        else:
            token_rows = np.repeat(rows, counts)
            positions = np.arange(query_start[-1]) + np.repeat(computed - query_start[:-1], counts)
        entries, offsets = np.divmod(positions, self.block_size)
        samples = context == self.known[rows]
        self.computed[rows] = context
        return StepInputs(
            token_ids=self.tokens[token_rows, positions],
            positions=positions,
            slot_mapping=self.block_table[token_rows, entries] * np.int64(self.block_size) + offsets,
            query_start=query_start.astype(np.int32),
            context_lens=context.astype(np.int32),
            block_tables=self.block_table[rows, : -(-int(context.max()) // self.block_size)],
            order=order,
            num_decodes=num_decodes,
            sampled=query_start[1:][samples] - 1,
            sampled_seqs=order[samples],
        )

    def append(self, sampled_seqs: np.ndarray, tokens: np.ndarray) -> None:
        """Remember the tokens just sampled for batch[sampled_seqs] of the plan built last: they are fed next, unless
        the next plan forks those rows."""
        rows = self._rows[sampled_seqs]
        self.tokens[rows, self.known[rows]] = tokens
        self.known[rows] += 1
