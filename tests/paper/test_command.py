"""`pagedlab paper` end to end, with short traces."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pagedlab.paper.points import Point

ROOT = Path(__file__).resolve().parents[2]


def call(*words):
    command = [sys.executable, "-m", "experiments.paper", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    done = call("figure=2", "trace_s=240", "seeds=[0,1]", "workers=2", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "orca_oracle" in done.stdout
    return folder


def test_points_are_flat_rows_of_one_schema(folder):
    names = [field.name for field in fields(Point)]
    assert names[:6] == ["figure", "workload", "model", "system", "metric", "x"]
    assert names[6:] == ["value", "ci_low", "ci_high", "published"]
    rows = json.loads((folder / "points.json").read_text())
    assert pq.read_table(folder / "points.parquet").to_pylist() == rows
    assert [list(row) for row in rows] == [names] * 16
    assert {row["figure"] for row in rows} == {"2"}
    assert pq.read_table(folder / "figure2.parquet").to_pylist() == rows


def test_even_a_short_trace_is_near_the_published_shares(folder):
    for row in json.loads((folder / "points.json").read_text()):
        if row["value"] is not None:
            assert row["value"] == pytest.approx(row["published"], abs=8), row
            assert row["ci_low"] is None or row["ci_low"] <= row["value"] <= row["ci_high"]


def test_plots_report_and_summary_are_there(folder):
    assert (folder / "figure2.svg").read_text().startswith("<?xml")
    assert (folder / "figure2.png").read_bytes().startswith(b"\x89PNG")
    report = (folder / "REPORT.md").read_text()
    assert "| 2 | sharegpt | opt_13b | orca_max | share_token_pct | 2 |" in report
    assert "host_step_us" in report
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["figures"] == ["2"]


def test_a_finished_figure_is_not_computed_again_and_another_trace_is(folder):
    mark = folder / "figure2.json"
    kept = json.loads(mark.read_text())
    kept["parts"]["orca_max"][0]["value"] = 12.5
    mark.write_text(json.dumps(kept))
    done = call("figure=[2,1]", "trace_s=240", "seeds=[0,1]", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    rows = json.loads((folder / "points.json").read_text())
    assert rows[0]["value"] == 12.5
    assert {row["figure"] for row in rows} == {"2", "1"}
    again = call("figure=[2,1]", "workers=2", "trace_s=240", "seeds=[0,1]", f"hydra.run.dir={folder}")
    assert again.returncode == 0, again.stderr  # with nothing left to run
    done = call("figure=2", "trace_s=60", "seeds=[0,1]", f"hydra.run.dir={folder}")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "points.json").read_text())[0]["value"] != 12.5


def test_a_study_that_was_stopped_goes_on_with_the_parts_that_are_missing(folder):
    call("figure=2", "workers=1", "trace_s=30", "seeds=[0]", f"hydra.run.dir={folder}")
    mark = folder / "figure2.json"
    kept = json.loads(mark.read_text())
    del kept["parts"]["vllm"]
    kept["parts"]["orca_max"][0]["value"] = 12.5
    mark.write_text(json.dumps(kept))
    assert call("figure=2", "workers=1", "trace_s=30", "seeds=[0]", f"hydra.run.dir={folder}").returncode == 0
    again = json.loads(mark.read_text())["parts"]
    assert again["orca_max"][0]["value"] == 12.5
    assert list(again) == ["orca_max", "orca_pow2", "orca_oracle", "vllm"]


def test_points_of_other_code_are_not_kept(folder):
    call("figure=2", "workers=1", "trace_s=30", "seeds=[0]", f"hydra.run.dir={folder}")
    mark = folder / "figure2.json"
    kept = json.loads(mark.read_text())
    kept["parts"]["orca_max"][0]["value"] = 12.5
    mark.write_text(json.dumps({**kept, "code": "another"}))
    call("figure=2", "workers=1", "trace_s=30", "seeds=[0]", f"hydra.run.dir={folder}")
    assert json.loads(mark.read_text())["parts"]["orca_max"][0]["value"] != 12.5


def test_the_page_fetches_nothing_and_holds_its_plot(folder):
    page = (folder / "index.html").read_text()
    assert "<svg" in page
    assert "</details>" in page
    for fetched in ("src=", "<link", "<script", "@import", "url(http"):
        assert fetched not in page


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("figure=3", "figure=3: no such option, expected all or some of 1, 2, 12, 13, 14, 15, 16, 17, 18, 19, modern"),
        ("trace_s=0", "trace_s=0: expected "),
        ("workers=0", "workers=0: expected "),
        ("most_requests=0", "most_requests=0: expected "),
        ("seeds=[]", "seeds=[]: expected a list of 1 to 10 different ones"),
        ("azure=none.csv", "azure=none.csv: no such file, expected a trace that workload=azure reads"),
        ("azure=README.md", "azure=README.md: no figure of the paper has it, expected figure=modern with it"),
        ("seeds=[1,1]", "seeds=[1, 1]: expected a list of 1 to 10 different ones"),
    ],
)
def test_a_bad_setting_is_one_line(word, line, tmp_path):
    done = call(word, f"hydra.run.dir={tmp_path / 'none'}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {line}")
    assert done.stderr.count("\n") == 1
