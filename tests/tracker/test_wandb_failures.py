"""Whatever goes wrong while publishing costs a bounded time, one warning, and nothing of the run."""

from __future__ import annotations

import logging
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedlab.settings import WandbSettings
from pagedlab.tracker import rundata
from pagedlab.tracker.base import publish

# Beyond timeout_s: writing the offline run (the first in a process starts wandb's service) on a loaded machine.
SLACK_S = 8

PUBLISH = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from pagedlab.settings import WandbSettings
from pagedlab.tracker.base import publish
publish({settings!r}, Path({run_dir!r}), "name", None)
print("published", flush=True)
"""


def process(settings: WandbSettings, run_dir: Path) -> list[str]:
    return [sys.executable, "-c", PUBLISH.format(settings=settings, run_dir=str(run_dir))]


@pytest.mark.parametrize(
    ("behaviour", "timeout_s", "reason"),
    [
        ("refuse", 30, "connection refused"),
        ("error", 30, "HTTP 500"),
        ("silent", 3, "not uploaded within 3 s"),
        ("no key", 30, "No API key configured"),
    ],
)
def test_upload_that_fails(
    behaviour: str,
    timeout_s: float,
    reason: str,
    make_run: Callable[..., Path],
    settings: Callable[..., WandbSettings],
    recorded: Callable[[Path], dict[str, str]],
    serve: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # One retry instead of two, to have the reason in 3 s instead of 8 s.
    monkeypatch.setenv("WANDB__GRAPHQL_RETRY_MAX", "1")
    if behaviour == "no key":
        monkeypatch.setenv("WANDB_API_KEY", "")
    elif behaviour != "refuse":
        serve(behaviour)
    run_dir = make_run()
    before = recorded(run_dir)
    start = time.monotonic()
    warning = publish(settings("online", timeout_s=timeout_s), run_dir, "name", None)
    assert time.monotonic() - start < min(timeout_s, 10) + SLACK_S
    assert warning is not None
    assert reason in warning
    assert "wandb sync" in warning
    assert "\n" not in warning
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [warning]
    assert recorded(run_dir) == before
    # What could not be sent is kept.
    assert list((run_dir / "wandb").glob("offline-run-*/run-*.wandb"))


def test_run_that_did_not_arrive_can_be_sent_later(
    make_run: Callable[..., Path], settings: Callable[..., WandbSettings], serve: Callable[[str], Any]
) -> None:
    server = serve("silent")
    run_dir = make_run()
    assert publish(settings("online", timeout_s=2), run_dir, "late", None) is not None
    server.behaviour = "ok"
    (log_dir,) = (run_dir / "wandb").glob("offline-run-*")
    subprocess.run([sys.executable, "-m", "wandb", "sync", str(log_dir)], check=True, capture_output=True)
    assert server.runs[0]["displayName"] == "late"
    assert len([point for point in server.history if "time_s" in point]) == 40


@pytest.mark.parametrize("failure", ["no wandb", "folder is a file", "no summary", "no run folder", "fault in wandb"])
def test_local_failure(
    failure: str,
    make_run: Callable[..., Path],
    settings: Callable[..., WandbSettings],
    recorded: Callable[[Path], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run_dir = make_run()
    if failure == "no wandb":
        monkeypatch.setitem(sys.modules, "wandb", None)
    elif failure == "folder is a file":
        (run_dir / "wandb").write_text("")
    elif failure == "no summary":
        (run_dir / "summary.json").unlink()
    elif failure == "fault in wandb":

        def fail(run_dir: Path, limit: int) -> None:
            raise RuntimeError("first line with planted-in-environment\nsecond line")

        monkeypatch.setattr(rundata, "requests", fail)
    before = recorded(run_dir)
    target = run_dir / "missing" if failure == "no run folder" else run_dir
    warning = publish(settings(), target, "name", None)
    assert warning is not None
    assert "\n" not in warning
    assert "planted-in-environment" not in warning
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [warning]
    assert recorded(run_dir) == before
    assert "Traceback" not in capfd.readouterr().err

    # A failure does not spoil the next run of the sweep.
    if failure == "fault in wandb":
        monkeypatch.undo()
        assert publish(settings(), run_dir, "next", None) is None


def test_full_disk(make_run: Callable[..., Path], settings: Callable[..., WandbSettings]) -> None:
    """A limit on the size of every file stands in for a disk that is full."""
    run_dir = make_run(steps=400)
    command = process(settings(), run_dir)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, {resource.RLIM_INFINITY}))\n"
    done = subprocess.run([*command[:2], limited + command[2]], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "published\n"
    assert "File too large" in done.stderr.splitlines()[-1]


def test_process_exits_at_once_after_a_dead_server(
    make_run: Callable[..., Path], settings: Callable[..., WandbSettings], serve: Callable[[str], Any]
) -> None:
    serve("silent")
    command = process(settings("online", timeout_s=2), make_run())
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "published\n"
        start = time.monotonic()
        assert child.wait(timeout=30) == 0
        assert time.monotonic() - start < 3
        assert len(child.stderr.read().splitlines()) == 1


def test_interrupt_while_uploading_ends_the_process(
    make_run: Callable[..., Path], settings: Callable[..., WandbSettings], serve: Callable[[str], Any]
) -> None:
    server = serve("silent")
    command = process(settings("online", timeout_s=60), make_run())
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 30
        while not server.requests and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
        assert child.returncode == -signal.SIGINT
