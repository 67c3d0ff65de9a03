"""The lines of a trace that nobody vouches for, in bounded memory, and what a bad row is.

A gzipped file (.gz) is read as what it holds.
"""

from __future__ import annotations

import csv
import gzip
import math
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from pagedlab.core.errors import WorkloadError
from pagedlab.workload.checks import LARGEST, one_line, shown

FILE_LIMIT = 16 << 30  # bytes
CSV_LINE_LIMIT = 1 << 16  # bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace. prompt: how many tokens, or the very tokens, int32. time_s: None where there is none."""

    prompt: int | np.ndarray
    output_tokens: int
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """What is wrong with a row: the field, what it holds, what was expected."""

    field: str
    value: object
    expected: str

    def __str__(self) -> str:
        return f"{self.field}: {shown(self.value)}, expected {self.expected}"


class Bad(Exception):
    """Raised while a row is read."""

    def __init__(self, field: str, value: object, expected: str):
        super().__init__(field)
        self.row = BadRow(field, value, expected)


def lines(path: Path, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Number (from 1) and content of each line, without its end; None for one longer than `limit` bytes, of which no
    more than that is held. WorkloadError when the file cannot be read."""
    name = one_line(path)
    try:
        status = path.stat()
        # Opening a pipe waits for a writer, and a device may never end.
        if not stat.S_ISREG(status.st_mode):
            raise WorkloadError(f"{name}: not a regular file, expected a trace")
        if status.st_size > FILE_LIMIT:
            raise WorkloadError(f"{name}: {status.st_size} bytes, expected at most {FILE_LIMIT}")
        with cast(BinaryIO, gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")) as file:
            yield from _lines(file, limit)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise WorkloadError(f"{name}: {said}") from error


def _lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, bytes | None]]:
    number = 0
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit:
            while line and not line.endswith(b"\n"):
                line = file.readline(limit + 1)
            yield number, None
        else:
            yield number, line.rstrip(b"\r\n")


def csv_rows(
    path: Path, columns: Mapping[str, tuple[str, ...]], read: Callable[[dict[str, str]], Row]
) -> Iterator[tuple[int, Row | BadRow]]:
    """The rows of a CSV file with a header, each with the number of its line, blank lines passed over.

    columns: what `read` calls a column -> the names it may have, one of which the header must have. `read` may raise
    `Bad`. WorkloadError for a header without such a column, whatever is done about bad rows.
    """
    places: dict[str, int] = {}
    for number, line in lines(path, CSV_LINE_LIMIT):
        if line is not None and not line.strip():
            continue
        if not places:
            places = _header(path, number, line, columns)
            continue
        try:
            cells = _cells(line)
            yield number, read({name: _cell(cells, place, columns[name][0]) for name, place in places.items()})
        except Bad as bad:
            yield number, bad.row
    if not places:
        raise WorkloadError(f"{one_line(path)}: empty, expected a header and rows")


def _header(path: Path, number: int, line: bytes | None, columns: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    where = f"{one_line(path)}:{number}"
    try:
        names = [name.strip() for name in _cells(line and line.removeprefix(b"\xef\xbb\xbf"))]
    except Bad as bad:
        raise WorkloadError(f"{where}:{bad.row}") from bad
    places = {}
    for column, accepted in columns.items():
        found = [names.index(name) for name in accepted if name in names]
        if not found:
            raise WorkloadError(f"{where}: the header has no column {' or '.join(accepted)}: {shown(','.join(names))}")
        places[column] = found[0]
    return places


def _cells(line: bytes | None) -> list[str]:
    if line is None:
        raise Bad("row", f"more than {CSV_LINE_LIMIT} bytes", "a shorter line")
    try:
        return next(csv.reader([line.decode("utf-8")], strict=True), [])
    except UnicodeDecodeError as error:
        raise Bad("row", f"byte {error.start} is {line[error.start]:#04x}", "UTF-8") from error
    except csv.Error as error:
        raise Bad("row", str(error), "CSV") from error


def _cell(cells: list[str], place: int, column: str) -> str:
    if place >= len(cells):
        raise Bad(column, None, f"a value in column {place + 1}, and the row has {len(cells)}")
    return cells[place].strip()


def count(field: str, value: object) -> int:
    """A number of tokens of at least 1, from an int or its digits; `Bad` for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise Bad(field, value, f"a whole number from 1 to {LARGEST}")
    return value


def seconds(field: str, value: object, unit: float = 1.0) -> float:
    """A time of at least 0, in seconds, from a number or text that counts `unit` seconds."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not 0 <= number * unit <= 1e12:
        raise Bad(field, value, "a number of at least 0")
    return number * unit
