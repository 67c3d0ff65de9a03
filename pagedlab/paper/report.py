"""REPORT.md: per figure what was assumed, every point beside the published one, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagedlab.paper.base import FIGURES
from pagedlab.paper.bench import HARDWARE, KV_SLOTS, MODEL
from pagedlab.paper.constants import constants
from pagedlab.paper.points import Point

if TYPE_CHECKING:
    from pagedlab.paper.study import Choice

_HEAD = """# The PagedAttention paper, repeated in simulation

Kwon et al., SOSP 2023, arXiv:2309.06180. `{model}` on `{hardware}` with {slots:,} KV slots. Lengths are drawn from
Fig. 11, prompts and outputs independently, as their pairing is not published. Requests arrive for {trace:g} s (the
paper: an hour), Poisson; seeds {seeds}. Beside a mean over several seeds stands its 95 % interval (Student's t). Errors
are relative, (ours - published) / published.
"""


def report(choice: Choice, done: dict[str, list[Point]]) -> str:
    head = _HEAD.format(
        model=MODEL,
        hardware=HARDWARE,
        slots=KV_SLOTS,
        trace=choice.trace_s,
        seeds=", ".join(map(str, choice.seeds)),
    )
    parts = [head, *(_section(number, points) for number, points in done.items()), _constants()]
    return "\n".join(parts)


def _section(number: str, points: list[Point]) -> str:
    figure = FIGURES[f"figure{number}"]()
    lines = [f"## {figure.title}", "", figure.notes.strip(), "", *(f"- {line}" for line in figure.said(points)), ""]
    lines += [f"![{figure.title}](figure{number}.svg)", ""]
    lines += ["| panel | workload | system | metric | x | ours | 95 % | published | error |"]
    lines += ["| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |", *map(_row, points), ""]
    return "\n".join(lines)


def _row(point: Point) -> str:
    interval = "" if point.ci_low is None else f"{point.ci_low:.4g} to {point.ci_high:.4g}"
    error = "" if point.error is None else f"{100 * point.error:+.1f} %"
    words = (point.figure, point.workload, point.system, point.metric, _number(point.x), _number(point.value))
    return "| " + " | ".join((*words, interval, _number(point.published), error)) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _constants() -> str:
    lines = ["## Constants", ""]
    lines += [
        "All of `conf/hardware/a100_40gb.yaml`; none is set by a figure. Those with `Fig.` were fitted on that figure."
    ]
    lines += ["", "| constant | value | from |", "| --- | ---: | --- |"]
    return "\n".join(lines + [f"| {name} | {value:g} | {source} |" for name, value, source in constants()]) + "\n"
