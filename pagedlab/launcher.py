"""Runs the jobs of a sweep on this machine: in this process one after another, or several at once in processes.

`jobs=N` (or a `job_timeout_s`) gives each job a process of its own, forked from this one, so that plugins and choices
are there. A job that crashes, or takes too long, costs itself alone. What it prints is in `log.txt` of its folder.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict

from pagedlab.config import load_settings
from pagedlab.core.errors import ConfigError, PagedlabError
from pagedlab.interrupts import Interrupted
from pagedlab.launch import (
    EXIT_FAULT,
    Job,
    JobTask,
    Launch,
    answer_of,
    check_subdir,
    finished_before,
    say,
    swept_of,
    worse,
)
from pagedlab.recorder.redact import redact_argv
from pagedlab.sweep.axes import axes_of
from pagedlab.sweep.folder import alone
from pagedlab.sweep.record import FAILED, INTERRUPTED, RUNNING, Record, read_record, write_record
from pagedlab.sweep.timing import check_job

_POLL_S = 0.1
_GRACE_S = 10.0  # for a job that was told to end: to finish its step and write what it has
_PR_SET_PDEATHSIG = 1
# The libraries that would each take all cores, and where they are told how many to take.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "RAYON_NUM_THREADS")


def launch_jobs(
    context: HydraContext, task: JobTask, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[JobReturn]:
    """What a launcher of Hydra's does with the jobs of one batch, each given by its overrides."""
    setup_globals()
    jobs, timeout_s = config.get("jobs", 1), config.get("job_timeout_s")
    if not isinstance(jobs, int) or jobs < 1:
        raise ConfigError(f"jobs={jobs}: expected a whole number, at least 1")
    if timeout_s is not None and not (isinstance(timeout_s, int | float) and timeout_s > 0):
        raise ConfigError(f"job_timeout_s={timeout_s}: expected more than 0 seconds")
    check_subdir(config.hydra)
    sweep = Path(str(config.hydra.sweep.dir)).resolve()
    with alone(sweep):
        # Hydra's own copy of the command line, with secrets in clear; a job's config.yaml has them redacted.
        (sweep / "multirun.yaml").unlink(missing_ok=True)
        composed = _compose(context, config, job_overrides, first)
        if config.get("skip_refused", False):
            composed = _accepted(composed, task.launched)
        if jobs == 1 and timeout_s is None:
            return _one_by_one(context, task, composed, bool(config.get("fail_fast", False)))
        axes = axes_of([swept_of(overrides) for overrides in job_overrides])
        return Pool(context, task, jobs, timeout_s, bool(config.get("fail_fast", False)), axes).run(composed)


def _compose(
    context: HydraContext, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> Iterator[DictConfig]:
    for number, overrides in enumerate(job_overrides, first):
        composed = context.config_loader.load_sweep_config(config, list(overrides))
        with open_dict(composed):
            composed.hydra.job.id, composed.hydra.job.num = number, number
        yield composed


def _accepted(composed: Iterator[DictConfig], launched: Launch) -> Iterator[DictConfig]:
    """Those whose config is not refused; ConfigError at the end if it was that of every one."""
    accepted, refusal = False, None
    for config in composed:
        try:
            check_job(load_settings(_without_hydra(config)), "pool", of_a_sweep=True)
        except PagedlabError as error:
            refusal = refusal or error
            launched.left_out += 1
        else:
            accepted = True
            yield config
    if refusal and not accepted:
        raise ConfigError(f"skip_refused=true leaves no job: {refusal}")


def _without_hydra(config: DictConfig) -> DictConfig:
    alone = config.copy()
    with open_dict(alone):
        del alone["hydra"]
    return alone


def _one_by_one(
    context: HydraContext, task: JobTask, composed: Iterator[DictConfig], fail_fast: bool
) -> list[JobReturn]:
    returns = []
    for config in composed:
        returns.append(_run(context, task, config))
        if fail_fast and task.launched.jobs[-1].error is not None:
            break
    return returns


def _run(context: HydraContext, task: JobTask, config: DictConfig) -> JobReturn:
    return run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", context)


@dataclass(slots=True)
class _Running:
    process: BaseProcess
    job: Job
    started: float
    told_s: float | None = None  # when it was told to end
    overdue: bool = False  # that is why


class Pool:
    """At most `jobs` processes, each of one job and gone with it. One takes `timeout_s` seconds at most. axes: the
    overrides that a job is told apart by when it is spoken of."""

    def __init__(
        self,
        context: HydraContext,
        task: JobTask,
        jobs: int,
        timeout_s: float | None,
        fail_fast: bool,
        axes: list[str],
    ):
        self.context, self.task, self.jobs, self.timeout_s = context, task, jobs, timeout_s
        self.fail_fast, self.axes = fail_fast, axes
        self.running: dict[int, _Running] = {}
        self._failed = False

    def run(self, composed: Iterator[DictConfig]) -> list[JobReturn]:
        share = max(1, len(os.sched_getaffinity(0)) // self.jobs)
        for name in _THREADS:
            os.environ.setdefault(name, str(share))
        # Once here instead of in every process.
        import pagedlab.run  # noqa: F401

        started: dict[Path, Job] = {}
        waiting: DictConfig | None = next(composed, None)
        try:
            while waiting is not None or self.running:
                stopping = self.task.interrupts.requested or (self.fail_fast and self._failed)
                if stopping:
                    waiting = None
                    for each in self.running.values():
                        self._tell(each)
                elif waiting is not None and len(self.running) < self.jobs:
                    job = self._job(waiting)
                    if job.folder not in started:
                        started[job.folder] = job
                        self._start(job, waiting)
                    waiting = next(composed, None)
                    continue
                wait([each.process.sentinel for each in self.running.values()], timeout=_POLL_S)
                self._look_after()
        finally:
            for each in self.running.values():
                each.process.kill()
                each.process.join()
        self.task.interrupts.raise_if_requested()
        return [_returned(job) for job in started.values()]

    def _job(self, config: DictConfig) -> Job:
        folder = Path(str(OmegaConf.select(config, "hydra.sweep.dir"))).resolve()
        HydraConfig.instance().set_config(config)
        key = str(OmegaConf.select(config, "hydra.sweep.subdir"))
        return Job(_without_hydra(config), folder / key, swept_of(config.hydra.overrides.task), folder, launcher="pool")

    def _start(self, job: Job, config: DictConfig) -> None:
        self.task.launched.jobs.append(job)
        if finished_before(job):
            return
        write_record(job.folder, Record(job.swept))
        sys.stdout.flush()
        sys.stderr.flush()
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_in_child, args=(self.context, self.task, config, job.folder, os.getpid()))
        process.start()
        self.running[process.sentinel] = _Running(process, job, time.monotonic())

    def _look_after(self) -> None:
        now = time.monotonic()
        for sentinel, each in list(self.running.items()):
            if not each.process.is_alive():
                each.process.join()
                del self.running[sentinel]
                self._end(each)
            elif each.told_s is not None and now - each.told_s > _GRACE_S:
                each.process.kill()
            elif self.timeout_s is not None and now - each.started > self.timeout_s and not each.overdue:
                each.overdue = True
                self._tell(each)

    def _tell(self, each: _Running) -> None:
        """Ask it once to end; `_look_after` insists."""
        if each.told_s is None and each.process.is_alive() and each.process.pid is not None:
            each.told_s = time.monotonic()
            os.kill(each.process.pid, self.task.interrupts.signum or signal.SIGTERM)

    def _end(self, each: _Running) -> None:
        job, record = each.job, read_record(each.job.folder)
        if record is None:  # it was told to end before it had begun
            record = Record(job.swept, INTERRUPTED)
        job.seconds = time.monotonic() - each.started
        if each.overdue:
            record.status, record.error = FAILED, f"took longer than job_timeout_s={self.timeout_s:g}"
        elif record.status == RUNNING and each.told_s is None:
            record.status, record.error = FAILED, f"its process ended with {_how(each.process.exitcode)}"
        if record.status == FAILED and (each.overdue or record.exit_code == 0):
            record.exit_code, record.seconds = EXIT_FAULT, round(job.seconds, 3)
            write_record(job.folder, record)
        job.error, job.interrupted = record.error, record.status in (INTERRUPTED, RUNNING)
        self._failed |= job.error is not None
        self.task.launched.exit_code = worse(self.task.launched.exit_code, record.exit_code)
        if job.error is None and not job.interrupted:
            job.answer = answer_of(job.folder, job.config.get("objectives") or [])
        words = " ".join(redact_argv([f"{axis}={job.swept.get(axis)}" for axis in self.axes]))
        ended = f"failed: {job.error}" if job.error else record.status
        say(f"job {words}: {ended}, {job.seconds:.1f} s, {job.folder.name}")


def _returned(job: Job) -> JobReturn:
    returned = JobReturn()
    returned.overrides, returned.status = [f"{key}={value}" for key, value in job.swept.items()], JobStatus.COMPLETED
    returned.return_value = job.answer
    return returned


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return signal.Signals(-exitcode).name
    return f"exit code {exitcode}"


def _in_child(context: HydraContext, task: JobTask, config: DictConfig, folder: Path, parent: int) -> None:
    _die_with(parent)
    # A terminal's Ctrl-C is for the parent, which passes it on: twice would mean "at once".
    os.setsid()
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        _run(context, task, config)
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    sys.exit(task.launched.exit_code)


def _die_with(parent: int) -> None:
    """Linux kills this process when its parent is gone, so that a sweep that was killed leaves no job behind."""
    libc = cast(Any, ctypes.CDLL(None, use_errno=True))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before that
        os._exit(EXIT_FAULT)
