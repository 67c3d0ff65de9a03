"""Tiers below the device: what its prefix cache evicts goes down, level by level, and is brought up when asked for.

As LMCache and Mooncake (Qin et al., FAST 2025) have them, in simulation: contents are names, and what is moved is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pagedlab.core.errors import InvariantError
from pagedlab.eviction.base import Entry, Eviction


class Tier:
    """A flat cache of `capacity` blocks, all of which may go at any time. name: host or disk."""

    def __init__(self, name: str, capacity: int, eviction: Eviction):
        self.name = name
        self.capacity = capacity
        self.eviction = eviction
        self.entries: dict[int, Entry] = {}

    def put(self, key: int, entry: Entry) -> tuple[int, Entry] | None:
        """Take a block in. Returns the one that had to go for it."""
        gone = None
        if len(self.entries) == self.capacity:
            victim = self.eviction.evict()
            gone = victim, self.entries.pop(victim)
        self.entries[key] = entry
        self.eviction.insert(key, entry)
        self.eviction.offer(key)
        return gone

    def remove(self, key: int) -> None:
        self.eviction.forget(key)
        del self.entries[key]


class Tiers:
    """From the one below the device downwards. A content is on the device or in one tier, never in two places: a hit is
    moved up, and comes down again when the device evicts it. Only whole blocks go down."""

    def __init__(self, levels: list[Tier]):
        self.levels = levels
        self.version = 0  # counts changes
        self._stored: Counter[str] = Counter()

    def find(self, key: int) -> Tier | None:
        return next((level for level in self.levels if key in level.entries), None)

    def put(self, key: int, entry: Entry) -> None:
        """The device has evicted it. What it displaces goes further down, from the last tier out."""
        self.version += 1
        for level in self.levels:
            self._stored[level.name] += 1
            gone = level.put(key, entry)
            if gone is None:
                return
            key, entry = gone

    def stored(self) -> list[tuple[str, int]]:
        """How many blocks each tier was given since this was asked last."""
        if not self._stored:
            return []
        stored, self._stored = list(self._stored.items()), Counter()
        return stored

    def remove(self, key: int) -> None:
        """It is on the device, or on its way there."""
        level = self.find(key)
        if level is not None:
            self.version += 1
            level.remove(key)

    def asked(self, key: int) -> None:
        """A request will use it. To be told before it is moved up."""
        for level in self.levels:
            if key not in level.entries:
                level.eviction.miss(key)

    def audit(self, on_device: Collection[int]) -> None:
        """InvariantError names the first fault. on_device: the keys that are cached there."""
        seen = dict.fromkeys(on_device, "device")
        for level in self.levels:
            level.eviction.audit()
            if len(level.entries) > level.capacity or level.eviction.num_offered != len(level.entries):
                raise InvariantError(
                    f"tier {level.name}: {len(level.entries)} blocks of {level.capacity}, "
                    f"{level.eviction.num_offered} may be evicted"
                )
            for key in level.entries:
                if key in seen:
                    raise InvariantError(f"content {key} is in tier {level.name} and in {seen[key]}")
                seen[key] = level.name
