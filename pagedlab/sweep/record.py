"""What a job of a sweep leaves in its folder beside its results: `job.json`, and `error.txt` when it failed.

A job is finished when its folder holds a completed `summary.json`: that file alone decides, and it is put in place
last and at once. `job.json` says the rest: which job it is, how it ended, how long it took.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagedlab.recorder.files import write_atomic, write_json
from pagedlab.recorder.redact import redact, redact_text

RUNNING, COMPLETED, FAILED, INTERRUPTED = "running", "completed", "failed", "interrupted"
_SCHEMA_VERSION = 1
_RECORD, _ERROR = "job.json", "error.txt"


@dataclass(slots=True)
class Record:
    """swept: the overrides of the job. seconds: that it took, None where nobody can say. exit_code: as of `launch`."""

    swept: dict[str, str]
    status: str = RUNNING
    error: str | None = None
    exit_code: int = 0
    seconds: float | None = None


def write_record(folder: Path, record: Record, trace: str | None = None) -> None:
    """trace: the traceback of a failure, for error.txt; an error of an earlier try goes away."""
    folder.mkdir(parents=True, exist_ok=True)
    if record.status == FAILED:
        text = redact_text(trace or f"{record.error}\n")
        write_atomic(folder / _ERROR, lambda path: path.write_text(text, encoding="utf-8"))
    else:
        (folder / _ERROR).unlink(missing_ok=True)
    write_json(folder / _RECORD, redact({"schema_version": _SCHEMA_VERSION, **asdict(record)}))


def read_record(folder: Path) -> Record | None:
    """None where there is none, or one of another schema."""
    found = read_object(folder / _RECORD)
    if found.pop("schema_version", None) != _SCHEMA_VERSION:
        return None
    try:
        return Record(**found)
    except TypeError:
        return None


def drop_record(folder: Path) -> None:
    (folder / _RECORD).unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one for a file that is not there or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
