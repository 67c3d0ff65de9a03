"""The objects of a JSON or JSONL file that nobody vouches for, one at a time and in bounded memory."""

from __future__ import annotations

import codecs
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pagedlab.core.errors import WorkloadError
from pagedlab.workload.checks import one_line, shown
from pagedlab.workload.json_window import Window
from pagedlab.workload.strict_json import DECODER, Refused, located

FILE_LIMIT = 4 << 30  # bytes
LINE_LIMIT = 64 << 20  # bytes
HEAD = 1 << 16  # bytes: how far the first character is looked for


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON array, or of a JSONL file (one a line), each with its place.

    The first character tells which of the two it is. A place is "entry 0" in an array, "line 1" in JSONL. A byte
    order mark and blank lines are skipped. Raises WorkloadError, of one line that names the file and the place.
    """
    with regular_file(path, "JSON or JSONL") as file:
        yield from _objects(file, one_line(path))


@contextmanager
def regular_file(path: Path, expected: str = "a file") -> Iterator[BinaryIO]:
    """Open a file of bounded size that can be read to its end. WorkloadError for anything else, and for what fails
    while it is read."""
    name = one_line(path)
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{name}: {error.strerror if isinstance(error, OSError) else error}") from error
    # Opening a pipe waits for a writer, and a device may never end.
    if not stat.S_ISREG(status.st_mode):
        raise WorkloadError(f"{name}: not a regular file, expected {expected}")
    if status.st_size > FILE_LIMIT:
        raise WorkloadError(f"{name}: {status.st_size} bytes, expected at most {FILE_LIMIT}")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise WorkloadError(f"{name}: {error.strerror}") from error


def _objects(file: BinaryIO, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    head = file.read(HEAD)
    start = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    first = head[start:].lstrip(b" \t\n\r")[:1]
    file.seek(start)
    if first == b"[":
        yield from _array(Window(file, name))
    elif first == b"{":
        yield from _lines(file, name)
    else:
        found = f"begins with {first!r}" if first else "empty"
        raise WorkloadError(f"{name}: {found}, expected a JSON array of objects or one JSON object a line")


def _lines(file: BinaryIO, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    while line := file.readline(LINE_LIMIT + 1):
        number += 1
        place = f"line {number}"
        if line.isspace():
            continue
        with located(name, place):
            if len(line) > LINE_LIMIT:
                raise Refused(f"longer than {LINE_LIMIT} bytes")
            value = DECODER.decode(line.decode("utf-8"))
            if not isinstance(value, dict):
                raise Refused(f"{shown(value)}, expected an object")
        yield place, value


def _array(window: Window) -> Iterator[tuple[str, dict[str, Any]]]:
    window.take()  # the bracket that made it an array
    index = -1
    mark = "," if window.peek() != "]" else window.take()
    while mark == ",":
        index += 1
        place = f"entry {index}"
        yield place, window.object(place)
        mark = window.take()
    if mark != "]":
        found = shown(mark) if mark else "the end of the file"
        raise WorkloadError(f"{window.name}: after entry {index}: {found}, expected a comma or the array's end")
    if rest := window.peek():
        raise WorkloadError(f"{window.name}: {shown(rest)} after the array, expected the end of the file")
