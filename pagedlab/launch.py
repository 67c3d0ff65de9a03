"""Around Hydra: one line for every error of the user, exit codes, signals, and who ran in a sweep."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from pagedlab.core.errors import PagedlabError
from pagedlab.interrupts import Interrupted, Interrupts
from pagedlab.plugins import load_plugins
from pagedlab.settings import OPTIONS, Settings, nested_settings

EXIT_FAULT = 1
EXIT_USAGE = 2


@dataclass(slots=True)
class Job:
    """One composed config and where it runs. swept: the overrides that tell it from the others of a sweep."""

    config: DictConfig
    folder: Path
    swept: dict[str, str]
    sweep_folder: Path | None
    error: str | None = None
    interrupted: bool = False


@dataclass(slots=True)
class Launch:
    """What a launch did: its jobs in order and the exit code so far."""

    jobs: list[Job] = field(default_factory=list)
    exit_code: int = 0


def launch(
    task: Callable[[Job], None], interrupts: Interrupts, config_name: str = "config", kind: type = Settings
) -> Launch:
    """Compose sys.argv, run the task for it, or for each job of a sweep. kind: the settings that the config becomes.

    exit_code: 0 done; 1 a fault of pagedlab (its traceback on stderr); 2 an error of the user, one line on stderr;
    128 + signal when interrupted. A job that fails does not stop the others of its sweep. `--plugin FILE` is taken out
    of sys.argv and run first. A signal is answered before a task or, at once, inside it.
    """
    done = Launch()

    def run_job(config: DictConfig) -> None:
        job = _job(config)
        done.jobs.append(job)
        try:
            with interrupts.striking():
                _run(task, job, interrupts)
        except Interrupted:
            job.interrupted = True
            _remove_if_empty(job.folder)
            raise
        except PagedlabError as error:
            job.error = str(error)
            done.exit_code = max(done.exit_code, EXIT_USAGE)
            say(f"error: {error}")
            _remove_if_empty(job.folder)
        except Exception as error:
            job.error = f"{type(error).__name__}: {error}"
            done.exit_code = EXIT_FAULT
            traceback.print_exc()

    # Hydra prints what it catches in several lines; with this it lets us catch it and say it in one.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        load_plugins(sys.argv)
        hydra.main(version_base="1.3", config_path="pkg://pagedlab.conf", config_name=config_name)(run_job)()
    except Interrupted as stop:
        say(f"interrupted by {stop}")
        done.exit_code = stop.exit_code
    except PagedlabError as error:
        say(f"error: {error}")
        done.exit_code = EXIT_USAGE
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        say(f"error: {_one_line(error, kind)}")
        done.exit_code = EXIT_USAGE
    return done


def _run(task: Callable[[Job], None], job: Job, interrupts: Interrupts) -> None:
    try:
        task(job)
    except Exception:
        interrupts.raise_if_requested()  # a library made something else of the interruption
        raise


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _job(config: DictConfig) -> Job:
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    sweep, swept = None, {}
    if hydra_config.mode == RunMode.MULTIRUN:
        sweep = Path(hydra_config.sweep.dir).resolve()
        swept = dict(override.lstrip("+").split("=", 1) for override in hydra_config.overrides.task if "=" in override)
        # Of an earlier sweep into the same folder: it must stand neither beside new jobs nor for one that fails.
        for stale in (folder / "summary.json", sweep / "summary.json", sweep / "summary.csv"):
            stale.unlink(missing_ok=True)
    return Job(config, folder, swept, sweep)


def _remove_if_empty(folder: Path) -> None:
    """Hydra makes a job's folder before the job can refuse its config."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _one_line(error: BaseException, kind: type = Settings) -> str:
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
