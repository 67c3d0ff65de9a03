"""A W&B server that refuses, hangs, or answers 500: the run ends with exit code 0, the same results and one warning."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.audit.determinism import SMALL
from tests.audit.harness import ROOT, Check, Found
from tests.audit.tested import tested

BEHAVIOURS = ("refuse", "error", "silent", "no key", "no room")
TIMEOUT_S = 5
MOST_S = 90  # of a run, on a busy machine: it would hang for as long as the server does


def served(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    small = [*SMALL, "executor=fingerprint", "model=tiny_llama", *words, f"hydra.run.dir={folder}"]
    command = [sys.executable, "-m", "pagedlab.cli", "serve", *small]
    made = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB__GRAPHQL_RETRY_MAX": "1", **environment}
    return subprocess.run(command, cwd=ROOT, env=made, capture_output=True, text=True, timeout=MOST_S)


def results_of(folder: Path) -> dict[str, bytes]:
    aside = ("env.json", "config.yaml", "wandb")  # when, and which tracker
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name not in aside}


def behaving(found: Found, behaviour: str) -> None:
    from tests.tracker.conftest import Server

    with socket.create_server(("127.0.0.1", 0)) as probe:
        closed = f"http://127.0.0.1:{probe.getsockname()[1]}"
    url = Server(behaviour).url if behaviour in ("error", "silent") else closed
    environment = {"WANDB_BASE_URL": url, "WANDB_API_KEY": "k" * 40, "NO_PROXY": "127.0.0.1", "HTTPS_PROXY": closed}
    if behaviour == "no key":
        environment |= {"WANDB_API_KEY": "", "HOME": "/nonexistent"}
    with tempfile.TemporaryDirectory() as made:
        alone, folder = Path(made) / "alone", Path(made) / "run"
        served(alone, {})
        if behaviour == "no room":  # where W&B keeps its own files
            folder.mkdir()
            (folder / "wandb").write_text("")
        words = ("tracker=wandb", "tracker.mode=online", f"tracker.timeout_s={TIMEOUT_S}")
        began = time.monotonic()
        try:
            done = served(folder, environment, *words)
        except subprocess.TimeoutExpired:
            found.attempt(f"{behaviour}: ends", False, f"still there after {MOST_S} s")
            return
        took = time.monotonic() - began
        found.attempt(f"{behaviour}: exit code", done.returncode == 0, f"{done.returncode}: {done.stderr[-300:]}")
        found.attempt(f"{behaviour}: the results", results_of(folder) == results_of(alone), "are others")
        warned = [line for line in done.stderr.splitlines() if "tracker=wandb" in line]
        found.attempt(f"{behaviour}: one warning", len(warned) == 1, done.stderr[-500:])
        found.attempt(f"{behaviour}: no traceback", "Traceback" not in done.stderr, done.stderr[-300:])
        found.figures["longest run, s"] = round(took, 1)


def pieces(short: bool) -> list[str]:
    return [] if short else [*BEHAVIOURS, "tests"]


def attempt(piece: str) -> Found:
    found = Found()
    if piece != "tests":
        behaving(found, piece)
        return found
    for test in tested("tests/tracker/test_wandb_failures.py"):
        found.attempt(test.name, test.outcome == "passed", test.said)
    return found


CHECK = Check("W&B refuses, hangs, answers 500: results the same, exit code 0, one warning", pieces, attempt, 30)
