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
SAVING, INSTANT = "saving_{}_pct", "saving_{}_by_instant_pct"


def changes_of(kind: str, width: int) -> list[str]:
    """The overrides that ask for so many outputs of each request."""
    return [KINDS[kind].format(width)] + ["sampling.temperature=1"] * (kind == "parallel")


@FIGURES.register("figure15")
class Figure15(Figure):
    title = "Fig. 15: blocks saved by sharing, OPT-13B"
    notes = (
        f"Blocks saved / blocks without sharing, sums over time, at {RATE} req/s: the paper does not print its rate. "
        "The beams are not those of OPT-13B. How soon they have a common ancestor decides, and that is how much less "
        "likely each candidate is than the one before: drawn steps as SmolLM2-135M's were measured to be (exponential, "
        "mean 0.7 to the first and 2 / k to the one after the k-th), not fitted on this figure. With the beams of "
        "SmolLM2 itself, width 4, 19 tokens of prompt and 70 of output, 51.4 % are saved; with these 52.9 %, with "
        "steps of mean 1 throughout 54.2 %: what is above that here is the weight of long outputs. Of parallel "
        "samples the share follows from the lengths alone, shared whole blocks of prompts against all blocks. Requests "
        "of ShareGPT arrive for an eighth of the time. Ablation, `by_instant`: the mean over time of the ratio at "
        "each instant, in which long requests, whose beams share most, weigh no more than others; the paper does not "
        "say which of the two it takes. Under a full batch they are the same."
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
            for form, how in ((SAVING, "ratio of sums over time"), (INSTANT, "mean over time of the ratio")):
                of = [p for p in points if (p.figure, p.metric) == ("15a", form.format(kind))]
                paper = published()["fig15_saving_pct"][kind]
                apart = [abs(p.value - known) for p, known in zip(of, paper, strict=True) if p.value is not None]
                lines.append(f"15a, {kind}, {how}: at most {max(apart):.1f} percentage points apart (wanted: 3).")
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(7, 6), layout="constrained")
        for place, (panel, kind) in enumerate([(panel, kind) for panel in PANELS for kind in KINDS], 1):
            axes = drawing.add_subplot(2, 2, place)
            of = [p for p in points if p.figure == panel and p.metric == SAVING.format(kind)]
            for shift, name, side in ((-0.35, "pagedlab", "value"), (0.35, "published", "published")):
                axes.bar([(p.x or 0) + shift for p in of], [getattr(p, side) or 0.0 for p in of], 0.7, label=name)
            axes.set_xticks([p.x or 0 for p in of])
            axes.set(title=f"{panel} {PANELS[panel]}, {kind}", xlabel="outputs of a request", ylabel="blocks saved, %")
        drawing.axes[0].legend(frameon=False)
        return drawing


def _point(panel: str, kind: str, width: int, bench: Bench) -> list[Point]:
    workload = PANELS[panel]
    settings = bench.settings("vllm", workload, *changes_of(kind, width))
    served = [bench.serve(settings, RATE, seed, share=SHARES[workload]) for seed in bench.seeds]
    known = published()["fig15_saving_pct"][kind][WIDTHS.index(width)] if panel == "15a" else None
    x = float(width)
    sums, instants = [saved_share(run) for run in served], [saved_share(run, by_instant=True) for run in served]
    return [
        Point(panel, workload, MODEL, "vllm", SAVING.format(kind), x, **mean_of([*sums]), published=known),
        Point(panel, workload, MODEL, "vllm", INSTANT.format(kind), x, **mean_of([*instants])),
    ]
