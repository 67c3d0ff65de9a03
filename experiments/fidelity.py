"""How far a simulation is from the run that it stands for: one workload, served by the real model and by the simulator.

The real run is on this machine's clock, so what else the machine does is in it. Both runs have the same pool, and each
sequence of the simulation runs on its own, so that their schedules can be held against each other step by step.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.core.plan import Outcome, Plan
    from pagedlab.hardware.calibration.file import Calibration
    from pagedlab.launch import Job
    from pagedlab.recorder.recorder import Recorder
    from pagedlab.run import Lab
    from pagedlab.settings import Settings

# Of summary.json; of a latency its parts.
_METRICS = (
    *("duration_s", "output_tokens_per_s", "total_tokens_per_s", "requests_per_s", "steps", "mean_batch_size"),
    *("peak_batch_size", "kv_waste_fraction", "kv_token_states_fraction", "memory_blocked_fraction", "preemptions"),
    *("recomputed_tokens", "prefix_hit_rate", "ttft_s.mean", "ttft_s.p50", "ttft_s.p99", "tpot_s.mean", "tpot_s.p50"),
    *("tpot_s.p99", "itl_s.mean", "itl_s.p99", "e2e_s.mean", "e2e_s.p99", "normalized_latency_s_per_token.mean"),
)

# Who fed how many tokens: (request, which of its outputs, tokens).
Fed = tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class Served:
    """cpu_s: of this process while it served. schedule: what each step fed, in order of request."""

    summary: dict[str, Any]
    recorder: Recorder
    schedule: list[Fed]
    cpu_s: float


def main() -> int:
    return guarded(fidelity)


def fidelity(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(lambda job: fidelity_job(job, interrupts), interrupts, config_name="fidelity").exit_code


def fidelity_job(job: Job, interrupts: Interrupts) -> None:
    from omegaconf import OmegaConf

    from pagedlab.config import load_settings
    from pagedlab.core.errors import ConfigError
    from pagedlab.hardware.calibration.hull import warnings
    from pagedlab.launch import say
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import timeline_table, write_json, write_table
    from pagedlab.run import build, build_scheduler, give_host_pool, reached
    from pagedlab.sweep.timing import check_plain

    own = OmegaConf.to_container(job.config.fidelity)
    del job.config.fidelity
    settings, runs = load_settings(job.config), _runs(own)
    check_plain(settings, job.launcher, job.sweep_folder is not None)
    if settings.executor.name != "torch":
        raise ConfigError(f"executor={settings.executor.name}: it is a real run that is simulated, expected torch")
    imitation = _imitation(settings, job)
    lab = build(settings, interrupts)
    try:
        calibration = _calibration(imitation, lab)
        imitation.kv_num_blocks, imitation.kv_bytes, imitation.kv_fraction = lab.executor.num_blocks, None, None
        imitation.hardware.calibration = str(calibration.file)
        simulated_lab = build(imitation, interrupts)
        # Without what the executor foretells: a plan then names every sequence it runs.
        simulated_lab.scheduler = build_scheduler(imitation, lab.executor.num_blocks, lab.max_model_len)
        block_bytes = settings.block_size * lab.kv_bytes_per_token
        give_host_pool(simulated_lab.scheduler, simulated_lab.executor, block_bytes)
        load = os.getloadavg()[0]
        reals = []
        for _ in range(runs):
            lab.scheduler = build_scheduler(settings, lab.executor.num_blocks, lab.max_model_len)
            give_host_pool(lab.scheduler, lab.executor, block_bytes)
            reals.append(_serve(settings, lab, interrupts))
    finally:
        lab.executor.close()
    simulated = _serve(imitation, simulated_lab, interrupts)
    rows, real = compare([each.summary for each in reals], simulated.summary), reals[0]
    differ = first_difference(real.schedule, simulated.schedule)
    seconds = sum(each.summary["duration_s"] for each in reals)
    busy = sum(each.cpu_s for each in reals) / seconds if seconds else 0.0
    outside = warnings(calibration.hull, reached(simulated.recorder))
    facts = {
        "first_different_step": differ,
        "real_fed": _words(real.schedule, differ),
        "simulated_fed": _words(simulated.schedule, differ),
        "kernel": lab.executor.kernel_name,
        "calibration": calibration.data_sha256,
        "calibration_made_at": calibration.made_at,
        "outside_calibration": outside,
        "load_average_at_start": load,
        "real_cpu_s_per_s": busy,
    }
    _show(rows, facts)
    for line in outside:
        say(f"warning: {line}")
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "env.json", environment(settings.seed))
    for name, served in (("real", real), ("simulated", simulated)):
        write_table(job.folder / f"{name}_timeline.parquet", timeline_table(served.recorder))
    write_json(job.folder / "summary.json", {**facts, "rows": rows})
    print(f"run folder: {job.folder}")


def _runs(own: Any) -> int:
    from pagedlab.core.errors import ConfigError
    from pagedlab.workload.checks import whole

    if not isinstance(own, dict) or set(own) != {"runs"}:
        raise ConfigError("fidelity: expected runs, and nothing else")
    return whole("fidelity.runs", own["runs"])


def _imitation(settings: Settings, job: Job) -> Settings:
    """The settings of the simulation: those of the run, but for the executor."""
    from pagedlab.config import load_settings
    from pagedlab.core.errors import ConfigError
    from pagedlab.settings import SimulatedExecutorSettings

    if settings.hardware.calibration is None:
        raise ConfigError("hardware.calibration=null: expected auto, or a file that `pagedlab calibrate` made")
    job.config.executor = {"name": "simulated", "overlap": False, "skip": False}
    imitation = load_settings(job.config)
    return replace(imitation, executor=SimulatedExecutorSettings("simulated", overlap=False, skip=False))


def _calibration(imitation: Settings, lab: Lab) -> Calibration:
    """Of this model, this machine, this kernel and as many threads; else ConfigError in one line."""
    import torch

    from pagedlab.core.errors import ConfigError
    from pagedlab.hardware.calibration.file import calibration_of
    from pagedlab.hardware.calibration.key import asked, machine, mismatch
    from pagedlab.model.architecture import architecture_of
    from pagedlab.model.config import read_config
    from pagedlab.model.locate import shape_place

    model = architecture_of(read_config(imitation.model, shape_place(imitation.model)))
    found = calibration_of(imitation, model)
    if found is None:
        raise ConfigError(
            "hardware.calibration=auto: nothing was calibrated for this run, `pagedlab calibrate` does it"
        )
    here = {"kernel": lab.executor.kernel_name, "threads": torch.get_num_threads()}
    if (other := mismatch(found.key, asked(imitation, model) | here | machine())) is not None:
        raise ConfigError(f"{found.file}: was made for {other}: `pagedlab calibrate` makes one for this run")
    return found


def _serve(settings: Settings, lab: Lab, interrupts: Interrupts) -> Served:
    from pagedlab.engine import serve
    from pagedlab.recorder.metrics import summarize
    from pagedlab.recorder.recorder import Recorder

    schedule: list[Fed] = []
    executor: Any = lab.executor
    inner = executor.execute

    def execute(plan: Plan) -> Outcome:
        pairs = zip(plan.batch, plan.num_tokens, strict=True)
        schedule.append(tuple((seq.id, seq.index, tokens) for seq, tokens in pairs))
        outcome: Outcome = inner(plan)
        return outcome

    executor.execute = execute
    recorder, start = Recorder(), time.process_time()
    serve(lab.requests, lab.scheduler, executor, recorder, lambda: interrupts.requested, settings.audit_every)
    cpu = time.process_time() - start
    del executor.execute
    interrupts.raise_if_requested()
    pool = lab.scheduler.allocator.pool
    summary = summarize(recorder, pool.num_blocks, pool.block_size, "completed")
    return Served(summary, recorder, [tuple(sorted(fed)) for fed in schedule], cpu)


def compare(reals: list[dict[str, Any]], simulated: dict[str, Any]) -> list[dict[str, Any]]:
    """A row a metric. real: the median of the runs; spread: their largest less their smallest, of it; error: simulated
    / real - 1, None where the real one is 0 and the other is not."""
    rows: list[dict[str, Any]] = []
    for metric in _METRICS:
        values, other = [_value(real, metric) for real in reals], _value(simulated, metric)
        if other is None or None in values:
            continue
        one = median(values)
        error = other / one - 1 if one else (0.0 if other == one else None)
        spread = (max(values) - min(values)) / one if one else 0.0
        rows.append({"metric": metric, "real": one, "spread": spread, "simulated": other, "error": error})
    return rows


def _value(summary: dict[str, Any], metric: str) -> Any:
    name, _, part = metric.partition(".")
    return summary[name][part] if part else summary[name]


def first_difference(real: list[Fed], simulated: list[Fed]) -> int | None:
    """The first step, counted from 0, that does not feed the same tokens of the same sequences; None: all do."""
    for i, (one, other) in enumerate(zip(real, simulated, strict=False)):
        if one != other:
            return i
    return None if len(real) == len(simulated) else min(len(real), len(simulated))


def _words(schedule: list[Fed], step: int | None) -> str | None:
    """What that step fed, where it is asked for."""
    if step is None:
        return None
    if step >= len(schedule):
        return "nothing: it was over"
    fed = schedule[step]
    prompts = [f"{tokens} of request {request}" for request, _, tokens in fed if tokens > 1]
    return ", ".join([f"{sum(tokens == 1 for *_, tokens in fed)} decodes", *prompts])


def _show(rows: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"real and simulated, kernel={facts['kernel']}, calibrated {facts['calibration_made_at']}")
    table.add_column("metric")
    for column in ("real", "spread", "simulated", "error"):
        table.add_column(column, justify="right")
    for row in rows:
        error = "-" if row["error"] is None else f"{100 * row['error']:+.2f} %"
        table.add_row(row["metric"], f"{row['real']:.5g}", f"{row['spread']:.1%}", f"{row['simulated']:.5g}", error)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if facts["first_different_step"] is None:
        print("the two schedules are the same: every step fed the same tokens of the same requests")
    else:
        print(
            f"the schedules differ from step {facts['first_different_step']} on: real {facts['real_fed']}; simulated "
            f"{facts['simulated_fed']}"
        )
    print(
        f"the real run had {facts['real_cpu_s_per_s']:.2f} CPU seconds a second; load average when it began "
        f"{facts['load_average_at_start']:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
