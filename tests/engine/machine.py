"""The memory and scheduling core, one step at a time, beside a naive account of what must be true of it.

`Machine` drives a Scheduler and a FingerprintExecutor over a pool of a few blocks. After every action it holds them
against an account kept from the requests, the plans and the outcomes alone: plain lists, no running sums, and nothing
of the product's own `audit`, which is called as well, last. The first thing found wrong raises `Violation`, which
names its check. Hypothesis drives it in test_state_machine.py, a seeded generator (`random_program`) in
test_mutations.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pagedlab.core.errors import OutOfBlocks
from pagedlab.core.plan import Outcome, Plan
from pagedlab.core.request import Request, SamplingParams, Status
from pagedlab.core.request import Sequence as Served
from pagedlab.executor.fingerprint import fingerprint
from tests.lab import make_executor, make_scheduler, naive_output

CHECKS = {
    "I01": "every block is free or held: none is lost",
    "I02": "no block is twice in the free queue",
    "I03": "no block is free and held",
    "I04": "a block has as many references as table entries",
    "I05": "a block is free exactly when it has no reference",
    "I06": "no table maps a block twice",
    "I07": "a table is as long as its slots need",
    "I10": "through its table, the slot of every computed token holds its fingerprint",
    "I11": "a step writes the slots of the tokens it feeds, through the tables of the plan, and no other",
    "I12": "a request generates what it would alone",
    "I17": "a preempted request keeps its prompt and all it has generated",
    "I18": "idle: every block is free, nothing is remembered",
    "I19": "an admission or a growth that fails changes nothing, nor does a call that needs no blocks",
    "I22": "a freed table enters the free queue deepest block first",
    "I23": "blocks are taken where the policy says: longest free first, or the lowest run that fits",
    "I25": "tokens, reserved, tail and free slots are what they are from scratch, and sum to N x B",
    "I30": "a table only grows while its sequence runs, and the plan says by which blocks",
    "I32": "progress: a token in a bounded number of steps, and who fits is not left waiting",
    "I33": "tokens computed = prompt + generated - 1 + recomputed; each token once",
    "I34": "token budget, number of running sequences",
    "I35": "time never goes back",
    "fcfs": "nobody is admitted before one that arrived earlier",
    "watermark": "an admission leaves the watermark free, except into an empty pool",
    "fits": "can_admit says what counting the free blocks says",
    "blocked": "memory_blocked is said exactly when the next in line was refused its blocks",
    "victim": "the victim is the policy's, recomputed",
    "yield": "nobody is admitted in a step that had to preempt: its blocks are for those that run",
    "refusal": "refused at submission exactly when it can never fit",
    "queue": "every live request waits or runs, in one place, in the state it says",
    "batch": "a batch holds running sequences, each once, each with tokens to feed",
    "rows": "a running sequence has a row of its own, and the executor's row is its table and its tokens",
}

FREED = np.uint64(0xF2EEDF2EEDF2EED)  # what the machine writes over the slots of free blocks


class Violation(AssertionError):
    def __init__(self, check: str, detail: str):
        super().__init__(f"{check} ({CHECKS[check]}): {detail}")
        self.check = check


def must(check: str, holds: bool, *detail: Any) -> None:
    """detail: words and values, put into one sentence only when they are needed."""
    if not holds:
        raise Violation(check, " ".join(str(d) for d in detail))


# ---- naive arithmetic -----------------------------------------------------------------------------------------------


def ceil_div(slots: int, size: int) -> int:
    return len(range(0, slots, size))


def power_of_two_from(n: int) -> int:
    power = 1
    while power < n:
        power *= 2
    return power


# ---- what is chosen: by Hypothesis, or by a seeded generator --------------------------------------------------------

Choose = Callable[[Sequence[Any]], Any]
"""One of the options."""


@dataclass(frozen=True)
class World:
    """A small engine. tokens: the budget of a step. alphabet: how many different tokens a prompt has.

    falling_ids: of two requests that arrive at once the later submitted has the lower id.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    allocator: str
    batching: str
    tokens: int
    victim: str
    admission: str
    watermark: float
    max_num_seqs: int
    alphabet: int
    eos: int | None
    falling_ids: bool

    @property
    def slots(self) -> int:
        return self.num_blocks * self.block_size


ALLOCATORS = ["paged", "reserve_max", "power_of_two", "oracle", "reserve_output"]


def a_world(choose: Choose) -> World:
    """Any small engine; every other one is tight: many sequences that grow into each other's blocks."""
    tight = choose([True, False])
    num_blocks, block_size = choose(range(3, 10)), choose([1, 2] if tight else [1, 2, 3, 4])
    slots = num_blocks * block_size
    allocator = "paged" if tight else choose(ALLOCATORS)
    return World(
        num_blocks,
        block_size,
        max_model_len=choose([slots, 2 * slots] if allocator == "paged" else [slots, slots // 2, slots // 3]),
        allocator=allocator,
        batching=choose(["chunked", "prefill_first"]),
        tokens=choose([2, 3, 4, 8] if tight else [1, 2, 3, 4, 8, 64]),
        victim=choose(["last_arrived", "most_blocks"]),
        admission="on_demand" if tight else choose(["on_demand"] * 4 + ["one_at_a_time"]),
        watermark=0.0 if tight else choose([0.0, 0.25, 0.5]),  # exact in binary: x N rounded down is no matter of taste
        max_num_seqs=choose([4] if tight else [1, 2, 3, 4]),
        alphabet=choose(range(2, 5)),
        eos=choose([None, None, 7, 23]),
        falling_ids=choose([False, False, True]),
    )


GREEDY = SamplingParams()


@dataclass(frozen=True)
class Ask:
    """A request before it has an id and an arrival."""

    prompt: tuple[int, ...]
    new: int
    true: int
    sampling: SamplingParams = GREEDY


def an_ask(world: World, choose: Choose) -> Ask:
    """One that usually fits."""
    length = choose(range(1, min(6, world.max_model_len) + 1))
    new = choose([1, 2, 4, 8, 12, 16])
    return Ask(
        tuple(choose(range(world.alphabet)) for _ in range(length)),
        new,
        choose([max(1, new // 2), new, new + 1]),
        SamplingParams(
            temperature=choose([0.0, 1.0]), seed=choose(range(3)), ignore_eos=world.eos is None or choose([True, False])
        ),
    )


def an_ask_that_never_fits(world: World, choose: Choose) -> Ask:
    long = max(world.max_model_len, world.slots) + 1
    return choose([Ask((), 3, 2), Ask((1,), 0, 1), Ask((1,) * long, 1, 1), Ask((0,) * (long + 5), 4, 3)])


# ---- the account ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Account:
    """What is true of one request, from its plans and outcomes. state: waiting, running or ended."""

    seq: Served
    request: Request
    output: list[int]  # all that it will ever generate
    fingerprints: list[int]  # of every token that it will ever feed
    state: str = "waiting"
    row: int = -1
    table: list[int] = field(default_factory=list)
    entered_with: int = 0  # tokens known when it was last admitted
    computed: int = 0
    made: int = 0  # tokens generated
    fed: Counter[int] = field(default_factory=Counter)  # position -> how often it was computed
    finish: str | None = None
    settled: bool = False  # it has ended, and has been looked at since

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def arrived(self) -> tuple[float, int]:
        return self.request.arrival_s, self.request.id

    @property
    def tokens(self) -> list[int]:
        return [int(t) for t in self.request.prompt] + self.output[: self.made]

    @property
    def to_compute(self) -> int:
        return len(self.request.prompt) + self.made - self.computed

    @property
    def recomputed(self) -> int:
        return sum(times - 1 for times in self.fed.values())

    def moved(self, state: str) -> None:
        """It left the pool."""
        self.state, self.row, self.table, self.computed = state, -1, [], 0


class Machine:
    """A program is a series of the actions below, in any order; `finish` ends it. Each ends in `check`."""

    def __init__(self, world: World):
        self.world = world
        self.scheduler = make_scheduler(
            world.num_blocks,
            world.block_size,
            world.allocator,
            world.batching,
            world.tokens,
            admission=world.admission,
            watermark=world.watermark,
            victim=world.victim,
            max_num_seqs=world.max_num_seqs,
            max_model_len=world.max_model_len,
        )
        self.executor = make_executor(self.scheduler, world.eos)
        self.allocator, self.pool = self.scheduler.allocator, self.scheduler.allocator.pool
        self.accounts: list[Account] = []
        self.refused: list[Served] = []
        self.steps = self.preemptions = self.barren = 0
        self._rows_left: list[int] = []  # rows given up since the last plan
        self._returned: dict[int, tuple[int, int]] = {}  # sequence -> blocks and tokens of its last stay in the pool
        self._watch()

    # ---- the account, read ------------------------------------------------------------------------------------------

    def _in(self, state: str) -> list[Account]:
        return [account for account in self.accounts if account.state == state]

    def _of(self, seq_id: int) -> Account:
        return next(account for account in self.accounts if account.id == seq_id)

    def _reservation(self, request: Request) -> tuple[int, int]:
        """(slots promised, blocks) of a reserving allocator."""
        w = self.world
        prompt, new = len(request.prompt), request.max_tokens
        true = min(new, request.true_output_tokens or new)
        slots = {
            "reserve_max": w.max_model_len,
            "reserve_output": prompt + new - 1,
            "oracle": prompt + true - 1,
            "power_of_two": min(prompt + power_of_two_from(true) - 1, w.max_model_len),
        }[w.allocator]
        blocks = ceil_div(slots, w.block_size)
        if w.allocator != "power_of_two":
            return slots, blocks
        run = power_of_two_from(blocks)
        return slots + (run - blocks) * w.block_size, run

    def _promised(self, account: Account, fed_now: int = 0) -> int:
        if self.world.allocator == "paged":
            return max(account.entered_with, account.computed + fed_now)
        return self._reservation(account.request)[0]

    def _runs(self, free: set[int], blocks: int) -> list[int]:
        """Where a run of free blocks starts that a reserving allocator may hand out."""
        stride = blocks if self.world.allocator == "power_of_two" else 1
        starts = range(0, self.world.num_blocks - blocks + 1, stride)
        return [start for start in starts if free.issuperset(range(start, start + blocks))]

    def _fits(self, request: Request, num_tokens: int, free: set[int], keep: int) -> bool:
        if self.world.allocator == "paged":
            return ceil_div(num_tokens, self.world.block_size) + keep <= len(free)
        return bool(self._runs(free, self._reservation(request)[1]))

    def _may_enter(self, account: Account, free: set[int], running: int) -> bool:
        """What the admission policy must answer."""
        if self.world.admission == "one_at_a_time":
            return running == 0 and self._fits(account.request, len(account.tokens), free, 0)
        keep = int(self.world.watermark * self.world.num_blocks) if running else 0
        return self._fits(account.request, len(account.tokens), free, keep)

    def _never_fits(self, request: Request) -> bool:
        w = self.world
        prompt = len(request.prompt)
        if prompt < 1 or request.max_tokens < 1 or prompt > w.max_model_len:
            return True
        if w.allocator == "paged":
            return prompt + min(request.max_tokens, w.max_model_len - prompt + 1) - 1 > w.slots
        return not self._runs(set(range(w.num_blocks)), self._reservation(self._cut(request))[1])

    def _cut(self, request: Request) -> Request:
        """max_tokens as far as max_model_len goes."""
        new = min(request.max_tokens, self.world.max_model_len - len(request.prompt) + 1)
        return Request(request.id, request.prompt, new, request.true_output_tokens, request.arrival_s, request.sampling)

    # ---- watching single calls --------------------------------------------------------------------------------------

    def _snapshot(self) -> tuple[Any, ...]:
        runs = getattr(self.allocator, "_runs", None)
        return (
            self.pool.free_ids(),
            list(self.pool.ref),
            {seq_id: (list(h.table), h.promised, h.tokens) for seq_id, h in self.allocator.holdings.items()},
            self.allocator.usage(),
            runs and runs.free_ids(),
        )

    def _watch(self) -> None:
        """Look at each call of the allocator and of the victim policy: what it takes, and what a failure leaves."""
        a, pool = self.allocator, self.pool
        can_admit, admit, grow, release = a.can_admit, a.admit, a.grow, a.release
        choose = self.scheduler.victim.choose

        def watched_can_admit(seq: Served, keep_free: int = 0) -> bool:
            before = self._snapshot()
            answer = can_admit(seq, keep_free)
            must("I19", self._snapshot() == before, "can_admit changed something")
            naive = self._fits(seq.request, len(seq.request.prompt) + len(seq.output), set(pool.free_ids()), keep_free)
            must("fits", answer == naive, "can_admit says", answer, "of", seq, ",", pool.free_ids(), "free")
            return answer

        def watched_admit(seq: Served) -> list[int]:
            before = self._snapshot()
            try:
                table = admit(seq)
            except OutOfBlocks:
                must("I19", self._snapshot() == before, "the refused admission of", seq, "left", self._snapshot())
                raise
            self._check_taken(table, before[0], at_admission=True)
            return table

        def watched_grow(seq_id: int, num_tokens: int) -> list[int] | None:
            before = self._snapshot()
            new = grow(seq_id, num_tokens)
            if new is None:
                must("I19", self._snapshot() == before, "the failed growth of", seq_id, "left", self._snapshot())
                must("fits", not before[0], "no block for", seq_id, "with", before[0], "free")
            else:
                self._check_taken(new, before[0], at_admission=False)
            return new

        def watched_release(seq_id: int) -> int:
            holding = a.holdings.get(seq_id)
            table, tokens = (list(holding.table), holding.tokens) if holding else ([], 0)
            before = pool.free_ids()
            freed = release(seq_id)
            after = pool.free_ids()
            must("I02", len(set(after)) == len(after), "free queue", after, "after the release of", table)
            must("I01", set(after) == {*before, *table}, before, "free,", table, "released,", after, "free")
            must("I22", after == before + table[::-1], before, "free,", table, "released,", after, "free")
            must("I01", freed == len(table), freed, "blocks said to be freed by the release of", table)
            self._returned[seq_id] = (len(table), tokens)
            return freed

        def watched_choose(running: Sequence[Served]) -> Served:
            victim = choose(running)
            last = self.world.victim == "last_arrived"
            keys = {s.id: (0 if last else len(a.holdings[s.id].table), s.request.arrival_s, s.id) for s in running}
            must("victim", keys[victim.id] == max(keys.values()), victim.id, "of", keys)
            return victim

        a.can_admit, a.admit, a.grow, a.release = watched_can_admit, watched_admit, watched_grow, watched_release
        self.scheduler.victim.choose = watched_choose

    def _check_taken(self, taken: list[int], free: list[int], at_admission: bool) -> None:
        must("I03", set(taken) <= set(free), taken, "handed out of", free)
        if self.world.allocator == "paged":
            must("I23", taken == free[: len(taken)], taken, "handed out of the queue", free)
        elif at_admission:
            must("I23", taken == list(range(taken[0], taken[0] + len(taken))), taken, "is no run")
            starts = self._runs(set(free), len(taken))
            # First fit takes the lowest. A buddy splits the smallest run that fits: any aligned start is right.
            lowest = self.world.allocator == "power_of_two" or taken[0] == starts[0]
            must("I23", taken[0] in starts and lowest, "run", taken, "of the starts", starts)

    # ---- actions ----------------------------------------------------------------------------------------------------

    def submit(self, ask: Ask) -> None:
        number = len(self.accounts) + len(self.refused)
        r = Request(
            1000 - number if self.world.falling_ids else number,
            np.array(ask.prompt, dtype=np.int32),
            ask.new,
            ask.true,
            self.executor.clock.now(),
            ask.sampling,
        )
        before = self._snapshot()
        seq = self.scheduler.submit(r)
        must("refusal", (seq.status is Status.REFUSED) == self._never_fits(r), seq)
        if seq.status is Status.REFUSED:
            must("refusal", str(r.id) in seq.refusal, "the reason", repr(seq.refusal), "does not name the request")
            self.refused.append(seq)
        else:
            r = self._cut(r)
            must("refusal", seq.request.max_tokens == r.max_tokens, "max_tokens became", seq.request.max_tokens)
            output = naive_output(r, self.world.eos)
            chain = [0]
            for position, token in enumerate([*r.prompt, *output[:-1]]):
                chain.append(fingerprint(int(token), position, chain[-1]))
            self.accounts.append(Account(seq, r, output, chain[1:]))
        must("I19", self._snapshot() == before, "a submission touched the pool")
        self.check()

    def abort(self, index: int, live: bool) -> None:
        """One of those that live, or any: one that has ended, too."""
        candidates = [account for account in self.accounts if not live or account.state != "ended"]
        if not candidates:
            return
        account = candidates[index % len(candidates)]
        before = self._snapshot()
        self.scheduler.abort(account.seq)
        if account.state == "running":
            self._check_left(account)
            self._rows_left.append(account.row)
        else:
            must("I19", self._snapshot() == before, "aborting", account.seq, "touched the pool")
        if account.state != "ended":
            account.finish = "abort"
        account.moved("ended")
        account.settled = False
        self.check()

    def abort_refused(self) -> None:
        for seq in self.refused:
            self.scheduler.abort(seq)
            must("queue", seq.status is Status.REFUSED, seq)
        self.check()

    def probe(self, ask: Ask) -> None:
        """Ask the allocator past the scheduler: an admission works exactly when it fits, else nothing has changed."""
        r = self._cut(Request(-1, np.array(ask.prompt, dtype=np.int32), ask.new, ask.true))
        seq, before = Served(r), self._snapshot()
        free = set(before[0])
        try:
            table = list(self.allocator.admit(seq))
        except OutOfBlocks:
            must("fits", not self._fits(r, len(r.prompt), free, 0), seq, "refused with", free, "free")
        else:
            must("fits", self._fits(r, len(r.prompt), free, 0), seq, "admitted with", free, "free")
            must("I07", len(table) == self._blocks(len(r.prompt), r), table, "for", seq)
            self._check_pool()
            self.allocator.release(-1)
            self._returned.pop(-1)
        self.check()

    def drain(self) -> None:
        """Run until nobody is left, in a bounded number of steps."""
        left = sum(account.to_compute + len(account.output) for account in self.accounts if account.state != "ended")
        limit = self.steps + (left + 1) * (self._patience() + 1)
        while self.scheduler.has_work:
            must("I32", self.steps < limit, "not done after", self.steps, "steps")
            self.step()

    def finish(self) -> None:
        """Serve all that is left; then every request, however long ago it ended, is what it must be."""
        self.drain()
        for account in self.accounts:
            account.settled = False
        self.abort_refused()
        for account in self.accounts:
            must("I12", account.seq.status is Status.FINISHED, account.seq)
            if account.finish != "abort":
                must("I12", account.seq.output == account.output, account.seq)

    def step(self) -> None:
        """Schedule, execute, commit: each looked at by itself."""
        if not self.scheduler.has_work:
            self.check()
            return
        plan = self._schedule()
        kv = self.executor.kv.copy()
        slots = {
            self._slot(account.table, position)
            for account, fed in self._work(plan)
            for position in range(account.computed, account.computed + fed)
        }
        outcome = self.executor.execute(plan)
        stray = set(np.flatnonzero(self.executor.kv != kv).tolist()) - slots
        must("I11", not stray, "slots", stray, "written,", slots, "fed")
        self._commit(plan, outcome)
        self.steps += 1
        self.check()

    # ---- what a plan may say ----------------------------------------------------------------------------------------

    def _schedule(self) -> Plan:
        w, scheduler = self.world, self.scheduler
        before = {"free": set(self.pool.free_ids()), "running": len(self._in("running"))}
        waiting = self._in("waiting")
        prefilling = any(account.to_compute > 1 for account in self._in("running"))
        plan = scheduler.schedule()
        must("I32", bool(plan.batch), "nothing can run:", len(waiting), "waiting,", before)

        for record in plan.preempted:
            victim = self._of(record.victim)
            must("victim", victim.state == "running", victim.seq, "did not run")
            must("victim", self._of(record.beneficiary).state == "running", record, "helps nobody")
            must("I33", record.tokens_lost == victim.computed, record, ",", victim.computed, "computed")
            must("I01", record.blocks_freed == self._check_left(victim), record)
            self._rows_left.append(victim.row)
            victim.moved("waiting")
            self.preemptions += 1
            must("I17", victim.seq.token_ids().tolist() == victim.tokens, victim.seq)
            must("I10", victim.seq.computed == 0, victim.seq, "has no blocks")
        must("rows", Counter(plan.released) == Counter(self._rows_left), plan.released, self._rows_left)
        self._rows_left = []

        for new in plan.admitted:
            must("queue", new.request.id in {account.id for account in waiting}, new, "was not waiting")
            account = self._of(new.request.id)
            first = min(waiting, key=lambda each: each.arrived)
            must("fcfs", account is first, account.arrived, "admitted,", first.arrived, "waiting")
            waiting.remove(account)
            must("I17", new.token_ids.tolist() == account.tokens, new)
            must("rows", new.row not in {each.row for each in self._in("running")}, "row", new.row, "is in use")
            must("rows", 0 <= new.row < w.max_num_seqs, new.row)
            account.state, account.row, account.table = "running", new.row, list(new.block_ids)
            account.entered_with = len(account.tokens)
            must("I07", len(account.table) == self._blocks(account.entered_with, account.request), account.table)

        rows = {account.row: account for account in self._in("running")}
        for growth in plan.grown:
            must("I30", growth.row in rows, growth, "of a row that nobody has")
            must("I30", growth.start == len(rows[growth.row].table), growth, rows[growth.row].table)
            rows[growth.row].table += growth.block_ids
        for account in rows.values():
            table = self.allocator.holdings[account.id].table if account.id in self.allocator.holdings else None
            must("I30", table == account.table, "the plan told", account.table, ",", account.id, "holds", table)

        work = self._work(plan)
        must("batch", len({account.id for account, _ in work}) == len(plan.batch), plan.batch)
        for i, (account, fed) in enumerate(work):
            must("batch", account.state == "running", account.seq, "does not run")
            must("batch", 1 <= fed <= account.to_compute, fed, "of", account.to_compute, "tokens fed")
            must("batch", plan.samples(i) == (fed == account.to_compute), account.seq)
        must("yield", not (plan.preempted and plan.admitted), plan)
        must("I34", plan.total_tokens == sum(plan.num_tokens) <= w.tokens, plan.num_tokens)
        must("I34", len(rows) <= (1 if w.admission == "one_at_a_time" else w.max_num_seqs), rows)
        free = set(self.pool.free_ids())
        if plan.admitted and len(rows) > 1 and w.allocator == "paged":
            must("watermark", len(free) >= int(w.watermark * w.num_blocks), free, "left of", w.num_blocks)
        if w.batching == "prefill_first" and not plan.admitted and not prefilling:
            self._check_blocked(plan, w.tokens, waiting, before["free"], before["running"], preempted=False)
        else:
            left = w.tokens - plan.total_tokens
            self._check_blocked(plan, left, self._in("waiting"), free, len(rows), bool(plan.preempted))
        self._check_usage({account.id: fed for account, fed in work})
        return plan

    def _work(self, plan: Plan) -> list[tuple[Account, int]]:
        return [(self._of(seq.id), fed) for seq, fed in zip(plan.batch, plan.num_tokens, strict=True)]

    def _check_blocked(
        self, plan: Plan, left: int, waiting: list[Account], free: set[int], running: int, preempted: bool
    ) -> None:
        """The next in line, when the step last looked at it: was it refused for memory, and rightly?"""
        w, blocked = self.world, bool(plan.preempted)
        if waiting:
            head = min(waiting, key=lambda each: each.arrived)
            whole = w.batching == "prefill_first"
            looked = left == w.tokens or head.to_compute <= left if whole else left > 0
            if running < w.max_num_seqs:
                refused = not self._may_enter(head, free, running)
                must("I32", refused or preempted or not looked, head.seq, "fits into", free, "and was left waiting")
                blocked = blocked or (refused and w.admission != "one_at_a_time")
        must("blocked", plan.memory_blocked == blocked, "memory_blocked", plan.memory_blocked, ", expected", blocked)

    # ---- what an outcome may do -------------------------------------------------------------------------------------

    def _commit(self, plan: Plan, outcome: Outcome) -> None:
        work = self._work(plan)
        start = self.executor.clock.now()
        now = self.executor.clock.advance(outcome.seconds)
        must("I35", now > start, start, now)
        finished = self.scheduler.commit(plan, outcome, now)
        ended = []
        for (account, fed), token, finish in zip(work, outcome.tokens, outcome.finish, strict=True):
            account.fed.update(range(account.computed, account.computed + fed))
            account.computed += fed
            must("I33", (token >= 0) == (account.to_compute == 0), "token", token, "of", account.seq)
            if token < 0:
                must("I12", finish is None, account.seq)
                continue
            must("I12", token == account.output[account.made], token, "is token", account.made, "of", account.output)
            account.made += 1
            must("I35", account.seq.token_s[-1] == now, account.seq)
            must("I12", (finish is not None) == (account.made == len(account.output)), finish, "of", account.seq)
            if finish is not None:
                stopped = token == self.world.eos and not account.request.sampling.ignore_eos
                must("I12", finish == ("stop" if stopped else "length"), finish)
                account.finish = finish
                self._check_left(account)
                self._rows_left.append(account.row)
                account.moved("ended")
                ended.append(account.seq)
                must("I35", account.seq.finish_s == now, account.seq)
                computed = sum(account.fed.values())
                total = len(account.request.prompt) + len(account.output) - 1 + account.seq.recomputed_tokens
                must("I33", computed == total, computed, "computed,", account.seq)
        must("I33", finished == ended, finished)
        self.barren = 0 if any(token >= 0 for token in outcome.tokens) else self.barren + 1
        must("I32", self.barren <= self._patience(), "no token in", self.barren, "steps")

    def _patience(self) -> int:
        """Steps without a token before the engine calls itself stalled: it must never come to that."""
        return 2 * self.world.num_blocks + self.world.max_model_len // self.world.tokens + 1

    # ---- what is true between steps ---------------------------------------------------------------------------------

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self.world.block_size] * self.world.block_size + position % self.world.block_size

    def _blocks(self, num_tokens: int, request: Request) -> int:
        if self.world.allocator == "paged":
            return ceil_div(num_tokens, self.world.block_size)
        return self._reservation(request)[1]

    def check(self) -> None:
        """Everything, from scratch; then the product's own audit. Slots of free blocks are overwritten at the end."""
        self._check_pool()
        self._check_requests()
        self._check_usage({})
        self._check_rows_and_slots()
        self._check_idle()
        self.scheduler.audit()
        for block in self.pool.free_ids():
            self.executor.kv[block * self.world.block_size : (block + 1) * self.world.block_size] = FREED

    def _check_pool(self) -> None:
        free, ref = self.pool.free_ids(), self.pool.ref
        tables = {seq_id: h.table for seq_id, h in self.allocator.holdings.items()}
        mapped = Counter(block for table in tables.values() for block in table)
        must("I02", len(set(free)) == len(free), "free queue", free)
        must("I03", not mapped.keys() & set(free), "free", free, ", tables", tables)
        must("I01", len(free) + len(mapped) == self.world.num_blocks, "free", free, ", tables", tables)
        for block in range(self.world.num_blocks):
            must("I04", ref[block] == mapped[block], "block", block, ":", ref[block], "references, tables", tables)
            must("I05", (block in free) == (ref[block] == 0), "block", block, ":", ref[block], "references, free", free)
        for seq_id, table in tables.items():
            must("I06", len(set(table)) == len(table), "sequence", seq_id, ":", table)

    def _check_requests(self) -> None:
        scheduler = self.scheduler
        running, waiting = self._in("running"), self._in("waiting")
        must("queue", {seq.id for seq in scheduler.running} == {a.id for a in running}, scheduler.running)
        must("queue", len(scheduler.running) == len(running), scheduler.running)
        queued = sorted(seq.id for seq in scheduler.order.sequences())
        must("queue", queued == sorted(a.id for a in waiting), "queued", queued)
        must("queue", scheduler.num_waiting == len(waiting), scheduler.num_waiting)
        must("queue", scheduler.has_work == bool(running or waiting), scheduler.has_work)
        must("queue", set(self.allocator.holdings) == {a.id for a in running}, "held by", self.allocator.holdings)
        for account in self.accounts:
            if account.settled:
                continue
            account.settled = account.state == "ended"
            seq = account.seq
            expected = {
                "running": Status.RUNNING,
                "ended": Status.FINISHED,
                "waiting": Status.PREEMPTED if seq.preemptions else Status.WAITING,
            }[account.state]
            must("queue", seq.status is expected, seq, "should be", expected)
            must("queue", seq.finish_reason == account.finish, seq, "should have ended by", account.finish)
            must("rows", seq.row == account.row, seq, "should have row", account.row)
            must("I17", seq.token_ids().tolist() == account.tokens, seq, "should have tokens", account.tokens)
            if account.state != "ended":
                must("I10", seq.computed == account.computed, seq, "should have", account.computed, "computed")
            must("I33", len(seq.token_s) == len(seq.output) == account.made, seq)
            must("I33", seq.recomputed_tokens == account.recomputed, seq, ",", account.recomputed, "recomputed")
            must("I35", sorted(set(seq.token_s)) == seq.token_s, seq.token_s)
            must("I35", not seq.token_s or seq.token_s[0] > seq.request.arrival_s, seq)

    def _check_usage(self, feeding: dict[int, int]) -> None:
        """The split of every slot, the step being run included. feeding: sequence id -> tokens that it feeds."""
        w, running = self.world, self._in("running")
        promised = {a.id: self._promised(a, feeding.get(a.id, 0)) for a in running}
        for account in running:
            need = ceil_div(promised[account.id], w.block_size)
            must("I07", len(account.table) == need, account.table, "for", promised[account.id], "slots of", account.seq)
        tokens = sum(a.computed + feeding.get(a.id, 0) for a in running)
        usage = self.allocator.usage()
        split = (usage.tokens, usage.reserved, usage.block_tail, usage.cached_idle, usage.free)
        must("I25", sum(split) == usage.total == w.slots, usage, "of", w.slots, "slots")
        held = sum(len(a.table) for a in running) * w.block_size
        total = sum(promised.values())
        expected = (tokens, total - tokens, held - total, 0, len(self.pool.free_ids()) * w.block_size)
        must("I25", split == expected, usage, ", from scratch", expected)
        must("I25", min(split) >= 0, usage)

    def _check_left(self, leaving: Account) -> int:
        """It leaves the pool: with all of its blocks, and saying how many promised slots it never filled.

        Returns how many blocks it gave back.
        """
        must("I01", leaving.id in self._returned, leaving.seq, "left the pool and gave nothing back")
        blocks, tokens = self._returned.pop(leaving.id)
        filling = tokens - leaving.computed
        must("I25", filling in (0, 1), leaving.seq, "held", tokens, "tokens")
        unused = self._promised(leaving) - leaving.computed
        must("I25", leaving.seq.slots_unused == unused, leaving.seq, "left", unused, "promised slots unused")
        return blocks

    def _check_rows_and_slots(self) -> None:
        inputs = self.executor.inputs
        for account in self._in("running"):
            table, known = account.table, len(account.tokens)
            must("I30", self.allocator.holdings[account.id].table == table, account.id, "should hold", table)
            row = account.row
            told = inputs.block_table[row, : len(table)].tolist()
            must("rows", told == table, "row", row, "is", told, ", the table of", account.id, "is", table)
            must("rows", inputs.tokens[row, :known].tolist() == account.tokens, "row", row, ", tokens of", account.id)
            must("rows", inputs.known[row] == known, "row", row, "knows", inputs.known[row], "of", known, "tokens")
            must("rows", inputs.computed[row] == account.computed, "row", row, ", computed of", account.seq)
            slots = [self._slot(table, position) for position in range(account.computed)]
            found = self.executor.kv[slots].tolist() if slots else []
            must("I10", found == account.fingerprints[: account.computed], "slots", slots, "of", account.seq)

    def _check_idle(self) -> None:
        if self._in("running"):
            return
        must("I18", sorted(self.pool.free_ids()) == list(range(self.world.num_blocks)), self.pool.free_ids())
        must("I18", not any(self.pool.ref) and not self.allocator.holdings, self.pool.ref, self.allocator.holdings)
        must("I18", self.allocator.usage().free == self.world.slots, self.allocator.usage())
        if not self._in("waiting"):
            must("I18", not self.scheduler._high_water, "remembered of the ended:", self.scheduler._high_water)


# ---- programs without Hypothesis ------------------------------------------------------------------------------------


def random_program(seed: int, actions: int = 30) -> Machine:
    """The world and the program that belong to a seed, run to the end; returns the machine."""
    rng = random.Random(seed)
    machine = Machine(a_world(rng.choice))
    for _ in range(actions):
        what = rng.random()
        if what < 0.32:
            for _ in range(rng.choice([1, 2, 3])):
                machine.submit(an_ask(machine.world, rng.choice))
        elif what < 0.34:
            machine.submit(an_ask_that_never_fits(machine.world, rng.choice))
        elif what < 0.40:
            machine.abort(rng.randrange(1000), live=rng.random() < 0.8)
        elif what < 0.46:
            machine.probe(an_ask(machine.world, rng.choice))
        elif what < 0.48:
            machine.drain()
        else:
            machine.step()
    machine.finish()
    return machine
