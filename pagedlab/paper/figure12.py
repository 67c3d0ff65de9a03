"""Fig. 12 a and d: normalized latency against the request rate, OPT-13B, ShareGPT and Alpaca."""

from __future__ import annotations

from functools import cache, partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure
from pagedlab.paper.bench import MODEL, SYSTEMS, Bench
from pagedlab.paper.capacity import capacity
from pagedlab.paper.drawing import PAPER_NAMES, curve
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published

PANELS = {"a": "sharegpt", "d": "alpaca"}
THRESHOLD_S = 0.5
LATENCY, CAPACITY = "normalized_latency_s_per_token", "capacity_req_s"


@FIGURES.register("figure12")
class Figure12(Figure):
    title = "Fig. 12 a and d: normalized latency by request rate, OPT-13B"
    notes = (
        f"Capacity: the rate at {THRESHOLD_S} s/token, by bisection within 2 %, for each seed. Each run is served "
        "to its end. An absolute knee is not promised: a few percent of a step decide there; compare orders and "
        "ratios. The other panels and FasterTransformer are not run. Why a knee differs is not looked into."
    )

    def points(self, bench: Bench) -> list[Point]:
        points = []
        for panel, workload in PANELS.items():
            paper = published()[f"fig12{panel}"]
            for system in SYSTEMS:
                points += self._of_system(bench, panel, workload, system, paper)
        return points

    def _of_system(
        self, bench: Bench, panel: str, workload: str, system: str, paper: dict[str, dict[str, list[list[float]]]]
    ) -> list[Point]:
        settings = bench.settings(system, workload)

        @cache
        def latency(seed: int, rate: float) -> float:
            return normalized_latency_s(bench.serve(settings, rate, seed))

        points = []
        for rate, known, *leaves in paper["points"][system]:
            if not leaves:  # where the curve leaves the plot it has no value
                mean = mean_of([latency(seed, rate) for seed in bench.seeds])
                points.append(Point(f"12{panel}", workload, MODEL, system, LATENCY, rate, **mean, published=known))
        knees = [capacity(partial(latency, seed), 1.0, THRESHOLD_S) for seed in bench.seeds]
        known_knee: float = paper["capacity"][system]  # type: ignore[assignment]
        knee = Point(f"12{panel}", workload, MODEL, system, CAPACITY, None, **mean_of([*knees]), published=known_knee)
        return [*points, knee]

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for panel in PANELS:
            knees = {p.system: p for p in points if p.metric == CAPACITY and p.figure == f"12{panel}"}
            ours = sorted(knees, key=lambda system: knees[system].value or 0.0)
            theirs = sorted(knees, key=lambda system: knees[system].published or 0.0)
            right = "as published" if ours == theirs else f"published: {', '.join(theirs)}"
            lines.append(f"12{panel}: by capacity {', '.join(ours)}, {right}.")
            for other in ("orca_oracle", "orca_max"):
                said = [
                    (getattr(knees["vllm"], side) or 0.0) / (getattr(knees[other], side) or 1.0)
                    for side in ("value", "published")
                ]
                lines.append(
                    f"12{panel}: capacity of vLLM / {PAPER_NAMES[other]} {said[0]:.2f}, published {said[1]:.2f}, "
                    f"error {100 * (said[0] / said[1] - 1):+.0f} % (wanted: 25)."
                )
            low = [p for p in points if p.figure == f"12{panel}" and p.metric == LATENCY and (p.published or 1) < 0.06]
            worst = max(low, key=lambda p: abs(p.error or 0.0))
            lines.append(
                f"12{panel}: below 0.06 s/token the largest error of a latency is {100 * (worst.error or 0):+.0f} %, "
                f"of {PAPER_NAMES[worst.system]} at {worst.x:g} req/s (wanted at low load: 15)."
            )
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(9, 3.8))
        for place, (panel, workload) in enumerate(PANELS.items(), 1):
            axes = drawing.add_subplot(1, 2, place)
            for system in SYSTEMS:
                of = [p for p in points if p.figure == f"12{panel}" and p.metric == LATENCY and p.system == system]
                curve(axes, of, PAPER_NAMES[system])
            axes.set(xlabel="request rate, req/s", ylabel="normalized latency, s/token", ylim=(0, 1))
            axes.set_title(f"12{panel} {workload}; lines: ours, dots: published")
        drawing.axes[0].legend(frameon=False)
        return drawing
