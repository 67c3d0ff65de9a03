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
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from pagedlab.allocator.base import Grant
from pagedlab.core.errors import OutOfBlocks
from pagedlab.core.plan import Outcome, Plan, Return
from pagedlab.core.request import Completion, Request, SamplingParams, Status
from pagedlab.core.request import Sequence as Served
from pagedlab.executor.fingerprint import log_probs
from tests.engine.beam_oracle import naive_beams
from tests.engine.naive_order import NaiveOrder
from tests.lab import BLOCK_BYTES, VOCAB, fingerprints_of, make_executor, make_scheduler, naive_answer, naive_output

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
    "I16": "the host pool holds the blocks of those that are swapped out, each once, and nothing else",
    "I28": "what is swapped out lies on the host bit by bit, and is shared when it is back as it was before",
    "fence": "what a step reads is handed out to nobody before it is over, and its moves may be done in any order",
    "kind": "a victim is swapped out when that is asked for and the host has room",
    "I17": "a preempted request keeps its prompt and all it has generated",
    "I18": "idle: every block is free, nothing is remembered",
    "I19": "an admission or a growth that fails changes nothing, nor does a call that needs no blocks",
    "I22": "a freed table enters the free queue deepest block first",
    "I23": "blocks are taken where the policy says: longest free first, or the lowest run that fits",
    "I24": "a block that is written belongs to one sequence alone",
    "I25": "tokens, reserved, tail and free slots are what they are from scratch, and sum to N x B",
    "I29": "a branch goes on from the text of the one whose KV it takes",
    "I30": "a table only grows while its sequence runs, but for copy-on-write, and the plan says by which blocks",
    "I32": "progress: a token in a bounded number of steps, and who fits is not left waiting",
    "I33": "tokens computed = prompt + generated - 1 + recomputed; each token once",
    "I34": "token budget, number of running sequences",
    "I35": "time never goes back",
    "cow": "a block is copied exactly when it is shared and to be written, before that, in any order",
    "fork": "a fork shares every block of its parent, or copies them into its own run, and the executor is told",
    "group": "the sequences of a request sample in the same steps",
    "saved": "what sharing saves is what it is from scratch",
    "order": "who is admitted, or comes back, was the next in the order, recomputed; first who is swapped out",
    "outranked": "for one that goes before them the last running requests yield, no more than it needs",
    "watermark": "an admission leaves the watermark free, except into an empty pool",
    "static": "a static batch lets nobody in once it decodes",
    "whole": "but in chunked, a prompt that a step can hold is fed in one",
    "fits": "can_admit says what counting the free blocks says",
    "blocked": "memory_blocked is said exactly when the next in line was refused its blocks",
    "victim": "the victim is the policy's, recomputed",
    "yield": "nobody is admitted in a step that had to preempt, but for whom others yielded",
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

    falling_ids: of two requests that arrive at once the later submitted has the lower id. several: requests may ask for
    several outputs.
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
    several: bool
    preemption: str
    host_blocks: int
    order: str
    preemptive: bool
    quantum: int
    ageing_s: float

    @property
    def slots(self) -> int:
        return self.num_blocks * self.block_size


YIELDING = ("priority", "srtf", "mlfq")
OTHER_VICTIMS = ["lowest_priority", "fewest_computed", "shortest_output", "longest_remaining"]
LEVELS = 3
GUESS = {"initial": 0.6, "minimum": 0.1, "decay_steps": 8, "retract_steps": 2}
ALLOCATORS = ["paged", "reserve_max", "power_of_two", "oracle", "reserve_output"]


def a_world(choose: Choose) -> World:
    """Any small engine; every other one is tight: many sequences that grow into each other's blocks. Every third
    one serves requests of several outputs, most of which have the rows and tokens they need."""
    tight, several = choose([True, False]), choose([True, False, False])
    order = choose(["fcfs"] * 5 + ["priority", "sjf", "srtf", "mlfq", "vtc", "random"])
    batching = choose(["chunked", "prefill_first"] * 3 + ["iteration", "static"])
    num_blocks, block_size = choose(range(3, 10)), choose([1, 2] if tight else [1, 2, 3, 4])
    slots = num_blocks * block_size
    allocator = "paged" if tight else choose(ALLOCATORS)
    return World(
        num_blocks,
        block_size,
        max_model_len=choose([slots, 2 * slots] if allocator == "paged" else [slots, slots // 2, slots // 3]),
        allocator=allocator,
        batching=batching,
        tokens=choose([2, 3, 4, 8] if tight and not several else [3, 4, 4, 8] if several else [1, 2, 3, 4, 8, 64]),
        victim=choose(["last_arrived", "most_blocks"] * 3 + OTHER_VICTIMS),
        admission=choose(
            ["on_demand"] * 6 + ["estimated_peak"]
            if tight
            else ["on_demand"] * 4 + ["one_at_a_time"]
            if allocator != "paged"
            else ["on_demand"] * 5 + ["one_at_a_time", "reserve_output", "estimated_peak"]
        ),
        watermark=0.0 if tight else choose([0.0, 0.25, 0.5]),  # exact in binary: x N rounded down is no matter of taste
        max_num_seqs=choose([3, 4, 6, 8] if several else [4] if tight else [1, 2, 3, 4]),
        alphabet=choose(range(2, 5)),
        eos=choose([None, None, 7, 23]),
        falling_ids=choose([False, False, True]),
        several=several,
        preemption=choose(["recompute", "swap"]) if allocator == "paged" else "recompute",
        host_blocks=choose([0, 2, num_blocks, 3 * num_blocks]),
        order=order,
        preemptive=order in YIELDING and allocator == "paged" and batching != "static" and choose([True, True, False]),
        quantum=choose([2, 5]),
        ageing_s=choose([0.05, 100.0]),
    )


GREEDY = SamplingParams()


@dataclass(frozen=True)
class Ask:
    """A request before it has an id and an arrival."""

    prompt: tuple[int, ...]
    new: int
    true: int
    sampling: SamplingParams = GREEDY
    client: str = ""
    priority: int = 0


def an_ask(world: World, choose: Choose) -> Ask:
    """One that usually fits."""
    length = choose(range(1, min(4 if world.several else 6, world.max_model_len) + 1))
    new = choose([1, 2, 4, 8, 12, 16])
    kind = choose(["one", "n", "best_of", "beams", "beams"]) if world.several else "one"
    if kind != "one":
        new = choose([1, 2, 3, 4, 6])
    several = {
        "one": {},
        "n": {"n": choose([2, 2, 3])},
        "best_of": {"best_of": choose([2, 2, 3])},
        "beams": {
            "beam_width": choose([2, 2, 3]),
            "length_penalty": choose([0.0, 1.0, 2.0]),
            "early_stopping": choose(["false", "true", "never"]),
        },
    }[kind]
    return Ask(
        tuple(choose(range(world.alphabet)) for _ in range(length)),
        new,
        choose([max(1, new // 2), new, new + 1]),
        SamplingParams(
            temperature={"one": choose([0.0, 1.0]), "beams": 0.0}.get(kind, 1.0),
            seed=choose(range(3)),
            ignore_eos=world.eos is None or choose([True, False]),
            **several,
        ),
        choose("aab"),
        choose([0, 0, 1, 2]),
    )


def an_ask_that_never_fits(world: World, choose: Choose) -> Ask:
    long = max(world.max_model_len, world.slots) + 1
    return choose([Ask((), 3, 2), Ask((1,), 0, 1), Ask((1,) * long, 1, 1), Ask((0,) * (long + 5), 4, 3)])


# ---- the account ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def expected(
    prompt: tuple[int, ...], new: int, true: int, sampling: SamplingParams, eos: int | None
) -> tuple[list[Completion], list[list[int]], list[list[list[int]]]]:
    """(the answer, the output of each sample, the beams after each step) of a request, alone."""
    r = Request(0, np.array(prompt, dtype=np.int32), new, true, sampling=sampling)
    if sampling.beam_width > 1:
        answer, steps = naive_beams(
            r, lambda out: log_probs(fingerprints_of([*prompt, *out]), VOCAB).tolist(), eos, min(new, true)
        )
        return answer, [], steps
    samples = [naive_output(r, eos, sampling.of_child(child)) for child in range(sampling.width)]
    return naive_answer(r, eos), samples, []


@dataclass(eq=False)
class Part:
    """What is true of one sequence of a request, from the plans and outcomes. output: what it has generated."""

    index: int
    output: list[int] = field(default_factory=list)
    row: int = -1
    table: list[int] = field(default_factory=list)
    entered_with: int = 0  # tokens it knew when its blocks were promised
    computed: int = 0
    high: int = 0  # tokens it had computed when it was preempted
    ended: bool = False

    def moved(self) -> None:
        """It left the pool."""
        self.row, self.table, self.computed = -1, [], 0


@dataclass(eq=False)
class Account:
    """What is true of one request. state: waiting, running or ended. Until it has forked, the first of its parts that
    live feeds the prompt for all."""

    seq: Served
    request: Request
    answer: list[Completion]  # all that it will ever come to
    samples: list[list[int]]
    beams: list[list[list[int]]]
    parts: list[Part]
    state: str = "waiting"
    forked: bool = False
    steps: int = 0  # in which it generated
    fed: Counter[int] = field(default_factory=Counter)  # of a request of one output: position -> how often computed
    tokens_fed: int = 0
    lost: int = 0
    recomputed: int = 0
    finish: str | None = None
    preempted: int = 0
    settled: bool = False  # it has ended, and has been looked at since
    swapped: bool = False
    stored: list[list[int]] = field(default_factory=list)  # the tables it left, of those that feed, as far as computed

    @property
    def id(self) -> int:
        return self.request.id

    @property
    def arrived(self) -> tuple[float, int]:
        return self.request.arrival_s, self.request.id

    @property
    def several(self) -> bool:
        return self.request.width > 1

    @property
    def live(self) -> list[Part]:
        return [part for part in self.parts if not part.ended]

    @property
    def feeding(self) -> list[Part]:
        return self.live if self.forked or not self.several else self.live[:1]

    def tokens(self, part: Part) -> list[int]:
        prompt = [int(t) for t in self.request.prompt]
        return prompt if self.several and not self.forked else prompt + part.output

    def to_compute(self, part: Part) -> int:
        return len(self.tokens(part)) - part.computed

    @property
    def lag(self) -> int:
        return max(self.to_compute(part) for part in self.feeding)

    def sequence(self, part: Part) -> Served:
        """What the product calls it."""
        return self.seq.branches[part.index] if self.forked else self.seq

    def key(self, part: Part) -> Any:
        return (self.id, part.index) if part.index else self.id

    def moved(self, state: str) -> None:
        self.state, self.forked, self.swapped = state, False, False
        for part in self.parts:
            part.moved()

    def swapped_out(self, stored: list[list[int]]) -> None:
        self.state, self.swapped, self.stored = "waiting", True, stored
        for part in self.parts:
            part.row, part.table = -1, []


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
            preemption=world.preemption,
            host_blocks=world.host_blocks,
            order=world.order,
            preemptive=world.preemptive,
            mlfq={"levels": LEVELS, "quantum": world.quantum, "ageing_s": world.ageing_s},
            estimated_peak=GUESS,
        )
        self.order = NaiveOrder(world.order, world.quantum, LEVELS, world.ageing_s)
        self.estimate = GUESS["initial"]
        self.open = True  # static: whether its batch still lets somebody in
        self.executor = make_executor(self.scheduler, world.eos)
        self.allocator, self.pool = self.scheduler.allocator, self.scheduler.allocator.pool
        self.accounts: list[Account] = []
        self.refused: list[Served] = []
        self.steps = self.preemptions = self.swaps = self.barren = 0
        self._rows_left: list[int] = []  # rows given up since the last plan
        self._returned: dict[Any, tuple[int, int]] = {}  # key -> blocks freed and tokens of its last stay in the pool
        self._copies_due: list[tuple[int, int, int]] = []  # (row, source, destination) of forks since the last plan
        self._watch()

    # ---- the account, read ------------------------------------------------------------------------------------------

    def _in(self, state: str) -> list[Account]:
        return [account for account in self.accounts if account.state == state]

    def _of(self, seq_id: int) -> Account:
        return next(account for account in self.accounts if account.id == seq_id)

    def _running(self) -> list[tuple[Account, Part]]:
        """Every sequence that has a row, whether it feeds already or not."""
        return [(account, part) for account in self._in("running") for part in account.live]

    def _part(self, seq: Served) -> tuple[Account, Part]:
        account = self._of(seq.id)
        return account, account.parts[seq.index]

    def _reservation(self, request: Request) -> tuple[int, int]:
        """(slots promised, blocks) of a reserving allocator, for one sequence."""
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

    def _promised(self, account: Account, part: Part, fed_now: int = 0) -> int:
        if self.world.allocator == "paged":
            return max(part.entered_with, part.computed + fed_now) if part in account.feeding else 0
        return self._reservation(account.request)[0]

    def _runs(self, free: set[int], blocks: int) -> list[int]:
        """Where a run of free blocks starts that a reserving allocator may hand out."""
        stride = blocks if self.world.allocator == "power_of_two" else 1
        starts = range(0, self.world.num_blocks - blocks + 1, stride)
        return [start for start in starts if free.issuperset(range(start, start + blocks))]

    def _count_runs(self, free: set[int], blocks: int) -> int:
        """How many of them can be taken one after the other, the lowest first."""
        free, count = set(free), 0
        while starts := self._runs(free, blocks):
            free -= set(range(starts[0], starts[0] + blocks))
            count += 1
        return count

    def _to_begin(self, prompt: int, outputs: list[int]) -> int:
        """Blocks for a prompt and what follows it in each sequence, shared as far as they are full."""
        size = self.world.block_size
        shared = 0 if len(outputs) == 1 else prompt // size
        return shared + sum(ceil_div(prompt + output, size) - shared for output in outputs)

    def _fits(self, request: Request, outputs: list[int], free: set[int], keep: int) -> bool:
        """outputs: how much each of the sequences to be admitted has generated."""
        if self.world.allocator == "paged":
            return self._to_begin(len(request.prompt), outputs) + keep <= len(free)
        return self._count_runs(free, self._reservation(request)[1]) >= len(outputs)

    def _stored(self, account: Account) -> list[list[int]]:
        """The tables of what a request has computed, for each of its sequences that feed."""
        if account.swapped:
            return account.stored
        return [part.table[: ceil_div(part.computed, self.world.block_size)] for part in account.feeding]

    def _to_return(self, account: Account) -> int:
        """Blocks to bring a request back from the host, and to feed all that it knows."""
        if not account.forked:
            return self._to_begin(len(account.request.prompt), [len(part.output) for part in account.live])
        size, stored = self.world.block_size, self._stored(account)
        blocks = len({block for table in stored for block in table})
        for part, table in zip(account.feeding, stored, strict=True):
            blocks += ceil_div(len(account.tokens(part)), size) - len(table)
        tails = Counter(t[-1] for p, t in zip(account.feeding, stored, strict=True) if p.computed % size)
        return blocks + sum(sharers - 1 for sharers in tails.values())

    def _room(self, account: Account, swapped: bool, free: set[int], keep: int) -> bool:
        if swapped:
            return self._to_return(account) + keep <= len(free)
        return self._fits(account.request, [len(part.output) for part in account.live], free, keep)

    def _most(self, request: Request) -> int:
        return self._to_begin(len(request.prompt), [request.max_tokens - 1] * request.width)

    def _peak(self, accounts: list[Account]) -> float:
        """Slots at the worst moment: when one of them ends that generates what is expected, as all others have."""
        size, peaks = self.world.block_size, []
        left = {a.id: self.estimate * (a.request.max_tokens - a.steps) for a in accounts}
        for one in accounts:
            there = [a for a in accounts if left[a.id] >= left[one.id]]
            held = sum(len(a.request.prompt) + len(a.live) * (a.steps + size - 1) for a in there)
            peaks.append(held + left[one.id] * sum(len(a.live) for a in there))
        return max(peaks)

    def _first(self, waiting: list[Account]) -> Account:
        """Who is next: one that is swapped out, but where running requests yield to those before them in one line."""
        away = [] if self.world.preemptive else [account for account in waiting if account.swapped]
        return self.order.first(away or waiting)

    def _may_enter(self, account: Account, free: set[int], running: list[Account], swapped: bool) -> bool:
        """What the admission policy must answer."""
        fits = self._room(account, swapped, free, 0)
        if self.world.admission == "reserve_output":
            most = sum(self._most(a.request) for a in [*running, account])
            return most <= self.world.num_blocks and fits
        if self.world.admission == "estimated_peak":
            return fits and (not running or self._peak([*running, account]) <= self.world.slots)
        if self.world.admission == "one_at_a_time":
            return not running and fits
        keep = int(self.world.watermark * self.world.num_blocks) if running else 0
        return self._room(account, swapped, free, keep)

    def _never_fits(self, request: Request) -> bool:
        w = self.world
        prompt, width = len(request.prompt), request.width
        if prompt < 1 or request.max_tokens < 1 or prompt > w.max_model_len:
            return True
        if width > min(w.max_num_seqs, w.tokens):
            return True
        if w.allocator == "paged":
            longest = min(request.max_tokens, w.max_model_len - prompt + 1) - 1
            return self._to_begin(prompt, [longest] * width) > w.num_blocks
        return self._count_runs(set(range(w.num_blocks)), self._reservation(self._cut(request))[1]) < width

    def _cut(self, request: Request) -> Request:
        """max_tokens as far as max_model_len goes."""
        new = min(request.max_tokens, self.world.max_model_len - len(request.prompt) + 1)
        return replace(request, max_tokens=new)

    # ---- watching single calls --------------------------------------------------------------------------------------

    def _snapshot(self) -> tuple[Any, ...]:
        runs = getattr(self.allocator, "_runs", None)
        return (
            self.pool.free_ids(),
            list(self.pool.ref),
            {key: (list(h.table), h.promised, h.tokens) for key, h in self.allocator.holdings.items()},
            self.allocator.usage(),
            self.allocator.sharing(),
            runs and runs.free_ids(),
        )

    def _mapped_by(self, tables: dict[Any, list[int]]) -> Counter[int]:
        return Counter(block for table in tables.values() for block in table)

    def _tables(self) -> dict[Any, list[int]]:
        return {key: list(h.table) for key, h in self.allocator.holdings.items()}

    def _watch(self) -> None:
        """Look at each call of the allocator and of the victim policy: what it takes, and what a failure leaves."""
        a, pool = self.allocator, self.pool
        can_admit, admit, grow, release, fork = a.can_admit, a.admit, a.grow, a.release, a.fork
        restore = a.restore
        choose = self.scheduler.victim.choose

        def watched_can_admit(seq: Served, keep_free: int = 0) -> bool:
            before = self._snapshot()
            answer = can_admit(seq, keep_free)
            must("I19", self._snapshot() == before, "can_admit changed something")
            naive = self._room(self._of(seq.id), seq.swapped, set(pool.free_ids()), keep_free)
            must("fits", answer == naive, "can_admit says", answer, "of", seq, ",", pool.free_ids(), "free")
            return answer

        def watched_admit(seq: Served) -> Grant:
            before = self._snapshot()
            held = set(a.holdings)
            try:
                grant = admit(seq)
            except OutOfBlocks:
                must("I19", self._snapshot() == before, "the refused admission of", seq, "left", self._snapshot())
                raise
            free = list(before[0])
            for key in [key for key in a.holdings if key not in held]:
                self._check_taken(a.holdings[key].table, free, at_admission=True)
                free = [block for block in free if block not in a.holdings[key].table]
            return grant

        def watched_grow(key: Any, num_tokens: int) -> list[int] | None:
            before, tables = self._snapshot(), self._tables()
            new = grow(key, num_tokens)
            filled = tables[key] and before[2][key][1] % self.world.block_size
            shared = bool(filled) and self._mapped_by(tables)[tables[key][-1]] > 1
            if new is None:
                must("I19", self._snapshot() == before, "the failed growth of", key, "left", self._snapshot())
                need = ceil_div(num_tokens, self.world.block_size) - len(tables[key]) + shared
                must("fits", need > len(before[0]), "no", need, "blocks for", key, "with", before[0], "free")
                return new
            self._check_taken(new, before[0], at_admission=False)
            kept = len(a.holdings[key].table) - len(new)
            must("I30", a.holdings[key].table == tables[key][:kept] + new, key, "grew from", tables[key], "by", new)
            replaced = num_tokens > before[2][key][1] and shared
            must("cow", kept == len(tables[key]) - replaced, "shared:", shared, tables, "became", self._tables())
            return new

        def watched_release(key: Any) -> int:
            tables = self._tables()
            table, tokens = tables.get(key, []), a.holdings[key].tokens if key in tables else 0
            mapped = self._mapped_by(tables)
            last = [block for block in table if mapped[block] == 1]
            before = pool.free_ids()
            freed = release(key)
            after = pool.free_ids()
            must("I02", len(set(after)) == len(after), "free queue", after, "after the release of", table)
            must("I01", set(after) == {*before, *last}, before, "free,", table, "released,", after, "free")
            must("I22", after == before + last[::-1], before, "free,", table, "released,", after, "free")
            must("I01", freed == len(last), freed, "blocks said to be freed by the release of", table)
            self._returned[key] = (freed, tokens)
            return freed

        def watched_restore(request: Served) -> Any:
            before, held = self._snapshot(), set(a.holdings)
            try:
                back = restore(request)
            except OutOfBlocks:
                must("I19", self._snapshot() == before, "the refused return of", request, "left", self._snapshot())
                raise
            taken = {block for key in a.holdings if key not in held for block in a.holdings[key].table}
            must("I23", taken == set(before[0][: len(taken)]), taken, "handed out of the queue", before[0])
            return back

        def watched_fork(parent: Any, child: Any) -> list[tuple[int, int]]:
            tables = self._tables()
            copies = fork(parent, child)
            after = self._tables()
            if self.world.allocator == "paged":
                must("fork", after == {**tables, child: tables[parent]}, parent, "to", child, tables, "became", after)
                must("fork", copies == [], parent, "to", child, "copies", copies)
                self._returned.pop(child, None)  # what it held before it gave back here
            else:
                must("fork", after == tables, "runs moved:", tables, after)
                filled = ceil_div(a.holdings[parent].tokens, self.world.block_size)
                due = list(zip(tables[parent], tables[child], strict=True))[:filled]
                must("fork", copies == due, parent, "to", child, "copies", copies, ", not", due)
            same = (a.holdings[parent].tokens, a.holdings[parent].promised)
            must("fork", (a.holdings[child].tokens, a.holdings[child].promised) == same, a.holdings)
            return copies

        def watched_choose(running: Sequence[Served]) -> Served:
            victim = choose(running)
            blocks = {
                s.id: len({block for key, table in self._tables().items() if _id(key) == s.id for block in table})
                for s in running
            }
            keys = {
                s.id: (*self._first_to_yield(self._of(s.id), blocks[s.id]), *self._of(s.id).arrived) for s in running
            }
            must("victim", keys[victim.id] == max(keys.values()), victim.id, "of", keys)
            return victim

        a.can_admit, a.admit, a.grow, a.release = watched_can_admit, watched_admit, watched_grow, watched_release
        a.fork, a.restore = watched_fork, watched_restore
        self.scheduler.victim.choose = watched_choose

    def _first_to_yield(self, account: Account, blocks: int) -> tuple[Any, ...]:
        """What the victim policy goes by; the highest yields."""
        r = account.request
        computed = sum(part.computed for part in account.feeding) - len(r.prompt) * (len(account.feeding) - 1)
        return {
            "last_arrived": (),
            "most_blocks": (blocks,),
            "lowest_priority": (r.priority,),
            "fewest_computed": (-computed,),
            "shortest_output": (-account.steps, len(r.prompt)),
            "longest_remaining": (min(r.max_tokens, r.true_output_tokens or r.max_tokens) - account.steps,),
        }[self.world.victim]

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
            client=ask.client,
            priority=ask.priority,
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
            answer = expected(ask.prompt, r.max_tokens, ask.true, r.sampling, self.world.eos)
            account = Account(seq, r, *answer, [Part(index) for index in range(r.width)])
            self.order.waits(account, self._in("waiting"))
            self.accounts.append(account)
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
            self._check_left(account, account.live)
            rows = [part.row for part in account.live]
            self._rows_left += rows
            self._copies_due = [copy for copy in self._copies_due if copy[0] not in rows]
        else:
            must("I19", self._snapshot() == before, "aborting", account.seq, "touched the pool")
            if account.state == "waiting":
                self.order.leaves(account, [a for a in self._in("waiting") if a is not account], admitted=False)
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
            table = self.allocator.admit(seq).table
        except OutOfBlocks:
            must("fits", not self._fits(r, [0], free, 0), seq, "refused with", free, "free")
        else:
            must("fits", self._fits(r, [0], free, 0), seq, "admitted with", free, "free")
            must("I07", len(table) == self._blocks(len(r.prompt), r), table, "for", seq)
            self._check_pool()
            self.allocator.release(-1)
            self._returned.pop(-1)
        self.check()

    def drain(self) -> None:
        """Run until nobody is left, in a bounded number of steps."""
        open_accounts = [account for account in self.accounts if account.state != "ended"]
        left = sum(len(a.request.prompt) + a.request.width * a.request.max_tokens for a in open_accounts)
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
                self._check_answer(account)

    def _check_answer(self, account: Account) -> None:
        got, want = account.seq.outputs(), account.answer
        must("I12", [c.token_ids for c in got] == [c.token_ids for c in want], got, "is not", want)
        must("I12", [c.finish_reason for c in got] == [c.finish_reason for c in want], got, "is not", want)
        if account.several:
            close = [
                (a.score is None and b.score is None) or abs(a.score - b.score) < 1e-9
                for a, b in zip(got, want, strict=True)
            ]
            must("I12", all(close), got, "is not", want)
        must("I12", account.seq.output == want[0].token_ids, account.seq)
        must("I12", account.seq.finish_reason == want[0].finish_reason, account.seq)

    def step(self) -> None:
        """Schedule, execute, commit: each looked at by itself."""
        if not self.scheduler.has_work:
            self.check()
            return
        plan = self._schedule()
        kv, host_kv = self.executor.kv.copy(), self.executor.host_kv.copy()
        size = self.world.block_size
        mapped = Counter(block for _, part in self._running() for block in part.table)
        slots = set()
        for _, part, fed in self._work(plan):
            for position in range(part.computed, part.computed + fed):
                must("I24", mapped[part.table[position // size]] == 1, "written while shared:", part.table, mapped)
                slots.add(self._slot(part.table, position))
        written = [copy.destination for copy in plan.copies] + [block for _, block in plan.swapped_in]
        copied = {block * size + offset for block in written for offset in range(size)}
        moved = [host for _, host in plan.swapped_out] + [host for host, _ in plan.swapped_in]
        outcome = self.executor.execute(plan)
        self._check_told(plan)
        stray = set(np.flatnonzero(self.executor.kv != kv).tolist()) - slots - copied
        must("I11", not stray, "slots", stray, "written,", slots, "fed,", copied, "copied")
        stray = {slot // size for slot in np.flatnonzero(self.executor.host_kv != host_kv)} - set(moved)
        must("I11", not stray, "host blocks", stray, "written,", moved, "moved")
        self._commit(plan, outcome)
        self.steps += 1
        self.check()

    # ---- what a plan may say ----------------------------------------------------------------------------------------

    def _schedule(self) -> Plan:
        w, scheduler = self.world, self.scheduler
        free_before, running_before = set(self.pool.free_ids()), self._in("running")
        rows_before = len(self._running())
        waiting = self._in("waiting")
        self.open = self.open or not running_before
        now = self.executor.clock.now()
        self.order.time(now, waiting)
        ranks = {account.id: self.order.rank(account) for account in running_before}
        held_before = self._held()
        prefilling = any(account.lag > 1 for account in self._in("running"))
        due, self._copies_due = self._copies_due, []
        plan = scheduler.schedule(now)
        must("I32", bool(plan.batch), "nothing can run:", len(waiting), "waiting,", free_before, "free")
        must("order", plan.admission_estimate == (self.estimate if w.admission == "estimated_peak" else None), plan)
        ran_out = [record for record in plan.preempted if record.reason == "pool exhausted"]
        outranked = [record for record in plan.preempted if record.reason == "outranked"]
        must("outranked", len(ran_out) + len(outranked) == len(plan.preempted), plan.preempted)
        must("outranked", not (ran_out and outranked), plan.preempted)

        host_free, outs = self.world.host_blocks - self._on_host(), list(plan.swapped_out)
        for record in plan.preempted:
            victim = self._of(record.victim)
            must("victim", victim.state == "running", victim.seq, "did not run")
            if w.preemptive and ran_out:
                behind = [a.id for a in self._in("running") if ranks[a.id] > ranks[record.beneficiary]]
                must("outranked", record.victim in (behind or [record.beneficiary]), record, "yields before", behind)
            helped = "waiting" if outranked else "running"
            must("victim", self._of(record.beneficiary).state == helped, record, "helps nobody")
            shared = len(victim.request.prompt)
            lost = sum(part.computed for part in victim.feeding) - shared * (len(victim.feeding) - 1)
            stored = self._stored(victim)
            leaving = {block for table in stored for block in table}
            asked = w.preemption == "swap"
            swaps = asked and len(leaving) <= host_free
            must(
                "kind", (record.kind == "swap") == swaps, record, len(leaving), "blocks,", host_free, "free on the host"
            )
            must("kind", record.fallback == (asked and not swaps), record)
            if swaps:
                lost, host_free = 0, host_free - len(leaving)
                mine, outs = outs[: len(leaving)], outs[len(leaving) :]
                must("I28", sorted(block for block, _ in mine) == sorted(leaving), mine, "moved of", stored)
            moved = len(leaving) if swaps else 0
            must("kind", (record.blocks_moved, record.bytes_moved) == (moved, moved * BLOCK_BYTES), record)
            must("I33", record.tokens_lost == lost, record, ",", lost, "computed")
            must("I01", record.blocks_freed == self._check_left(victim, victim.live, bool(outranked)), record)
            rows = [part.row for part in victim.live]
            self._rows_left += rows
            due = [copy for copy in due if copy[0] not in rows]
            for part in victim.feeding:
                part.high = max(part.high, part.computed)
            victim.lost += lost
            self.order.waits(victim, self._in("waiting"))
            if swaps:
                victim.swapped_out(stored)
                self.swaps += 1
            else:
                victim.moved("waiting")
            victim.preempted += 1
            self.preemptions += 1
            for part in victim.live:
                seq = victim.seq.branches[part.index] if victim.several else victim.seq
                must("I17", seq.output == part.output, seq)
                must("I10", swaps or seq.computed == victim.seq.computed == 0, seq, "has no blocks")
        must("I28", not outs, outs, "moved for nobody")
        must("fence", len({host for _, host in plan.swapped_out}) == len(plan.swapped_out), plan.swapped_out)
        must("rows", Counter(plan.released) == Counter(self._rows_left), plan.released, self._rows_left)
        self._rows_left = []

        self._check_read(plan)
        returned, moves, entered = {record.request_id: record for record in plan.returned}, list(plan.swapped_in), set()
        for new in plan.admitted:
            if new.request.id in entered & returned.keys():  # one for each of its sequences
                continue
            entered.add(new.request.id)
            must("queue", new.request.id in {account.id for account in waiting}, new, "was not waiting")
            account = self._of(new.request.id)
            first = self._first(waiting)
            must("order", account is first, account.arrived, "admitted,", first.arrived, "waiting")
            waiting.remove(account)
            rank = self.order.rank(account)
            self.order.leaves(account, [a for a in self._in("waiting") if a is not account], admitted=True)
            if account.id in returned:
                moves = self._check_return(plan, account, returned[account.id], moves)
                continue
            taken = {part.row for _, part in self._running()}
            account.state = "running"
            must("I17", new.token_ids.tolist() == account.tokens(account.live[0]), new)
            for part in account.live:
                part.row = account.seq.branches[part.index].row if account.several else new.row
                must("rows", part.row not in taken, "row", part.row, "is in use")
                must("rows", 0 <= part.row < w.max_num_seqs, part.row)
                taken.add(part.row)
                part.entered_with = len(account.tokens(part)) if part in account.feeding else 0
                if w.allocator != "paged" or part in account.feeding:
                    part.table = list(self.allocator.holdings[account.key(part)].table)
                    blocks = self._blocks(part.entered_with, account.request)
                    must("I07", len(part.table) == blocks, part.table, "of", blocks)
            must("rows", new.row == account.live[0].row, new)
            must("I30", new.block_ids == account.live[0].table, new, account.live[0].table)
        must("queue", entered >= returned.keys(), plan.returned, "are not told to the executor")
        must("I28", not moves, moves, "moved for nobody")

        rows = {part.row: (account, part) for account, part in self._running()}
        told_to = {fork.row for fork in plan.forked}
        must("fork", told_to <= rows.keys(), plan.forked, "of rows", sorted(rows))
        copies = list(due)
        for growth in plan.grown:
            must("I30", growth.row in rows, growth, "of a row that nobody has")
            account, part = rows[growth.row]
            if growth.start == len(part.table) - 1:
                source = part.table.pop()
                sharers = [p for _, p in rows.values() if source in p.table]
                must("cow", part.computed % w.block_size > 0, growth, "replaces what is not to be written")
                must("cow", len(sharers) > 0, growth, "replaces a block that nobody shares")
                copies.append((growth.row, source, growth.block_ids[0]))
            must("I30", growth.start == len(part.table), growth, part.table)
            part.table += growth.block_ids
        told = [(copy.row, copy.source, copy.destination) for copy in plan.copies]
        must("cow", told == copies, "copies", told, ", expected", copies)
        must("cow", not {c[1] for c in told} & {c[2] for c in told}, "copies depend on their order:", told)
        must("cow", len({c[2] for c in told}) == len(told), "two copies to one place:", told)
        for account, part in rows.values():
            key = account.key(part)
            table = self.allocator.holdings[key].table if key in self.allocator.holdings else []
            must("I30", table == part.table, "the plan told", part.table, ",", key, "holds", table)

        work = self._work(plan)
        must("batch", len({id(part) for _, part, _ in work}) == len(plan.batch), plan.batch)
        for i, (account, part, fed) in enumerate(work):
            must("batch", account.state == "running" and part in account.feeding, account.seq, "does not run")
            pending = account.to_compute(part)
            must("batch", 1 <= fed <= pending, fed, "of", pending, "tokens fed")
            must("batch", plan.samples(i) == (fed == pending), account.seq)
        must("static", w.batching != "static" or self.open or not plan.admitted, plan.admitted, "join a closed batch")
        for new in plan.admitted if w.batching != "chunked" else ():
            account = self._of(new.request.id)
            if account.id in returned and (account.forked or w.batching != "iteration"):
                continue  # it decodes, or goes on with a prompt beside decodes
            fed = sum(n for a, _, n in work if a is account)
            must("whole", fed == account.lag or account.lag > w.tokens, account.seq, "is fed", fed, "of", account.lag)
        for account in self._in("running"):
            sampling = [part for a, part, fed in work if a is account and fed == a.to_compute(part)]
            must("group", sampling in ([], account.feeding), account.seq, "samples in part only")
        must("yield", not (ran_out and plan.admitted), plan)
        if outranked:
            # No cache is shared here, so whom others yield to gets in: as the last of the step.
            must("outranked", bool(plan.admitted) and w.preemptive, plan)
            head = self._of(plan.admitted[-1].request.id)
            must("outranked", {record.beneficiary for record in outranked} == {head.id}, outranked)
            last = sorted(running_before, key=lambda a: ranks[a.id])[::-1][: len(outranked)]
            must("outranked", [record.victim for record in outranked] == [a.id for a in last], outranked, ranks)
            must("outranked", all(ranks[a.id] > rank for a in last), outranked, ranks, rank)
            spared = last[-1]  # with its blocks and rows, the head would not have got in
            blocks = len(self.pool.free_ids()) + self._held()[head.id] - outranked[-1].blocks_freed
            rows_free = w.max_num_seqs - len(self._running()) + len(head.live) - len(spared.live)
            beside = [a for a in self._in("running") if a is not head] + [spared]
            back = head.id in returned
            enough = rows_free >= len(head.live) and self._may_enter(head, set(range(blocks)), beside, back)
            must("outranked", not enough, spared.seq, "yielded for nothing to", head.seq)
        must("I34", plan.total_tokens == sum(plan.num_tokens) <= w.tokens, plan.num_tokens)
        must("I34", len(rows) <= w.max_num_seqs, rows)
        must("I34", w.admission != "one_at_a_time" or len(self._in("running")) <= 1, rows)
        must("I34", scheduler.num_running == sum(len(a.feeding) for a in self._in("running")), scheduler.num_running)
        free = set(self.pool.free_ids())
        running = self._in("running")
        if plan.admitted and len(running) > 1 and w.allocator == "paged" and w.admission == "on_demand":
            must("watermark", len(free) >= int(w.watermark * w.num_blocks), free, "left of", w.num_blocks)
        whole = w.batching == "prefill_first" or (w.batching == "static" and self.open)
        head = self._first(waiting) if waiting else None
        if whole and (returned or (head and head.swapped)):
            decodes = not prefilling and entered <= returned.keys()  # else nobody can have come back
            left = w.tokens - plan.total_tokens if head and head.swapped and decodes else 0
            looked_at = (left, self._in("waiting"), free, running, len(rows), self._held())
            self._check_blocked(plan, bool(ran_out), *looked_at, preempted=bool(plan.preempted))
        elif whole and not plan.admitted and not prefilling:
            looked_at = (w.tokens, waiting, free_before, running_before, rows_before, held_before)
            self._check_blocked(plan, bool(ran_out), *looked_at, preempted=False)
        else:
            left = w.tokens - plan.total_tokens
            looked_at = (left, self._in("waiting"), free, running, len(rows), self._held())
            self._check_blocked(plan, bool(ran_out), *looked_at, preempted=bool(plan.preempted))
        self.open = self.open and (bool(plan.admitted) or any(account.lag > 1 for account in running))
        self._expect_next_time(running, bool(ran_out))
        self._check_usage({id(part): fed for _, part, fed in work})
        return plan

    def _on_host(self) -> int:
        """Blocks that are there."""
        return sum(len({block for table in a.stored for block in table}) for a in self.accounts if a.swapped)

    def _check_read(self, plan: Plan) -> None:
        """What the step reads of the host is nobody's to write to, and it writes nothing twice."""
        free_on_host = set(self.allocator.host.pool.free_ids()) if self.allocator.host else set()
        read = {host for host, _ in plan.swapped_in}
        must("fence", not free_on_host & read, read, "read, free on the host:", free_on_host)
        into = [block for _, block in plan.swapped_in]
        into += [copy.destination for copy in plan.copies]
        must("fence", len(set(into)) == len(into), plan.swapped_in, plan.copies)

    def _check_return(self, plan: Plan, account: Account, record: Return, moves: list[Any]) -> list[Any]:
        """One comes back from the host, by the first of `moves`. Returns the other ones."""
        must("order", account.swapped, record, "was not swapped out")
        taken = {part.row for _, part in self._running()}
        account.state, account.swapped = "running", False
        told = {new.row: new for new in plan.admitted if new.request.id == account.id}
        must("rows", len(told) == len(account.feeding), told)
        for part in account.live:
            part.row = account.seq.branches[part.index].row if account.several else account.seq.row
            must("rows", part.row not in taken and 0 <= part.row < self.world.max_num_seqs, part.row, taken)
            taken.add(part.row)
            part.entered_with = 0
        moved: dict[int, int] = {}
        for part, old in zip(account.feeding, account.stored, strict=True):
            part.entered_with = part.computed if account.forked else len(account.tokens(part))
            new = told.get(part.row)
            must("rows", new is not None, "row", part.row, "is told nothing")
            part.table = list(new.block_ids)  # as it came back: it may grow in this step
            must("I07", len(part.table) == ceil_div(part.entered_with, self.world.block_size), part.table)
            for before, now in zip(old, part.table, strict=False):
                must("I28", moved.setdefault(before, now) == now, account.stored, "came back as", part.table)
            must("I17", new.token_ids.tolist() == account.tokens(part), new)
            must("I10", new.computed == part.computed, new, part)
        must("I28", len(set(moved.values())) == len(moved), account.stored, "came back as", moved)
        mine, moves = moves[: len(moved)], moves[len(moved) :]
        must("I28", {block for _, block in mine} == set(moved.values()), mine, "moved,", moved, "expected")
        said = (record.blocks_moved, record.bytes_moved, record.blocks_attached)
        must("kind", said == (len(moved), len(moved) * BLOCK_BYTES, 0), record)
        return moves

    def _work(self, plan: Plan) -> list[tuple[Account, Part, int]]:
        return [(*self._part(seq), fed) for seq, fed in zip(plan.batch, plan.num_tokens, strict=True)]

    def _expect_next_time(self, running: list[Account], ran_out: bool) -> None:
        """What estimated_peak guesses from the next step on."""
        if ran_out and running:
            made = sum(a.steps + GUESS["retract_steps"] for a in running) / sum(a.request.max_tokens for a in running)
            self.estimate = max(self.estimate, min(made, 1.0))
        else:
            fall = (GUESS["initial"] - GUESS["minimum"]) / GUESS["decay_steps"]
            self.estimate = max(self.estimate - fall, GUESS["minimum"])

    def _held(self) -> dict[int, int]:
        """Blocks of each request that runs, shared ones once."""
        return {a.id: len({block for part in a.live for block in part.table}) for a in self._in("running")}

    def _check_blocked(
        self,
        plan: Plan,
        ran_out: bool,
        left: int,
        waiting: list[Account],
        free: set[int],
        running: list[Account],
        rows: int,
        held: dict[int, int],
        preempted: bool,
    ) -> None:
        """The next in line, when the step last looked at it: was it refused for memory, and rightly?"""
        w, blocked = self.world, ran_out
        if waiting:
            head = self._first(waiting)
            need = sum(head.to_compute(part) for part in head.feeding)
            alone = left > 0 if head.swapped else left == w.tokens or need <= left
            looked = {
                "chunked": left > 0,
                "prefill_first": alone,
                "static": self.open and alone,
                "iteration": left > 0 and (need <= left or need > w.tokens),
            }[w.batching]
            if w.preemptive and looked and not preempted:
                behind = [a for a in running if self.order.rank(a) > self.order.rank(head)]
                staying = [a for a in running if a not in behind]
                room = rows - sum(len(a.live) for a in behind) + len(head.live) <= w.max_num_seqs
                blocks = set(range(len(free) + sum(held[a.id] for a in behind)))
                enough = room and self._may_enter(head, blocks, staying, head.swapped)
                must("outranked", not enough, head.seq, "waits behind", [a.seq for a in behind])
            if rows + len(head.live) <= w.max_num_seqs:
                refused = not self._may_enter(head, free, running, head.swapped)
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
        ended: list[Served] = []
        sampled: dict[int, list[Part]] = {}
        for (account, part, fed), token, finish in zip(work, outcome.tokens, outcome.finish, strict=True):
            again = max(0, min(part.high, part.computed + fed) - part.computed)
            account.recomputed += again
            self.order.served(account, fed - again, int(token >= 0 and not account.several))
            if not account.several:
                account.fed.update(range(part.computed, part.computed + fed))
            part.computed += fed
            account.tokens_fed += fed
            must("I33", (token >= 0) == (account.to_compute(part) == 0), "token", token, "of", account.seq)
            if token < 0:
                must("I12", finish is None, account.seq)
            elif account.several:
                sampled.setdefault(account.id, []).append(part)
            else:
                self._commit_one(account, part, token, finish, now, ended)
        for account_id in sampled:
            self._commit_several(self._of(account_id), now, ended)
        must("I33", sorted(map(id, finished)) == sorted(map(id, ended)), finished, "finished, expected", ended)
        self.barren = 0 if any(token >= 0 for token in outcome.tokens) else self.barren + 1
        must("I32", self.barren <= self._patience(), "no token in", self.barren, "steps")

    def _commit_one(
        self, account: Account, part: Part, token: int, finish: str | None, now: float, ended: list[Served]
    ) -> None:
        output = account.samples[0]
        must("I12", token == output[len(part.output)], token, "is token", len(part.output), "of", output)
        part.output.append(token)
        self._count_tokens(account, now)
        must("I12", (finish is not None) == (part.output == output), finish, "of", account.seq)
        if finish is not None:
            must("I12", finish == account.answer[0].finish_reason, finish)
            self._end(account, [part], now)
            ended.append(account.seq)

    def _commit_several(self, account: Account, now: float, ended: list[Served]) -> None:
        """All of its sequences that feed have sampled: the trunk, or every branch that lives."""
        live, forking = account.live, not account.forked
        again = forking and account.steps > 0  # after a preemption the prompt only leads back
        before = {part.index: list(part.output) for part in live}
        outputs = {part.index: list(account.seq.branches[part.index].output) for part in live}
        leaving: list[Part] = []
        if again:
            must("I17", outputs == before, outputs, "after a preemption, expected", before)
        else:
            self._count_tokens(account, now)
            self.order.served(account, 0, len(live))
            if account.samples:
                want = {i: account.samples[i][: len(output) + 1] for i, output in before.items()}
                must("I12", outputs == want, outputs, "are the samples, expected", want)
                leaving = [part for part in live if want[part.index] == account.samples[part.index]]
            elif account.steps > len(account.beams):
                leaving = live
            else:
                beams = account.beams[account.steps - 1]
                must("I12", sorted(outputs.values()) == sorted(beams), outputs, "are the beams, expected", beams)
        stays = [part for part in live if part not in leaving]
        if forking and stays and live[0] in leaving:  # the first that goes on inherits
            one, other = live[0], stays[0]
            for name in ("row", "table", "computed", "entered_with"):
                mine, its = getattr(one, name), getattr(other, name)
                setattr(one, name, its)
                setattr(other, name, mine)
        self._follow_forks(account, stays, before, outputs)
        for part in live:
            part.output = outputs[part.index]
        self._end(account, leaving, now)
        account.forked = account.state == "running"
        ended += [account.seq.branches[part.index] for part in leaving]
        if not account.live:
            ended.append(account.seq)

    def _follow_forks(
        self, account: Account, stays: list[Part], before: dict[int, list[int]], outputs: dict[int, list[int]]
    ) -> None:
        """Each goes on from the KV of another of them, or its own, as the executor is to be told."""
        told = {fork.row: fork for fork in self.scheduler._forked}
        held = {part.row: (part, list(part.table), part.computed) for part in account.live}
        for part in stays:
            if account.forked and account.samples:
                must("fork", part.row not in told, told, "though each sample goes on by itself")
                continue
            must("fork", part.row in told, "row", part.row, "is not told what it goes on with")
            parent, table, computed = held[told[part.row].parent]
            if account.forked:
                must("I29", outputs[part.index][:-1] == before[parent.index], outputs, "from", parent, "of", before)
            else:
                must("fork", parent is stays[0], told, "not from the trunk")
            if parent is not part and self.world.allocator == "paged":
                part.table = list(table)
            elif parent is not part:
                filled = ceil_div(computed, self.world.block_size)
                pairs = list(zip(table, part.table, strict=True))[:filled]
                self._copies_due += [(part.row, *pair) for pair in pairs]
            part.computed = part.entered_with = computed

    def _count_tokens(self, account: Account, now: float) -> None:
        account.steps += 1
        must("I35", account.seq.token_s[-1] == now, account.seq)

    def _end(self, account: Account, parts: list[Part], now: float) -> None:
        """These have generated their last token; if none is left, the request has ended."""
        if parts:
            self._check_left(account, parts)
        for part in parts:
            self._rows_left.append(part.row)
        for part in parts:
            part.moved()
            part.ended = True
        if account.live:
            return
        must("I35", account.seq.finish_s == now, account.seq)
        account.finish = account.answer[0].finish_reason
        fed = len(account.request.prompt) + account.lost
        if account.samples:
            fed += sum(len(sample) - 1 for sample in account.samples)
        else:
            fed += account.request.width * (account.steps - 1)
        must("I33", account.lost == account.recomputed, account.lost, "lost,", account.seq)
        must("I33", account.tokens_fed == fed, account.tokens_fed, "computed,", fed, "expected of", account.seq)
        account.moved("ended")

    def _patience(self) -> int:
        """Steps without a token before the engine calls itself stalled: it must never come to that."""
        most = max(self.world.max_model_len, self.world.slots)
        return 2 * self.world.num_blocks + most // self.world.tokens + 1

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
        self._check_host()
        self._check_idle()
        self.scheduler.audit()
        if self.allocator.host is not None:
            for block in self.allocator.host.pool.free_ids():
                self.executor._host_block(block)[:] = FREED
        for block in self.pool.free_ids():
            self.executor.kv[block * self.world.block_size : (block + 1) * self.world.block_size] = FREED

    def _check_pool(self) -> None:
        free, ref = self.pool.free_ids(), self.pool.ref
        tables = {key: h.table for key, h in self.allocator.holdings.items()}
        mapped = Counter(block for table in tables.values() for block in table)
        must("I02", len(set(free)) == len(free), "free queue", free)
        must("I03", not mapped.keys() & set(free), "free", free, ", tables", tables)
        must("I01", len(free) + len(mapped) == self.world.num_blocks, "free", free, ", tables", tables)
        for block in range(self.world.num_blocks):
            must("I04", ref[block] == mapped[block], "block", block, ":", ref[block], "references, tables", tables)
            must("I05", (block in free) == (ref[block] == 0), "block", block, ":", ref[block], "references, free", free)
        for key, table in tables.items():
            must("I06", len(set(table)) == len(table), "sequence", key, ":", table)

    def _check_host(self) -> None:
        host = self.allocator.host
        if host is None:
            must("I16", self.world.preemption == "recompute", "no host pool")
            return
        away = [account for account in self.accounts if account.swapped]
        must("I16", set(host.tables) == {account.id for account in away}, host.tables, away)
        tables = {key: table for tables in host.tables.values() for key, table in tables.items()}
        mapped = Counter(block for table in tables.values() for block in table)
        free = host.pool.free_ids()
        must("I16", len(set(free)) == len(free) and not mapped.keys() & set(free), free, "free on the host,", tables)
        must("I16", len(free) == self.world.host_blocks - self._on_host(), free, "free on the host,", tables)
        must("I16", len(free) + len(mapped) == self.world.host_blocks, free, "free on the host,", tables)
        must("I16", host.pool.ref == [mapped[b] for b in range(self.world.host_blocks)], host.pool.ref, tables)
        for account in away:
            must("I16", set(host.tables[account.id]) == {account.key(p) for p in account.feeding}, host.tables)
            for part in account.feeding:
                table = tables[account.key(part)]
                slots = [self._slot(table, position) for position in range(part.computed)]
                found = self.executor.host_kv[slots].tolist()
                must("I28", found == fingerprints_of(account.tokens(part))[: part.computed], table, "of", account.seq)

    def _check_requests(self) -> None:
        scheduler = self.scheduler
        running, waiting = self._in("running"), self._in("waiting")
        must("queue", {seq.id for seq in scheduler.running} == {a.id for a in running}, scheduler.running)
        must("queue", len(scheduler.running) == len(running), scheduler.running)
        queued = sorted(seq.id for seq in scheduler.order.sequences())
        must("queue", queued == sorted(a.id for a in waiting), "queued", queued)
        must("queue", scheduler.num_waiting == len(waiting), scheduler.num_waiting)
        must("queue", scheduler.has_work == bool(running or waiting), scheduler.has_work)
        holding = [(a, part) for a in running for part in (a.feeding if self.world.allocator == "paged" else a.live)]
        must("queue", set(self.allocator.holdings) == {a.key(p) for a, p in holding}, "held:", self.allocator.holdings)
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
            must("I33", len(seq.token_s) == account.steps, seq)
            must("I33", seq.recomputed_tokens == account.recomputed, seq, ",", account.recomputed, "recomputed")
            must("I35", sorted(set(seq.token_s)) == seq.token_s, seq.token_s)
            must("I35", not seq.token_s or seq.token_s[0] > seq.request.arrival_s, seq)
            if not account.several:
                again = sum(times - 1 for times in account.fed.values())
                must("I33", seq.recomputed_tokens == again, seq, ",", again, "recomputed")
            if account.state != "ended":
                for part in account.feeding:
                    must("I10", account.sequence(part).computed == part.computed, seq, "should have", part)
                    tokens = account.sequence(part).token_ids().tolist()
                    must("I17", tokens == account.tokens(part), tokens, "should be", account.tokens(part))
                for part in account.live:
                    one = seq.branches[part.index] if account.several else seq
                    must("rows", one.row == part.row, one, "should have row", part.row)
                    must("I17", one.output == part.output, one, "should have generated", part.output)

    def _check_usage(self, feeding: dict[int, int]) -> None:
        """The split of every slot, the step being run included. feeding: id of a part -> tokens that it feeds."""
        w, size = self.world, self.world.block_size
        tokens: dict[int, int] = {}
        promised: dict[int, int] = {}
        for account, part in self._running():
            fed = feeding.get(id(part), 0)
            slots = self._promised(account, part, fed)
            must("I07", len(part.table) == ceil_div(slots, size), part.table, "for", slots, "slots of", account.seq)
            for i, block in enumerate(part.table):
                tokens[block] = max(0, min(size, part.computed + fed - i * size), tokens.get(block, 0))
                promised[block] = max(0, min(size, slots - i * size), promised.get(block, 0))
        usage = self.allocator.usage()
        split = (usage.tokens, usage.reserved, usage.block_tail, usage.cached_idle, usage.free)
        must("I25", sum(split) == usage.total == w.slots, usage, "of", w.slots, "slots")
        filled, total = sum(tokens.values()), sum(promised.values())
        expected = (filled, total - filled, len(tokens) * size - total, 0, len(self.pool.free_ids()) * size)
        must("I25", split == expected, usage, ", from scratch", expected)
        must("I25", min(split) >= 0, usage)
        mapped = sum(len(part.table) for _, part in self._running())
        sharing = self.allocator.sharing()
        must("saved", (sharing.mapped, sharing.saved) == (mapped, mapped - len(tokens)), sharing, mapped, tokens)

    def _check_left(self, account: Account, leaving: list[Part], outranked: bool = False) -> int:
        """They leave the pool: with all of their blocks, and saying how many promised slots they never filled.

        Returns how many blocks became free.
        """
        total = 0
        for part in leaving:
            key = account.key(part)
            must("I01", key in self._returned, account.seq, "left the pool and gave nothing back of", key)
            blocks, tokens = self._returned.pop(key)
            total += blocks
            filling = tokens - part.computed
            most = account.lag if account.several or outranked else 1
            must("I25", 0 <= filling <= most, key, "held", tokens, "tokens")
            unused = self._promised(account, part) - part.computed
            seq = account.seq.branches[part.index] if account.several else account.seq
            must("I25", seq.slots_unused == unused, seq, "left", unused, "promised slots unused")
        return total

    def _check_told(self, plan: Plan) -> None:
        """After the step: the row of each sequence in the executor is its table and its tokens, all deltas told."""
        inputs = self.executor.inputs
        for account, part, fed in self._work(plan):
            known, row = account.tokens(part), part.row
            told = inputs.block_table[row, : len(part.table)].tolist()
            must("rows", told == part.table, "row", row, "is", told, ", the table of", account.id, "is", part.table)
            tokens = inputs.tokens[row, : len(known)].tolist()
            must("rows", tokens == known, "row", row, "has", tokens, "of", account.id, ", expected", known)
            now = part.computed + fed
            must("rows", inputs.computed[row] == now, "row", row, "computed", inputs.computed[row], "of", now)
            must("rows", inputs.known[row] == len(known) + (now == len(known)), "row", row, "knows", inputs.known[row])

    def _check_rows_and_slots(self) -> None:
        inputs = self.executor.inputs
        forked = {fork.row for fork in self.scheduler._forked}  # told with the next plan
        copied = {row for row, _, _ in self._copies_due}  # copied with the next plan
        for account, part in self._running():
            key, table = account.key(part), part.table
            held = self.allocator.holdings[key].table if key in self.allocator.holdings else []
            must("I30", held == table, key, "should hold", table)
            if part not in account.feeding:
                continue
            row, known = part.row, account.tokens(part)
            if row not in forked:
                told = inputs.block_table[row, : len(table)].tolist()
                must("rows", told == table, "row", row, "is", told, ", the table of", key, "is", table)
                must("rows", inputs.tokens[row, : len(known)].tolist() == known, "row", row, ", tokens of", key)
                must("rows", inputs.known[row] == len(known), "row", row, "knows", inputs.known[row], "of", known)
                must("rows", inputs.computed[row] == part.computed, "row", row, ", computed of", account.seq)
            if row not in copied:
                slots = [self._slot(table, position) for position in range(part.computed)]
                found = self.executor.kv[slots].tolist() if slots else []
                must("I10", found == fingerprints_of(known)[: part.computed], "slots", slots, "of", key)

    def _check_idle(self) -> None:
        if self._in("running"):
            return
        must("I18", sorted(self.pool.free_ids()) == list(range(self.world.num_blocks)), self.pool.free_ids())
        must("I18", not any(self.pool.ref) and not self.allocator.holdings, self.pool.ref, self.allocator.holdings)
        must("I18", self.allocator.usage().free == self.world.slots, self.allocator.usage())
        s = self.scheduler
        must("I18", not (s._forked or s._copies), "to be told of nobody:", s._forked, s._copies)
        if not self._in("waiting"):
            must("I18", not (s._high_water or s._groups), "remembered of the ended:", s._high_water, s._groups)


def _id(key: Any) -> int:
    return key[0] if isinstance(key, tuple) else key


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
