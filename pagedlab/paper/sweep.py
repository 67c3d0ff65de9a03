"""A curve of normalized latency against the request rate, and the rate at which it reaches a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.bench import Bench, Drafts
from pagedlab.paper.capacity import capacity
from pagedlab.paper.drawing import PAPER_NAMES, curve
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.overload import Overload
from pagedlab.paper.points import Point, mean_of
from pagedlab.settings import Settings

THRESHOLD_S = 0.5
LATENCY, CAPACITY = "normalized_latency_s_per_token", "capacity_req_s"
_LEAVES_S = 1.5  # from about here on a curve has left the paper's plots


@dataclass(frozen=True, slots=True)
class Sweep:
    """One curve. rates: at which it is drawn, with the first seed, ascending, each with the published latency where
    there is one; the curve ends when it leaves the plot, with a value that is only known to be at least that. knee: the
    published capacity; ours is found with most_seeds of the seeds. The rest as for `Bench.serve`."""

    figure: str
    workload: str
    model: str
    system: str
    rates: tuple[tuple[float, float | None], ...]
    knee: float | None = None
    share: float = 1.0
    most_seeds: int = 10
    tolerance: float = 0.03
    drafts: Drafts | None = None

    def points(self, bench: Bench, settings: Settings) -> list[Point]:
        seeds, drawn = bench.seeds[: self.most_seeds], dict[float, float]()

        @cache
        def latency(limit: float, seed: int, rate: float) -> float:
            """Below the limit exactly; else what it is at least."""
            if seed == seeds[0] and rate in drawn:
                return drawn[rate]
            over = Overload(limit)
            run = bench.serve(settings, rate, seed, share=self.share, drafts=self.drafts, stop=over)
            return normalized_latency_s(run) if over.bound is None else over.bound

        points = []
        for rate, known in self.rates:
            value = latency(_LEAVES_S, seeds[0], rate)
            points.append(self._point(LATENCY, rate, {"value": value}, known))
            drawn[rate] = value
            if value >= _LEAVES_S:
                break
        low, high = _around(drawn)
        knees: list[float | None] = []
        for seed in seeds:
            knees.append(knee := capacity(partial(latency, THRESHOLD_S, seed), low, high, THRESHOLD_S, self.tolerance))
            if knee is not None:
                # Other seeds' are near: between these two, most often, two halvings apart.
                low, high = knee / (1 + 2 * self.tolerance), knee * (1 + 2 * self.tolerance)
        return [*points, self._point(CAPACITY, None, mean_of([*knees]), self.knee)]

    def _point(self, metric: str, x: float | None, mean: dict[str, float | None], known: float | None) -> Point:
        return Point(self.figure, self.workload, self.model, self.system, metric, x, **mean, published=known)


def _around(drawn: dict[float, float]) -> tuple[float, float]:
    """The two rates of a curve between which it reaches the threshold; twice its last where it does not."""
    high = next((rate for rate, value in drawn.items() if value >= THRESHOLD_S), max(drawn))
    below = [rate for rate, value in drawn.items() if value < THRESHOLD_S and rate < high]
    return (below[-1] if below and drawn[high] >= THRESHOLD_S else high), high


def evenly(*rates: float) -> tuple[tuple[float, float | None], ...]:
    """Rates of which nothing is published."""
    return tuple((rate, None) for rate in rates)


def knees_of(points: list[Point], panel: str) -> dict[str, Point]:
    """system -> its capacity, of one panel."""
    return {p.system: p for p in points if p.metric == CAPACITY and p.figure == panel}


def ratios(points: list[Point], panel: str, others: tuple[str, ...], over: str = "vllm") -> list[str]:
    """A line for each of `others`: how much more `over` sustains."""
    knees, lines = knees_of(points, panel), []
    for other in others:
        if over not in knees or other not in knees:
            continue
        more, less = knees[over].value, knees[other].value
        if more is None or less is None:
            lines.append(
                f"{panel}: {PAPER_NAMES[over]} / {PAPER_NAMES.get(other, other)}: the trace is too short to tell."
            )
            continue
        ours = more / less
        line = f"{panel}: capacity of {PAPER_NAMES[over]} / {PAPER_NAMES.get(other, other)} {ours:.2f}"
        top, bottom = knees[over].published, knees[other].published
        if top and bottom:
            line += f", published {top / bottom:.2f}, error {100 * (ours * bottom / top - 1):+.0f} % (wanted: 25)"
        lines.append(line + ".")
    return lines


def panels(points: list[Point], names: dict[str, str], columns: int) -> Drawing:
    """A plot for each panel, name -> title, a line for each system."""
    rows = -(-len(names) // columns)
    drawing = Drawing(figsize=(3.6 * columns, 3.2 * rows), layout="constrained")
    for place, (panel, title) in enumerate(names.items(), 1):
        axes = drawing.add_subplot(rows, columns, place)
        for system in dict.fromkeys(p.system for p in points if p.figure == panel):
            of = [p for p in points if p.figure == panel and p.metric == LATENCY and p.system == system]
            curve(axes, of, PAPER_NAMES.get(system, system))
        axes.set(xlabel="request rate, req/s", ylabel="normalized latency, s/token", ylim=(0, 1))
        axes.set_title(title, fontsize=9)
        if place == 1:
            axes.legend(frameon=False, fontsize=7)
    return drawing
