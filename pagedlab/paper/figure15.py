"""Fig. 15: blocks saved by sharing, parallel sampling and beam search, OPT-13B, Alpaca (a) and ShareGPT (b)."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, Bench
from pagedlab.paper.measures import saved_share
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published

# Far below saturation: what is shared is then a matter of lengths alone, and the paper does not print its rate.
RATE = 0.25
WIDTHS = (2, 4, 6)
KINDS = {"parallel": "sampling.n={}", "beam": "sampling.beam_width={}"}
PANELS = {"15a": "alpaca", "15b": "sharegpt"}
# ShareGPT's outputs are six times as long: an eighth of the trace.
SHARES = {"alpaca": 1.0, "sharegpt": 0.125}


def changes_of(kind: str, width: int) -> list[str]:
    """The overrides that ask for so many outputs of each request."""
    return [KINDS[kind].format(width)] + ["sampling.temperature=1"] * (kind == "parallel")


@FIGURES.register("figure15")
class Figure15(Figure):
    title = "Fig. 15: blocks saved by sharing, OPT-13B"
    notes = (
        f"Blocks saved / blocks without sharing, sums over time, at {RATE} req/s: the paper does not print its rate. "
        "The beams are not those of a language model: the log probability falls from one candidate to the next by a "
        "drawn step, exponential of mean 1, so how soon beams have a common ancestor is an assumption. Of parallel "
        "samples the share follows from the lengths alone, shared whole blocks of prompts against all blocks. Requests "
        "of ShareGPT arrive for an eighth of the time."
    )

    def parts(self) -> dict[str, Part]:
        of: dict[str, Part] = {}
        for panel in PANELS:
            for kind in KINDS:
                for width in WIDTHS:
                    of[f"{panel} {kind} {width}"] = partial(_point, panel, kind, width)
        return of

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for kind in KINDS:
            of = [p for p in points if p.figure == "15a" and p.metric == f"saving_{kind}_pct"]
            apart = [abs(p.value - p.published) for p in of if p.value is not None and p.published is not None]
            lines.append(f"15a, {kind}: at most {max(apart):.1f} percentage points apart (wanted: 3).")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(7, 6), layout="constrained")
        for place, (panel, kind) in enumerate([(panel, kind) for panel in PANELS for kind in KINDS], 1):
            axes = drawing.add_subplot(2, 2, place)
            of = [p for p in points if p.figure == panel and p.metric == f"saving_{kind}_pct"]
            for shift, name, side in ((-0.35, "pagedlab", "value"), (0.35, "published", "published")):
                axes.bar([(p.x or 0) + shift for p in of], [getattr(p, side) or 0.0 for p in of], 0.7, label=name)
            axes.set_xticks([p.x or 0 for p in of])
            axes.set(title=f"{panel} {PANELS[panel]}, {kind}", xlabel="outputs of a request", ylabel="blocks saved, %")
        drawing.axes[0].legend(frameon=False)
        return drawing


def _point(panel: str, kind: str, width: int, bench: Bench) -> list[Point]:
    workload = PANELS[panel]
    settings = bench.settings("vllm", workload, *changes_of(kind, width))
    runs = [saved_share(bench.serve(settings, RATE, seed, share=SHARES[workload])) for seed in bench.seeds]
    known = published()["fig15_saving_pct"][kind][WIDTHS.index(width)] if panel == "15a" else None
    metric = f"saving_{kind}_pct"
    return [Point(panel, workload, MODEL, "vllm", metric, float(width), **mean_of([*runs]), published=known)]
