"""Trackio: runs in a SQLite file on this machine, shown by `trackio show`. No account and no network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pagedlab.core.errors import ConfigError
from pagedlab.recorder.redact import redact, redact_text
from pagedlab.settings import TrackioSettings
from pagedlab.tracker import rundata
from pagedlab.tracker.base import TRACKERS

MAX_POINTS = 2_000
MAX_REQUESTS = 10_000


@TRACKERS.register("trackio")
class TrackioTracker:
    """The same as for W&B: config, series kv/* and batch/* with time_s beside them, table `requests`, and the summary,
    which trackio has no place of its own for, as the last point under summary/*."""

    def __init__(self, settings: TrackioSettings):
        self.settings = settings

    def publish(self, run_dir: Path, name: str, group: str | None) -> None:
        with _at_home(self.settings.dir):
            trackio = _trackio()
            run = trackio.init(
                project=self.settings.project,
                name=redact_text(name),
                group=redact_text(group) if group else None,
                config=rundata.config(run_dir),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            try:
                for point in rundata.timeline(run_dir, MAX_POINTS):
                    run.log(point)
                columns, rows = rundata.requests(run_dir, MAX_REQUESTS)
                summary = {f"summary/{key}": value for key, value in redact(rundata.summary(run_dir)).items()}
                run.log(summary | {"requests": trackio.Table(columns=columns, data=rows)})
            finally:
                trackio.finish()  # not the run's own: at exit it would be finished once more


def _trackio() -> Any:
    try:
        import trackio
    except ImportError:
        raise ConfigError("the package trackio is missing: pip install 'pagedlab[trackio]'") from None
    return trackio


@contextmanager
def _at_home(folder: str | None) -> Iterator[None]:
    """Trackio reads where its files go once, when it is imported, and says on stdout what our own lines say. A Space
    of an environment variable would send the run away: it is not looked at."""
    if folder is not None:
        os.environ["TRACKIO_DIR"] = str(Path(folder).expanduser().resolve())
    aside = {name: os.environ.pop(name) for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL") if name in os.environ}
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        os.environ |= aside
