"""Serve a workload, or each job of a sweep: `python -m experiments.serve` is the same as `pagedlab serve`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
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

    done = launch(ServeJob(interrupts), interrupts)
    if done.jobs and done.jobs[0].sweep_folder is not None:
        from pagedlab.analysis.sweep import finish_sweep, own_time

        folder = finish_sweep(done.jobs)
        print(own_time(done))
        print(f"sweep folder: {folder}")
    return done.exit_code


@dataclass(frozen=True, slots=True)
class ServeJob:
    """The task of a launch. No closure, so that a launcher can send it to another process."""

    interrupts: Interrupts

    def __call__(self, job: Job) -> object:
        """Returns what a search asked for."""
        from pagedlab.launch import answer_of

        with self.interrupts.deferred():
            publish_run, objectives = run_job(job, self.interrupts)
        publish_run()
        print(f"run folder: {job.folder}")
        return answer_of(job.folder, objectives)


def run_job(job: Job, interrupts: Interrupts) -> tuple[Callable[[], object], list[str]]:
    """Run the job and show what came of it; returns what publishes its folder, which may take a while, and what of the
    summary a search asked for."""
    from omegaconf import OmegaConf

    from pagedlab.analysis.display import Display
    from pagedlab.config import load_settings
    from pagedlab.launch import say
    from pagedlab.repeat import repeat
    from pagedlab.run import run
    from pagedlab.sweep.timing import check_job
    from pagedlab.tracker.base import publish

    settings = load_settings(job.config)
    check_job(settings, job.launcher, job.sweep_folder is not None)
    show = Display(settings.progress)
    if job.swept:
        say("job " + " ".join(f"{key}={value}" for key, value in job.swept.items()))
    # Interpolations stay unresolved: they may name secrets.
    config = cast(dict[str, Any], OmegaConf.to_container(job.config))
    if settings.seeds is None:
        summary = run(settings, config, job.folder, interrupts, show)
    else:
        same = job.sweep_folder is not None and settings.resume
        summary = repeat(settings, config, job.folder, interrupts, show, same)
    show.result(summary)
    sweep = job.sweep_folder.name if job.sweep_folder else None
    if settings.tracker.name != "none":
        show.doing(f"publishing to {settings.tracker.name}")
    name = f"{sweep}-{job.folder.name}" if sweep else job.folder.name
    return lambda: publish(settings.tracker, job.folder, name, sweep), settings.objectives


if __name__ == "__main__":
    sys.exit(main())
