"""Fig. 12: normalized latency against the request rate, three models, ShareGPT and Alpaca, five systems."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import ORCAS, Bench
from pagedlab.paper.drawing import PAPER_NAMES
from pagedlab.paper.points import Point
from pagedlab.paper.published import published
from pagedlab.paper.sweep import LATENCY, THRESHOLD_S, Sweep, evenly, knees_of, panels, ratios

FIVE = ("fastertransformer", *ORCAS, "vllm")
PANELS = {
    "12a": ("opt_13b", "sharegpt", ()),
    "12b": ("opt_66b", "sharegpt", evenly(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
    "12c": ("opt_175b", "sharegpt", evenly(0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)),
    "12d": ("opt_13b", "alpaca", ()),
    "12e": ("opt_66b", "alpaca", evenly(0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.5, 15.0, 17.5, 20.0)),
    "12f": ("opt_175b", "alpaca", evenly(1.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0)),
}
OTHERS = ("orca_oracle", "orca_pow2", "orca_max", "fastertransformer")
# What else could have been assumed: prompts beside decodes, as Orca itself feeds them; a step whose host time grows
# with its sequences, which Fig. 1 cannot tell from the slope of attention.
ABLATIONS = {
    "orca_oracle iteration": ("orca_oracle", "scheduler.batching=iteration"),
    "vllm host": ("vllm", "hardware.host_sequence_us=50"),
}
ABLATED = ("12a", "12d")


@FIGURES.register("figure12")
class Figure12(Figure):
    title = "Fig. 12: normalized latency by request rate"
    notes = (
        f"Capacity: the rate at {THRESHOLD_S} s/token, by bisection within 3 %, for each seed; the curves are of the "
        "first. Each run is served to its end. An absolute knee is not promised: a few percent of a step decide there; "
        "compare orders and ratios. A request of FasterTransformer is answered when its whole batch has ended (Orca, "
        "OSDI 2022, section 3). Requests of OPT-175B arrive for a quarter of the time, as in the paper. Its A100-80GB "
        "has the bandwidth and memory of the datasheet and, as the A100-40GB, the host and the kernels of Fig. 1. "
        "Ablations: `orca_oracle iteration`, prompts fed beside decodes (scheduler.batching=iteration), as Orca itself "
        "does; `vllm host`, 50 us of host time for every sequence of a step (hardware.host_sequence_us)."
    )

    def parts(self) -> dict[str, Part]:
        of: dict[str, Part] = {}
        for panel in PANELS:
            for system in FIVE:
                of[f"{panel} {system}"] = partial(_curve, panel, system)
        for panel in ABLATED:
            for name in ABLATIONS:
                of[f"{panel} {name}"] = partial(_ablation, panel, name)
        return of

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for panel in PANELS:
            knees = {name: p for name, p in knees_of(points, panel).items() if name in FIVE}
            ours = sorted(knees, key=lambda system: knees[system].value or 0.0)
            line = f"{panel}: by capacity {', '.join(PAPER_NAMES[name] for name in ours)}"
            if all(p.published for p in knees.values()):
                theirs = sorted(knees, key=lambda system: knees[system].published or 0.0)
                line += ", as published" if ours == theirs else f"; published: {', '.join(theirs)}"
            lines += [line + ".", *ratios(points, panel, OTHERS), *_moved(points, panel)]
            low = [p for p in points if p.figure == panel and p.metric == LATENCY and 0 < (p.published or 1) < 0.06]
            if low:
                worst = max(low, key=lambda p: abs(p.error or 0.0))
                lines.append(
                    f"{panel}: below 0.06 s/token the largest error of a latency is {100 * (worst.error or 0):+.0f} %, "
                    f"of {PAPER_NAMES[worst.system]} at {worst.x:g} req/s (wanted at low load: 15)."
                )
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        names = {panel: f"{panel} {model}, {workload}" for panel, (model, workload, _) in PANELS.items()}
        drawing = panels(points, names, 3)
        drawing.suptitle("lines: ours, dots: published")
        return drawing


def _moved(points: list[Point], panel: str) -> list[str]:
    """How an ablation moves a capacity: whether what it changes explains the difference."""
    knees, lines = knees_of(points, panel), []
    for name, (system, change) in ABLATIONS.items():
        before, after = (knees[of].value if of in knees else None for of in (system, name))
        if before and after:
            paper = knees[system].published
            said = f" (published: {paper:.3g})" if paper else ""
            lines.append(
                f"{panel}: with {change} {PAPER_NAMES[system]} sustains {after:.3g} req/s, not {before:.3g}{said}."
            )
    return lines


def _curve(panel: str, system: str, bench: Bench) -> list[Point]:
    model, workload, rates = PANELS[panel]
    knee = None
    if not rates:
        paper = published()[f"fig{panel}"]
        # Where a curve leaves the plot it has no value; two values of one rate are the edge of a drawn step.
        known = {rate: latency for rate, latency, *leaves in paper["points"][system] if not leaves}
        rates, knee = tuple(known.items()), paper["capacity"][system]
    sweep = Sweep(panel, workload, model, system, rates, knee)
    return sweep.points(bench, bench.settings(system, workload, model=model))


def _ablation(panel: str, name: str, bench: Bench) -> list[Point]:
    model, workload, _ = PANELS[panel]
    system, change = ABLATIONS[name]
    rates = evenly(*{rate: None for rate, _, *leaves in published()[f"fig{panel}"]["points"][system] if not leaves})
    return Sweep(panel, workload, model, name, rates).points(
        bench, bench.settings(system, workload, change, model=model)
    )
