"""`pagedlab replay` as a user meets it: the run folder, plugins, one line per error, and its documentation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pagedlab.core.errors import PagedlabError
from pagedlab.eviction.base import EVICTIONS
from pagedlab.launch import one_line
from pagedlab.replay.config import choices, load_replay_settings
from pagedlab.replay.trace import load_trace
from pagedlab.settings import ReplaySettings

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "eviction.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
TRACE = ["workload=ids", "leaf_first=false", "capacity_blocks=[2,3]"]


def call(*words, command="replay", path=ROOT):
    """path: a folder with more packages."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path}"}
    return subprocess.run(
        [sys.executable, "-m", f"experiments.{command}", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("1\n2\n1\n3\n1\n2\n")
    return f"workload.path={path}"


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "early_blocks.py"
    path.write_text(example())
    return str(path)


def example():
    (code,) = re.findall(r"```python\n(.*?)```", DOC, flags=re.DOTALL)
    return code


def test_a_replay_writes_a_row_for_each_policy_and_capacity(tmp_path, ids):
    """1 2 1 3 1 2 with room for two: LRU hits 1 twice, FIFO once, as 1 leaves for 3; nobody can do better than two."""
    folder = tmp_path / "run"
    done = call(*TRACE, ids, "policies=[lru,fifo,belady]", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal
    assert done.stdout.splitlines()[-1] == f"run folder: {folder}"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["references"], summary["blocks"]) == ("completed", 6, 3)
    rows = {(row["policy"], row["capacity_blocks"]): row for row in summary["rows"]}
    assert len(rows) == 6
    assert {key: row["block_hits"] for key, row in rows.items()} == {
        ("lru", 2): 2,
        ("fifo", 2): 1,
        ("belady", 2): 2,
        ("lru", 3): 3,
        ("fifo", 3): 3,
        ("belady", 3): 3,
    }
    fifo = rows["fifo", 2]
    assert (fifo["hit_ratio"], fifo["opt_gap"], fifo["infinite_hit_ratio"]) == (1 / 6, 2 / 6 - 1 / 6, 0.5)
    assert fifo["references_per_s"] > 0
    assert pq.read_table(folder / "replay.parquet").to_pylist() == summary["rows"]
    for plot in ("miss_ratio.svg", "miss_ratio.png", "hit_ratio.svg", "hit_ratio.png"):
        assert (folder / plot).stat().st_size > 1000
    assert yaml.safe_load((folder / "config.yaml").read_text())["policies"] == ["lru", "fifo", "belady"]


def test_conversations_are_replayed_as_prefixes_by_default(tmp_path):
    done = call("capacity_blocks=[150]", "policies=[lru,{name:s3fifo,warmup:paper}]", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "prefix cache, leaf-first" in done.stdout
    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["lru", "s3fifo warmup=paper"]
    for row in rows:
        assert 0 < row["hit_ratio"] <= row["opt_hit_ratio"] <= row["infinite_hit_ratio"]


def test_the_same_replay_gives_the_same_bytes_but_for_its_speed(tmp_path):
    seen = []
    for name in ("a", "b"):
        words = ["policies=[random,arc]", "capacity_blocks=[100]", "seed=3"]
        assert call(*words, f"hydra.run.dir={tmp_path / name}").returncode == 0
        rows = json.loads((tmp_path / name / "summary.json").read_text())["rows"]
        for row in rows:
            del row["cpu_s"], row["references_per_s"]
        seen.append((rows, (tmp_path / name / "miss_ratio.svg").read_bytes()))
    assert seen[0] == seen[1]


def test_the_policy_of_the_documentation_runs_as_a_plugin(tmp_path, plugin):
    assert len(example().strip().splitlines()) <= 30
    chosen = ["policies=[lru,early_blocks,{name:early_blocks,keep:1}]", "capacity_blocks=[200]"]
    done = call("--plugin", plugin, *chosen, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["rows"]
    assert [row["policy"] for row in rows] == ["lru", "early_blocks", "early_blocks keep=1"]
    assert rows[1]["hit_ratio"] != rows[0]["hit_ratio"]
    plugins = json.loads((tmp_path / "run" / "env.json").read_text())["plugins"]
    assert list(plugins) == [plugin]


def test_a_plugin_is_a_choice_with_settings_like_any_other(plugin):
    done = call(f"--plugin={plugin}", "eviction=early_blocks", "eviction.keep=7", "--cfg", "job")
    assert yaml.safe_load(done.stdout)["eviction"] == {"name": "early_blocks", "keep": 7}
    assert "early_blocks" in call("--plugin", plugin, "--help").stdout


def test_an_installed_package_brings_its_policy_by_an_entry_point(tmp_path):
    (tmp_path / "early_blocks_package.py").write_text(example())
    installed = tmp_path / "early_blocks-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: early_blocks\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[pagedlab.plugins]\nearly = early_blocks_package\n")
    done = call("eviction=early_blocks", "--cfg", "job", path=tmp_path)
    assert yaml.safe_load(done.stdout)["eviction"] == {"name": "early_blocks", "keep": 4}


def test_serve_takes_plugins_as_well(tmp_path, plugin):
    assert call("--plugin", plugin, "--cfg", "job", command="serve").returncode == 0
    done = call("--plugin", str(tmp_path / "nowhere.py"), command="serve")
    assert (done.returncode, done.stderr) == (2, f"error: --plugin {tmp_path / 'nowhere.py'}: no such file\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["policies=[lru,lrux]"], "policies[1]=lrux: no such option, expected one of lru, fifo"),
        (["policies=[]"], "policies=[]: expected at least one, or null for the one of eviction="),
        (["policies=[lru,lru]"], "policies: lru twice, expected each once"),
        (["policies=[{name:s3fifo,warmup:x}]"], "policies[0].warmup=x: expected one of paper, libcachesim"),
        (["policies=[{name:lru,bits:2}]"], "policies[0].bits: no such setting"),
        (["policies=[{bits:2}]"], "policies[0]=an object: expected a name, or {name: ..., setting: value}"),
        (
            ["eviction=slru", "eviction.protected_fraction=nan"],
            "eviction.protected_fraction=nan: expected 0 to 1",
        ),
        (["eviction=nope"], "Available options in 'eviction': arc belady clock"),
        (["capacity_blocks=[]"], "capacity_blocks=[]: expected at least one size"),
        (["capacity_blocks=[0]"], "capacity_blocks[0]=0: expected 1 to 2147483647"),
        (["capacity_blocks=[5,5]"], "a size twice, expected each once"),
        (["capacity_block=[5]"], "capacity_block: no such setting, did you mean capacity_blocks?"),
        (
            ["workload=mooncake"],
            "workload.path=null: expected the file of the trace that workload=mooncake reads",
        ),
        (["workload=ids", "workload.path=nowhere"], "nowhere: No such file or directory"),
        (["workload=ids", "workload.limit=0"], "workload.limit=0: expected at least 1, or null for all"),
    ],
)
def test_a_bad_value_is_one_line_that_names_it(words, line):
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        try:
            settings = load_replay_settings(compose("replay", overrides=words))
            choices(settings)
            load_trace(settings)
        except PagedlabError as error:
            said = str(error)
        except (HydraException, OmegaConfBaseException) as error:
            said = one_line(error, ReplaySettings)
    assert line in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["policies=[lru,lrux]"], "error: policies[1]=lrux: no such option, expected one of lru, fifo"),
        (["capacity_block=[5]"], "error: capacity_block: no such setting, did you mean capacity_blocks?"),
        (["--plugin"], "error: --plugin: expected a Python file after it"),
    ],
)
def test_an_error_of_the_user_is_one_line_and_leaves_no_folder(words, line, tmp_path):
    done = call(f"hydra.run.dir={tmp_path / 'run'}", *words)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero (line 1 of "),
        ("from pagedlab.eviction.base import EVICTIONS\n@EVICTIONS.register('lru')\nclass A: pass", "registered"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_plugin_that_fails_is_one_line(code, said, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(code)
    done = call("--plugin", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --plugin {path}: ")
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_interrupted_replay_keeps_the_rows_that_are_done(tmp_path):
    path = tmp_path / "ids.txt"
    path.write_text("\n".join(str(i * 7919 % 100_003) for i in range(400_000)))
    words = ["workload=ids", f"workload.path={path}", "leaf_first=false", "capacity_blocks=[1000]"]
    policies = ",".join(name for name in EVICTIONS if name != "belady")
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.replay", *words, f"policies=[{policies}]", f"hydra.run.dir={tmp_path}/run"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()  # what is replayed: it runs from here on
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == "interrupted by SIGINT\n"
    assert out.splitlines()[-1] == f"run folder: {tmp_path}/run"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert len(summary["rows"]) < len(list(EVICTIONS)) - 1


# ---- documentation ------------------------------------------------------------------------------------------------


def documented():
    """Policy -> the names of its parameters, from the table of docs/eviction.md."""
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|[^|]*\|$", DOC, flags=re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", parameters) for name, parameters in rows}


def test_the_table_of_the_documentation_has_every_policy_and_its_parameters():
    confs = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "eviction").glob("*.yaml")}
    assert list(documented()) == list(EVICTIONS)
    assert documented() == {name: [key for key in confs[name] if key != "name"] for name in EVICTIONS}


def test_every_policy_says_where_it_comes_from():
    for name in EVICTIONS:
        assert sys.modules[EVICTIONS[name].__module__].__doc__, name
        assert EVICTIONS[name].__doc__, name
