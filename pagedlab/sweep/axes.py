"""What a sweep is over."""

from __future__ import annotations

from collections.abc import Sequence


def axes_of(swept: Sequence[dict[str, str]]) -> list[str]:
    """The overrides that differ between the jobs; all of them when none does."""
    keys = list(dict.fromkeys(key for each in swept for key in each))
    return [key for key in keys if len({each.get(key) for each in swept}) > 1] or keys
