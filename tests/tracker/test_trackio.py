"""`tracker=trackio`: the run in a local database, read back by trackio's own tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from pagedlab.settings import TrackioSettings
from pagedlab.tracker.base import publish

# Not importorskip: trackio reads where its files go when it is imported.
pytestmark = pytest.mark.skipif(find_spec("trackio") is None, reason="needs the extra `trackio`")


def ask(home: Path, *words: str) -> object:
    command = [sys.executable, "-m", "trackio.cli", *words, "--json"]
    done = subprocess.run(
        command, env={**os.environ, "TRACKIO_DIR": str(home)}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_lies_in_the_local_database(
    make_run: Callable[..., Path],
    recorded: Callable[[Path], dict[str, str]],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/elses")
    run_dir, home = make_run(steps=40, requests=6), tmp_path / "home"
    before = recorded(run_dir)
    assert publish(TrackioSettings("trackio", "lab", str(home)), run_dir, "run planted-in-environment", "sweep") is None
    assert capfd.readouterr().out == ""
    import trackio

    assert trackio.context_vars.current_run.get() is None  # nothing is left to be said at exit
    assert recorded(run_dir) == before
    assert "run ***" in json.dumps(ask(home, "list", "runs", "--project", "lab"))
    asked = ("get", "metric", "--project", "lab", "--run", "run ***", "--metric")
    values = [point["value"] for point in ask(home, *asked, "batch/running")["values"]]
    assert values == [i + 1 for i in range(40)]
    [rate] = ask(home, *asked, "summary/output_tokens_per_s")["values"]
    assert rate["value"] == 125.5
    for file in home.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not [s for s in (b"hf_planted_in_config", b"planted-password") if s in content], file
