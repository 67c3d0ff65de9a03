"""The timeline: a row for every step, held as numbers in columns. Steps that were skipped share one record."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import isnan, nan
from struct import Struct
from typing import Any, NamedTuple, overload

import numpy as np

from pagedlab.allocator.base import Sharing, Usage
from pagedlab.core.plan import Coasted
from pagedlab.core.request import Sequence as Served


class Step(NamedTuple):
    """One row of the timeline. It holds from start_s until the next row starts.

    running: sequences that hold memory; the step itself ran `batch` of them, feeding `tokens` tokens, of which
    `prefill_tokens` belong to sequences fed more than one. usage: the split of the slots while the step ran.
    sharing: what sharing saved of them. copies: blocks copied before the step, in copy_s seconds of it; swapped_out and
    swapped_in: blocks moved to the host and back. host_blocks: in use there, what the step moves included. load_s:
    seconds in which blocks came up from tiers; store_s: in which it waited for blocks that went down.
    admission_estimate: as in Plan.
    """

    start_s: float
    end_s: float
    running: int
    waiting: int
    batch: int
    tokens: int
    prefill_tokens: int
    usage: Usage
    memory_blocked: bool
    sharing: Sharing = Sharing()
    copies: int = 0
    copy_s: float = 0.0
    swapped_out: int = 0
    swapped_in: int = 0
    swap_out_s: float = 0.0
    swap_in_s: float = 0.0
    host_blocks: int = 0
    load_s: float = 0.0
    store_s: float = 0.0
    admission_estimate: float | None = None


_NESTED: dict[str, Any] = {"usage": Usage, "sharing": Sharing}
COLUMNS = tuple(
    name
    for field in Step._fields
    for name in ([f"{field}.{part}" for part in _NESTED[field]._fields] if field in _NESTED else [field])
)
# What every record tells of its first step. `advance`: where nobody planned its steps, the tokens that each of them
# fills; the slots are then those before the first. Else 0.
_OFTEN: tuple[str, ...] = ("start_s", "running", "waiting", "batch", "tokens", "prefill_tokens", "memory_blocked")
_OFTEN += (*(name for name in COLUMNS if name.startswith("usage.")), "sharing.mapped", "sharing.saved", "advance")
_SELDOM = tuple(name for name in COLUMNS if name not in (*_OFTEN, "end_s"))  # of most records 0, or NaN
_PLACES = {name: place for names in (_OFTEN, _SELDOM) for place, name in enumerate(names)}
_NO_COUNTS = (0,) * len(Sharing._fields[2:])
_ROW, _MORE = Struct(f"{len(_OFTEN)}d"), Struct(f"{len(_SELDOM)}d")
_PACK = _ROW.pack
_GROWING = ("usage.tokens", "usage.reserved", "usage.block_tail", "usage.free", "sharing.mapped")
_SECONDS = ("start_s", "copy_s", "swap_out_s", "swap_in_s", "load_s", "store_s", "admission_estimate")


# Of steps that nobody planned, in which the same sequences decode: the row of `Timeline.add` with their batch, the
# slots as they were before, how many steps, and who finished in the last.
Piece = tuple[tuple[float, ...], tuple[int, ...], int, list[Served]]


class Timeline(Sequence[Step]):
    """A list of steps that keeps no object for any.

    A record is one step, or a stretch in which all that happens is that the same sequences decode: each step feeds
    `batch` tokens, and tables grow by some blocks. The record says how it was before; the steps follow from their ends
    and those blocks. float64 holds every count exactly, below 2**53.
    """

    def __init__(self) -> None:
        self._records = bytearray()  # _OFTEN of each, float64
        self._firsts = array("q")  # its first step
        self._seldom = bytearray()  # _SELDOM of those of which there is anything to tell, float64
        self._seldom_of = array("q")  # which these are
        self._ends = array("d")  # of every step
        self._grown = array("q")  # of every step: blocks since its record began, where nobody planned it
        self._block_size = 1
        self._promises = False

    def append(self, step: Step) -> None:
        s = step
        moved = (s.copies, s.copy_s, s.swapped_out, s.swapped_in, s.swap_out_s, s.swap_in_s)
        self.add(
            (s.start_s, s.running, s.waiting, s.batch, s.tokens, s.prefill_tokens, s.memory_blocked),
            (*s.usage, *s.sharing[:2]),
            s.end_s,
            seldom(s.sharing[2:], moved, s.host_blocks, (s.load_s, s.store_s), s.admission_estimate),
        )

    def add(
        self, row: tuple[float, ...], slots: tuple[int, ...], end: float, more: tuple[float, ...] | None = None
    ) -> None:
        """A step that ended at `end`. row: its columns from start_s on, but for that, to prefill_tokens, then
        memory_blocked. slots: as `Allocator.split`. more: what `seldom` makes of the rest, where it is not all
        0."""
        if more is not None:
            self._tell(more)
        self._firsts.append(len(self._ends))
        self._records += _PACK(*row, *slots, 0)
        self._ends.append(end)
        self._grown.append(0)

    def stretches(
        self,
        pieces: list[Piece],
        steps: Coasted,
        block_size: int,
        promises: bool,
        more: tuple[float, ...] | None = None,
    ) -> None:
        """Steps that nobody planned. more: as in `add`, of all of them. promises: whether each token takes a slot that
        had been promised to nobody."""
        first = len(self._ends)
        for row, slots, count, _ in pieces:
            if more is not None:
                self._tell(more)
            self._firsts.append(first)
            self._records += _PACK(*row, *slots, row[3])
            first += count
        self._ends.fromlist(steps.ends)
        self._grown.fromlist(steps.grown)
        self._block_size, self._promises = block_size, promises

    def _tell(self, more: tuple[float, ...]) -> None:
        self._seldom_of.append(len(self._firsts))
        self._seldom += _MORE.pack(*more)

    def column(self, name: str) -> np.ndarray:
        """float64 [steps] of seconds and of admission_estimate (NaN: none), bool of memory_blocked, int64 of counts: a
        name of COLUMNS."""
        ends = np.array(self._ends)
        if name == "end_s":
            return ends
        if name in _SELDOM and not self._seldom:
            return np.full(len(ends), nan) if name == "admission_estimate" else np.zeros(len(ends), _type_of(name))
        counts = np.diff(np.array(self._firsts), append=len(ends))
        values = np.repeat(self._of_records(name), counts)
        if name == "start_s":
            # Within a stretch a step begins when the one before it ends.
            begins = np.zeros(len(ends), dtype=bool)
            begins[np.array(self._firsts)] = True
            values[1:] = np.where(begins[1:], values[1:], ends[:-1])
        values = values.astype(_type_of(name), copy=False)
        return values + self._since(name, counts) if name in _GROWING else values

    def _of_records(self, name: str) -> np.ndarray:
        """float64 [records]"""
        if name in _OFTEN:
            return np.frombuffer(self._records).reshape(-1, len(_OFTEN))[:, _PLACES[name]]
        values = np.full(len(self._firsts), nan if name == "admission_estimate" else 0.0)
        if self._seldom:
            values[np.array(self._seldom_of)] = np.frombuffer(self._seldom).reshape(-1, len(_SELDOM))[:, _PLACES[name]]
        return values

    def _since(self, name: str, counts: np.ndarray) -> np.ndarray:
        """By how much a count differs from that of the record, int64 [steps]."""
        grown = np.array(self._grown)
        if name == "sharing.mapped":
            return grown
        if name == "usage.free":
            return -grown * self._block_size
        steps = np.arange(1, len(grown) + 1) - np.repeat(np.array(self._firsts), counts)
        filled = steps * np.repeat(self._of_records("advance").astype(np.int64), counts)
        promised = filled if self._promises else np.zeros_like(filled)
        change: dict[str, np.ndarray] = {
            "usage.tokens": filled,
            "usage.reserved": promised - filled,
            "usage.block_tail": grown * self._block_size - promised,
        }
        return change[name]

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Step]:
        return map(_step, *(self.column(name).tolist() for name in COLUMNS))

    @overload
    def __getitem__(self, index: int) -> Step: ...

    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...

    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        record = bisect_right(self._firsts, place) - 1
        one = Timeline()
        one._block_size, one._promises = self._block_size, self._promises
        first, row, more = self._firsts[record], _ROW.size, _MORE.size
        one._records = self._records[record * row : (record + 1) * row]
        one._firsts.append(0)
        told = bisect_left(self._seldom_of, record)
        if told < len(self._seldom_of) and self._seldom_of[told] == record:
            one._seldom_of.append(0)
            one._seldom = self._seldom[told * more : (told + 1) * more]
        one._ends, one._grown = self._ends[first : place + 1], self._grown[first : place + 1]
        return list(one)[-1]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented


def _type_of(name: str) -> type:
    return float if name in _SECONDS else bool if name == "memory_blocked" else np.int64


def seldom(
    counts: tuple[int, ...],
    moved: tuple[float, ...] = (0, 0.0, 0, 0, 0.0, 0.0),
    host_blocks: int = 0,
    tiers_s: tuple[float, float] = (0.0, 0.0),
    estimate: float | None = None,
) -> tuple[float, ...]:
    """What a step is seldom told of, as `Timeline.add` takes it. counts: of the prefix cache, or (). moved: columns
    from copies to swap_in_s. tiers_s: load_s and store_s."""
    return (*(counts or _NO_COUNTS), *moved, host_blocks, *tiers_s, nan if estimate is None else estimate)


def _step(*values: Any) -> Step:
    usage, sharing = _SPREAD_USAGE, _SPREAD_SHARING
    before, between, after = values[: usage.start], values[usage.stop : sharing.start], values[sharing.stop : -1]
    estimate = None if isnan(values[-1]) else values[-1]
    return Step._make((*before, Usage(*values[usage]), *between, Sharing(*values[sharing]), *after, estimate))


def _spread(field: str) -> slice:
    """Where the columns of a nested field are."""
    places = [place for place, name in enumerate(COLUMNS) if name.startswith(f"{field}.")]
    return slice(places[0], places[-1] + 1)


_SPREAD_USAGE, _SPREAD_SHARING = _spread("usage"), _spread("sharing")
