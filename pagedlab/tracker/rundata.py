"""A run folder in the shape that trackers want: flat scalars, a bounded time series, a bounded table of requests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from omegaconf import OmegaConf

from pagedlab.recorder.reading import flat_columns, read_object, read_table
from pagedlab.recorder.redact import redact

Row = dict[str, Any]


def summary(run_dir: Path) -> Row:
    """summary.json as flat scalars: {"ttft_s": {"p50": 1}} becomes {"ttft_s/p50": 1}. NaN and null are left out."""
    return _flat("", read_object(run_dir / "summary.json"))


def config(run_dir: Path) -> Row:
    """config.yaml as written: interpolations such as ${oc.env:NAME} stay unresolved."""
    values = OmegaConf.to_container(OmegaConf.load(run_dir / "config.yaml"), resolve=False)
    return redact({str(key): value for key, value in values.items()}) if isinstance(values, dict) else {}


def timeline(run_dir: Path, limit: int) -> list[Row]:
    """timeline.parquet as points in time, at most `limit`, evenly spread over the steps; first and last are kept.

    time_s is the start of the step: its values hold from there until the next one. kv/* are shares of the whole
    pool, so that pools of different size compare; batch/* are the other columns as they are. A value that is not
    finite is left out of its point.
    """
    table = _thin(read_table(run_dir / "timeline.parquet"), limit)
    kv = [name for name in table.column_names if name.startswith("kv_")]
    batch = [name for name in table.column_names if name not in ("step", "start_s", "end_s", *kv)]
    points = []
    for row in table.to_pylist():
        slots = sum(row[name] for name in kv)
        point = {"time_s": row["start_s"]}
        point |= {"kv/" + name.removeprefix("kv_"): row[name] / slots for name in kv if slots}
        point |= {f"batch/{name}": row[name] for name in batch}
        points.append({name: value for name, value in point.items() if _is_known(value)})
    return points


def requests(run_dir: Path, limit: int) -> tuple[list[Any], list[Any]]:
    """requests.parquet as columns and rows, at most `limit`, evenly spread over the file; first and last are kept.

    Columns that hold lists (the token ids: nearly all of the bytes) are not read.
    """
    path = run_dir / "requests.parquet"
    columns = flat_columns(path)
    table = _thin(read_table(path, columns), limit)
    return list(columns), [[value if _is_known(value) else None for value in row.values()] for row in table.to_pylist()]


def evenly(count: int, limit: int) -> list[int]:
    """At most `limit` (two or more) of the indices 0..count-1, evenly spread, the first and the last among them."""
    if count <= limit:
        return list(range(count))
    return [int(index) for index in np.linspace(0, count - 1, limit).round()]


def _thin(table: pa.Table, limit: int) -> pa.Table:
    return table if table.num_rows <= limit else table.take(evenly(table.num_rows, limit))


def _flat(prefix: str, values: Row) -> Row:
    flat: Row = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(f"{prefix}{key}/", value)
        elif isinstance(value, (str, int, float)) and _is_known(value):
            flat[f"{prefix}{key}"] = value
    return flat


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))
