"""Reads the files of a finished run. What is not as the recorder wrote it is one line: which file of which folder, what
is wrong with it, what was expected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pagedlab.core.errors import ConfigError
from pagedlab.recorder.folder import events_table, requests_table, timeline_table
from pagedlab.recorder.recorder import Recorder

_TABLES = {
    "requests.parquet": requests_table,
    "timeline.parquet": timeline_table,
    "events.parquet": events_table,
}


def damaged(path: Path, said: str) -> ConfigError:
    return ConfigError(f"{path}: damaged: {said}, expected the {path.name} that a run leaves (run it once more)")


class Facts(dict[str, Any]):
    """What a JSON file holds: a name that it lacks is said as what is wrong with the file."""

    def __init__(self, path: Path, values: dict[str, Any]):
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise damaged(self.path, f"it has no {name}")

    def check_numbers(self, *names: str, unknown: bool = False) -> None:
        """unknown: whether they may be null."""
        for name in names:
            value = self[name]
            if not (type(value) in (int, float) or (unknown and value is None)):
                raise damaged(self.path, f"{name} is {json.dumps(value)[:80]}, not a number")


def read_object(path: Path) -> Facts:
    """A JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise damaged(path, f"it cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise damaged(path, "it is cut off, or cannot be read as JSON for another reason") from None
    if not isinstance(value, dict):
        raise damaged(path, "its JSON is of no run of `pagedlab serve`")
    return Facts(path, value)


def read_table(path: Path, columns: tuple[str, ...] | None = None) -> pa.Table:
    """A table of a run, or these columns of it."""
    with _file(path) as file:
        _check_columns(path, file.schema_arrow, columns)
        try:
            return file.read(columns=None if columns is None else list(columns))
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from None


def read_rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The same row by row, some of them in memory at a time."""
    with _file(path) as file:
        _check_columns(path, file.schema_arrow, columns)
        try:
            for batch in file.iter_batches(columns=list(columns)):
                yield from batch.to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from None


def flat_columns(path: Path) -> tuple[str, ...]:
    """Those that hold no lists: the token ids are nearly all of the bytes."""
    with _file(path) as file:
        return tuple(field.name for field in file.schema_arrow if not pa.types.is_nested(field.type))


def _file(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> ConfigError:
    if isinstance(error, OSError) and error.errno:
        return damaged(path, f"it cannot be read ({os.strerror(error.errno)})")
    return damaged(path, "it is cut off, altered, or no Parquet file")


def _check_columns(path: Path, found: pa.Schema, columns: tuple[str, ...] | None) -> None:
    known = _kinds(path.name)
    for name in columns if columns is not None else found.names:
        if name not in found.names:
            raise damaged(path, f"it has no column {name}")
        kind = _kind(found.field(name).type)
        if kind not in ("null", known.get(name, kind)):  # null: of no rows, or none of them has a value
            raise damaged(path, f"its column {name} holds {kind}, not {known[name]}")


@cache
def _kinds(name: str) -> dict[str, str]:
    """Of each column what it holds."""
    return {field.name: _kind(field.type) for field in _TABLES[name](Recorder()).schema} if name in _TABLES else {}


def _kind(of: pa.DataType) -> str:
    if pa.types.is_boolean(of):
        return "switches"
    if pa.types.is_integer(of) or pa.types.is_floating(of):
        return "numbers"
    return "lists" if pa.types.is_nested(of) else "text" if pa.types.is_string(of) else str(of)
