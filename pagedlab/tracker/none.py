"""No tracker: the run folder is all there is."""

from __future__ import annotations

from pathlib import Path

from pagedlab.settings import NoTrackerSettings
from pagedlab.tracker.base import TRACKERS


@TRACKERS.register("none")
class NoTracker:
    def __init__(self, settings: NoTrackerSettings):
        pass

    def publish(self, run_dir: Path, name: str, group: str | None) -> None:
        pass
