"""REPORT.md: the claims, and per figure what was assumed, every point beside the published one, and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pagedlab.paper.base import FIGURES
from pagedlab.paper.bench import HARDWARE, LONGEST, SERVERS, SHORTEST
from pagedlab.paper.claims import SLACK, findings
from pagedlab.paper.constants import constants
from pagedlab.paper.points import Point

if TYPE_CHECKING:
    from pagedlab.paper.study import Choice

TITLE = "The PagedAttention paper, repeated in simulation"
CLAIMS = ("claim", "published", "ours", "verdict")
COLUMNS = ("panel", "workload", "model", "system", "metric", "x", "ours", "95 %", "published", "error")
_LEFT = 5  # columns of words
OF_CONSTANTS = ("constant", "value", "from")


def head(choice: Choice) -> list[str]:
    """What holds for all figures, in paragraphs."""
    servers = ", ".join(f"{model} {server.kv_slots:,}" for model, server in SERVERS.items())
    return [
        "Kwon et al., SOSP 2023, arXiv:2309.06180: its models on its servers, by a cost model of its devices. "
        f"KV slots, as its Table 1 prints them: {servers}. Lengths are drawn from Fig. 11, prompts and outputs "
        "independently, as their pairing is not published, and as the released benchmark takes them: "
        f"{SHORTEST} tokens at least, where the mass of a bin that begins below lies above; together at most "
        f"{LONGEST:,}, where a longer pair (.6 % of ShareGPT) exchanges its output for another's. The means stay: "
        "161.4 and 338.0 of ShareGPT (Fig. 11 prints 161.31 and 337.99), 19.55 and 58.9 of Alpaca (19.31 and 58.45). "
        "The benchmark also drops prompts of more than 1,024; Fig. 11 has them and its mean counts them, so they are "
        "kept, and left out in an ablation of Fig. 12a.",
        f"Requests arrive for {choice.trace_s:g} s, at most {choice.most_requests:,} of them where all are served "
        "to their ends (the paper: an hour), "
        f"Poisson; seeds {', '.join(map(str, choice.seeds))}. Beside a mean over several seeds stands its 95 % "
        "interval (Student's t). Errors are relative, (ours - published) / published. An empty `published`: "
        "not given to us.",
        "The Orca presets run in the engine of vLLM, prompts in steps of their own, so that memory alone differs; with "
        "prompts fed beside decodes, as Orca itself does, they are the rows named `iteration`.",
    ]


def about_claims() -> str:
    return f"`agrees`: within the published range, its ends widened by {100 * SLACK:.0f} %."


def about_constants() -> str:
    return (
        f"All of `conf/hardware/{HARDWARE}.yaml`; none is set by a figure. Those with `Fig.` were fitted on that "
        "figure: 1, 18a or 19a, no other. The servers of the larger models take these as well, with their own number "
        "of devices and, of the A100-80GB, bandwidth and memory of the datasheet."
    )


def report(choice: Choice, done: dict[str, list[Point]]) -> str:
    parts = [f"# {TITLE}", "", *(f"{paragraph}\n" for paragraph in head(choice))]
    found = findings([point for of in done.values() for point in of])
    if found:
        rows = [(f.said, f.published, f.ours, f.verdict) for f in found]
        parts += ["## Claims of the text", "", about_claims(), "", *_table(CLAIMS, rows, 4), ""]
    for number, points in done.items():
        parts += [_section(number, points)]
    rows_of_constants = [(name, f"{value:g}", source) for name, value, source in constants()]
    parts += ["## Constants", "", about_constants(), "", *_table(OF_CONSTANTS, rows_of_constants, 3)]
    return "\n".join(parts) + "\n"


def _section(number: str, points: list[Point]) -> str:
    figure = FIGURES[f"figure{number}"]()
    lines = [f"## {figure.title}", "", figure.notes.strip(), "", *(f"- {line}" for line in figure.said(points)), ""]
    lines += [f"![{figure.title}](figure{number}.svg)", "", *_table(COLUMNS, [row(p) for p in points], _LEFT), ""]
    return "\n".join(lines)


def row(point: Point) -> tuple[str, ...]:
    """A point as the texts of COLUMNS."""
    interval = "" if point.ci_low is None else f"{point.ci_low:.4g} to {point.ci_high:.4g}"
    error = "" if point.error is None else f"{100 * point.error:+.1f} %"
    words = (point.figure, point.workload, point.model, point.system, point.metric)
    return (*words, _number(point.x), _number(point.value), interval, _number(point.published), error)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: int) -> list[str]:
    """Markdown. left: so many columns are of words."""
    under = ["---"] * left + ["---:"] * (len(columns) - left)
    return ["| " + " | ".join(line) + " |" for line in (columns, under, *rows)]
