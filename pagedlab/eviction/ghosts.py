"""Ghosts: keys of content that has left, remembered for a while."""

from __future__ import annotations

from collections import OrderedDict


class Ghosts:
    """At most `capacity` keys, the earliest added are forgotten first. O(1)."""

    __slots__ = ("_keys", "capacity")

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: int) -> int | None:
        """Returns the key that is forgotten for it, if any."""
        self._keys[key] = None
        return self.drop_oldest() if len(self._keys) > self.capacity else None

    def discard(self, key: int) -> bool:
        """Whether it was there."""
        if key in self._keys:
            del self._keys[key]
            return True
        return False

    def drop_oldest(self) -> int:
        return self._keys.popitem(last=False)[0]

    def keys(self) -> list[int]:
        """The earliest added first."""
        return list(self._keys)
