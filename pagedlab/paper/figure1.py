"""Fig. 1 right: throughput and memory against the batch, OPT-13B."""

from __future__ import annotations

from matplotlib.figure import Figure as Drawing

from pagedlab.hardware.cost import StepWork
from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, Bench
from pagedlab.paper.drawing import curve
from pagedlab.paper.points import Point
from pagedlab.paper.published import published

# Tokens of a sequence in the cache, as the figure's own memory curve of vLLM says: 1 GB more for every 2.958 of them.
CONTEXT = 413
LONGEST = 2048
GB = 1e9


@FIGURES.register("figure1")
class Figure1(Figure):
    title = "Fig. 1 right: throughput and memory by batch size, OPT-13B"
    notes = (
        f"A decode step of sequences of {CONTEXT} tokens, priced. Intercept and slope of the throughput curve are "
        "fitted on this very figure (`host_step_us`, `decode_memory_efficiency`), so it shows that the form fits, "
        f"not more. Memory: the weights, and for each request {CONTEXT} tokens in blocks, or {LONGEST} reserved."
    )

    def parts(self) -> dict[str, Part]:
        return {"decode": _curves}

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for metric in ("throughput_tok_s", "memory_gb"):
            worst = max(abs(p.error) for p in points if p.metric == metric and p.error is not None)
            lines.append(f"The largest error of {metric} is {100 * worst:.1f} % (wanted: 5).")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(5, 6))
        for place, (metric, label) in enumerate((("memory_gb", "memory, GB"), ("throughput_tok_s", "tokens/s")), 1):
            axes = drawing.add_subplot(2, 1, place)
            for system in ("orca_max", "vllm"):
                of = [p for p in points if p.metric == metric and p.system == system]
                name = {"orca_max": "longest reserved", "vllm": "vLLM"}[system]
                curve(axes, of, name)
            axes.set(xlabel="batch size, requests", ylabel=label)
        drawing.axes[0].legend(frameon=False)
        drawing.axes[0].set_title("lines: ours, dots: published")
        return drawing


def _curves(bench: Bench) -> list[Point]:
    cost = bench.cost()
    size, table = cost.block_size, published()["fig1_right"]
    slots = -(-CONTEXT // size) * size
    token = cost.kv_bytes * cost.model.shape.num_layers
    points = []
    for batch, paper in table["throughput_tok_s_vs_batch"]:
        if batch:
            step = cost.step_s(StepWork(batch, batch, batch, batch * slots, batch))
            points.append(_point("vllm", "throughput_tok_s", batch, batch / step, paper))
    for system, name, each in (
        ("orca_max", "memory_GB_vs_batch_existing", LONGEST * token),
        ("vllm", "memory_GB_vs_batch_vllm", slots * token),
    ):
        for batch, paper in table[name]:
            points.append(_point(system, "memory_gb", batch, (cost.weight_bytes() + batch * each) / GB, paper))
    return points


def _point(system: str, metric: str, batch: float, value: float, paper: float) -> Point:
    return Point("1", "decode", MODEL, system, metric, float(batch), float(value), published=paper)
