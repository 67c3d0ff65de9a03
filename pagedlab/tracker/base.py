"""The contract of a tracker, and `publish`, the one way to call it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pagedlab.core.registry import Registry
from pagedlab.recorder.redact import redact_text

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Shows a finished run elsewhere.

    It reads the run folder and nothing else: the engine is done, so a tracker can neither slow a measurement nor
    change a result. It never alters a file that the recorder wrote. It may raise whatever goes wrong.
    """

    def publish(self, run_dir: Path, name: str, group: str | None) -> None:
        """Publish the run in `run_dir` under `name`; `group` is the sweep it belongs to."""


# An option is built from its settings.
TRACKERS: Registry[Callable[[Any], Tracker]] = Registry("tracker", "pagedlab.tracker", ("none", "wandb", "trackio"))


def publish(tracker_settings: Any, run_dir: Path, name: str, group: str | None) -> str | None:
    """Publish a finished run. Never raises: what fails becomes one warning line, which is also returned.

    By now the run has cost its time and lies on disk: no server, full disk or missing package may spoil it.
    """
    try:
        TRACKERS[tracker_settings.name](tracker_settings).publish(run_dir, name, group)
    except Exception as error:
        reason = " ".join(redact_text(f"{type(error).__name__}: {error}").split())
        warning = f"tracker={tracker_settings.name}: {reason[:500]} (the run itself is safe in {run_dir})"
        log.warning(warning)
        return warning
    return None
