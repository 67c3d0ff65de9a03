"""The run folder: written whole or not at all, the summary last. A folder without a summary is not a finished run."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pagedlab.recorder.metrics import NO_SLO, SPLIT, Slo, latencies, longest_gap, split_over_time, waits
from pagedlab.recorder.recorder import Recorder

_TEMPORARY = ".tmp-"


def write_run_folder(
    folder: Path,
    config_yaml: str,
    env: dict[str, Any],
    recorder: Recorder,
    summary: dict[str, Any],
    slo: Slo = NO_SLO,
) -> None:
    """Write one run. A run that is already there is replaced: its summary goes first, so that at no moment a summary
    stands beside another run's tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{_TEMPORARY}*"):  # of a process that was killed while it wrote
        leftover.unlink()
    (folder / "summary.json").unlink(missing_ok=True)
    write_atomic(folder / "config.yaml", lambda path: path.write_text(config_yaml, encoding="utf-8"))
    write_json(folder / "env.json", env)
    write_table(folder / "requests.parquet", requests_table(recorder, slo))
    write_table(folder / "timeline.parquet", timeline_table(recorder))
    write_table(folder / "events.parquet", events_table(recorder))
    write_json(folder / "summary.json", summary)


def holds_completed_run(folder: Path) -> bool:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "completed"


def write_atomic(target: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file beside the target, sync it, then put it in the target's place."""
    handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(target: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomic(target, lambda path: path.write_text(text, encoding="utf-8"))


def write_table(target: Path, table: pa.Table) -> None:
    write_atomic(target, lambda path: pq.write_table(table, path, compression="zstd"))


def requests_table(recorder: Recorder, slo: Slo = NO_SLO) -> pa.Table:
    """One row a request, in order of submission; refused and unfinished ones included. Several outputs: best first."""
    seqs = recorder.sequences
    outputs = [seq.outputs() for seq in seqs]
    delays = [latencies(seq) for seq in seqs]
    waited = waits(recorder)
    seconds = pa.float64()
    return pa.table(
        {
            "id": pa.array([s.id for s in seqs], pa.int64()),
            "source": pa.array([s.request.source for s in seqs], pa.string()),
            "client": pa.array([s.request.client for s in seqs], pa.string()),
            "priority": pa.array([s.request.priority for s in seqs], pa.int64()),
            "status": pa.array([s.status.value for s in seqs], pa.string()),
            "finish_reason": pa.array([s.finish_reason for s in seqs], pa.string()),
            "refusal": pa.array([s.refusal or None for s in seqs], pa.string()),
            "prompt_tokens": pa.array([s.request.prompt_tokens for s in seqs], pa.int64()),
            "output_tokens": pa.array([s.output_tokens for s in seqs], pa.int64()),
            "max_tokens": pa.array([s.request.max_tokens for s in seqs], pa.int64()),
            "arrival_s": pa.array([s.request.arrival_s for s in seqs], seconds),
            "first_token_s": pa.array([s.token_s[0] if s.token_s else None for s in seqs], seconds),
            "finish_s": pa.array([s.finish_s for s in seqs], seconds),
            **{name: pa.array([d[name] for d in delays], seconds) for name in latency_names()},
            "wait_s": pa.array([waited.get(s.id) for s in seqs], seconds),
            "max_itl_s": pa.array([longest_gap(s) for s in seqs], seconds),
            "met_slo": pa.array([slo.met_by(s) for s in seqs], pa.bool_()),
            "preemptions": pa.array([s.preemptions for s in seqs], pa.int64()),
            "recomputed_tokens": pa.array([s.recomputed_tokens for s in seqs], pa.int64()),
            "cached_tokens": pa.array([s.cached_tokens for s in seqs], pa.int64()),
            "token_s": pa.array([s.token_s for s in seqs], pa.list_(seconds)),
            "prompt_token_ids": pa.array([s.request.prompt.tolist() for s in seqs], pa.list_(pa.int32())),
            "output_token_ids": pa.array([of[0].token_ids for of in outputs], pa.list_(pa.int32())),
            "further_output_token_ids": pa.array(
                [[output.token_ids for output in of[1:]] for of in outputs], pa.list_(pa.list_(pa.int32()))
            ),
            "output_scores": pa.array([[output.score for output in of] for of in outputs], pa.list_(seconds)),
        }
    )


def latency_names() -> tuple[str, ...]:
    return ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s_per_token")


def timeline_table(recorder: Recorder) -> pa.Table:
    """One row a step (or an idle wait); it holds until the next row starts. kv_ columns are slots and sum to N x B."""
    steps = recorder.steps
    split = split_over_time(recorder)
    preempted = [0] * (len(steps) + 1)
    for _, number, _ in recorder.preemptions:
        preempted[number] += 1
    total, cumulative = 0, []
    for count in preempted[: len(steps)]:
        total += count
        cumulative.append(total)
    return pa.table(
        {
            "step": pa.array(range(len(steps)), pa.int64()),
            "start_s": pa.array([s.start_s for s in steps], pa.float64()),
            "end_s": pa.array([s.end_s for s in steps], pa.float64()),
            "running": pa.array([s.running for s in steps], pa.int32()),
            "waiting": pa.array([s.waiting for s in steps], pa.int32()),
            "batch": pa.array([s.batch for s in steps], pa.int32()),
            "tokens": pa.array([s.tokens for s in steps], pa.int32()),
            "prefill_tokens": pa.array([s.prefill_tokens for s in steps], pa.int32()),
            "decode_tokens": pa.array([s.tokens - s.prefill_tokens for s in steps], pa.int32()),
            **{f"kv_{kind}": pa.array(split[kind], pa.int64()) for kind in SPLIT},
            "memory_blocked": pa.array([s.memory_blocked for s in steps], pa.bool_()),
            "blocks_mapped": pa.array([s.sharing.mapped for s in steps], pa.int32()),
            "blocks_saved": pa.array([s.sharing.saved for s in steps], pa.int32()),
            "prefix_queried_tokens": pa.array([s.sharing.queried_tokens for s in steps], pa.int64()),
            "prefix_hit_tokens": pa.array([s.sharing.hit_tokens for s in steps], pa.int64()),
            "prefix_evicted_blocks": pa.array([s.sharing.evictions for s in steps], pa.int64()),
            "blocks_copied": pa.array([s.copies for s in steps], pa.int32()),
            "copy_s": pa.array([s.copy_s for s in steps], pa.float64()),
            "admission_estimate": pa.array([s.admission_estimate for s in steps], pa.float64()),
            "preemptions": pa.array(cumulative, pa.int64()),
        }
    )


def events_table(recorder: Recorder) -> pa.Table:
    """One row a preemption."""
    rows = [
        {
            "time_s": time,
            "step": step,
            "kind": "preemption",
            "victim": p.victim,
            "beneficiary": p.beneficiary,
            "reason": p.reason,
            "blocks_freed": p.blocks_freed,
            "tokens_lost": p.tokens_lost,
        }
        for time, step, p in recorder.preemptions
    ]
    schema = pa.schema(
        [
            ("time_s", pa.float64()),
            ("step", pa.int64()),
            ("kind", pa.string()),
            ("victim", pa.int64()),
            ("beneficiary", pa.int64()),
            ("reason", pa.string()),
            ("blocks_freed", pa.int64()),
            ("tokens_lost", pa.int64()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)
