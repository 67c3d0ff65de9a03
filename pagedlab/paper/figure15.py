"""Fig. 15: blocks saved by sharing, parallel sampling and beam search, OPT-13B, Alpaca."""

from __future__ import annotations

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure
from pagedlab.paper.bench import MODEL, Bench
from pagedlab.paper.measures import saved_share
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published

# Far below saturation: what is shared is then a matter of lengths alone, and the paper does not print its rate.
RATE = 0.25
METRICS = {"parallel": "sampling.n={}", "beam": "sampling.beam_width={}"}
OF_PARALLEL = "sampling.temperature=1"


@FIGURES.register("figure15")
class Figure15(Figure):
    title = "Fig. 15a: blocks saved by sharing, OPT-13B, Alpaca"
    notes = (
        f"Blocks saved / blocks without sharing, sums over time, at {RATE} req/s: the paper does not print its "
        "rate. The beams are not those of a language model: the log probability falls from one candidate to the "
        "next by a drawn step, exponential of mean 1, so how soon beams have a common ancestor is an assumption, "
        "and what is left of the difference there is not looked into. Of parallel samples the share follows from "
        "the lengths alone, shared whole blocks of prompts against all blocks, whatever the engine does: why the "
        "paper's is lower is not looked into. ShareGPT is not run."
    )

    def points(self, bench: Bench) -> list[Point]:
        points, paper = [], published()["fig15_saving_pct"]
        for kind, override in METRICS.items():
            for i, width in enumerate(paper["n_or_k"]):
                changes = [override.format(width)] + [OF_PARALLEL] * (kind == "parallel")
                settings = bench.settings("vllm", "alpaca", *changes)
                mean = mean_of([saved_share(bench.serve(settings, RATE, seed)) for seed in bench.seeds])
                known = paper[kind][i]
                points.append(
                    Point("15a", "alpaca", MODEL, "vllm", f"saving_{kind}_pct", width, **mean, published=known)
                )
        return points

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for kind in METRICS:
            of = [p for p in points if p.metric == f"saving_{kind}_pct"]
            apart = [abs(p.value - p.published) for p in of if p.value is not None and p.published is not None]
            lines.append(f"{kind}: at most {max(apart):.1f} percentage points apart (wanted: 3).")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(7, 3.4))
        for place, kind in enumerate(METRICS, 1):
            axes = drawing.add_subplot(1, 2, place)
            of = [p for p in points if p.metric == f"saving_{kind}_pct"]
            for shift, name, side in ((-0.35, "pagedlab", "value"), (0.35, "published", "published")):
                axes.bar([(p.x or 0) + shift for p in of], [getattr(p, side) or 0.0 for p in of], 0.7, label=name)
            axes.set_xticks([p.x or 0 for p in of])
            axes.set(title=kind, xlabel="outputs of a request", ylabel="blocks saved, %")
        drawing.axes[0].legend(frameon=False)
        return drawing
