"""The inputs of a step against a model that keeps one Python list a sequence and counts tokens one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.plan import Admission, Fork, Growth, Plan
from pagedlab.core.request import Request, Sequence
from pagedlab.executor.inputs import InputBuilder

ROWS = 4
MAX_LEN = 20


@dataclass
class Row:
    """What is known of the sequence in a row, told token by token."""

    seq: Sequence
    tokens: list[int]
    blocks: list[int]
    computed: int = 0


@dataclass
class Naive:
    """The same step, written for reading."""

    block_size: int
    rows: dict[int, Row] = field(default_factory=dict)

    def slot(self, row: Row, position: int) -> int:
        return row.blocks[position // self.block_size] * self.block_size + position % self.block_size

    def expect(self, plan: Plan) -> dict[str, list]:
        order = [i for i, n in enumerate(plan.num_tokens) if n == 1] + [
            i for i, n in enumerate(plan.num_tokens) if n > 1
        ]
        want: dict[str, list] = {
            "token_ids": [],
            "positions": [],
            "slot_mapping": [],
            "query_start": [0],
            "context_lens": [],
            "order": order,
            "sampled": [],
            "sampled_seqs": [],
        }
        for i in order:
            row = self.rows[plan.batch[i].row]
            for _ in range(plan.num_tokens[i]):
                want["token_ids"].append(row.tokens[row.computed])
                want["positions"].append(row.computed)
                want["slot_mapping"].append(self.slot(row, row.computed))
                row.computed += 1
            want["query_start"].append(len(want["token_ids"]))
            want["context_lens"].append(row.computed)
            if row.computed == len(row.tokens):
                want["sampled"].append(len(want["token_ids"]) - 1)
                want["sampled_seqs"].append(i)
        return want


def sequence(row: int, tokens: list[int], id: int = 0) -> Sequence:
    request = Request(id, np.array(tokens, dtype=np.int32), MAX_LEN)
    return Sequence(request, row=row)


def admit(plan: Plan, seq: Sequence, blocks: list[int]) -> None:
    plan.admitted.append(Admission(seq.row, seq.request, seq.token_ids(), blocks))


def snapshot(builder: InputBuilder) -> list[np.ndarray]:
    return [builder.block_table.copy(), builder.tokens.copy(), builder.known.copy(), builder.computed.copy()]


def changed_rows(before: np.ndarray, after: np.ndarray) -> set[int]:
    """Rows of which any number is another one; columns that were added count as zeros before."""
    if before.ndim == 2:
        before = np.pad(before, [(0, 0), (0, after.shape[1] - before.shape[1])])
        return set(np.flatnonzero((before != after).any(axis=1)).tolist())
    return set(np.flatnonzero(before != after).tolist())


# ---- any series of plans ------------------------------------------------------------------------------------------


class Series:
    """Draws one plan after the other, as a scheduler might make them, and holds the builder to the naive model."""

    def __init__(self, data):
        self.data = data
        self.block_size = data.draw(st.integers(1, 6), "block size")
        self.builder = InputBuilder(ROWS, MAX_LEN, self.block_size)
        self.naive = Naive(self.block_size)
        self.ids = 0
        # Any ids, those of the largest pools too: slots are numbers of 64 bits.
        self.free = [*range(40), *range(2**31 - 60, 2**31)]

    def take(self, n: int) -> list[int]:
        return [self.free.pop(self.data.draw(st.integers(0, len(self.free) - 1))) for _ in range(n)]

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def plan(self) -> Plan:
        plan, draw, rows = Plan(), self.data.draw, self.naive.rows
        for row in draw(st.lists(st.sampled_from(sorted(rows)), unique=True, max_size=2), "release") if rows else []:
            self.free += rows.pop(row).blocks
            plan.released.append(row)
        empty = [row for row in range(ROWS) if row not in rows]
        for row in draw(st.lists(st.sampled_from(empty), unique=True, max_size=2), "admit") if empty else []:
            tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=MAX_LEN))
            spare = draw(st.integers(0, 3))  # a reservation may be larger than any sequence
            blocks = self.take(min(self.blocks_for(len(tokens)) + spare, len(self.free)))
            # After a preemption some of the tokens are its own output.
            own = draw(st.integers(0, len(tokens) - 1))
            seq = sequence(row, tokens[: len(tokens) - own], self.ids)
            seq.output = tokens[len(tokens) - own :]
            self.ids += 1
            rows[row] = Row(seq, list(tokens), list(blocks))
            admit(plan, seq, blocks)
        self.fork(plan)
        names = draw(st.permutations(sorted(rows)), "batch") if rows else []
        for row in names[: draw(st.integers(1, ROWS))]:
            state = rows[row]
            pending = len(state.tokens) - state.computed
            if pending == 0 or state.computed == MAX_LEN:
                continue
            plan.add(state.seq, draw(st.integers(1, pending), "feed"))
            missing = self.blocks_for(state.computed + plan.num_tokens[-1]) - len(state.blocks)
            if missing > 0:
                new = self.take(missing)
                plan.grown.append(Growth(row, len(state.blocks), new))
                state.blocks += new
        return plan

    def fork(self, plan: Plan) -> None:
        """Sometimes a row that was there before goes on in an empty one, from tokens it has fed; or in its own."""
        draw, rows = self.data.draw, self.naive.rows
        new = {admission.row for admission in plan.admitted}
        parents = [row for row in rows if row not in new and 0 < rows[row].computed < MAX_LEN]
        if not parents or not draw(st.booleans(), "fork"):
            return
        parent = draw(st.sampled_from(parents), "parent")
        gone = {*plan.released, *rows} - {parent}
        row = draw(st.sampled_from([row for row in range(ROWS) if row not in gone]), "into")
        old = rows[parent]
        shared = old.computed
        tail = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=MAX_LEN - shared), "then")
        blocks = [] if row == parent else self.take(len(old.blocks))
        seq = sequence(row, old.tokens[:shared], self.ids)
        self.ids += 1
        rows[row] = Row(seq, old.tokens[:shared] + tail, list(blocks) or old.blocks, shared)
        plan.forked.append(Fork(row, parent, shared, tail, blocks))

    def step(self) -> None:
        plan = self.plan()
        table, tokens, _, computed = snapshot(self.builder)
        self.builder.apply(plan)
        self.check_deltas(plan, table, tokens)
        if not plan.batch:
            return

        step = self.builder.build(plan)
        want = self.naive.expect(plan)
        for name, values in want.items():
            assert getattr(step, name).tolist() == values, name
        assert step.num_decodes == sum(n == 1 for n in plan.num_tokens)
        running = [self.naive.rows[plan.batch[i].row] for i in step.order]
        assert step.block_tables.shape == (len(running), max(self.blocks_for(r.computed) for r in running))
        for row, entries in zip(running, step.block_tables, strict=True):
            held = self.blocks_for(row.computed)
            assert entries[:held].tolist() == row.blocks[:held]
        in_batch = {seq.row for seq in plan.batch}
        told = {delta.row for delta in (*plan.admitted, *plan.forked)}
        assert changed_rows(computed, self.builder.computed) <= in_batch | told
        self.check_types(step)

        drawn = self.data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(want["sampled_seqs"])), "sampled")
        before = snapshot(self.builder)
        sampled = np.array(drawn[: len(step.sampled_seqs)], dtype=np.int32)
        self.builder.append(step.sampled_seqs, sampled)
        rows = {plan.batch[i].row for i in step.sampled_seqs}
        assert changed_rows(before[0], self.builder.block_table) == set()
        assert changed_rows(before[1], self.builder.tokens) <= rows
        assert changed_rows(before[2], self.builder.known) == rows
        assert changed_rows(before[3], self.builder.computed) == set()
        for i, token in zip(step.sampled_seqs, sampled.tolist(), strict=True):
            state = self.naive.rows[plan.batch[i].row]
            state.tokens.append(token)
            state.seq.output.append(token)

    def check_deltas(self, plan: Plan, table: np.ndarray, tokens: np.ndarray) -> None:
        """The table and the tokens are those from before, and over them what the plan says: not a number more."""
        table = np.pad(table, [(0, 0), (0, self.builder.block_table.shape[1] - table.shape[1])])
        for fork in plan.forked:
            tokens[fork.row, : fork.num_tokens] = tokens[fork.parent, : fork.num_tokens]
            tokens[fork.row, fork.num_tokens : fork.num_tokens + len(fork.token_ids)] = fork.token_ids
            table[fork.row, : len(fork.block_ids)] = fork.block_ids
        for new in plan.admitted:
            table[new.row, : len(new.block_ids)] = new.block_ids
            tokens[new.row, : len(new.token_ids)] = new.token_ids
        for growth in plan.grown:
            table[growth.row, growth.start : growth.start + len(growth.block_ids)] = growth.block_ids
        assert (self.builder.block_table == table).all()
        assert (self.builder.tokens == tokens).all()

    def check_types(self, step) -> None:
        assert step.token_ids.dtype == step.query_start.dtype == step.context_lens.dtype == np.int32
        assert step.block_tables.dtype == np.int32
        assert step.positions.dtype == step.slot_mapping.dtype == step.order.dtype == np.int64
        for array in (step.token_ids, step.positions, step.slot_mapping, step.block_tables):
            for own in (self.builder.block_table, self.builder.tokens, self.builder.computed):
                assert not np.shares_memory(array, own), "the next step would change this one's inputs"


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_series_of_plans_gives_the_inputs_of_the_naive_model(data):
    series = Series(data)
    for _ in range(data.draw(st.integers(1, 14), "steps")):
        series.step()


# ---- the rules one by one -----------------------------------------------------------------------------------------


def test_decodes_come_first_and_each_kind_keeps_its_order():
    builder, plan = InputBuilder(5, 16, 4), Plan()
    lengths = [3, 1, 5, 1, 2]
    for row, length in enumerate(lengths):
        seq = sequence(row, [10 * row + i for i in range(length)])
        admit(plan, seq, [2 * row, 2 * row + 1])
        plan.add(seq, length)
    builder.apply(plan)
    step = builder.build(plan)
    assert step.order.tolist() == [1, 3, 0, 2, 4]
    assert step.num_decodes == 2
    assert step.token_ids.tolist() == [10, 30, 0, 1, 2, 20, 21, 22, 23, 24, 40, 41]
    assert step.query_start.tolist() == [0, 1, 2, 5, 10, 12]
    assert step.context_lens.tolist() == [1, 1, 3, 5, 2]
    assert step.slot_mapping.tolist() == [8, 24, 0, 1, 2, 16, 17, 18, 19, 20, 32, 33]
    assert step.block_tables.tolist() == [[2, 3], [6, 7], [0, 1], [4, 5], [8, 9]]
    assert step.sampled.tolist() == [0, 1, 4, 9, 11]
    assert step.sampled_seqs.tolist() == [1, 3, 0, 2, 4]


def run(builder, plan, tokens=()):
    builder.apply(plan)
    step = builder.build(plan)
    builder.append(step.sampled_seqs, np.array(tokens, dtype=np.int32))
    return step


def feed(seq, n, grown=()):
    plan = Plan(grown=list(grown))
    plan.add(seq, n)
    return plan


def test_a_prompt_in_chunks_samples_with_its_last_chunk_alone():
    builder, seq = InputBuilder(2, 16, 4), sequence(1, list(range(100, 110)))
    plan = feed(seq, 4)
    admit(plan, seq, [7, 3, 5])
    first = run(builder, plan)
    assert (first.num_decodes, first.sampled.tolist(), first.sampled_seqs.tolist()) == (0, [], [])
    second = run(builder, feed(seq, 5))
    assert second.positions.tolist() == [4, 5, 6, 7, 8]
    assert second.slot_mapping.tolist() == [12, 13, 14, 15, 20]
    assert second.sampled.tolist() == []
    last = run(builder, feed(seq, 1), [77])  # one token of a prompt is as good as a decode
    assert (last.num_decodes, last.token_ids.tolist(), last.sampled.tolist()) == (1, [109], [0])
    decode = run(builder, feed(seq, 1), [78])
    assert (decode.token_ids.tolist(), decode.positions.tolist(), decode.slot_mapping.tolist()) == ([77], [10], [22])


def test_a_preempted_sequence_comes_back_with_its_output_and_feeds_it_again():
    builder, seq = InputBuilder(2, 16, 4), sequence(0, [1, 2, 3])
    plan = feed(seq, 3)
    admit(plan, seq, [0])
    run(builder, plan, [50])
    run(builder, feed(seq, 1), [51])
    seq.output, seq.row = [50, 51], 1
    back = Plan(released=[0])
    admit(back, seq, [9, 8])
    back.add(seq, 5)
    step = run(builder, back, [52])
    assert step.token_ids.tolist() == [1, 2, 3, 50, 51]
    assert step.slot_mapping.tolist() == [36, 37, 38, 39, 32]
    assert run(builder, feed(seq, 1), [53]).token_ids.tolist() == [52]


def test_a_row_released_and_given_away_in_one_plan_holds_the_new_sequence():
    builder, old, new = InputBuilder(1, 16, 2), sequence(0, list(range(9))), sequence(0, [90, 91, 92])
    plan = feed(old, 9)
    admit(plan, old, [4, 5, 6, 7, 8])
    run(builder, plan, [1])
    plan = Plan(released=[0])
    admit(plan, new, [1, 0])
    plan.add(new, 3)
    step = run(builder, plan, [93])
    assert step.token_ids.tolist() == [90, 91, 92]
    assert step.slot_mapping.tolist() == [2, 3, 0]
    assert step.block_tables.tolist() == [[1, 0]]
    assert run(builder, feed(new, 1), [94]).token_ids.tolist() == [93]


def test_a_row_out_of_the_plan_keeps_its_table_and_goes_on_where_it_was():
    builder, still, moving = InputBuilder(2, 32, 2), sequence(0, [1, 2, 3]), sequence(1, [4, 5])
    plan = Plan()
    for seq, blocks in ((still, [5, 9]), (moving, [7])):
        admit(plan, seq, blocks)
        plan.add(seq, len(seq.request.prompt))
    run(builder, plan, [30, 50])
    before = builder.block_table[0].copy(), builder.tokens[0].copy()
    for i in range(6):
        grown = [Growth(1, 1 + i // 2, [20 + i])] if i % 2 == 0 else []
        run(builder, feed(moving, 1, grown), [60 + i])
    assert (builder.block_table[0] == before[0]).all()
    assert (builder.tokens[0] == before[1]).all()
    assert builder.block_table[1, :4].tolist() == [7, 20, 22, 24]
    step = run(builder, feed(still, 1), [31])
    assert (step.token_ids.tolist(), step.slot_mapping.tolist()) == ([30], [19])


def test_a_table_longer_than_the_longest_sequence_needs_widens_and_keeps_the_rest():
    """A buddy rounds a run up, beyond ceil(max_model_len / B) entries."""
    builder, first, second = InputBuilder(2, 8, 4), sequence(0, [1] * 5), sequence(1, [2] * 8)
    plan = feed(first, 5)
    admit(plan, first, [6, 1])
    run(builder, plan, [3])
    plan = feed(second, 8)
    admit(plan, second, list(range(8, 24)))
    step = run(builder, plan, [4])
    assert step.block_tables.tolist() == [[8, 9]]  # as wide as the step needs, not as wide as the table is
    assert builder.block_table[1, :16].tolist() == list(range(8, 24))
    assert builder.block_table[0, :2].tolist() == [6, 1]
    assert run(builder, feed(first, 1), [5]).slot_mapping.tolist() == [5]


def test_slots_of_a_large_pool_do_not_wrap_around():
    builder, seq = InputBuilder(1, 64, 32), sequence(0, [1] * 40)
    plan = feed(seq, 40)
    admit(plan, seq, [2**31 - 1, 2**30])
    step = run(builder, plan, [2])
    assert step.slot_mapping[31] == (2**31 - 1) * 32 + 31
    assert step.slot_mapping[39] == 2**30 * 32 + 7


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_sequence_may_fill_max_model_len_and_sample_once_more(block_size):
    builder, seq = InputBuilder(1, 9, block_size), sequence(0, [5] * 8)
    plan = feed(seq, 8)
    admit(plan, seq, list(range(-(-9 // block_size))))
    run(builder, plan, [6])
    last = run(builder, feed(seq, 1), [7])
    assert (last.positions.tolist(), last.context_lens.tolist(), last.sampled.tolist()) == ([8], [9], [0])
    assert builder.tokens[0, :10].tolist() == [5] * 8 + [6, 7]
