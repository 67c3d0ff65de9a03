"""Fig. 2: where the KV memory goes, OPT-13B, ShareGPT at 2 requests a second."""

from __future__ import annotations

from functools import partial

from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import MODEL, SYSTEMS, Bench
from pagedlab.paper.drawing import PAPER_NAMES
from pagedlab.paper.measures import SHARES, memory_shares
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published

RATE = 2.0


@FIGURES.register("figure2")
class Figure2(Figure):
    title = "Fig. 2: shares of the KV memory, OPT-13B, ShareGPT"
    notes = (
        "The rate is that of Fig. 13. Shares are means over the time in which a request waited for memory: below "
        "saturation vLLM's pool has free blocks that nobody lacks, and the paper has no share for them. A buddy "
        "allocator's rounding counts as external, as the paper's own shares of Orca (Oracle) say."
    )

    def parts(self) -> dict[str, Part]:
        return {system: partial(_shares, system) for system in SYSTEMS}

    def said(self, points: list[Point]) -> list[str]:
        known = [abs(p.value - p.published) for p in points if p.value is not None and p.published is not None]
        if not known:
            return ["In no run did a request wait for memory."]
        worst = max(known)
        lines = [f"The largest difference of a share is {worst:.1f} percentage points (wanted: 5)."]
        waste = {p.system: 100 - p.value for p in points if p.metric == "share_token_pct" and p.value is not None}
        said = ", ".join(f"{PAPER_NAMES[system]} {share:.1f} %" for system, share in waste.items())
        lines.append(
            f"Claim: 60-80 % of the memory wasted before, under 4 % by vLLM. Ours, all that holds no token: {said}."
        )
        return lines

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(8, 4))
        axes = drawing.add_subplot()
        colours = dict(zip(SHARES, ("tab:green", "tab:olive", "tab:orange", "tab:red"), strict=True))
        for shift, side in ((-0.2, "value"), (0.2, "published")):
            for i, system in enumerate(SYSTEMS):
                bottom = 0.0
                for share in SHARES:
                    [point] = [p for p in points if p.system == system and p.metric == f"share_{share}_pct"]
                    height = getattr(point, side) or 0.0
                    faded = 1.0 if side == "value" else 0.5
                    label = share if side == "value" and i == 0 else None
                    axes.bar(i + shift, height, 0.38, bottom=bottom, color=colours[share], alpha=faded, label=label)
                    bottom += height
        axes.set_xticks(range(len(SYSTEMS)), [PAPER_NAMES[system] for system in SYSTEMS])
        axes.set(ylabel="share of the KV memory, %", title=f"{self.title}: ours, and published (pale)", ylim=(0, 100))
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
        return drawing


def _shares(system: str, bench: Bench) -> list[Point]:
    runs = [memory_shares(bench.serve(bench.settings(system, "sharegpt"), RATE, seed)) for seed in bench.seeds]
    paper = published()["fig2_pct"][system]
    return [
        Point(
            "2",
            "sharegpt",
            MODEL,
            system,
            f"share_{share}_pct",
            RATE,
            **mean_of([run[share] for run in runs]),
            published=paper[share],
        )
        for share in SHARES
    ]
