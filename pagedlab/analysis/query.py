"""SQL over runs: the table `runs`, one row a run, and their parquet files as `requests`, `timeline` and `events`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence as Seq
from typing import Any

import duckdb
import pyarrow as pa

from pagedlab.analysis.runs import Run, as_text
from pagedlab.core.errors import ConfigError
from pagedlab.recorder.reading import read_table

_FILES = ("requests", "timeline", "events")
# A quoted text or name, or a bare name with dots in it.
_WORDS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|[A-Za-z_]\w*(?:\.\w+)+")


def runs_table(runs: Seq[Run]) -> pa.Table:
    """One row a run. A column is int64, float64, bool or string: what its values have in common."""
    rows = [run.row() for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def select(runs: Seq[Run], where: str | None, sort: str | None) -> list[Run]:
    """The runs for which `where` holds, ordered by `sort`; both in DuckDB's SQL, over the columns of `runs_table`."""
    table = runs_table(runs).append_column("_place", pa.array(range(len(runs))))
    query = "select _place from runs" + (f" where ({where})" if where else "")
    query += " order by " + (f"{sort}, _place" if sort else "_place")
    return [runs[place] for place in ask(query, table).column("_place").to_pylist()]


def query(runs: Seq[Run], sql: str) -> pa.Table:
    """Whatever is asked of the runs, and of the files in their folders, whose rows say in `run` which one they are of.
    Only the files that the query names are opened."""
    table = runs_table(runs)
    asked = [name for name in _FILES if re.search(rf"\b{name}\b", sql)]
    return ask(sql, table, {name: _joined(runs, name) for name in asked})


def ask(sql: str, runs: pa.Table, others: dict[str, pa.Table] | None = None) -> pa.Table:
    """ConfigError, one line, for what DuckDB does not take. The query reads nothing but these tables."""
    names = set(runs.column_names)

    def quote(match: re.Match[str]) -> str:
        """`workload.num_requests` is a name of ours, and of two parts to SQL."""
        return f'"{match[0]}"' if match[0] in names else match[0]

    with duckdb.connect(":memory:") as connection:
        connection.execute("set enable_external_access = false")
        for name, table in {"runs": runs, **(others or {})}.items():
            connection.register(name, table)
        try:
            answer = connection.sql(_WORDS.sub(quote, sql))
            if answer is None:
                raise ConfigError(f"{sql}: asks for no rows, expected a select")
            return answer.to_arrow_table()
        except duckdb.Error as error:
            raise ConfigError(f"{sql}: {_reason(error, names)}") from None


def _reason(error: duckdb.Error, names: set[str]) -> str:
    said = str(error).partition("\n")[0]
    unknown = re.search(r'column "([^"]+)" not found', said)
    if unknown:
        close = difflib.get_close_matches(unknown[1], names, n=1)
        meant = f", did you mean {close[0]}?" if close else " (a text is in single quotes)"
        return f"no column {unknown[1]}{meant}"
    return said


def _joined(runs: Seq[Run], name: str) -> pa.Table:
    tables = [read_table(run.folder / f"{name}.parquet") for run in runs]
    named = [t.add_column(0, "run", pa.array([run.name] * len(t))) for run, t in zip(runs, tables, strict=True)]
    return pa.concat_tables(named, promote_options="default")


def _column(values: list[Any]) -> pa.Array:
    known = {type(value) for value in values if value is not None}
    if known <= {bool}:
        return pa.array(values, pa.bool_())
    if known <= {int}:
        return pa.array(values, pa.int64())
    if known <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())
