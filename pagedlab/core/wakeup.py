"""When a policy has to be asked again although nothing has happened."""

from __future__ import annotations

from math import inf


def never(policy: object, now: float) -> float:
    """As its `next_wakeup`: it decides the same until somebody arrives, is admitted or ends, and where nobody waits
    also when somebody ends. A scheduler knows it by this name, and does not even ask."""
    return inf
