"""Curated results as an artifact: which files it has, that they arrive, and what is said where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedlab.core.errors import ConfigError
from pagedlab.tracker.artifacts import curated_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def curated(tmp_path: Path) -> Path:
    """A folder as results/NAME: files to read, and beside them what is not for publishing."""
    folder = tmp_path / "block_size"
    for name in ("README.md", "summary.csv", "ablation/effects.svg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")
    for name in (".lock.json", "notes.txt", "wandb/old.json", "1234/summary.json", "1234/requests.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("no")
    return folder


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.publish", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_files_that_people_read_and_no_runs(curated: Path) -> None:
    names = [path.relative_to(curated).as_posix() for path in curated_files(curated)]
    assert names == ["README.md", "ablation/effects.svg", "summary.csv"]


def test_they_arrive_under_the_name_of_the_folder(curated: Path, serve: Callable[[str], Any]) -> None:
    server = serve("ok")
    done = call(str(curated), "--project", "lab", "--online")
    assert (done.returncode, done.stderr) == (0, "")
    [artifact] = server.artifacts
    assert (artifact["projectName"], artifact["artifactTypeName"]) == ("lab", "results")
    assert artifact["artifactCollectionName"] == "block_size"
    sent = {name: body for name, body in server.files.items() if name.startswith("artifact/")}
    assert sent["artifact/summary.csv"] == b"summary.csv\n"
    assert set(sent) == {"artifact/README.md", "artifact/summary.csv", "artifact/ablation/effects.svg"}


def test_offline_nothing_is_sent_and_the_same_files_have_the_same_digest(
    curated: Path, serve: Callable[[str], Any]
) -> None:
    server = serve("ok")
    done = call(str(curated))
    assert done.returncode == 0, done.stderr
    assert "send it with: wandb sync " in done.stdout
    assert server.requests == []
    digests = []
    for _ in range(2):
        assert call(str(curated), "--online").returncode == 0
        digests.append(server.artifacts[-1]["digest"])
    (curated / "summary.csv").write_text("other\n")
    assert call(str(curated), "--online").returncode == 0
    assert digests[0] == digests[1] != server.artifacts[-1]["digest"]


def test_what_cannot_be_published_is_one_line(curated: Path, tmp_path: Path, serve: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        curated_files(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    done = call(str(tmp_path / "empty"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "nothing to publish" in done.stderr
    done = call(str(curated), "--name", "a b")
    assert done.returncode == 2
    serve("error")
    done = call(str(curated), "--online")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "wandb sync" in done.stderr
