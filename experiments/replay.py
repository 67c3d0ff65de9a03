"""Cache replay: a trace through eviction policies alone. `python -m experiments.replay` is `pagedlab replay`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pathlib import Path

    from pagedlab.launch import Job
    from pagedlab.replay.study import Study
    from pagedlab.replay.trace import Trace
    from pagedlab.settings import ReplaySettings

# What is slow to import is imported where it is used: --help and a mistyped config answer at once.


def main() -> int:
    return guarded(replay)


def replay(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch
    from pagedlab.settings import ReplaySettings

    return launch(lambda job: replay_job(job, interrupts), interrupts, "replay", ReplaySettings).exit_code


def replay_job(job: Job, interrupts: Interrupts) -> None:
    from pagedlab.analysis.replay_display import ReplayDisplay
    from pagedlab.analysis.replay_plots import write_plots
    from pagedlab.launch import say
    from pagedlab.replay.config import choices, load_replay_settings
    from pagedlab.replay.study import run_study
    from pagedlab.replay.trace import load_trace

    settings = load_replay_settings(job.config)
    chosen = choices(settings)
    if job.swept:
        say("job " + " ".join(f"{key}={value}" for key, value in job.swept.items()))
    trace = load_trace(settings)
    show = ReplayDisplay(settings.progress)
    progress = show.start(trace, len(settings.capacity_blocks) * (1 + len(chosen)))

    def tick(what: str, done: int) -> None:
        progress(what, done)
        interrupts.raise_if_requested()

    with interrupts.deferred():
        try:
            study = run_study(trace, chosen, settings.capacity_blocks, settings.leaf_first, settings.seed, tick)
        finally:
            show.done()
        interrupts.finish()
        job.folder.mkdir(parents=True, exist_ok=True)
        (job.folder / "summary.json").unlink(missing_ok=True)  # it never stands beside another run's files
        if study.rows:
            write_plots(job.folder, study)
        write_run(job, settings, trace, study)
    show.result(study, settings.leaf_first)
    print(f"run folder: {job.folder}")
    interrupts.raise_if_requested()


def write_run(job: Job, settings: ReplaySettings, trace: Trace, study: Study) -> None:
    """replay.parquet, config.yaml, env.json and, last, summary.json."""
    import pyarrow as pa
    import yaml
    from omegaconf import OmegaConf

    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_atomic, write_json, write_table
    from pagedlab.recorder.metrics import SCHEMA_VERSION
    from pagedlab.recorder.redact import redact

    # Interpolations stay unresolved: they may name secrets.
    config = redact(cast(dict[str, Any], OmegaConf.to_container(job.config)))
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)

    def write_text(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    write_atomic(job.folder / "config.yaml", write_text)
    write_json(job.folder / "env.json", environment(settings.seed))
    write_table(job.folder / "replay.parquet", pa.Table.from_pylist(study.rows))
    write_json(
        job.folder / "summary.json",
        redact(
            {
                "schema_version": SCHEMA_VERSION,
                "status": "interrupted" if study.interrupted else "completed",
                "workload": settings.workload.name,
                "leaf_first": settings.leaf_first,
                "seed": settings.seed,
                "requests": len(trace.requests),
                "references": trace.num_references,
                "blocks": trace.num_blocks,
                "block_tokens": trace.block_tokens,
                "infinite_hit_ratio": study.infinite,
                "rows": study.rows,
            }
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
