"""What cannot be asked of a job: the wall clock beside other jobs, who slow each other down by how much nobody knows;
what only a sweep can do; and of a command that is no `serve`, what only that does."""

from __future__ import annotations

from pagedlab.core.errors import ConfigError
from pagedlab.settings import Settings

# Launchers that run several jobs of a sweep on the machines at hand, side by side.
_SIDE_BY_SIDE = ("joblib", "ray", "submitit_local")


def check_timing(settings: Settings, launcher: str) -> None:
    """ConfigError for a job that would measure by the wall clock while others of its sweep run beside it."""
    if settings.executor.name != "torch" or settings.allow_parallel_timing:
        return
    said = f"jobs={settings.jobs}" if launcher == "pool" else f"hydra/launcher={launcher}"
    if settings.jobs > 1 or launcher in _SIDE_BY_SIDE:
        raise ConfigError(
            f"executor=torch with {said}: it measures by the wall clock, which jobs at once would spoil; expected "
            "jobs=1, executor=simulated or fingerprint, or allow_parallel_timing=true"
        )


def check_alone(settings: Settings) -> None:
    """ConfigError for what only a sweep can do."""
    given = {
        f"jobs={settings.jobs}": settings.jobs != 1,
        f"job_timeout_s={settings.job_timeout_s}": settings.job_timeout_s is not None,
        "fail_fast=true": settings.fail_fast,
        "skip_refused=true": settings.skip_refused,
    }
    for said, wrong in given.items():
        if wrong:
            raise ConfigError(f"{said}: of a sweep, expected -m beside it")


def check_job(settings: Settings, launcher: str, of_a_sweep: bool) -> None:
    if of_a_sweep:
        check_timing(settings, launcher)
        if settings.skip_refused and (launcher != "pool" or settings.objectives):
            said = f"hydra/launcher={launcher}" if launcher != "pool" else "objectives"
            raise ConfigError(f"skip_refused=true with {said}: every job is asked for, expected skip_refused=false")
    else:
        check_alone(settings)


def check_plain(settings: Settings, launcher: str, of_a_sweep: bool) -> None:
    """For the commands that take the settings of `serve` and measure one engine, once."""
    given = {
        f"seeds={settings.seeds}": settings.seeds is not None,
        f"objectives={settings.objectives}": bool(settings.objectives),
        f"replicas={settings.replicas}": settings.replicas != 1,
    }
    for said, wrong in given.items():
        if wrong:
            raise ConfigError(f"{said}: of `pagedlab serve` alone")
    check_job(settings, launcher, of_a_sweep)
