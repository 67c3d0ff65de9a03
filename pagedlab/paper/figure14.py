"""Fig. 14: parallel sampling and beam search, OPT-13B, Alpaca: normalized latency against the request rate."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, ORCAS, Bench
from pagedlab.paper.figure15 import KINDS, WIDTHS, changes_of
from pagedlab.paper.points import Point
from pagedlab.paper.sweep import Sweep, evenly, panels, ratios

SYSTEMS = (*ORCAS, "vllm")
RATES = evenly(0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0)
PANELS = {
    f"14{letter}": (kind, width)
    for letter, (kind, width) in zip("abcdef", [(kind, width) for kind in KINDS for width in WIDTHS], strict=True)
}
# Requests of several outputs are simulated sequence by sequence: a twentieth of the trace, one seed.
SHARE, SEEDS = 0.05, 1


@FIGURES.register("figure14")
class Figure14(Figure):
    title = "Fig. 14: parallel sampling and beam search, OPT-13B, Alpaca"
    notes = (
        "Panels a to c: 2, 4 and 6 parallel samples; d to f: beams. Orca holds a run for every sequence of a request "
        "and copies the prompt, or a beam's whole context, into each; vLLM shares blocks. Latency counts the tokens of "
        "one output. Beams are made up as in Fig. 15. Requests arrive for a twentieth of the time, one seed, capacity "
        "within 8 %: short traces, whose knees lie too far right (14c, vLLM: 22 req/s with 300 requests, 12 with 800)."
    )

    def parts(self) -> dict[str, Part]:
        return {f"{panel} {system}": partial(_curve, panel, system) for panel in PANELS for system in SYSTEMS}

    def said(self, points: list[Point]) -> list[str]:
        return [line for panel in PANELS for line in ratios(points, panel, ("orca_oracle", "orca_pow2", "orca_max"))]

    def draw(self, points: list[Point]) -> Drawing:
        return panels(points, {panel: f"{panel} {kind}, {width}" for panel, (kind, width) in PANELS.items()}, 3)


def _curve(panel: str, system: str, bench: Bench) -> list[Point]:
    settings = bench.settings(system, "alpaca", *changes_of(*PANELS[panel]))
    sweep = Sweep(panel, "alpaca", MODEL, system, RATES, share=SHARE, most_seeds=SEEDS, tolerance=0.08)
    return sweep.points(bench, settings)
