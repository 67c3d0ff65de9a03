"""What a device check found, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from pagedlab.device_check.base import Part, Row
from pagedlab.device_check.worker import Outcome


def wrong(outcomes: Sequence[Outcome], parts: Sequence[Part]) -> list[str]:
    """A line each: results that are not right, and parts that judge and could not."""
    judging = {part.name for part in parts if part.judges}
    found = [f"{o.part}: {o.error}" for o in outcomes if o.status == "failed" and o.part in judging]
    for outcome in outcomes:
        for row in outcome.rows:
            if row.get("passed") is False:
                case = ", ".join(f"{k}={v}" for k, v in row.items() if k not in ("part", "passed") and v is not None)
                found.append(f"{outcome.part}: wrong with {case}")
    return found


def summary(outcomes: Sequence[Outcome], parts: Sequence[Part], status: str) -> dict[str, Any]:
    """summary.json. status: completed, or partial while parts are still to come (for good in a run that was ended)."""
    return {
        "status": status,
        "seconds": sum(outcome.seconds for outcome in outcomes),
        "wrong": wrong(outcomes, parts),
        "parts": [
            {"part": o.part, "status": o.status, "seconds": o.seconds, "rows": len(o.rows), "error": o.error}
            for o in outcomes
        ],
        "rows": [row for outcome in outcomes for row in outcome.rows],
    }


def table(outcome: Outcome) -> Table:
    """The rows of a part; a row that lacks a column leaves it empty."""
    said = f"{outcome.part}: {outcome.status} in {outcome.seconds:.1f} s"
    if outcome.error:
        said += f" ({outcome.error})"
    shown = Table(title=said, title_justify="left")
    columns = list(dict.fromkeys(key for row in outcome.rows for key in row if key != "part"))
    for column in columns:
        shown.add_column(column, justify="right", overflow="fold")
    for row in outcome.rows:
        shown.add_row(*(_cell(row, column) for column in columns))
    return shown


def _cell(row: Row, column: str) -> str:
    value = row.get(column)
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
