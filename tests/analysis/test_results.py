"""`pagedlab results`: which folders are runs, what they differ in, SQL over them, and files of the answer."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pagedlab.analysis.export import FORMATS, export, latex, markdown
from pagedlab.analysis.query import query, runs_table, select
from pagedlab.analysis.results import shown
from pagedlab.analysis.runs import axes_of, find_runs
from pagedlab.core.errors import ConfigError
from pagedlab.recorder.metrics import SCHEMA_VERSION
from tests.analysis.made import SUMMARY, make_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sweep(tmp_path):
    """Two allocators x two block sizes, numbered 8 to 11."""
    settings = [{"allocator": a, "block_size": b} for a in ("paged", "reserve_max") for b in (8, 16)]
    for i, chosen in enumerate(settings):
        waste = 0.001 * chosen["block_size"] if chosen["allocator"] == "paged" else 0.7
        make_run(
            tmp_path / "sweep" / str(8 + i), settings=chosen, kv_waste_fraction=waste, output_tokens_per_s=100.0 + i
        )
    (tmp_path / "sweep" / "summary.json").write_text(json.dumps({"schema_version": 1, "jobs": 4, "rows": []}))
    return tmp_path / "sweep"


def call(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments.results", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


# ---- which folders are runs ---------------------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_and_ten_comes_after_nine(sweep):
    found = find_runs(sweep.parent)
    assert [run.name for run in found.runs] == ["sweep/8", "sweep/9", "sweep/10", "sweep/11"]
    assert found.skipped == []  # the summary above the runs is that of the sweep
    assert [run.name for run in find_runs(sweep / "9").runs] == ["."]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(SUMMARY | {"seed": 0, "schema_version": 0}), "schema_version 0, this pagedlab reads 1"),
        (json.dumps({k: v for k, v in SUMMARY.items() if k != "schema_version"} | {"seed": 0}), "schema_version None"),
        ('{"accuracy": 0.5}', "no run of `pagedlab serve`"),
        ("[1, 2]", "no run of `pagedlab serve`"),
        ('{"status": ', "cannot be read as JSON"),
    ],
)
def test_an_old_or_foreign_file_is_one_line_beside_the_runs_and_an_error_alone(sweep, content, said):
    stranger = sweep / "stranger"
    stranger.mkdir()
    (stranger / "summary.json").write_text(content)
    found = find_runs(sweep)
    assert len(found.runs) == 4
    [line] = found.skipped
    assert str(stranger) in line
    assert said in line
    with pytest.raises(ConfigError, match="holds no run") as error:
        find_runs(stranger)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_config_that_is_cut_short_is_one_line(sweep):
    (sweep / "9" / "config.yaml").write_text("seed: [0,\nblock: {")
    [line] = find_runs(sweep).skipped
    assert "config.yaml" in line
    assert "\n" not in line


def test_a_folder_that_lost_its_requests_is_no_run(sweep):
    (sweep / "9" / "requests.parquet").unlink()
    [line] = find_runs(sweep).skipped
    assert "requests.parquet is missing" in line


# ---- what they differ in ------------------------------------------------------------------------------------------


def test_axes_are_the_settings_that_differ_without_what_a_choice_brings_along(tmp_path):
    for i, order in enumerate(("fcfs", "sjf")):
        # conf/scheduler/sjf.yaml sets the order; where a run is shown is no setting of it.
        make_run(tmp_path / str(i), settings={"order": order, "tracker": {"name": ("none", "wandb")[i]}})
    assert axes_of(find_runs(tmp_path).runs) == ["scheduler"]


def test_axes_that_change_together_are_all_named(tmp_path):
    for i in range(2):
        make_run(tmp_path / str(i), seed=i, settings={"block_size": 8 << i})
    assert axes_of(find_runs(tmp_path).runs) == ["seed", "block_size"]


# ---- questions ----------------------------------------------------------------------------------------------------


def names(runs):
    return [run.name for run in runs]


def test_where_and_sort_are_sql_over_settings_and_metrics(sweep):
    runs = find_runs(sweep).runs
    assert names(select(runs, "block_size=16", None)) == ["9", "11"]
    assert names(select(runs, "allocator = 'paged' or kv_waste_fraction > 0.5 and block_size < 10", None)) == [
        "8",
        "9",
        "10",
    ]
    assert names(select(runs, None, "output_tokens_per_s desc")) == ["11", "10", "9", "8"]
    assert names(select(runs, "workload.num_requests = 3 and 'workload.num_requests' <> ''", "ttft_s_p99")) == names(
        runs
    )


def test_sql_joins_runs_with_their_requests(sweep):
    runs = find_runs(sweep).runs
    sql = "select allocator, count(*) n, sum(ttft_s) s from requests join runs using (run) group by 1 order by 1"
    assert query(runs, sql).to_pylist() == [
        {"allocator": "paged", "n": 6, "s": 6.0},
        {"allocator": "reserve_max", "n": 6, "s": 6.0},
    ]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("alocator = 'paged'", "no column alocator, did you mean allocator?"),
        ("block_size = ", "Parser Error"),
        ("run in (select * from read_csv('/etc/hostname'))", "file system operations are disabled"),
    ],
)
def test_what_sql_does_not_take_is_one_line(sweep, where, said):
    with pytest.raises(ConfigError, match="select _place") as error:
        select(find_runs(sweep).runs, where, None)
    assert said in str(error.value)


def test_columns_have_the_type_that_their_values_share(tmp_path):
    make_run(tmp_path / "a", settings={"kv_bytes": None, "kv_fraction": 1, "flag": True, "mix": 1}, longest_wait_s=1)
    make_run(tmp_path / "b", settings={"kv_bytes": "1GiB", "kv_fraction": 0.5, "flag": False, "mix": "x"})
    schema = runs_table(find_runs(tmp_path).runs).schema
    kinds = [str(schema.field(name).type) for name in ("block_size", "kv_fraction", "flag", "mix", "kv_bytes")]
    assert kinds == ["int64", "double", "bool", "string", "string"]


def test_the_schema_of_this_version_keeps_these_columns(tmp_path):
    """More may come; one that goes, or changes its type or meaning, needs another SCHEMA_VERSION."""
    from tests.analysis.served_run import serve_run

    assert SCHEMA_VERSION == 1
    schema = runs_table(find_runs(serve_run(tmp_path / "run")).runs).schema
    kept = {
        "int64": "block_size seed num_requests completed refused steps output_tokens preemptions kv_num_blocks",
        "double": "duration_s output_tokens_per_s mean_batch_size kv_waste_fraction ttft_s_mean ttft_s_p99 e2e_s_p50",
        "string": "run status allocator order batching preemption prefix_cache workload model executor clock",
    }
    for kind, columns in kept.items():
        assert {str(schema.field(column).type) for column in columns.split()} == {kind}


# ---- answers ------------------------------------------------------------------------------------------------------


def test_the_table_shows_axes_main_metrics_and_status(sweep):
    table = shown(find_runs(sweep).runs)
    head = "run block_size allocator kv_waste_fraction mean_batch_size output_tokens_per_s ttft_s_mean e2e_s_mean"
    assert table.column_names == [*head.split(), "preemptions", "status"]
    with pytest.raises(ConfigError, match="--metrics ttft_s_p98: no such column, did you mean ttft_s_p9"):
        shown(find_runs(sweep).runs, ["ttft_s_p98"])


def test_every_format_holds_the_same_values(sweep, tmp_path):
    table = shown(find_runs(sweep).runs)
    for form in FORMATS:
        export(table, form, tmp_path / "out" / form)
    rows = list(csv.reader((tmp_path / "out" / "csv").open()))
    assert rows[0] == table.column_names
    assert rows[1][:4] == ["8", "8", "paged", "0.008"]
    assert pq.read_table(tmp_path / "out" / "parquet").equals(table)
    lines = (tmp_path / "out" / "markdown").read_text().splitlines()
    assert lines[1].startswith("| --- | ---: | --- | ---: |")
    assert lines[2].startswith("| 8 | 8 | paged | 0.008 | 2 | 100 |")
    assert "reserve\\_max & 0.7 &" in (tmp_path / "out" / "latex").read_text()


def test_what_a_format_gives_a_meaning_to_is_escaped():
    table = pa.table({"a_b": ["50 % & more", "x|y\nz", "<b>#1</b> $x^2$ \\"]})
    assert markdown(table).splitlines()[3:] == ["| x\\|y z |", "| \\<b\\>#1\\</b\\> $x^2$ \\\\ |"]
    written = latex(table)
    assert "a\\_b \\\\" in written
    assert "50 \\% \\& more" in written
    assert "\\$x\\textasciicircum{}2\\$ \\textbackslash{}" in written


def test_the_command_prints_exports_and_refuses_in_one_line(sweep, tmp_path):
    done = call(sweep, "--where", "block_size=16", "--sort", "kv_waste_fraction desc")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in lines] == ["11", "9"]
    assert "70.0 %" in lines[0]
    done = call(sweep, "--export", "csv", tmp_path / "all.csv")
    assert done.stdout.startswith("4 rows, ")
    assert "ttft_s_p99" in (tmp_path / "all.csv").read_text().splitlines()[0]
    for words in ([tmp_path / "none"], [sweep, "--export", "pdf", tmp_path / "x"], [sweep, "--frob"], []):
        done = call(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("error: ")
