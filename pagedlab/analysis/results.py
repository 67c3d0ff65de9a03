"""The table of `pagedlab results`: what runs differ in, and their main metrics."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pyarrow as pa
from rich.markup import escape
from rich.table import Table

from pagedlab.analysis.metrics import MAIN, METRICS
from pagedlab.analysis.query import runs_table
from pagedlab.analysis.runs import Run, axes_of
from pagedlab.config import suggestion
from pagedlab.core.errors import ConfigError


def shown(runs: Seq[Run], metrics: Seq[str] | None = None) -> pa.Table:
    """run, the axes in which they differ, metrics (the main ones unless named), status. ConfigError for one that no run
    has."""
    table = runs_table(runs)
    named = [name.strip() for name in metrics] if metrics else list(MAIN)
    for name in named:
        if name not in table.column_names:
            raise ConfigError(f"--metrics {name}: no such column{suggestion(name, table.column_names)[:200]}")
    return table.select(list(dict.fromkeys(["run", *axes_of(runs), *named, "status"])))


def printed(table: pa.Table) -> Table:
    """For the terminal: metrics under the words and in the units that people read."""
    shown = Table(title=f"{table.num_rows} row{'' if table.num_rows == 1 else 's'}", title_justify="left")
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        label = METRICS[name].label if name in METRICS else name
        shown.add_column(escape(label), justify="right" if numeric else "left")
    for row in table.to_pylist():
        shown.add_row(*(escape(_cell(name, value)) for name, value in row.items()))
    return shown


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name in METRICS and isinstance(value, (int, float)):
        return METRICS[name].text(value) if isinstance(value, float) else str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
