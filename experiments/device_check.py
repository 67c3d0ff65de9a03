"""Everything that only a GPU can show, in under four minutes: are the kernels right on it, and how fast are they."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.device_check.base import Bench, Part
    from pagedlab.launch import Job


def main() -> int:
    return guarded(check)


def check(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    codes: list[int] = []
    launched = launch(lambda job: codes.append(check_job(job)), interrupts, config_name="device_check").exit_code
    return launched or max(codes, default=0)


def check_job(job: Job) -> int:
    """As `measure`; 0 also where there is no GPU."""
    import torch

    from pagedlab.core.errors import ConfigError
    from pagedlab.device_check.base import Bench
    from pagedlab.device_check.parts import PARTS
    from pagedlab.kernels.base import KERNELS

    names = [part.name for part in PARTS]
    for key, values, known in (("kernels", job.config.kernels, list(KERNELS)), ("parts", job.config.parts, names)):
        for value in values or ():
            if value not in known:
                raise ConfigError(f"{key}: {value} is none, expected some of {', '.join(known)}")
    if not torch.cuda.is_available():
        with contextlib.suppress(OSError):
            job.folder.rmdir()  # made for what there is not
        print("device_check: this torch sees no CUDA device, there is nothing to check here")
        return 0
    parts = [part for part in PARTS if job.config.parts is None or part.name in job.config.parts]
    return measure(Bench(tuple(job.config.kernels)), parts, job.config.seconds, job.folder)


def measure(bench: Bench, parts: Sequence[Part], seconds: float, folder: Path) -> int:
    """Run the parts, write and print what they find. Exit code 1 where a result is wrong, or could not be judged."""
    from rich.console import Console

    from pagedlab.device_check.report import summary, table, wrong
    from pagedlab.device_check.worker import Outcome, run_parts
    from pagedlab.launch import say
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_json

    outcomes: list[Outcome] = []
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "env.json", environment(seed=0))
    for outcome in run_parts(bench, parts, seconds):
        outcomes.append(outcome)
        # After each part: what is killed leaves what it had.
        write_json(folder / "summary.json", summary(outcomes, parts, "partial"))
        Console().print(table(outcome))
    write_json(folder / "summary.json", summary(outcomes, parts, "completed"))
    found = wrong(outcomes, parts)
    for line in found:
        say(f"wrong: {line}")
    print(f"run folder: {folder}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
