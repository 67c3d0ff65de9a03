"""A sweep folder: one folder a job, named by the job's key, and at the end a table over them.

One sweep at a time writes into it. A process that is killed leaves its lock free, and whole files only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from pagedlab.core.errors import ConfigError
from pagedlab.recorder.files import TEMPORARY

_LOCK_S = 10.0  # how long the processes of a sweep that was killed may take to be gone

begun: list[Path] = []
"""The folder of this process's sweep, once one has begun."""


def begin(folder: Path) -> None:
    """While a sweep runs, nothing in its folder says that it is done."""
    begun[:] = [folder]
    named = [folder / name for name in ("summary.json", "summary.csv", "seeds.csv")]
    for stale in (*named, *folder.glob(f"{TEMPORARY}*")):
        stale.unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """ConfigError while another sweep writes into the folder."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=_LOCK_S)
    except Timeout:
        raise ConfigError(f"hydra.sweep.dir={folder}: another sweep is writing into it") from None
    try:
        yield
    finally:
        lock.release()
