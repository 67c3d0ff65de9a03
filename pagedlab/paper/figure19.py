"""Fig. 19a: what it costs to take the blocks of a sequence and give them back, by block size, OPT-13B."""

from __future__ import annotations

from matplotlib.figure import Figure as Drawing

from pagedlab.hardware.cost import StepWork
from pagedlab.paper.base import FIGURES, Figure
from pagedlab.paper.bench import MODEL, Bench
from pagedlab.paper.drawing import curve
from pagedlab.paper.points import Point
from pagedlab.paper.published import published

TOKENS = 256
METRICS = ("recompute_ms", "swap_in_ms", "swap_out_ms", "swap_in_out_ms")


@FIGURES.register("figure19")
class Figure19(Figure):
    title = "Fig. 19a: recomputing against swapping a sequence, by block size, OPT-13B"
    notes = (
        f"{TOKENS} tokens, an assumption: the paper does not print how many. Bandwidth (`pcie_gb_s`) and time of a "
        "copy (`swap_copy_us`) are fitted on this figure, one of each for both directions, so that the time in "
        "and out is met and its halves are not: the figure alone has 11.9 GB/s and 3.2 us in, 13.1 GB/s and 1.9 "
        "us out. Fig. 19b is not run."
    )

    def points(self, bench: Bench) -> list[Point]:
        points, paper = [], published()["fig19a_ms"]
        for i, block in enumerate(paper["block"]):
            bench.tick(f"blocks of {block}")
            cost = bench.cost(f"block_size={block}")
            swap = 1e3 * cost.swap_s(-(-TOKENS // block))
            recompute = 1e3 * cost.step_s(StepWork(TOKENS, 1, 0, 0, 1, 1, -(-TOKENS // block), [(TOKENS, 0)]))
            for metric, value in zip(METRICS, (recompute, swap, swap, 2 * swap), strict=True):
                known = paper[metric.removesuffix("_ms")][i]
                points.append(Point("19a", "micro", MODEL, "vllm", metric, float(block), value, published=known))
        return points

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for metric in METRICS:
            worst = max(abs(p.error) for p in points if p.metric == metric and p.error is not None)
            lines.append(f"The largest error of {metric} is {100 * worst:.1f} % (wanted: 15).")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(6, 4))
        axes = drawing.add_subplot()
        for metric in METRICS:
            of = [p for p in points if p.metric == metric]
            curve(axes, of, metric.removesuffix("_ms"))
        axes.set_xscale("log", base=2)
        axes.set(xlabel="block size, tokens", ylabel="ms", title="lines: ours, dots: published", ylim=(0, None))
        axes.legend(frameon=False)
        return drawing
