"""Runs of consecutive blocks: how a contiguous allocator finds room, and how it fragments."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol


class Runs(Protocol):
    """The free runs of N blocks. Ids are block ids; a run is (start, length)."""

    def largest_possible(self) -> int:
        """The longest run that an empty pool can give."""

    def granted(self, length: int) -> int:
        """How many blocks a request for `length` really takes."""

    def count(self, length: int) -> int:
        """How many runs of `length` could be taken one after the other. Changes nothing."""

    def take(self, length: int) -> int | None:
        """Take a run of `granted(length)` blocks: its start, or None and nothing changed."""

    def give_back(self, start: int, length: int) -> None:
        """Return a run that was taken, `length` blocks long as granted."""

    def free_ids(self) -> set[int]: ...


class FirstFit:
    """The lowest free run that is long enough; neighbours merge when they are given back."""

    def __init__(self, num_blocks: int):
        self._num_blocks = num_blocks
        self._free: list[tuple[int, int]] = [(0, num_blocks)] if num_blocks else []

    def largest_possible(self) -> int:
        return self._num_blocks

    def granted(self, length: int) -> int:
        return length

    def count(self, length: int) -> int:
        return sum(free // length for _, free in self._free)

    def take(self, length: int) -> int | None:
        for i, (start, free) in enumerate(self._free):
            if free >= length:
                self._free[i : i + 1] = [(start + length, free - length)] if free > length else []
                return start
        return None

    def give_back(self, start: int, length: int) -> None:
        i = bisect_left(self._free, (start, 0))
        if i < len(self._free) and self._free[i][0] == start + length:
            length += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == start:
            start, before = self._free.pop(i - 1)
            length += before
        insort(self._free, (start, length))

    def free_ids(self) -> set[int]:
        return {block for start, length in self._free for block in range(start, start + length)}


class Buddy:
    """Runs of a power of two, split and merged with their buddy (Knowlton, CACM 1965), as Orca's baseline uses.

    A pool that is not a power of two long starts as the powers of two it is the sum of, longest first: each is
    aligned to its own length, so the buddy of a run is found by flipping one bit of its start.
    """

    def __init__(self, num_blocks: int):
        self._num_blocks = num_blocks
        self._free: dict[int, set[int]] = {}
        start = 0
        while start < num_blocks:
            length = 1 << ((num_blocks - start).bit_length() - 1)
            self._free.setdefault(length, set()).add(start)
            start += length

    def largest_possible(self) -> int:
        return 1 << (self._num_blocks.bit_length() - 1)

    def granted(self, length: int) -> int:
        return 1 << (length - 1).bit_length()

    def count(self, length: int) -> int:
        run = self.granted(length)
        return sum(len(starts) * (size // run) for size, starts in self._free.items())

    def take(self, length: int) -> int | None:
        want = self.granted(length)
        fitting = [size for size, starts in self._free.items() if starts and size >= want]
        if not fitting:
            return None
        size = min(fitting)
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > want:
            size //= 2
            self._free.setdefault(size, set()).add(start + size)
        return start

    def give_back(self, start: int, length: int) -> None:
        while (start ^ length) in self._free.get(length, ()):
            self._free[length].remove(start ^ length)
            start &= ~length
            length *= 2
        self._free.setdefault(length, set()).add(start)

    def free_ids(self) -> set[int]:
        return {
            block for size, starts in self._free.items() for start in starts for block in range(start, start + size)
        }
