"""Fig. 13: mean number of batched requests, OPT-13B, ShareGPT at 2 requests a second and Alpaca at 30."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, SYSTEMS, Bench
from pagedlab.paper.drawing import bars
from pagedlab.paper.measures import mean_batch
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published

RATES = {"sharegpt": 2.0, "alpaca": 30.0}
# Of the trace: two requests a second are near saturation, where a batch grows for long: twice the time (of 1800 s: the
# paper's hour). Thirty are as many in a third of it as one would want.
SHARES = {"sharegpt": 2.0, "alpaca": 1 / 3}
ABLATIONS = {
    "first fit": "allocator=oracle",
    "iteration": "scheduler.batching=iteration",
}


@FIGURES.register("figure13")
class Figure13(Figure):
    title = "Fig. 13: mean number of batched requests, OPT-13B"
    notes = (
        "Requests that hold memory, a mean over the time in which requests arrived: for ShareGPT twice the time, as "
        "two requests a second are near saturation; of Alpaca a third. "
        "Beside the paper's systems "
        "ablations of Orca (Oracle): `first fit`, without the buddy allocator, its runs exactly as long as asked, from "
        "the first gap; `iteration`, prompts fed beside decodes, as Orca itself does (OSDI 2022), not in steps of "
        "their own, as vLLM does."
    )

    def parts(self) -> dict[str, Part]:
        of: dict[str, Part] = {}
        for workload in RATES:
            for system in SYSTEMS:
                of[f"{workload} {system}"] = partial(_point, workload, system, "")
            for name in ABLATIONS:
                of[f"{workload} orca_oracle {name}"] = partial(_point, workload, "orca_oracle", name)
        return of

    def said(self, points: list[Point]) -> list[str]:
        worst = max(abs(p.error) for p in points if p.error is not None)
        return [f"The largest error of a mean batch is {100 * worst:.1f} % (wanted: 7)."]

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(8, 3.6))
        for place, (workload, rate) in enumerate(RATES.items(), 1):
            of = [p for p in points if p.workload == workload]
            bars(drawing, place, len(RATES), of, "batched requests", f"{workload}, {rate:g} req/s")
        return drawing


def _point(workload: str, system: str, ablation: str, bench: Bench) -> list[Point]:
    """ablation: one of ABLATIONS, or nothing."""
    settings = bench.settings(system, workload, *([ABLATIONS[ablation]] if ablation else []))
    rate = RATES[workload]
    served = [bench.serve(settings, rate, seed, drain=False, share=SHARES[workload]) for seed in bench.seeds]
    runs: list[float | None] = [mean_batch(run) for run in served]
    known = None if ablation else published()["fig13"][workload][system]
    label = f"{system} {ablation}".strip()
    return [Point("13", workload, MODEL, label, "mean_batch", rate, **mean_of(runs), published=known)]
