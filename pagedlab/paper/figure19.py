"""Fig. 19: recomputing against swapping, of one sequence (a) and end to end (b), by block size, OPT-13B."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.hardware.cost import StepWork
from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, Bench
from pagedlab.paper.drawing import curve
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published
from pagedlab.paper.sweep import LATENCY

TOKENS = 256
METRICS = ("recompute_ms", "swap_in_ms", "swap_out_ms", "swap_in_out_ms")
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Near the capacity of vLLM, where requests are preempted: the paper does not print its rate.
RATE = 1.9
SHARE, SEEDS = 0.25, 2
WAYS = {"recompute": ("preemption=recompute",), "swap": ("preemption=swap", "preemption.swap_space=4GiB")}


@FIGURES.register("figure19")
class Figure19(Figure):
    title = "Fig. 19: recomputing against swapping by block size, OPT-13B"
    notes = (
        f"a: {TOKENS} tokens, an assumption: the paper does not print how many. Bandwidth and time of a copy are "
        "fitted on this figure, for each direction (`pcie_gb_s`, `swap_copy_us` in; `pcie_out_gb_s`, "
        f"`swap_out_copy_us` out). b: ShareGPT at {RATE} req/s, where vLLM has to preempt (the paper does not print "
        "its rate), host pool of 4 GiB, a quarter of the trace, two seeds."
    )

    def parts(self) -> dict[str, Part]:
        of: dict[str, Part] = {"19a": _micro}
        for way in WAYS:
            for block in BLOCKS:
                of[f"19b {way} {block}"] = partial(_end_to_end, way, block)
        return of

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for metric in METRICS:
            worst = max(abs(p.error) for p in points if p.metric == metric and p.error is not None)
            lines.append(f"The largest error of {metric} is {100 * worst:.1f} % (wanted: 15).")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(9, 4), layout="constrained")
        micro, whole = drawing.add_subplot(1, 2, 1), drawing.add_subplot(1, 2, 2)
        for metric in METRICS:
            of = [p for p in points if p.metric == metric]
            curve(micro, of, metric.removesuffix("_ms"))
        for way in WAYS:
            curve(whole, [p for p in points if p.figure == "19b" and p.system == f"vllm {way}"], way)
        micro.set(ylabel="ms", title="19a; lines: ours, dots: published", ylim=(0, None))
        whole.set(ylabel="normalized latency, s/token", title=f"19b sharegpt, {RATE} req/s", ylim=(0, None))
        for axes in (micro, whole):
            axes.set_xscale("log", base=2)
            axes.set(xlabel="block size, tokens")
            axes.legend(frameon=False)
        return drawing


def _micro(bench: Bench) -> list[Point]:
    points, paper = [], published()["fig19a_ms"]
    for i, block in enumerate(paper["block"]):
        cost, blocks = bench.cost(f"block_size={block}"), -(-TOKENS // block)
        back, out = 1e3 * cost.swap_in_s(blocks), 1e3 * cost.swap_out_s(blocks)
        recompute = 1e3 * cost.step_s(StepWork(TOKENS, 1, 0, 0, 1, 1, blocks, [(TOKENS, 0)]))
        for metric, value in zip(METRICS, (recompute, back, out, back + out), strict=True):
            known = paper[metric.removesuffix("_ms")][i]
            points.append(Point("19a", "micro", MODEL, "vllm", metric, float(block), value, published=known))
    return points


def _end_to_end(way: str, block: int, bench: Bench) -> list[Point]:
    settings = bench.settings("vllm", "sharegpt", f"block_size={block}", *WAYS[way])
    served = [bench.serve(settings, RATE, seed, share=SHARE) for seed in bench.seeds[:SEEDS]]
    found = {
        LATENCY: mean_of([normalized_latency_s(run) for run in served]),
        "preemptions": mean_of([float(len(run.recorder.preemptions)) for run in served]),
    }
    system, x = f"vllm {way}", float(block)
    return [Point("19b", "sharegpt", MODEL, system, metric, x, **mean) for metric, mean in found.items()]
