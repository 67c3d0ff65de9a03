"""A table as a file for other programs and for papers."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pagedlab.core.errors import ConfigError
from pagedlab.recorder.folder import write_atomic

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}
_MARKDOWN = {c: f"\\{c}" for c in "\\`*_[]<>|"} | {"\n": " "}


def markdown(table: pa.Table) -> str:
    """A pipe table; numbers to the right."""
    head, rows, right = _texts(table, _MARKDOWN)
    rule = ["---:" if is_right else "---" for is_right in right]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def latex(table: pa.Table) -> str:
    """A tabular of the package booktabs."""
    head, rows, right = _texts(table, _LATEX)
    lines = [f"\\begin{{tabular}}{{{''.join('r' if is_right else 'l' for is_right in right)}}}", "\\toprule"]
    lines += [" & ".join(head) + r" \\", "\\midrule", *(" & ".join(row) + r" \\" for row in rows)]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _texts(table: pa.Table, escapes: dict[str, str]) -> tuple[list[str], list[list[str]], list[bool]]:
    codes = str.maketrans(escapes)
    head = [name.translate(codes) for name in table.column_names]
    rows = [[_cell(value).translate(codes) for value in row.values()] for row in table.to_pylist()]
    right = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in table.schema.types]
    return head, rows, right


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def csv_text(table: pa.Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(table.column_names)
    writer.writerows(["" if value is None else value for value in row.values()] for row in table.to_pylist())
    return text.getvalue()


def _writes(render: Callable[[pa.Table], str]) -> Callable[[pa.Table, Path], object]:
    return lambda table, path: path.write_text(render(table), encoding="utf-8")


FORMATS: dict[str, Callable[[pa.Table, Path], object]] = {
    "csv": _writes(csv_text),
    "parquet": pq.write_table,
    "latex": _writes(latex),
    "markdown": _writes(markdown),
}


def export(table: pa.Table, form: str, path: Path) -> None:
    """Write a table, whole or not at all. ConfigError for a format that there is not, or a place that takes no file."""
    if form not in FORMATS:
        raise ConfigError(f"--export {form}: no such format, expected one of {', '.join(FORMATS)}")
    write_file(path, lambda temporary: FORMATS[form](table, temporary))


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, write)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None


def columns(rows: Seq[dict[str, object]], names: Seq[str]) -> pa.Table:
    """Rows as a table of these columns."""
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
