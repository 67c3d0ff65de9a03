"""The run folder: written whole or not at all, the summary last. A folder without a summary is not a finished run."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pagedlab.recorder.blocks import blocks_table
from pagedlab.recorder.files import TEMPORARY, holds_completed_run, write_atomic, write_json
from pagedlab.recorder.metrics import NO_SLO, SPLIT, Gaps, Slo, delays_of, ratio, split_over_time
from pagedlab.recorder.recorder import Recorder

__all__ = ["holds_completed_run", "write_atomic", "write_json", "write_run_folder", "write_table"]

_AT_A_TIME = 10_000  # requests: of a row group
_WRITTEN = {"compression": "zstd", "write_page_checksum": True}  # what is altered later is noticed
_MOST_IN_A_LIST = 2**30  # Arrow counts what a part of a list column holds in 32 bits


def write_run_folder(
    folder: Path,
    config_yaml: str,
    env: dict[str, Any],
    recorders: Seq[Recorder],
    summary: dict[str, Any],
    slo: Slo = NO_SLO,
) -> None:
    """Write one run: recorders, of each replica. A run that is already there is replaced: its summary goes first, so
    that at no moment a summary stands beside another run's tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{TEMPORARY}*"):  # of a process that was killed while it wrote
        leftover.unlink()
    for stale in ("summary.json", "blocks.parquet"):
        (folder / stale).unlink(missing_ok=True)
    write_atomic(folder / "config.yaml", lambda path: path.write_text(config_yaml, encoding="utf-8"))
    write_json(folder / "env.json", env)
    write_atomic(folder / "requests.parquet", lambda path: write_requests(path, recorders, slo))
    write_table(folder / "timeline.parquet", pa.concat_tables(map(timeline_table, recorders)))
    write_table(folder / "events.parquet", pa.concat_tables(map(events_table, recorders)))
    if recorders[0].block_map is not None:  # then there is one
        write_table(folder / "blocks.parquet", blocks_table(recorders[0].block_map))
    write_json(folder / "summary.json", summary)


def write_table(target: Path, table: pa.Table) -> None:
    write_atomic(target, lambda path: pq.write_table(table, path, **_WRITTEN))


def write_requests(path: Path, recorders: Seq[Recorder], slo: Slo = NO_SLO) -> None:
    """Replica by replica, some at a time: the tokens of a million requests are never in memory at once."""
    first = requests_table(recorders[0], slo, slice(_AT_A_TIME))
    with pq.ParquetWriter(path, first.schema, **_WRITTEN) as writer:
        writer.write_table(first)
        for recorder in recorders:
            for start in range(_AT_A_TIME * (recorder is recorders[0]), len(recorder.sequences), _AT_A_TIME):
                writer.write_table(requests_table(recorder, slo, slice(start, start + _AT_A_TIME)))


def requests_table(recorder: Recorder, slo: Slo = NO_SLO, rows: slice = slice(None)) -> pa.Table:
    """One row a request, in order of submission; refused and unfinished ones included. Several outputs: best first."""
    seqs = recorder.sequences[rows]
    outputs = [seq.outputs() for seq in seqs]
    delays, admitted = delays_of(seqs), recorder.admitted_s
    seconds = pa.float64()
    return pa.table(
        {
            "id": pa.array([s.id for s in seqs], pa.int64()),
            "replica": pa.array([recorder.replica] * len(seqs), pa.int32()),
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
            "first_token_s": pa.array([s.token_s[0] if len(s.token_s) else None for s in seqs], seconds),
            "finish_s": pa.array([s.finish_s for s in seqs], seconds),
            **{name: pa.array(of_all, seconds, from_pandas=True) for name, of_all in delays.items()},
            "wait_s": pa.array(
                [admitted[s.id] - s.request.arrival_s if s.id in admitted else None for s in seqs], seconds
            ),
            "max_itl_s": pa.array(Gaps(seqs).longest(), seconds, from_pandas=True),
            "met_slo": pa.array(slo.met_by(seqs), pa.bool_()),
            "preemptions": pa.array([s.preemptions for s in seqs], pa.int64()),
            "recomputed_tokens": pa.array([s.recomputed_tokens for s in seqs], pa.int64()),
            "cached_tokens": pa.array([s.cached_tokens for s in seqs], pa.int64()),
            "token_s": _lists([s.token_s for s in seqs], np.float64),
            "prompt_token_ids": _lists([s.request.prompt for s in seqs], np.int32),
            "output_token_ids": _lists([of[0].token_ids for of in outputs], np.int32),
            "further_output_token_ids": pa.array(
                [[list(output.token_ids) for output in of[1:]] for of in outputs], pa.list_(pa.list_(pa.int32()))
            ),
            "output_scores": pa.array([[output.score for output in of] for of in outputs], pa.list_(seconds)),
        }
    )


def _lists(rows: list[Any], dtype: type[np.generic]) -> pa.ChunkedArray:
    """Rows of numbers as a column of lists, without keeping a Python object for each."""
    ends = np.cumsum([0, *map(len, rows)])
    parts, first = [], 0
    while first < len(rows):
        last = int(np.searchsorted(ends, ends[first] + _MOST_IN_A_LIST, side="right")) - 1
        last = max(last, first + 1)
        offsets = pa.array(ends[first : last + 1] - ends[first], pa.int32())
        values = pa.array(np.concatenate([np.asarray(row, dtype) for row in rows[first:last]]))
        parts.append(pa.ListArray.from_arrays(offsets, values))
        first = last
    return pa.chunked_array(parts, pa.list_(pa.from_numpy_dtype(dtype)))


def timeline_table(recorder: Recorder) -> pa.Table:
    """One row a step (or an idle wait); it holds until the next row starts. kv_ columns are slots and sum to N x B."""
    steps = recorder.steps
    split = split_over_time(recorder)
    preempted = np.zeros(len(steps) + 1, dtype=np.int64)
    for _, number, _ in recorder.preemptions:
        preempted[number] += 1
    tokens, prefill = steps.column("tokens"), steps.column("prefill_tokens")
    return pa.table(
        {
            "replica": pa.array(np.full(len(steps), recorder.replica), pa.int32()),
            "step": pa.array(range(len(steps)), pa.int64()),
            "start_s": pa.array(steps.column("start_s"), pa.float64()),
            "end_s": pa.array(steps.column("end_s"), pa.float64()),
            "running": pa.array(steps.column("running"), pa.int32()),
            "waiting": pa.array(steps.column("waiting"), pa.int32()),
            "batch": pa.array(steps.column("batch"), pa.int32()),
            "tokens": pa.array(tokens, pa.int32()),
            "prefill_tokens": pa.array(prefill, pa.int32()),
            "decode_tokens": pa.array(tokens - prefill, pa.int32()),
            **{f"kv_{kind}": pa.array(split[kind], pa.int64()) for kind in SPLIT},
            "memory_blocked": pa.array(steps.column("memory_blocked"), pa.bool_()),
            "blocks_mapped": pa.array(steps.column("sharing.mapped"), pa.int32()),
            "blocks_saved": pa.array(steps.column("sharing.saved"), pa.int32()),
            "prefix_queried_tokens": pa.array(steps.column("sharing.queried_tokens"), pa.int64()),
            "prefix_hit_tokens": pa.array(steps.column("sharing.hit_tokens"), pa.int64()),
            "prefix_host_hit_tokens": pa.array(steps.column("sharing.host_hit_tokens"), pa.int64()),
            "prefix_disk_hit_tokens": pa.array(steps.column("sharing.disk_hit_tokens"), pa.int64()),
            "prefix_evicted_blocks": pa.array(steps.column("sharing.evictions"), pa.int64()),
            "blocks_copied": pa.array(steps.column("copies"), pa.int32()),
            "copy_s": pa.array(steps.column("copy_s"), pa.float64()),
            "blocks_swapped_out": pa.array(steps.column("swapped_out"), pa.int32()),
            "blocks_swapped_in": pa.array(steps.column("swapped_in"), pa.int32()),
            "swap_out_s": pa.array(steps.column("swap_out_s"), pa.float64()),
            "swap_in_s": pa.array(steps.column("swap_in_s"), pa.float64()),
            "host_blocks": pa.array(steps.column("host_blocks"), pa.int32()),
            "load_s": pa.array(steps.column("load_s"), pa.float64()),
            "store_s": pa.array(steps.column("store_s"), pa.float64()),
            "admission_estimate": pa.array(steps.column("admission_estimate"), pa.float64(), from_pandas=True),
            "preemptions": pa.array(np.cumsum(preempted[: len(steps)]), pa.int64()),
        }
    )


def events_table(recorder: Recorder) -> pa.Table:
    """One row a preemption, and one a return of a request that was swapped out, in order of time.

    by: recompute or swap. seconds: of the copies, a step's shared out among its records by bytes.
    """
    rows: list[dict[str, Any]] = [
        {
            "time_s": time,
            "step": step,
            "kind": "preemption",
            "victim": p.victim,
            "beneficiary": p.beneficiary,
            "reason": p.reason,
            "blocks_freed": p.blocks_freed,
            "tokens_lost": p.tokens_lost,
            "by": p.kind,
            "fallback": p.fallback,
            "blocks_moved": p.blocks_moved,
            "bytes_moved": p.bytes_moved,
            "seconds": ratio(recorder.steps[step].swap_out_s * p.blocks_moved, recorder.steps[step].swapped_out),
            "swap_estimate_s": p.swap_estimate_s,
            "recompute_estimate_s": p.recompute_estimate_s,
        }
        for time, step, p in recorder.preemptions
    ]
    rows += [
        {
            "time_s": time,
            "step": step,
            "kind": "return",
            "victim": r.request_id,
            "by": "swap",
            "blocks_moved": r.blocks_moved,
            "blocks_attached": r.blocks_attached,
            "bytes_moved": r.bytes_moved,
            "seconds": ratio(recorder.steps[step].swap_in_s * r.blocks_moved, recorder.steps[step].swapped_in),
        }
        for time, step, r in recorder.returns
    ]
    schema = pa.schema(
        [
            ("replica", pa.int32()),
            ("time_s", pa.float64()),
            ("step", pa.int64()),
            ("kind", pa.string()),
            ("victim", pa.int64()),
            ("beneficiary", pa.int64()),
            ("reason", pa.string()),
            ("blocks_freed", pa.int64()),
            ("tokens_lost", pa.int64()),
            ("by", pa.string()),
            ("fallback", pa.bool_()),
            ("blocks_moved", pa.int64()),
            ("blocks_attached", pa.int64()),
            ("bytes_moved", pa.int64()),
            ("seconds", pa.float64()),
            ("swap_estimate_s", pa.float64()),
            ("recompute_estimate_s", pa.float64()),
        ]
    )
    rows = [{"replica": recorder.replica} | row for row in sorted(rows, key=lambda row: row["step"])]
    return pa.Table.from_pylist(rows, schema=schema)
