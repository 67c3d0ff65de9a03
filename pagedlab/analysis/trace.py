"""A run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: steps, copies, requests and their phases.

The format is Chrome's Trace Event JSON: `X` is a slice of ts and dur in microseconds, `i` an instant, `C` a counter.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagedlab.recorder.metrics import SPLIT
from pagedlab.recorder.reading import read_rows, read_table

Event = dict[str, Any]
_ENGINE, _REQUESTS = 1, 2
_STEPS, _COPIES, _PREEMPTIONS = 0, 1, 2
_OF_STEP = ("start_s", "end_s", "step", "batch", "tokens", "prefill_tokens", "running", "waiting")
_OF_REQUEST = (
    *("id", "source", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions"),
    *("arrival_s", "wait_s", "first_token_s", "finish_s"),
)
_OF_EVENT = (
    *("replica", "time_s", "step", "kind", "victim", "beneficiary", "reason", "blocks_freed", "tokens_lost", "by"),
    *("fallback", "blocks_moved", "blocks_attached", "bytes_moved", "seconds"),
    *("swap_estimate_s", "recompute_estimate_s"),
)
_MOVES = {"swap_out_s": "swap out", "swap_in_s": "swap in", "copy_s": "copy on write"}


def write_trace(folder: Path, path: Path) -> int:
    """Write the trace of the run in `folder`; returns how many events it has. An event a line: long runs are read and
    written piece by piece."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for count, event in enumerate(events(folder), 1):
            file.write(("\n" if count == 1 else ",\n") + json.dumps(event))
        file.write("\n]}\n")
    return count


def events(folder: Path) -> Iterator[Event]:
    yield _name("process_name", _ENGINE, 0, "engine")
    for thread, name in ((_STEPS, "steps"), (_COPIES, "copies"), (_PREEMPTIONS, "preemptions")):
        yield _name("thread_name", _ENGINE, thread, name)
    for row in read_rows(folder / "timeline.parquet", (*_OF_STEP, *_MOVES, *(f"kv_{kind}" for kind in SPLIT))):
        yield from _of_step(row)
    for row in read_table(folder / "events.parquet", _OF_EVENT).to_pylist():
        kind = row["kind"] if row["by"] is None else f"{row['kind']} ({row['by']})"
        told = {key: value for key, value in row.items() if value is not None and key not in ("time_s", "kind", "by")}
        yield _event("i", f"{kind} of {row['victim']}", _ENGINE, _PREEMPTIONS, row["time_s"], s="t", args=told)
    yield from _of_requests(folder / "requests.parquet")


def _of_step(row: dict[str, Any]) -> Iterator[Event]:
    start, batch = row["start_s"], row["batch"]
    name = "idle" if not batch else "prefill and decode" if row["prefill_tokens"] else "decode"
    args = {key: row[key] for key in ("step", "batch", "tokens", "prefill_tokens", "running", "waiting")}
    yield _slice(name, _ENGINE, _STEPS, start, row["end_s"] - start, args)
    at = start
    for column, what in _MOVES.items():
        if row[column] > 0:
            yield _slice(what, _ENGINE, _COPIES, at, row[column], {"step": row["step"]})
            at += row[column]
    yield _event("C", "sequences", _ENGINE, 0, start, args={key: row[key] for key in ("running", "waiting")})
    yield _event("C", "KV slots", _ENGINE, 0, start, args={kind: row[f"kv_{kind}"] for kind in SPLIT})


def _of_requests(path: Path) -> Iterator[Event]:
    """Each request is a slice in a lane that is free, and its phases are slices in it. Those still unfinished are left
    out: they have no end."""
    yield _name("process_name", _REQUESTS, 0, "requests")
    rows = [row for row in read_table(path, _OF_REQUEST).to_pylist() if row["finish_s"] is not None]
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    lanes = 0
    for row in sorted(rows, key=lambda row: (row["arrival_s"], row["id"])):
        while busy and busy[0][0] <= row["arrival_s"]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = lanes, lanes + 1
        heapq.heappush(busy, (row["finish_s"], lane))
        args = {key: row[key] for key in ("source", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions")}
        whole = row["finish_s"] - row["arrival_s"]
        yield _slice(f"request {row['id']}", _REQUESTS, lane, row["arrival_s"], whole, args)
        if row["wait_s"] is not None and row["first_token_s"] is not None:
            admitted = row["arrival_s"] + row["wait_s"]
            yield _slice("waiting", _REQUESTS, lane, row["arrival_s"], row["wait_s"])
            yield _slice("to the first token", _REQUESTS, lane, admitted, row["first_token_s"] - admitted)
            yield _slice("decode", _REQUESTS, lane, row["first_token_s"], row["finish_s"] - row["first_token_s"])


def _slice(name: str, process: int, thread: int, start_s: float, seconds: float, args: Event | None = None) -> Event:
    return _event("X", name, process, thread, start_s, dur=1e6 * seconds, args=args or {})


def _event(phase: str, name: str, process: int, thread: int, at_s: float, **more: Any) -> Event:
    return {"ph": phase, "name": name, "pid": process, "tid": thread, "ts": 1e6 * at_s, **more}


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}
