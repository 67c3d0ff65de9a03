"""The tokens of a sequence and their times without a Python object for each: what can be foretold need not be held."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Protocol, TypeVar, overload

import numpy as np

T = TypeVar("T")


class Growing(Protocol[T]):
    """What a list is to those that read one and append to it."""

    def append(self, item: T, /) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]: ...

    @overload
    def __getitem__(self, index: int, /) -> T: ...

    @overload
    def __getitem__(self, index: slice, /) -> list[T]: ...


class _Growing:
    """Equal to every list that holds the same."""

    __slots__ = ()

    @abstractmethod  # without ABC, whose isinstance() is slow and asked for every sequence that joins a cohort
    def array(self) -> np.ndarray: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array().astype(dtype) if dtype is not None else self.array()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array().tolist())

    def __eq__(self, other: object) -> bool:
        return self.array().tolist() == list(other) if isinstance(other, Iterable) else NotImplemented

    def __repr__(self) -> str:
        return repr(self.array().tolist())


class Told(_Growing):
    """The first tokens of an output that is foretold: how many.

    foretold: (whose, start, stop) -> its tokens from start to stop. An appended token is not held: it is the one
    foretold.
    """

    __slots__ = ("_foretold", "_whose", "length")

    def __init__(self, foretold: Callable[[Any, int, int], list[int]], whose: Any, length: int):
        self._foretold = foretold
        self._whose = whose
        self.length = length

    def append(self, token: int) -> None:
        self.length += 1

    def array(self) -> np.ndarray:
        """int32 [len]"""
        return np.array(self._foretold(self._whose, 0, self.length), dtype=np.int32)

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self.length)
            return self._foretold(self._whose, start, max(start, stop))[::step] if step > 0 else list(self)[index]
        place = range(self.length)[index]
        return self._foretold(self._whose, place, place + 1)[0]


class Stamps(_Growing):
    """Times: some of its own, others a stretch of those that all who advanced together share.

    shared: the times of their steps, float64, which goes on growing.
    """

    __slots__ = ("_length", "parts", "shared")

    def __init__(self, shared: array[float], times: Iterable[float]):
        self.shared = shared
        self.parts: list[float | tuple[int, int]] = list(times)
        """Single times, and (start, stop) of stretches, in order."""
        self._length = len(self.parts)

    def append(self, time: float) -> None:
        self.parts.append(time)
        self._length += 1

    def stretch(self, start: int, stop: int) -> None:
        """Append the shared times from start to stop."""
        last = self.parts[-1] if self.parts else None
        if isinstance(last, tuple) and last[1] == start:
            self.parts[-1] = (last[0], stop)
        else:
            self.parts.append((start, stop))
        self._length += stop - start

    def ends(self) -> tuple[float, float]:
        """The first and the last of them; there is one at least."""
        first, last = self.parts[0], self.parts[-1]
        return (
            first if isinstance(first, float) else self.shared[first[0]],
            last if isinstance(last, float) else self.shared[last[1] - 1],
        )

    def array(self) -> np.ndarray:
        """float64 [len]"""
        pieces = [
            np.array(self.shared[part[0] : part[1]] if isinstance(part, tuple) else (part,)) for part in self.parts
        ]
        return np.concatenate(pieces) if pieces else np.empty(0)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> float: ...

    @overload
    def __getitem__(self, index: slice) -> list[float]: ...

    def __getitem__(self, index: int | slice) -> float | list[float]:
        if isinstance(index, int) and index in (0, -1) and self.parts:
            part = self.parts[index]
            return part if isinstance(part, float) else self.shared[part[0] if index == 0 else part[1] - 1]
        pieces = (self.shared[part[0] : part[1]] if isinstance(part, tuple) else (part,) for part in self.parts)
        return list(chain.from_iterable(pieces))[index]
