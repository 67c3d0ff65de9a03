"""Around Hydra: one line for every error of the user, exit codes, signals, and who ran in a sweep."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pagedlab.core.errors import ConfigError, PagedlabError
from pagedlab.interrupts import Interrupted, Interrupts
from pagedlab.plugins import load_plugins
from pagedlab.recorder.files import holds_completed_run
from pagedlab.settings import OPTIONS, Settings, nested_settings
from pagedlab.sweep.folder import begun
from pagedlab.sweep.record import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    RUNNING,
    Record,
    drop_record,
    read_object,
    read_record,
    write_record,
)

EXIT_FAULT = 1
EXIT_USAGE = 2


@dataclass(slots=True)
class Job:
    """One composed config and where it runs. swept: the overrides that tell it from the others of a sweep. config:
    empty where the job ran elsewhere.

    answer: what a search is told of it. seconds: that it took; None where it was finished before, or nobody could say.
    """

    config: DictConfig
    folder: Path
    swept: dict[str, str]
    sweep_folder: Path | None
    error: str | None = None
    interrupted: bool = False
    launcher: str = "basic"
    answer: Any = None
    seconds: float | None = None


@dataclass(slots=True)
class Launch:
    """What a launch did: its jobs in order and the exit code so far. left_out: how many more its sweep had that are
    refused. seconds: that it took in all."""

    jobs: list[Job] = field(default_factory=list)
    left_out: int = 0
    exit_code: int = 0
    seconds: float = 0.0


def launch(
    task: Callable[[Job], Any], interrupts: Interrupts, config_name: str = "config", kind: type = Settings
) -> Launch:
    """Compose sys.argv, run the task for it, or for each job of a sweep. kind: the settings that the config becomes.

    exit_code: 0 done; 1 a fault of pagedlab (its traceback on stderr); 2 an error of the user, one line on stderr;
    128 + signal when interrupted. A job that fails does not stop the others of its sweep, unless fail_fast=true; of
    a sweep what is finished in its folder is not run again, unless resume=false. `--plugin FILE` is taken out of
    sys.argv and run first. A signal is answered before a task or, at once, inside it.
    """
    done, started = Launch(), time.monotonic()
    begun.clear()
    # Hydra prints what it catches in several lines; with this it lets us catch it and say it in one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Processes that other launchers start must find the plugin before they have imported us.
    beside = str(Path(__file__).parent / "_hydra")
    if beside not in (paths := os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*paths, beside)))
    try:
        load_plugins(sys.argv)
        running = JobTask(task, interrupts, done)
        hydra.main(version_base="1.3", config_path="pkg://pagedlab.conf", config_name=config_name)(running)()
    except Interrupted as stop:
        say(f"interrupted by {stop}")
        done.exit_code = stop.exit_code
    except PagedlabError as error:
        say(f"error: {error}")
        done.exit_code = EXIT_USAGE
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        say(f"error: {one_line(error, kind)}")
        done.exit_code = EXIT_USAGE
    for sweep in begun:  # Hydra's own copy of the command line, with secrets in clear
        (sweep / "multirun.yaml").unlink(missing_ok=True)
    if begun and not done.jobs and not done.left_out:
        _collect(begun[0], done)
    done.seconds = time.monotonic() - started
    return done


class JobTask:
    """What Hydra calls with the config of each job, here or in another process: it can be pickled if its task can."""

    def __init__(self, task: Callable[[Job], Any], interrupts: Interrupts, launched: Launch):
        self.task, self.interrupts, self.launched = task, interrupts, launched

    def __call__(self, config: DictConfig) -> Any:
        """Run one job, unless it was finished before; what went wrong is in the job, its folder and the exit code."""
        job = _job(config)
        self.launched.jobs.append(job)
        if finished_before(job):
            return job.answer
        record = Record(job.swept)
        if job.sweep_folder is not None:
            (job.folder / "summary.json").unlink(missing_ok=True)  # of a job that did not finish, or is run anew
            write_record(job.folder, record)
        started, trace = time.monotonic(), None
        try:
            with self.interrupts.striking():
                job.answer = _run(self.task, job, self.interrupts)
        except Interrupted:
            job.interrupted = True
            self._end(job, record, INTERRUPTED, started)
            raise
        except PagedlabError as error:
            job.error, trace = str(error), str(error) + "\n"
            record.exit_code = EXIT_USAGE
            say(f"error: {error}")
        except Exception as error:
            job.error, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
            record.exit_code = EXIT_FAULT
            say(trace.rstrip())
        # A fault of pagedlab outdoes an error of the user.
        self.launched.exit_code = worse(self.launched.exit_code, record.exit_code)
        self._end(job, record, COMPLETED if job.error is None else FAILED, started, trace)
        if job.error is not None and job.launcher != "pool" and config.get("fail_fast", False):
            raise PagedlabError(f"fail_fast=true: {job.error}")
        return job.answer

    def _end(self, job: Job, record: Record, status: str, started: float, trace: str | None = None) -> None:
        if job.sweep_folder is not None:
            record.status, record.error, job.seconds = status, job.error, time.monotonic() - started
            record.seconds = round(job.seconds, 3)
            if status == INTERRUPTED and not (job.folder / "summary.json").is_file():
                drop_record(job.folder)  # it had not begun
            else:
                write_record(job.folder, record, trace)
        _remove_if_empty(job.folder)


def finished_before(job: Job) -> bool:
    """Whether the sweep folder holds the job finished, and it is not to be run anew; then what it answers is known."""
    if job.sweep_folder is None or not job.config.get("resume", False):
        return False
    if not holds_completed_run(job.folder):
        return False
    job.answer = answer_of(job.folder, job.config.get("objectives") or [])
    return True


def answer_of(folder: Path, objectives: Sequence[str]) -> Any:
    """The numbers of the folder's summary that a search asked for: one, or several; None where it asked for none."""
    summary = read_object(folder / "summary.json")
    values = []
    for objective in objectives:
        value: Any = summary
        for key in objective.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if not isinstance(value, int | float):
            raise ConfigError(f"objectives={objective}: no such number in the summary of a run, or none in this one")
        values.append(float(value))
    return (values[0] if len(values) == 1 else tuple(values)) if values else None


def worse(one: int, other: int) -> int:
    """Of two exit codes: a fault is worse than an error of the user, which is worse than none."""
    return min(one, other) if one and other else one or other


def _run(task: Callable[[Job], Any], job: Job, interrupts: Interrupts) -> Any:
    try:
        return task(job)
    except Exception:
        interrupts.raise_if_requested()  # a library made something else of the interruption
        raise


def _collect(folder: Path, done: Launch) -> None:
    """The jobs of a sweep that ran elsewhere, by what they left. One that is said to be running still was lost."""
    for path in sorted(folder.glob("*/job.json"), key=lambda path: (path.stat().st_mtime_ns, path)):
        record = read_record(path.parent)
        if record is not None:
            interrupted = record.status == INTERRUPTED
            job = Job(
                OmegaConf.create({}),
                path.parent,
                record.swept,
                folder,
                record.error,
                interrupted,
                seconds=record.seconds,
            )
            done.jobs.append(job)
            lost = EXIT_FAULT if record.status == RUNNING else 0
            done.exit_code = worse(done.exit_code, record.exit_code or lost)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _job(config: DictConfig) -> Job:
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    launcher = str(hydra_config.runtime.choices.get("hydra/launcher"))
    if hydra_config.mode != RunMode.MULTIRUN:
        return Job(config, folder, {}, None, launcher=launcher)
    check_subdir(hydra_config)
    sweep = Path(hydra_config.sweep.dir).resolve()
    return Job(config, folder, swept_of(hydra_config.overrides.task), sweep, launcher=launcher)


def check_subdir(hydra_config: DictConfig) -> None:
    """A job's folder is found again by its name. A name of the user's could be another job's, or climb out of the
    sweep's folder."""
    subdir = cast(dict[str, Any], OmegaConf.to_container(hydra_config.sweep, resolve=False))["subdir"]
    if subdir not in ("${job_key:}", "${hydra.job.num}"):
        raise ConfigError(f"hydra.sweep.subdir={subdir}: expected none, a job's folder is named by its key")


def swept_of(overrides: Sequence[str]) -> dict[str, str]:
    return dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)


def _key_of_job(*, _root_: DictConfig) -> str:
    from pagedlab.sweep.key import job_key

    return job_key(_root_)


# In conf/: the name of a job's folder. Here, as another process that runs a job imports this module first.
OmegaConf.register_new_resolver("job_key", _key_of_job, replace=True)


def _remove_if_empty(folder: Path) -> None:
    """Hydra makes a job's folder before the job can refuse its config."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def one_line(error: BaseException, kind: type = Settings) -> str:
    """Hydra's and OmegaConf's messages, folded into a line; an unknown key gets the nearest known one."""
    text = str(error)
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException) and str(cause) not in text:
        text += ": " + str(cause)
    unknown = re.search(r"is not in struct\s+full_key: (\S+)", text)
    if unknown:
        *parent, key = unknown[1].split(".")
        return f"{unknown[1]}: no such setting{_instead(parent, key, kind)}"
    # Where Hydra looked for a config says nothing that the list of options before it does not.
    return " ".join(text.partition("Config search path:")[0].split())


def _instead(parent: list[str], key: str, kind: type) -> str:
    """What to write instead of `key` under the path `parent`, where the composed config has no such key."""
    from pagedlab.config import suggestion

    kinds: list[tuple[str, Any]] = [("", kind)]  # the option that a class of settings belongs to, the class
    for name in parent:
        nested = [(option, below) for option, kind in kinds if (below := nested_settings(kind, name))]
        kinds = nested or [(f" with {name}={option}", kind) for option, kind in OPTIONS.get(name, {}).items()]
    having = [option for option, kind in kinds if key in {field.name for field in fields(kind)}]
    known = sorted({field.name for _, kind in kinds for field in fields(kind)})
    if key in known or not known:
        return " here" + (f", only{having[0]}" if any(having) else "")
    return suggestion(key, known)
