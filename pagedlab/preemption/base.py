"""Preemption: what becomes of a victim."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pagedlab.allocator.base import Allocator
from pagedlab.core.registry import Registry
from pagedlab.core.request import Sequence


class Preemption(ABC):
    """Takes the blocks of a running request, of all of its sequences together. They keep every prompt and generated
    token, and run again later."""

    preempts = True
    """False of the one that never does: what may need it is refused."""

    def __init__(self, allocator: Allocator):
        self.allocator = allocator

    @abstractmethod
    def preempt(self, seq: Sequence) -> tuple[int, int]:
        """Returns (blocks freed, tokens whose KV is lost). Updates what the sequence has computed."""


PREEMPTIONS: Registry[type[Preemption]] = Registry("preemption", "pagedlab.preemption", ("recompute", "none"))
