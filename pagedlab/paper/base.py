"""A figure of the paper: what is run for it, and how it is drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from matplotlib.figure import Figure as Drawing

from pagedlab.core.registry import Registry
from pagedlab.paper.bench import Bench
from pagedlab.paper.points import Point


class Figure(ABC):
    title: ClassVar[str]
    notes: ClassVar[str]
    """What was assumed, and what is known of where ours and the paper's differ."""

    @abstractmethod
    def points(self, bench: Bench) -> list[Point]:
        """Run what the figure needs."""

    @abstractmethod
    def draw(self, points: list[Point]) -> Drawing:
        """The paper's axes, with the published points where there are any."""

    def said(self, points: list[Point]) -> list[str]:
        """What follows from the points: lines of the report, beside the table of them."""
        return []


FIGURES: Registry[type[Figure]] = Registry(
    "figure", "pagedlab.paper", ("figure1", "figure2", "figure12", "figure13", "figure15", "figure19")
)
NUMBERS = tuple(name.removeprefix("figure") for name in FIGURES)
