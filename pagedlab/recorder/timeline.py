"""The timeline: a row for every step, held as numbers in columns. Steps that were skipped share one record."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isnan, nan
from struct import Struct
from typing import Any, NamedTuple, overload

import numpy as np

from pagedlab.allocator.base import Sharing, Usage


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
_PLACES = {name: place for place, name in enumerate(COLUMNS)}
_PACK = Struct(f"{len(COLUMNS)}d").pack
_USAGE, _SHARING = Step._fields.index("usage"), Step._fields.index("sharing")


class Timeline(Sequence[Step]):
    """A list of steps that keeps no object for any.

    A record is one step, or a stretch in which all that happens is that the same sequences decode: each step feeds
    `batch` tokens, and tables grow by some blocks. The record says how the first of them was; the others follow from
    their ends and those blocks. float64 holds every count exactly, below 2**53.
    """

    def __init__(self) -> None:
        self._records = bytearray()  # COLUMNS of each, float64
        self._firsts = array("q")  # its first step
        self._ends = array("d")  # of every step
        self._grown = array("q")  # of every step: blocks since the first step of its record
        self._block_size = 1
        self._promises = False

    def append(self, step: Step) -> None:
        self._add(step)
        self._ends.append(step.end_s)
        self._grown.append(0)

    def stretch(self, first: Step, ends: list[float], grown: list[int], block_size: int, promises: bool) -> None:
        """first: the first of as many steps as `ends` says. grown: blocks that the tables grew by in each, those of
        the first are in it already; the list is used up. promises: whether each token takes a slot that had been
        promised to nobody."""
        self._add(first)
        self._ends.fromlist(ends)
        grown[0] = 0
        self._grown.fromlist(list(accumulate(grown)) if len(grown) > 1 else grown)
        self._block_size, self._promises = block_size, promises

    def _add(self, step: Step) -> None:
        self._firsts.append(len(self._ends))
        values: Any = step
        estimate = nan if step.admission_estimate is None else step.admission_estimate
        between, after = values[_USAGE + 1 : _SHARING], values[_SHARING + 1 : -1]
        self._records += _PACK(*values[:_USAGE], *values[_USAGE], *between, *values[_SHARING], *after, estimate)

    def column(self, name: str) -> np.ndarray:
        """float64 [steps] of seconds and of admission_estimate (NaN: none), bool of memory_blocked, int64 of counts: a
        name of COLUMNS."""
        records = np.frombuffer(self._records).reshape(-1, len(COLUMNS))[:, _PLACES[name]]
        ends = np.array(self._ends)
        if name == "end_s":
            return ends
        counts = np.diff(np.array(self._firsts), append=len(ends))
        values = np.repeat(records, counts)
        if name == "start_s":
            # Within a stretch a step begins when the one before it ends.
            begins = np.zeros(len(ends), dtype=bool)
            begins[np.array(self._firsts)] = True
            values[1:] = np.where(begins[1:], values[1:], ends[:-1])
            return values
        if name in ("copy_s", "swap_out_s", "swap_in_s", "load_s", "store_s", "admission_estimate"):
            return values
        if name == "memory_blocked":
            return values.astype(bool)
        values = values.astype(np.int64)
        if len(counts) < len(ends):
            values += self._since_first(name, counts)
        return values

    def _since_first(self, name: str, counts: np.ndarray) -> np.ndarray | int:
        """By how much a count differs from that of the first step of the record, int64 [steps]."""
        if name not in ("usage.tokens", "usage.reserved", "usage.block_tail", "usage.free", "sharing.mapped"):
            return 0
        grown = np.array(self._grown)
        if name == "sharing.mapped":
            return grown
        if name == "usage.free":
            return -grown * self._block_size
        batches = np.frombuffer(self._records).reshape(-1, len(COLUMNS))[:, _PLACES["batch"]].astype(np.int64)
        filled = np.repeat(batches, counts) * (np.arange(len(grown)) - np.repeat(np.array(self._firsts), counts))
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
        first = self._firsts[record]
        size = 8 * len(COLUMNS)
        one._records = self._records[record * size : (record + 1) * size]
        one._firsts.append(0)
        one._ends, one._grown = self._ends[first : place + 1], self._grown[first : place + 1]
        return list(one)[-1]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented


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
