"""Requests from a recorded trace of token counts: its window, its rate, its repetitions, and its bad rows.

Prompts are made up: a trace of counts holds no text.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pagedlab.core.errors import WorkloadError
from pagedlab.core.request import Request
from pagedlab.settings import SamplingSettings, TraceSettings
from pagedlab.workload.arrival import arrival_times, check_arrival
from pagedlab.workload.assemble import Draft, bound_prompts, requests_at
from pagedlab.workload.base import PromptTokenizer
from pagedlab.workload.checks import LARGEST, choice, number, one_line, refused, whole
from pagedlab.workload.streams import Stream, generator
from pagedlab.workload.trace_file import BadRow, Row

_log = logging.getLogger(__name__)

RECORDED = "recorded"


class Trace:
    """The good rows of a window, ascending in time where they have one: a few bytes each."""

    def __init__(self) -> None:
        self.prompts, self.outputs, self.times = array("q"), array("q"), array("d")
        self.texts: dict[int, np.ndarray] = {}  # row -> its very tokens, where the trace has them

    def __len__(self) -> int:
        return len(self.prompts)


def build_trace(
    settings: TraceSettings,
    sampling: SamplingSettings,
    tokenizer: PromptTokenizer,
    seed: int,
    rows: Iterator[tuple[int, Row | BadRow]],
) -> list[Request]:
    """The requests of the rows of `settings.path`, in order of arrival; row i of the trace has the source "i".

    Times count from the start of the window. In repetition r > 0 the same arrivals come again after the window's
    length, and the rows in an order that the seed draws for r; every request has a prompt of its own. Raises
    ConfigError for settings, WorkloadError for the file.
    """
    check_trace(settings)
    file = one_line(settings.path)
    trace = _read(settings, rows, file)
    order = _orders(len(trace), settings.repeats, seed)[: settings.num_requests]
    wanted = settings.num_requests if settings.num_requests is not None else len(order)
    if wanted > len(order):
        raise WorkloadError(f"{file}: workload.num_requests={wanted}: expected at most {len(order)}")
    times = _times(settings, trace, wanted, seed)
    bound_prompts(sum(len(ids) for ids in trace.texts.values()))
    pool = _made_up(trace, wanted, tokenizer.vocab_size, seed)
    drafts = []
    for i, row in enumerate(order.tolist()):
        output = trace.outputs[row]
        most = output if settings.max_tokens is None else settings.max_tokens
        # Each begins at a place of its own in the pool, so that no two begin alike.
        prompt = trace.texts[row] if row in trace.texts else pool[i : i + trace.prompts[row]]
        drafts.append(Draft(prompt, most, min(output, most), str(row)))
    return requests_at(drafts, times, sampling, seed)


def trace_path(settings: TraceSettings) -> Path:
    if settings.path is None:
        raise refused("workload.path", None, f"the file of the trace, which workload={settings.name} needs")
    return Path(os.path.expanduser(settings.path))


def check_trace(settings: TraceSettings) -> None:
    """Raise ConfigError for a value out of range, or one that would do nothing."""
    choice("workload.bad_rows", settings.bad_rows, ("refuse", "skip"))
    whole("workload.repeats", settings.repeats)
    number("workload.start_s", settings.start_s, 0, 1e12)
    number("workload.rate_scale", settings.rate_scale, 1e-6, 1e6)
    if settings.duration_s is not None:
        number("workload.duration_s", settings.duration_s, 1e-6, 1e12)
    for name in ("num_requests", "max_tokens", "max_prompt_tokens", "max_total_tokens"):
        if (value := getattr(settings, name)) is not None:
            whole(f"workload.{name}", value)
    if settings.arrival.process != RECORDED:
        if settings.rate_scale != 1:
            raise refused("workload.rate_scale", settings.rate_scale, f"1, as arrivals are not {RECORDED}")
        check_arrival(settings.arrival)
    elif settings.arrival.rate is not None or settings.arrival.burstiness != 1:
        raise refused("workload.arrival.rate", settings.arrival.rate, f"null, as {RECORDED} arrivals have their own")


def _read(settings: TraceSettings, rows: Iterator[tuple[int, Row | BadRow]], file: str) -> Trace:
    trace, bad, first_bad, long = Trace(), 0, "", 0
    times: list[float | None] = []
    for line, row in rows:
        if isinstance(row, BadRow):
            if settings.bad_rows == "refuse":
                raise WorkloadError(f"{file}:{line}:{row}")
            first_bad, bad = first_bad or f"{file}:{line}:{row}", bad + 1
            continue
        prompt = row.prompt if isinstance(row.prompt, int) else len(row.prompt)
        if not _within(settings, prompt, row.output_tokens):
            long += 1
            continue
        if len(trace) == LARGEST:
            raise WorkloadError(f"{file}:{line}: more than {LARGEST} requests")
        if isinstance(row.prompt, np.ndarray):
            trace.texts[len(trace)] = row.prompt
        trace.prompts.append(prompt)
        trace.outputs.append(row.output_tokens)
        times.append(row.time_s)
    if bad:
        _log.warning("%d rows skipped, first %s", bad, first_bad)
    if long:
        _log.warning("%s: %d rows left out by workload.max_prompt_tokens or max_total_tokens", file, long)
    if not len(trace):
        raise WorkloadError(f"{file}: no row is left, expected at least one")
    return _windowed(settings, trace, times, file)


def _within(settings: TraceSettings, prompt: int, output: int) -> bool:
    most_prompt, most = settings.max_prompt_tokens, settings.max_total_tokens
    return (most_prompt is None or prompt <= most_prompt) and (most is None or prompt + output <= most)


def _windowed(settings: TraceSettings, trace: Trace, times: list[float | None], file: str) -> Trace:
    """The rows within the window, in order of time. Traces of clusters are not always sorted."""
    if any(time is None for time in times):
        needs = "workload.arrival.process=recorded" if settings.arrival.process == RECORDED else None
        needs = needs or ("workload.start_s" if settings.start_s else None)
        needs = needs or ("workload.duration_s" if settings.duration_s is not None else None)
        if needs:
            raise WorkloadError(f"{file}: {needs} needs the time of every row, and the trace has not got it")
        return trace
    known = np.array(times, dtype=np.float64)
    start = known.min() + settings.start_s
    end = np.inf if settings.duration_s is None else start + settings.duration_s
    order = np.argsort(known, kind="stable")
    kept = [int(i) for i in order if start <= known[i] < end]
    if not kept:
        raise WorkloadError(
            f"{file}: no row is within the window, which begins {settings.start_s} s after the first row"
        )
    window = Trace()
    for new, old in enumerate(kept):
        window.prompts.append(trace.prompts[old])
        window.outputs.append(trace.outputs[old])
        window.times.append(float(known[old] - start))
        if old in trace.texts:
            window.texts[new] = trace.texts[old]
    return window


def _orders(rows: int, repeats: int, seed: int) -> np.ndarray:
    if rows * repeats > LARGEST:
        raise refused("workload.repeats", repeats, f"at most {LARGEST // rows}, with {rows} rows")
    anew = [generator(seed, Stream.PICK, r).permutation(rows) for r in range(1, repeats)]
    return np.concatenate([np.arange(rows), *anew])


def _times(settings: TraceSettings, trace: Trace, wanted: int, seed: int) -> np.ndarray:
    if settings.arrival.process != RECORDED:
        return arrival_times(settings.arrival, wanted, seed)
    times = np.array(trace.times)
    # Without an end the window lasts as long as its rows, and one mean gap more.
    length = settings.duration_s or times[-1] * len(times) / max(len(times) - 1, 1)
    repeated = np.concatenate([times + r * length for r in range(settings.repeats)])
    return np.asarray(repeated[:wanted] / settings.rate_scale)


def _made_up(trace: Trace, wanted: int, vocabulary: int, seed: int) -> np.ndarray:
    """Tokens for prompts to be cut from: int32, as many as the longest prompt and one more for each request."""
    size = max(trace.prompts) + wanted
    pool = generator(seed, Stream.PROMPT).integers(vocabulary, size=size, dtype=np.int32)
    pool.flags.writeable = False
    return pool
