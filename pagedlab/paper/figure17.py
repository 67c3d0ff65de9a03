"""Fig. 17: a chatbot that is told the whole conversation each time, OPT-13B, ShareGPT."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, SYSTEMS, Bench
from pagedlab.paper.chats import MEAN_ROUNDS, Chats
from pagedlab.paper.points import Point
from pagedlab.paper.sweep import Sweep, evenly, panels, ratios

PROMPT = OUTPUT = 1024
RATES = evenly(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
VOCABULARY = 50_272


@FIGURES.register("figure17")
class Figure17(Figure):
    title = "Fig. 17: a chatbot, OPT-13B, ShareGPT"
    notes = (
        f"The last {PROMPT} tokens of a conversation are the prompt, at most {OUTPUT} are generated, and no KV is kept "
        "between rounds. The rounds of its conversations are not printed: turns of the lengths of Fig. 11, geometric "
        f"numbers of mean {MEAN_ROUNDS} (ShareGPT's), an assumption."
    )

    def parts(self) -> dict[str, Part]:
        return {f"17 {system}": partial(_curve, system) for system in SYSTEMS}

    def said(self, points: list[Point]) -> list[str]:
        return ratios(points, "17", ("orca_oracle", "orca_pow2", "orca_max"))

    def draw(self, points: list[Point]) -> Drawing:
        return panels(points, {"17": "17 chatbot"}, 1)


def _curve(system: str, bench: Bench) -> list[Point]:
    drafts = Chats(PROMPT, OUTPUT, VOCABULARY)
    sweep = Sweep("17", "sharegpt chat", MODEL, system, RATES, drafts=drafts)
    return sweep.points(bench, bench.settings(system, "sharegpt"))
