"""The memory split as a stacked area: an SVG, since W&B's own charts for the page of a run have none, and to import a
library that draws would take longer than all the rest that a tracker does."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import accumulate

WIDTH, HEIGHT, LEGEND = 900, 300, 60
# From dark to light, so that they read in grey; what is free is white.
SHADES = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838", "#ffffff")


def stacked_area(times: Sequence[float], shares: dict[str, list[float]]) -> str:
    """shares: of each kind, from the bottom up, its part of the whole (0 to 1) at each time, which holds until the next
    one. At most seven kinds, whose sum is 1 at most."""
    end = times[-1] if times[-1] > times[0] else times[0] + 1
    xs = [WIDTH * (time - times[0]) / (end - times[0]) for time in times]
    tops = list(accumulate(shares.values(), lambda below, own: [a + b for a, b in zip(below, own, strict=True)]))
    areas, legend = [], []
    for i, (kind, top) in enumerate(zip(shares, tops, strict=True)):
        ys = [HEIGHT * (1 - min(value, 1.0)) for value in top]
        line = f"M0 {HEIGHT}V{ys[0]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in zip(xs[1:], ys[1:], strict=True))
        look = f'fill="{SHADES[i]}" stroke="#555" stroke-width="0.3"'
        areas.append(f'<path {look} d="{line}H{WIDTH}V{HEIGHT}Z"><title>{escape(kind)}</title></path>')
        x, y = 10 + i % 4 * WIDTH // 4, HEIGHT + 18 + i // 4 * 20
        name = escape(kind.replace("_", " "))
        legend.append(
            f'<rect x="{x}" y="{y}" width="12" height="12" {look}/><text x="{x + 18}" y="{y + 11}">{name}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + LEGEND}" font-family="sans-serif" '
        # The uppermost first: each then covers what lies below it.
        f'font-size="12">{"".join(reversed(areas))}{"".join(legend)}</svg>'
    )
