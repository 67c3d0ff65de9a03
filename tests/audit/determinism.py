"""The same run under another seed of Python's hash, locale, time zone, folder and number of threads: the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.audit.harness import ROOT, Check, Found

SMALL = ["workload=synthetic", "workload.num_requests=40", "workload.prompt.high=60", "workload.output.high=40"]
SMALL += ["kv_num_blocks=32", "workload.arrival.process=poisson", "workload.arrival.rate=20", "progress=false"]
RANDOM = ["scheduler.order=random", "prefix_cache=radix", "eviction=random", "preemption=swap"]
RUNS: dict[str, list[str]] = {
    "fingerprint": [*SMALL, "executor=fingerprint", "model=tiny_llama"],
    "simulated": [*SMALL, "executor=simulated", "hardware=a100_40gb", "model=opt_13b"],
    "radix, swap, random": [*SMALL, "executor=fingerprint", "model=tiny_llama", *RANDOM],
}
WORLDS: dict[str, dict[str, str]] = {
    "hash seed 0": {"PYTHONHASHSEED": "0"},
    "the same once more": {"PYTHONHASHSEED": "0"},
    "hash seed 1": {"PYTHONHASHSEED": "1"},
    "hash seed random": {"PYTHONHASHSEED": "random"},
    "locale C": {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"},
    "locale of Turkey": {"LC_ALL": "tr_TR.UTF-8"},
    "time zone Kiritimati": {"TZ": "Pacific/Kiritimati"},
    "four threads": {"OMP_NUM_THREADS": "4"},
    "another folder": {},
    "optimized": {"PYTHONOPTIMIZE": "1"},
}


def files_of(words: list[str], environment: dict[str, str], cwd: Path, folder: Path) -> dict[str, bytes]:
    command = [sys.executable, "-m", "pagedlab.cli", "serve", *words, f"hydra.run.dir={folder}"]
    made = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=cwd, env=made, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}: {done.stderr[-300:]}")
    # env.json says where and when.
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != "env.json"}


def pieces(short: bool) -> list[tuple[str, list[str]]]:
    if short:
        return [("fingerprint", ["hash seed 0", "locale C"])]
    return [(run, list(WORLDS)) for run in RUNS]


def attempt(piece: tuple[str, list[str]]) -> Found:
    run, worlds = piece
    found = Found()
    first: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as made:
        for world in worlds:
            folder = Path(made) / world.replace(" ", "_")
            cwd = Path(made) if world == "another folder" else ROOT
            files = files_of(RUNS[run], WORLDS[world], cwd, folder)
            first = first or files
            others = [name for name in first.keys() | files.keys() if first.get(name) != files.get(name)]
            found.attempt(f"{run}, {world}", not others, f"{sorted(others)} differ")
    return found


CHECK = Check("the same bytes whatever hash seed, locale, zone, folder, threads", pieces, attempt, 30)
