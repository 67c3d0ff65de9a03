"""Fit the cost model to the machine at hand by a minute of micro-profile, for `executor=simulated hardware=local`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Optional

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.hardware.calibration.file import Calibration
    from pagedlab.hardware.calibration.fit import Fit
    from pagedlab.hardware.calibration.observation import Observation
    from pagedlab.launch import Job
    from pagedlab.model.architecture import Architecture
    from pagedlab.settings import Settings


@dataclass
class CalibrateSettings:
    """path: where the file goes; null: the user's cache, where hardware.calibration=auto finds it. The others are those
    of `ProfileSizes`."""

    path: Optional[str]  # noqa: UP045 - OmegaConf reads it at run time
    rows: list[int]
    batches: list[int]
    contexts: list[int]
    block_sizes: list[int]
    chunks: list[int]
    cached: list[int]
    mixed: list[Any]
    moved_blocks: list[int]
    rounds: int


def main() -> int:
    return guarded(calibrate)


def calibrate(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(lambda job: calibrate_job(job, interrupts), interrupts, config_name="calibrate").exit_code


def calibrate_job(job: Job, interrupts: Interrupts) -> None:
    from pagedlab.config import load_settings
    from pagedlab.core.errors import ConfigError
    from pagedlab.hardware.calibration import file
    from pagedlab.hardware.calibration.fit import fit
    from pagedlab.model.architecture import architecture_of
    from pagedlab.model.config import read_config
    from pagedlab.model.dtype import dtype_bytes
    from pagedlab.model.locate import shape_place
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_atomic, write_json
    from pagedlab.sweep.timing import check_plain

    own = _checked(job.config.calibrate)
    del job.config.calibrate
    settings = load_settings(job.config)
    check_plain(settings, job.launcher, job.sweep_folder is not None)
    if settings.executor.name != "torch":
        raise ConfigError(f"executor={settings.executor.name}: a real model is profiled, expected torch")
    width = dtype_bytes(settings.model.dtype)
    if width > 4:
        raise ConfigError(f"model.dtype={settings.model.dtype}: the cost model prices 16 and 32 bits")
    model = architecture_of(read_config(settings.model, shape_place(settings.model)))
    load = os.getloadavg()[0]
    observations, settings, ran = _profile(settings, model, own, interrupts)
    found = fit(observations, settings.hardware, model, width, settings.block_size)
    made = _calibration(settings, model, found, observations, ran)
    target = Path(own.path).expanduser() if own.path else file.folder() / file.file_name(made.key)
    spread = median(seen.spread for seen in observations if seen.operator == "step")
    _show(found, made, load, spread)
    job.folder.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, lambda path: path.write_text(made.text(), encoding="utf-8"))
    write_json(job.folder / "env.json", environment(settings.seed))
    write_json(job.folder / "observations.json", {"observations": [asdict(seen) for seen in observations]})
    facts = {"key": made.key, "data_sha256": made.data_sha256, "hull": made.hull, "load_average_at_start": load}
    facts["spread_of_rounds"] = spread
    constants = {name: getattr(found.hardware, name) for name in found.fitted}
    write_json(
        job.folder / "summary.json", {**facts, "file": str(target), "rows": _rows(found), "constants": constants}
    )
    print(f"calibration: {target}")
    print(f"run folder: {job.folder}")


def _checked(config: Any) -> CalibrateSettings:
    from pagedlab.config import typed_settings
    from pagedlab.core.errors import ConfigError

    own = typed_settings(config, CalibrateSettings, {})
    for name in ("rows", "batches", "contexts", "block_sizes", "chunks", "moved_blocks", "cached"):
        values, low = getattr(own, name), 0 if name == "cached" else 1
        if not values or min(values) < low:
            raise ConfigError(f"calibrate.{name}={values}: expected whole numbers from {low} on")
    for i, step in enumerate(own.mixed):
        if (
            not isinstance(step, list)
            or len(step) != 3
            or any(type(x) is not int or x < 1 for x in step)
            or step[2] < 2
        ):
            raise ConfigError(f"calibrate.mixed[{i}]={step}: expected [decodes, chunks, tokens of each from 2 on]")
    if min(own.chunks) < 2:
        raise ConfigError(f"calibrate.chunks={own.chunks}: expected 2 tokens at least, one is a decode")
    if own.rounds < 1:
        raise ConfigError(f"calibrate.rounds={own.rounds}: expected a whole number from 1 on")
    return own


def _profile(
    settings: Settings, model: Architecture, own: CalibrateSettings, interrupts: Interrupts
) -> tuple[list[Observation], Settings, dict[str, Any]]:
    """What was observed; the settings with what the machine and the model say of `hardware` themselves; the kernel and
    the threads that ran."""
    import psutil
    import torch

    from pagedlab.hardware.cost import CostModel
    from pagedlab.microprofile.products import are_separate, linear_layers
    from pagedlab.microprofile.profile import ProfileSizes, measure
    from pagedlab.model.dtype import dtype_bytes
    from pagedlab.run import build

    lab = build(settings, interrupts)
    try:
        executor: Any = lab.executor
        linears = linear_layers(executor)
        memory = psutil.virtual_memory().total / 2**30
        fused, apart = (
            replace(settings.hardware, memory_gib=memory, separate_products=separate) for separate in (False, True)
        )
        width, size = dtype_bytes(settings.model.dtype), settings.block_size
        costs = CostModel(model, fused, width, size), CostModel(model, apart, width, size)
        settings = replace(settings, hardware=apart if are_separate(executor, linears, costs) else fused)
        values = asdict(own)
        del values["path"]
        sizes = ProfileSizes(**values)
        heads, vocabulary = model.shape.num_heads, model.shape.vocab_size
        observations = measure(lab, settings, linears, sizes, heads, vocabulary, interrupts)
        return observations, settings, {"kernel": executor.kernel_name, "threads": torch.get_num_threads()}
    finally:
        lab.executor.close()


def _calibration(
    settings: Settings, model: Architecture, found: Fit, observations: list[Observation], ran: dict[str, Any]
) -> Calibration:
    from pagedlab.hardware.calibration.file import Calibration
    from pagedlab.hardware.calibration.hull import hull
    from pagedlab.hardware.calibration.key import asked, machine
    from pagedlab.hardware.calibration.observation import data_hash

    key = asked(settings, model) | ran | machine()
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    said = f"fitted: on {key['cpu']}, {key['threads']} threads, torch {key['torch']}, kernel={key['kernel']}, {made_at}"
    of_machine = {
        "memory_gib": "measured: this machine's memory",
        "separate_products": "measured: how the model's linear layers are",
    }
    provenance = found.hardware.provenance | dict.fromkeys(found.fitted, said) | of_machine
    hardware = replace(found.hardware, provenance=provenance, calibration=None)
    errors = {row["kind"]: row for row in _rows(found)}
    return Calibration(hardware, key, data_hash(observations), made_at, hull(observations), errors)


def _rows(found: Fit) -> list[dict[str, Any]]:
    return [{"kind": kind, **asdict(errors)} for kind, errors in found.errors.items()]


def _show(found: Fit, made: Calibration, load: float, spread: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"|predicted / measured - 1| by kind, {made.key['model']}, kernel={made.key['kernel']}")
    table.add_column("what")
    for column in ("fitted", "mean error", "held out", "mean error", "worst"):
        table.add_column(column, justify="right")
    for kind, e in found.errors.items():
        apart = ["-" if x is None else f"{x:.1%}" for x in (e.held_out_mean, e.held_out_worst)]
        table.add_row(kind, str(e.fitted), f"{e.fitted_mean:.1%}", str(e.held_out), *apart)
    out = Console(width=None if sys.stdout.isatty() else 120)
    out.print(table)
    most = made.hull
    print(
        f"calibrated for steps of up to {most['tokens']} tokens and {most['sequences']} sequences, contexts of up to "
        f"{most['context']} tokens"
    )
    print(f"the same step took times that differ by {spread:.1%} from round to round (median over the steps)")
    if load > 0.5 * (os.cpu_count() or 1):
        print(f"load average was {load:.1f} when it began: on a machine that does other work these are its times too")


if __name__ == "__main__":
    sys.exit(main())
