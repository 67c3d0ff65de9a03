"""The workspace: what its panels ask for exists, it is built without a network, and it arrives at a server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from pagedlab.config import load_settings
from pagedlab.tracker import rundata
from tests.analysis.served_run import serve_run

pytest.importorskip("wandb_workspaces", reason="needs the extra `dashboard`")
ROOT = Path(__file__).resolve().parents[2]


def panels(spec: dict[str, Any]) -> list[dict[str, Any]]:
    sections = spec["spec"]["section"]["panelBankConfig"]["sections"]
    return [panel for section in sections for panel in section["panels"]]


def test_every_panel_asks_for_what_runs_have(tmp_path: Path) -> None:
    from pagedlab.tracker.dashboard import spec, workspace

    folder = serve_run(tmp_path / "run")
    summary, point = rundata.summary(folder), rundata.timeline(folder, 2)[0]
    config = OmegaConf.load(folder / "config.yaml")
    found = panels(spec(workspace("lab", "me")))
    assert len(found) == 11
    text = json.dumps(found)
    asked = set(re.findall(r'"summary(?::|_metrics\.)([^"]+)"', text))
    assert {"kv_waste_fraction", "ttft_s/p99", "prefix_hit_rate"} <= asked <= set(summary)
    grouped = {panel["config"]["groupBy"].replace(".value", "") for panel in found if panel["config"].get("groupBy")}
    assert {"allocator.name", "block_size", "eviction.name"} <= grouped
    assert not [name for name in grouped if OmegaConf.select(config, name) is None]
    series = {name for panel in found for name in panel["config"].get("metrics", []) if "summary" not in name}
    assert {"kv/token_states", "kv/free", "batch/running"} <= series <= set(point)


def test_the_memory_split_is_a_stacked_area_over_the_runs_own_time() -> None:
    from pagedlab.tracker.dashboard import spec, workspace

    [area] = [p for p in panels(spec(workspace("lab", "me"))) if p["config"].get("plotType") == "stacked-area"]
    assert area["config"]["xAxis"] == "time_s"
    assert len(area["config"]["metrics"]) == 7


def call(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.dashboard", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_it_is_saved_to_the_project_named(serve: Callable[[str], Any]) -> None:
    server = serve("ok")
    done = call("--project", "lab", "--entity", "me")
    assert done.returncode == 0, done.stderr
    [view] = server.views
    assert (view["projectName"], view["entityName"], view["displayName"]) == ("lab", "me", "pagedlab")
    assert "stacked-area" in view["spec"]


def test_it_is_written_to_a_file_without_a_server_and_not_saved_without_an_owner(tmp_path: Path) -> None:
    done = call("--project", "lab", "--out", str(tmp_path / "w.json"))
    assert done.returncode == 0, done.stderr
    assert panels(json.loads((tmp_path / "w.json").read_text()))
    done = call()
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_the_sweep_file_drives_the_command_line_that_users_have() -> None:
    """As the agent fills it in: name=value for every parameter."""
    sweep = yaml.safe_load((ROOT / "conf" / "wandb_sweep.yaml").read_text())
    assert sweep["command"][3:5] == ["pagedlab.cli", "serve"]
    values = {name: given.get("values", [given.get("value")]) for name, given in sweep["parameters"].items()}
    words = [word for word in sweep["command"] if "=" in word]
    for place in range(3):
        chosen = [f"{name}={options[place % len(options)]}" for name, options in values.items()]
        with initialize_config_module("pagedlab.conf", version_base="1.3"):
            settings = load_settings(compose("config", [*words, *chosen]))
        assert (settings.tracker.mode, settings.executor.name) == ("online", "simulated")
