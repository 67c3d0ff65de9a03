"""Serve a workload, or each job of a sweep: `python -m experiments.serve` is the same as `pagedlab serve`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagedlab.launch import Job

# What is slow to import is imported where it is used: --help and a mistyped config answer at once.


def main() -> int:
    return guarded(serve)


def serve(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    done = launch(lambda job: serve_job(job, interrupts), interrupts)
    if done.jobs and done.jobs[0].sweep_folder is not None:
        from pagedlab.analysis.sweep import finish_sweep

        print(f"sweep folder: {finish_sweep(done.jobs)}")
    return done.exit_code


def serve_job(job: Job, interrupts: Interrupts) -> None:
    with interrupts.deferred():
        publish_run = run_job(job, interrupts)
    publish_run()
    print(f"run folder: {job.folder}")


def run_job(job: Job, interrupts: Interrupts) -> Callable[[], object]:
    """Run the job and show what came of it; returns what publishes its folder, which may take a while."""
    from omegaconf import OmegaConf

    from pagedlab.analysis.display import Display
    from pagedlab.config import load_settings
    from pagedlab.launch import say
    from pagedlab.run import run
    from pagedlab.tracker.base import publish

    settings = load_settings(job.config)
    show = Display(settings.progress)
    if job.swept:
        say("job " + " ".join(f"{key}={value}" for key, value in job.swept.items()))
    # Interpolations stay unresolved: they may name secrets.
    config = cast(dict[str, Any], OmegaConf.to_container(job.config))
    summary = run(settings, config, job.folder, interrupts, show)
    show.result(summary)
    sweep = job.sweep_folder.name if job.sweep_folder else None
    if settings.tracker.name != "none":
        show.doing(f"publishing to {settings.tracker.name}")
    name = f"{sweep}-{job.folder.name}" if sweep else job.folder.name
    return lambda: publish(settings.tracker, job.folder, name, sweep)


if __name__ == "__main__":
    sys.exit(main())
