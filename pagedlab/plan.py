"""What a sweep would do: its jobs, which of them are refused, which are finished, how long the rest may take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pagedlab.config import load_settings
from pagedlab.core.errors import PagedlabError
from pagedlab.launch import one_line, swept_of
from pagedlab.recorder.files import holds_completed_run
from pagedlab.sweep.record import Record, read_record
from pagedlab.sweep.timing import check_job

SWEEPS = Path("results/sweeps")
_MOST_RECORDS = 2000  # of sweeps before: the latest

REFUSED, CACHED, TO_RUN = "refused", "cached", "to run"


@dataclass(slots=True)
class Planned:
    """refusal: what is wrong with the job's config, in a line. composes: False where Hydra itself refuses it, and with
    it the whole sweep. estimate_s: what the most similar finished jobs took; None without any. finished_s: what this
    one took."""

    swept: dict[str, str]
    key: str = ""
    refusal: str | None = None
    composes: bool = True
    cached: bool = False
    estimate_s: float | None = None

    @property
    def state(self) -> str:
        return REFUSED if self.refusal else CACHED if self.cached else TO_RUN


@dataclass(slots=True)
class Plan:
    folder: Path
    jobs: list[Planned]
    at_once: int
    skips: bool
    """Whether the refused are left out instead of tried."""

    @property
    def estimate_s(self) -> float | None:
        """Of what is to run, None where that is unknown for any of it."""
        seconds = [job.estimate_s for job in self.jobs if job.state == TO_RUN]
        known = [each for each in seconds if each is not None]
        return sum(known) / min(self.at_once, max(1, len(known))) if len(known) == len(seconds) else None


plans: list[Plan] = []
"""What was planned in this process: Hydra gives back nothing of what its sweeper found."""


def plan_jobs(loader: ConfigLoader, config: DictConfig, words: list[str]) -> None:
    """Expand the words of a sweep as Hydra's basic sweeper does, and look at each job without running any."""
    setup_globals()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(words)
    (combinations,) = BasicSweeper.split_arguments(overrides, None)
    folder = Path(str(config.hydra.sweep.dir)).resolve()
    jobs = [_planned(loader, config, folder, combination) for combination in combinations]
    records = list(_records(folder))
    for job in jobs:
        if job.state == TO_RUN:
            job.estimate_s = estimate(job.swept, records)
    plans.append(Plan(folder, jobs, config.get("jobs", 1), bool(config.get("skip_refused", False))))


def _planned(loader: ConfigLoader, master: DictConfig, folder: Path, combination: list[str]) -> Planned:
    job = Planned(swept_of(combination))
    try:
        composed = loader.load_sweep_config(master, combination)
    except (HydraException, OmegaConfBaseException) as error:
        job.refusal, job.composes = one_line(error), False
        return job
    job.key = str(OmegaConf.select(composed, "hydra.sweep.subdir"))
    launcher = str(composed.hydra.runtime.choices.get("hydra/launcher"))
    with open_dict(composed):
        del composed["hydra"]
    try:
        settings = load_settings(composed)
        check_job(settings, launcher, of_a_sweep=True)
    except PagedlabError as error:
        job.refusal = str(error)
        return job
    job.cached = settings.resume and holds_completed_run(folder / job.key)
    return job


def _records(folder: Path) -> Iterator[Record]:
    """Of finished jobs in the folder, and in sweeps that lie where sweeps go unless one says otherwise."""
    found = list(folder.glob("*/job.json"))
    if not found:
        before = [(path.stat().st_mtime_ns, path) for path in SWEEPS.glob("*/*/*/job.json")]
        found = [path for _, path in sorted(before)[-_MOST_RECORDS:]]
    for path in found:
        record = read_record(path.parent)
        if record is not None and record.seconds is not None and record.status == "completed":
            yield record


def estimate(swept: dict[str, str], records: list[Record]) -> float | None:
    """The mean time of those finished jobs that share the most overrides with this one; None where none shares any."""
    shared = [len(swept.items() & record.swept.items()) for record in records]
    most = max(shared, default=0)
    times = [r.seconds for r, count in zip(records, shared, strict=True) if count == most and r.seconds is not None]
    return mean(times) if most else None
