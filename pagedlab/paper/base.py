"""A figure of the paper: what is run for it, and how it is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from matplotlib.figure import Figure as Drawing

from pagedlab.core.registry import Registry
from pagedlab.paper.bench import Bench
from pagedlab.paper.points import Point

Part = Callable[[Bench], list[Point]]


class Figure(ABC):
    title: ClassVar[str]
    notes: ClassVar[str]
    """What was assumed, and what is known of where ours and the paper's differ."""
    alone: ClassVar[frozenset[str]] = frozenset()
    """Parts that measure this machine: nothing else may run beside them."""

    @abstractmethod
    def parts(self) -> dict[str, Part]:
        """What the figure is made of, by name: each can be run by itself, in any process, and gives points. The points
        of a figure are those of its parts, in this order."""

    @abstractmethod
    def draw(self, points: list[Point]) -> Drawing:
        """The paper's axes, with the published points where there are any."""

    def said(self, points: list[Point]) -> list[str]:
        """What follows from the points: lines of the report, beside the table of them."""
        return []


NUMBERS = ("1", "2", "12", "13", "14", "15", "16", "17", "18", "19")
MODERN = "modern"
FIGURES: Registry[type[Figure]] = Registry(
    "figure", "pagedlab.paper", tuple(f"figure{number}" for number in (*NUMBERS, MODERN))
)
