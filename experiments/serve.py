"""Serve a workload once, or once for each job of a sweep: `python -m experiments.serve`, the same as `pagedlab serve`."""

from __future__ import annotations

import sys

from pagedlab.interrupts import Interrupts
from pagedlab.launch import Job, launch, say


def main() -> int:
    interrupts = Interrupts()
    done = launch(lambda job: serve_job(job, interrupts), interrupts)
    if done.jobs and done.jobs[0].sweep_folder is not None:
        from pagedlab.analysis.sweep import finish_sweep

        print(f"sweep folder: {finish_sweep(done.jobs)}")
    return done.exit_code


def serve_job(job: Job, interrupts: Interrupts) -> None:
    # Imported here, so that --help and a mistyped config answer at once.
    from omegaconf import OmegaConf

    from pagedlab.analysis.display import Display
    from pagedlab.config import load_settings
    from pagedlab.run import run
    from pagedlab.tracker.base import publish

    settings = load_settings(job.config)
    show = Display(settings.progress)
    if job.swept:
        say("job " + " ".join(f"{key}={value}" for key, value in job.swept.items()))
    config = OmegaConf.to_container(job.config)
    summary = run(settings, config, job.folder, interrupts, show)
    show.result(summary)
    name = job.folder.name if job.sweep_folder is None else f"{job.sweep_folder.name}-{job.folder.name}"
    publish(settings.tracker, job.folder, name, job.sweep_folder.name if job.sweep_folder else None)
    print(f"run folder: {job.folder}")


if __name__ == "__main__":
    sys.exit(main())
