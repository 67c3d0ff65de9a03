"""Where the wall clock cannot be trusted: jobs that share a machine slow each other down, by how much nobody knows."""

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
    }
    for said, wrong in given.items():
        if wrong:
            raise ConfigError(f"{said}: of a sweep, expected -m beside it")
