"""Fig. 18: what blocks cost the attention kernel (a), and end to end by block size (b), OPT-13B."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, Bench
from pagedlab.paper.drawing import curve
from pagedlab.paper.kernel_time import kernel_us
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published
from pagedlab.paper.sweep import LATENCY

CONTEXTS, BATCHES = (64, 128, 256), (8, 32)
SIDES = {"vLLM": "vllm", "FT": "fastertransformer"}
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# The paper does not print its rates: below the capacity with blocks of 16, above that of the worst.
RATES = {"sharegpt": 1.6, "alpaca": 24.0}
SHARE, SEEDS = 0.5, 2
HERE = "this machine"
MEASURED = "18a here"


@FIGURES.register("figure18")
class Figure18(Figure):
    title = "Fig. 18: the cost of blocks, OPT-13B"
    notes = (
        "a: attention of one decode, one layer. `simulated`: the cost model of the A100, whose `gather_half_tokens` is "
        "fitted on this figure's batch of 32. It makes blocks cost bandwidth, 19 %, not launches: where the fixed time "
        "of a kernel is most of it, at short contexts and batch 8, the model knows no overhead, and the paper has 25 "
        "to 44 %. `this machine`: pagedlab's own CPU kernel over scattered blocks of 16 against the same kernel over "
        "one run a sequence; only the ratio compares with the paper. A block of 16 tokens is 320 KiB there, read as a "
        "run is; measured when nothing else of the study runs. Torch's attention over contiguous "
        "keys and values is another kernel: its time says nothing of blocks. b: the "
        "rates are not printed; " + ", ".join(f"{name} at {rate:g} req/s" for name, rate in RATES.items()) + " are "
        "assumed, half of the trace, two seeds."
    )

    alone = frozenset({MEASURED})

    def parts(self) -> dict[str, Part]:
        of: dict[str, Part] = {"18a simulated": _simulated, MEASURED: _here}
        for workload in RATES:
            for block in BLOCKS:
                of[f"18b {workload} {block}"] = partial(_end_to_end, workload, block)
        return of

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for place in ("simulated", HERE):
            of = [p.value for p in points if p.metric == "paging_overhead_pct" and p.workload.startswith(place)]
            known = [value for value in of if value is not None]
            if known:
                lines.append(
                    f"18a, {place}: a kernel over blocks takes {min(known):.0f} to {max(known):.0f} % longer than a "
                    "contiguous one (text of the paper: 20 to 26)."
                )
        for workload in RATES:
            curve_of = [p for p in points if p.figure == "18b" and p.workload == workload and p.value is not None]
            if curve_of:
                best = min(curve_of, key=lambda p: p.value or 0.0)
                lines.append(f"18b, {workload}: the lowest latency is with blocks of {best.x:g}.")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(9, 4), layout="constrained")
        kernel, whole = drawing.add_subplot(1, 2, 1), drawing.add_subplot(1, 2, 2)
        for batch in BATCHES:
            for system in SIDES.values():
                of = [p for p in points if p.workload == f"simulated batch {batch}" and p.system == system]
                curve(kernel, [p for p in of if p.metric == "kernel_us"], f"{system}, batch {batch}")
        for workload in RATES:
            curve(whole, [p for p in points if p.figure == "18b" and p.workload == workload], workload)
        kernel.set(xlabel="context, tokens", ylabel="us", title="18a; lines: ours, dots: published", ylim=(0, None))
        whole.set(xlabel="block size, tokens", ylabel="normalized latency, s/token", title="18b", yscale="log")
        whole.set_xscale("log", base=2)
        for axes in (kernel, whole):
            axes.legend(frameon=False)
        return drawing


def _simulated(bench: Bench) -> list[Point]:
    points, paper = [], published()["fig18a_kernel_us"]
    costs = {system: bench.cost(system=system) for system in SIDES.values()}
    for batch in BATCHES:
        for i, context in enumerate(CONTEXTS):
            took, known = {}, {}
            for name, system in SIDES.items():
                layers = costs[system].model.shape.num_layers
                took[name] = 1e6 * costs[system].decode_attention_s(batch, batch * context) / layers
                known[name] = paper[f"{name}_bs{batch}"][i]
                points.append(_point(f"simulated batch {batch}", system, context, took[name], known[name]))
            points.append(_overhead(f"simulated batch {batch}", context, took, known))
    return points


def _here(bench: Bench) -> list[Point]:
    points = []
    for batch in BATCHES:
        for context in CONTEXTS:
            bench.tick(f"kernel, batch {batch}, context {context}")
            name, paged, run, contiguous, overhead = kernel_us(batch, context)
            place = f"{HERE} batch {batch}"
            points += [
                _point(place, f"{name} kernel", context, paged),
                _point(place, f"{name} kernel, one run", context, run),
                _point(place, "torch, contiguous", context, contiguous),
            ]
            points.append(_overhead(place, context, {"vLLM": overhead, "FT": 1.0}, {}))
    return points


def _point(workload: str, system: str, context: int, us: float, known: float | None = None) -> Point:
    return Point("18a", workload, MODEL, system, "kernel_us", float(context), us, published=known)


def _overhead(workload: str, context: int, took: dict[str, float], known: dict[str, float]) -> Point:
    """What the one takes longer, %."""
    paper = 100 * (known["vLLM"] / known["FT"] - 1) if known else None
    value = 100 * (took["vLLM"] / took["FT"] - 1)
    return Point("18a", workload, MODEL, "vllm", "paging_overhead_pct", float(context), value, published=paper)


def _end_to_end(workload: str, block: int, bench: Bench) -> list[Point]:
    settings = bench.settings("vllm", workload, f"block_size={block}")
    runs = [
        normalized_latency_s(bench.serve(settings, RATES[workload], seed, share=SHARE)) for seed in bench.seeds[:SEEDS]
    ]
    return [Point("18b", workload, MODEL, "vllm", LATENCY, float(block), **mean_of([*runs]))]
