"""Runs that arrive: read back from the offline log by wandb's own tool, and from a local server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedlab.settings import WandbSettings
from pagedlab.tracker.base import publish
from tests.analysis.served_run import serve_run
from tests.tracker.conftest import SHARES

SECRETS = ("hf_planted_in_config", "planted-password", "planted-in-environment")
SUMMARY = {"status": "completed", "output_tokens_per_s": 125.5, "preemptions": 3, "ttft_s/p50": 0.2, "ttft_s/p99": 0.5}
CONFIG = {
    "seed": 7,
    "max_model_len": 2048,
    "hf_token": "***",
    "model": {"name": "tiny", "path": "https://user:***@host/model", "revision": "main"},
    "scheduler": {"max_num_batched_tokens": 512},
    "tracker": {"name": "wandb", "note": "${oc.env:PLANTED_TOKEN}"},
}


def log_dirs(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "wandb").glob("offline-run-*"))


def read_back(log_dir: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of an offline run by kind."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log_dir)]
    records: dict[str, list[dict[str, Any]]] = {}
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        record = json.loads(line)
        records.setdefault(record["type"], []).append(record.get(record["type"], {}))
    return records


def tables(folder: Path) -> dict[str, dict[str, Any]]:
    return {file.name.split("_2")[0].split("_4")[0]: json.loads(file.read_text()) for file in folder.glob("*.json")}


def test_offline_run_holds_all_of_the_run_and_no_secret(
    make_run: Callable[..., Path],
    settings: Callable[..., WandbSettings],
    recorded: Callable[[Path], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = make_run(steps=40, requests=6)
    before = recorded(run_dir)
    monkeypatch.setattr(sys, "argv", ["serve", "+x.api_key=planted-in-argv"])
    # A mode in the environment must not win over the configured one.
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert publish(settings(), run_dir, "run planted-in-environment", "sweep") is None
    assert recorded(run_dir) == before

    (log_dir,) = log_dirs(run_dir)
    records = read_back(log_dir)
    (run,) = records["run"]
    assert (run["project"], run["run_group"], run["job_type"], run["tags"]) == ("lab", "sweep", "serve", ["a", "b"])
    assert run["display_name"] == "run ***"
    assert {key: value for key, value in run["config"]["update"].items() if key != "_wandb"} == CONFIG

    axes = {metric.get("glob_name") or metric["name"]: metric.get("step_metric") for metric in records["metric"]}
    assert axes == {"time_s": None, "kv/*": "time_s", "batch/*": "time_s"}
    points = [record["item"] for record in records["history"] if "time_s" in record["item"]]
    assert [point["time_s"] for point in points] == [i / 4 for i in range(40)]
    assert [point["kv/token_states"] for point in points] == [(i + 1) / 64 for i in range(40)]
    assert [point["batch/running"] for point in points] == [i + 1 for i in range(40)]

    summary: dict[str, Any] = {}
    for record in records["summary"]:
        summary |= record["update"]
    assert summary.items() >= SUMMARY.items()
    assert not {"broken", "kv_waste_fraction_when_full", "kv/free", "time_s"} & set(summary)
    assert [record["exit_code"] for record in records["exit"]] == [0]

    found = tables(log_dir / "files" / "media" / "table")
    assert found["requests"]["columns"] == ["id", "ttft_s", "tpot_s", "finish_reason"]
    assert found["requests"]["data"][1] == [1, 0.5, 0.01, "length"]
    (picture,) = (log_dir / "files" / "media" / "html").glob("memory_split_*.html")
    *held, drawn_last = re.findall("<title>(.*?)</title>", picture.read_text())[::-1]
    assert ({*held, drawn_last}, drawn_last) == (set(SHARES), "free")

    written = [file for file in (run_dir / "wandb").rglob("*") if file.is_file()]
    assert len(written) > 5
    for file in written:
        text = file.read_bytes()
        assert not [secret for secret in (*SECRETS, "planted-in-argv", "k" * 40) if secret.encode() in text], file


def test_runs_of_a_sweep_share_a_process_and_a_configured_group_wins(
    make_run: Callable[..., Path], settings: Callable[..., WandbSettings]
) -> None:
    run_dir = make_run(steps=3)
    assert publish(settings(group="mine"), run_dir, "first", "sweep") is None
    assert publish(settings(group="mine"), run_dir, "second", None) is None
    runs = [read_back(log_dir)["run"][0] for log_dir in log_dirs(run_dir)]
    assert {(run["display_name"], run["run_group"]) for run in runs} == {("first", "mine"), ("second", "mine")}


def test_run_without_steps_and_requests_is_published(
    make_run: Callable[..., Path], settings: Callable[..., WandbSettings]
) -> None:
    run_dir = make_run(steps=0, requests=1)
    assert publish(settings(), run_dir, "empty", None) is None


def test_online_run_arrives_whole(
    make_run: Callable[..., Path],
    settings: Callable[..., WandbSettings],
    recorded: Callable[[Path], dict[str, str]],
    serve: Callable[[str], Any],
) -> None:
    server = serve("ok")
    run_dir = make_run(steps=40, requests=6)
    before = recorded(run_dir)
    assert publish(settings("online"), run_dir, "online run", "sweep") is None
    assert recorded(run_dir) == before

    run = server.runs[0]
    assert (run["project"], run["groupName"], run["jobType"], run["tags"]) == ("lab", "sweep", "serve", ["a", "b"])
    assert run["displayName"] == "online run"
    assert {key: item["value"] for key, item in json.loads(run["config"]).items() if key != "_wandb"} == CONFIG
    points = [point for point in server.history if "time_s" in point]
    assert [point["time_s"] for point in points] == [i / 4 for i in range(40)]
    assert [point["kv/free"] for point in points] == [(63 - i) / 64 for i in range(40)]
    assert (
        json.loads(server.files["wandb-summary.json"]).items()
        >= {key: value for key, value in SUMMARY.items() if "/" not in key}.items()
    )
    table = json.loads(server.files["artifact/requests.table.json"])
    assert table["columns"] == ["id", "ttft_s", "tpot_s", "finish_reason"]
    assert [row[0] for row in table["data"]] == list(range(6))
    assert any(name.startswith("media/html/memory_split") for name in server.files)
    assert not [secret for secret in SECRETS if secret.encode() in b"".join(server.files.values())]


def test_the_report_page_arrives_as_an_artifact(
    settings: Callable[..., WandbSettings], serve: Callable[[str], Any], tmp_path: Path
) -> None:
    server = serve("ok")
    run_dir = serve_run(tmp_path / "run")
    asked = settings("online", timeout_s=60)
    asked.report = True
    assert publish(asked, run_dir, "with a page", None) is None
    assert server.files["artifact/report.html"].startswith(b"<!DOCTYPE html>")


def test_offline_process_speaks_to_no_server(
    make_run: Callable[..., Path], serve: Callable[[str], Any], settings: Callable[..., WandbSettings]
) -> None:
    """wandb itself reports to its maker when an offline process exits; pagedlab switches that off."""
    server = serve("ok")
    run_dir = make_run(steps=3)
    code = f"""
from pathlib import Path
from pagedlab.settings import WandbSettings
from pagedlab.tracker.base import publish
raise SystemExit(publish({settings()!r}, Path({str(run_dir)!r}), "offline", None))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert server.requests == []


def test_without_a_tracker_wandb_is_never_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from pagedlab.settings import NoTrackerSettings
from pagedlab.tracker.base import publish
warning = publish(NoTrackerSettings("none"), Path({str(tmp_path)!r}), "name", None)
raise SystemExit(warning or bool({{"wandb", "pyarrow"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert not list(tmp_path.iterdir())
