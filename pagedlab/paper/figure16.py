"""Fig. 16: a translation prefix that all requests share, LLaMA-13B, WMT16 English to German."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import Bench
from pagedlab.paper.points import Point
from pagedlab.paper.sweep import Sweep, evenly, panels, ratios

MODEL = "llama_13b"
PREFIXES = {"16a": 80, "16b": 341}
RATES = evenly(5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0, 50.0, 60.0)
# Lengths of the sentences are not printed. About 26 words of English, 25 of German, 1.2 and 1.6 tokens a word.
_LENGTHS = "{{distribution: lognormal, mean: {}, sigma: 0.6, low: 4, high: 256}}"
PROMPT, OUTPUT = _LENGTHS.format(32), _LENGTHS.format(40)
BLOCK = 16


@FIGURES.register("figure16")
class Figure16(Figure):
    title = "Fig. 16: a shared prefix, LLaMA-13B, WMT16 English to German"
    notes = (
        "a: one example, 80 tokens; b: five, 341. vLLM keeps the prefix's blocks and computes it once (here: a prefix "
        "cache in which it is pinned; the tokens of its last, partial block are computed again, where the paper copies "
        "them); Orca (Oracle) computes it for every request. The lengths of the sentences are not printed: lognormal, "
        "means 32 and 40 tokens, an assumption that moves every rate. Requests arrive for half of the time; two seeds."
    )

    def parts(self) -> dict[str, Part]:
        systems = ("orca_oracle", "vllm")
        return {f"{panel} {system}": partial(_curve, panel, system) for panel in PREFIXES for system in systems}

    def said(self, points: list[Point]) -> list[str]:
        return [line for panel in PREFIXES for line in ratios(points, panel, ("orca_oracle",))]

    def draw(self, points: list[Point]) -> Drawing:
        return panels(points, {panel: f"{panel} prefix of {tokens} tokens" for panel, tokens in PREFIXES.items()}, 2)


def _curve(panel: str, system: str, bench: Bench) -> list[Point]:
    tokens = PREFIXES[panel]
    changes = [f"workload.prompt={PROMPT}", f"workload.output={OUTPUT}", f"workload.shared_prefix_tokens={tokens}"]
    if system == "vllm":
        changes += ["prefix_cache=hash_chain", f"prefix_cache.pin_blocks={tokens // BLOCK}"]
        changes += ["workload.pin_shared_prefix=true"]
    settings = bench.settings(system, "alpaca", *changes, model=MODEL)
    sweep = Sweep(panel, "wmt16", MODEL, system, RATES, share=0.5, most_seeds=2)
    return sweep.points(bench, settings)
