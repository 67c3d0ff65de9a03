"""First in, last out (SGLang `filo`): what was cached latest goes, whatever was used since."""

from __future__ import annotations

from pagedlab.eviction.base import ASKS_NOTHING, ENTRY, EVICTIONS, Entry, Retention
from pagedlab.eviction.ranked import RankedEviction


@EVICTIONS.register("filo")
class Filo(RankedEviction):
    """The oldest content stays for ever. Of one sequence the deepest block was cached last and goes first."""

    def insert(self, key: int, entry: Entry = ENTRY, retention: Retention = ASKS_NOTHING) -> None:
        self._ranks[key] = (-self._tick(),)

    def hit(self, key: int, retention: Retention = ASKS_NOTHING) -> None:
        """A use changes nothing."""
