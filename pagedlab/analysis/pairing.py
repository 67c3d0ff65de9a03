"""Which run is compared with which: the same seed, the same other settings, and the very same requests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pagedlab.analysis.runs import Run, as_text, axes_of, setting
from pagedlab.core.errors import ConfigError
from pagedlab.recorder.reading import read_table

_ASKED = ("id", "arrival_s", "prompt_tokens", "max_tokens", "prompt_token_ids")


@dataclass(frozen=True, slots=True)
class Pairs:
    """between: the settings in which the two sides differ, and their values. within: those that vary inside a side, by
    which its runs are told apart (the seed is always one of them)."""

    pairs: list[tuple[Run, Run]]
    between: dict[str, tuple[Any, Any]]
    within: list[str]


def pair(a: Seq[Run], b: Seq[Run]) -> Pairs:
    """Each run of `a` with the one of `b` that was given the same requests. ConfigError says why they cannot be paired:
    a run without a partner, two that could be one, another clock, other requests."""
    within = list(dict.fromkeys(["seed", *axes_of(a), *axes_of(b)]))
    sides = {"A": _by_key(a, within, "A"), "B": _by_key(b, within, "B")}
    for one, other in (("A", "B"), ("B", "A")):
        alone = [key for key in sides[one] if key not in sides[other]]
        if alone:
            named = ", ".join(f"{axis}={value}" for axis, value in zip(within, alone[0], strict=True))
            raise ConfigError(
                f"not paired: {len(alone)} of the {len(sides[one])} runs of {one} have no partner in {other} "
                f"({named}); expected the same seeds and settings on both sides but for what is compared"
            )
    pairs = [(run, sides["B"][key]) for key, run in sides["A"].items()]
    for first, second in pairs:
        check_same_requests(first, second)
    between = {
        axis: (setting(pairs[0][0], axis), setting(pairs[0][1], axis))
        for axis in axes_of([*a, *b])
        if axis not in within
    }
    return Pairs(pairs, between, within)


def check_same_requests(a: Run, b: Run) -> None:
    """ConfigError where the two were not asked for the same, or tell the time by different clocks."""
    for what in ("clock", "num_requests"):
        if a.summary.get(what) != b.summary.get(what):
            raise ConfigError(
                f"not comparable: {what} is {a.summary.get(what)} in {a.folder} and {b.summary.get(what)} in {b.folder}"
            )
    if digest(a.folder) != digest(b.folder):
        raise ConfigError(f"different workloads: {_first_difference(a, b)} ({a.folder} and {b.folder})")


def digest(folder: Path) -> str:
    """SHA-256 of what a run was asked for: arrivals, prompts token by token, and how much may be generated."""
    table = read_table(folder / "requests.parquet", _ASKED).combine_chunks()
    seen = hashlib.sha256()
    for name in _ASKED:
        values = table[name].combine_chunks()
        if pa.types.is_list(values.type):
            seen.update(np.asarray(values.value_lengths().fill_null(-1)).tobytes())
            values = values.flatten()
        seen.update(np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).tobytes())
    return seen.hexdigest()


def _by_key(runs: Seq[Run], within: Seq[str], side: str) -> dict[tuple[str, ...], Run]:
    found: dict[tuple[str, ...], Run] = {}
    for run in runs:
        key = tuple(as_text(setting(run, axis)) for axis in within)
        if key in found:
            named = ", ".join(f"{axis}={value}" for axis, value in zip(within, key, strict=True))
            raise ConfigError(
                f"not paired: two runs of {side} have {named}: {found[key].folder} and {run.folder}; "
                "expected one of each"
            )
        found[key] = run
    return found


def _first_difference(a: Run, b: Run) -> str:
    tables = [read_table(run.folder / "requests.parquet", _ASKED).to_pylist() for run in (a, b)]
    for one, other in zip(*tables, strict=True):
        for name in _ASKED:
            if one[name] != other[name]:
                values = "" if name == "prompt_token_ids" else f" {one[name]} and {other[name]}"
                return f"request {one['id']} has another {name}{values}"
    return "their columns have other types"
