"""Who asks, and how urgently: what schedulers tell requests apart by."""

from __future__ import annotations

from binascii import crc32

from pagedlab.workload.checks import refused, whole

MOST_CLIENTS = 256  # the service of each is compared with that of each other one


def check_callers(clients: int, priorities: list[int]) -> None:
    """Raise ConfigError for settings that give no client, or no priority."""
    whole("workload.clients", clients)
    if clients > MOST_CLIENTS:
        raise refused("workload.clients", clients, f"at most {MOST_CLIENTS}")
    if not priorities:
        raise refused("workload.priorities", "[]", "at least one whole number")


def client_of(number: int, clients: int) -> str:
    """One of `clients`; nobody in particular where there is one alone."""
    return f"client {number % clients}" if clients > 1 else ""


def number_of(conversation: str, purpose: str) -> int:
    """A number that belongs to a conversation wherever it stands: CRC-32, one for each purpose."""
    return crc32(f"{purpose} {conversation}".encode())
