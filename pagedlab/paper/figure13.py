"""Fig. 13: mean number of batched requests, OPT-13B, ShareGPT at 2 requests a second and Alpaca at 30."""

from __future__ import annotations

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure
from pagedlab.paper.bench import MODEL, SYSTEMS, Bench
from pagedlab.paper.drawing import bars
from pagedlab.paper.measures import mean_batch
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published

RATES = {"sharegpt": 2.0, "alpaca": 30.0}


@FIGURES.register("figure13")
class Figure13(Figure):
    title = "Fig. 13: mean number of batched requests, OPT-13B"
    notes = (
        "Requests that hold memory, a mean over the time in which requests arrived. Beside the paper's systems an "
        "ablation: Orca (Oracle) without the buddy allocator, its runs exactly as long as asked, from the first gap. "
        "Another, on Alpaca for 200 s: with prompts fed beside decodes (scheduler=chunked) Orca (Oracle) holds 54.5 "
        "requests instead of 76.9, and at 15 req/s takes 0.029 s a token instead of 0.043 (published: 0.042)."
    )

    def points(self, bench: Bench) -> list[Point]:
        points = []
        for workload, rate in RATES.items():
            for system in SYSTEMS:
                paper = published()["fig13"][workload][system]
                points.append(self._point(bench, workload, rate, system, system, published=paper))
            points.append(
                self._point(bench, workload, rate, "orca_oracle", "orca_oracle first fit", "allocator=oracle")
            )
        return points

    def _point(
        self,
        bench: Bench,
        workload: str,
        rate: float,
        system: str,
        label: str,
        *changes: str,
        published: float | None = None,
    ) -> Point:
        settings = bench.settings(system, workload, *changes)
        runs: list[float | None] = [mean_batch(bench.serve(settings, rate, seed, drain=False)) for seed in bench.seeds]
        return Point("13", workload, MODEL, label, "mean_batch", rate, **mean_of(runs), published=published)

    def said(self, points: list[Point]) -> list[str]:
        worst = max(abs(p.error) for p in points if p.error is not None)
        return [f"The largest error of a mean batch is {100 * worst:.1f} % (wanted: 7)."]

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(8, 3.6))
        for place, (workload, rate) in enumerate(RATES.items(), 1):
            of = [p for p in points if p.workload == workload]
            bars(drawing, place, len(RATES), of, "batched requests", f"{workload}, {rate:g} req/s")
        return drawing
