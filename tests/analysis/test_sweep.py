"""The end of a sweep: from the folders of its jobs to one table, summary.json and summary.csv."""

import csv
import json
import os
import signal
import sys

import pytest

from pagedlab.analysis.sweep import finish_sweep
from pagedlab.interrupts import Interrupted, Interrupts
from pagedlab.launch import Job, launch
from pagedlab.recorder.folder import write_json

FINISHED = {
    "status": "completed",
    "schema_version": 1,
    "num_requests": 4,
    "completed": 4,
    "refused": 0,
    "kv_waste_fraction": 0.25,
    "kv_waste_fraction_when_full": None,
    "mean_batch_size": 2.5,
    "preemptions": 3,
    "ttft_s": {"mean": 1.0, "p50": 1.5, "p90": None, "p99": 2.0},
}


class Sweep:
    """Job folders made by hand, numbered as they come."""

    def __init__(self, folder):
        self.folder, self.jobs = folder, []

    def job(self, swept, tokens_per_s=None, error=None, **summary):
        """A job that wrote a summary, with this throughput, or with none at all: a job that left nothing."""
        folder = self.folder / str(len(self.jobs))
        folder.mkdir()
        if tokens_per_s is not None:
            write_json(folder / "summary.json", FINISHED | {"output_tokens_per_s": tokens_per_s} | summary)
        self.jobs.append(Job(None, folder, swept, self.folder, error))
        return self

    def finish(self):
        assert finish_sweep(self.jobs) == self.folder
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture
def sweep(tmp_path):
    return Sweep(tmp_path)


def table_of(capsys):
    """The rows of the printed table, as lists of cells, and its last line."""
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith(("│", "┃"))]
    cells = [[cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")] for line in lines]
    return cells, out.splitlines()[-1].strip()


# ---- what a ratio is taken against --------------------------------------------------------------------------------


def test_the_ratio_is_against_reserve_max_where_allocators_are_swept(sweep, capsys):
    sweep.job({"allocator": "paged"}, 30.0, allocator="paged")
    sweep.job({"allocator": "reserve_max"}, 10.0, allocator="reserve_max")
    sweep.job({"allocator": "oracle"}, 20.0, allocator="oracle")
    written = sweep.finish()
    assert written["baseline"] == {"allocator": "reserve_max"}
    assert [row["ratio"] for row in written["rows"]] == [3.0, 1.0, 2.0]
    cells, caption = table_of(capsys)
    head = "allocator|waste|waste, pool full|mean batch|output tokens/s|ratio|preemptions|refused|status"
    assert cells == [
        head.split("|"),
        ["paged", "25.0 %", "-", "2.50", "30.00", "3.00", "3", "0", "completed"],
        ["reserve_max", "25.0 %", "-", "2.50", "10.00", "1.00", "3", "0", "completed"],
        ["oracle", "25.0 %", "-", "2.50", "20.00", "2.00", "3", "0", "completed"],
    ]
    assert caption == "ratio: output tokens/s against allocator=reserve_max"


def test_the_first_of_several_jobs_with_reserve_max_is_the_baseline(sweep, capsys):
    for allocator in ("paged", "reserve_max"):
        for size, speed in ((8, 10.0), (16, 20.0)):
            sweep.job({"allocator": allocator, "block_size": str(size)}, speed, allocator=allocator, block_size=size)
    written = sweep.finish()
    assert written["baseline"] == {"allocator": "reserve_max", "block_size": 8}
    assert [row["ratio"] for row in written["rows"]] == [1.0, 2.0, 1.0, 2.0]
    assert "allocator=reserve_max, block_size=8" in table_of(capsys)[1]


def test_elsewhere_the_ratio_is_against_the_first_finished_job(sweep):
    sweep.job({"block_size": "8"}, error="block_size: broken")
    sweep.job({"block_size": "16"}, 4.0, status="interrupted")
    sweep.job({"block_size": "32"}, 10.0)
    sweep.job({"block_size": "64"}, 5.0)
    written = sweep.finish()
    assert written["baseline"] == {"block_size": "32"}
    assert [row["ratio"] for row in written["rows"]] == [None, 0.4, 1.0, 0.5]


def test_a_reserve_max_that_failed_or_made_no_token_is_no_baseline(sweep):
    sweep.job({"allocator": "reserve_max"}, error="EngineStalled: nothing can run")
    sweep.job({"allocator": "reserve_max"}, 0.0)
    sweep.job({"allocator": "paged"}, 5.0)
    written = sweep.finish()
    assert written["baseline"] == {"allocator": "paged"}
    assert [row["ratio"] for row in written["rows"]] == [None, 0.0, 1.0]


def test_without_a_finished_job_there_is_no_ratio_and_the_table_says_so(sweep, capsys):
    sweep.job({"seed": "0"}, error="no").job({"seed": "1"})
    written = sweep.finish()
    assert (written["baseline"], written["status"], written["completed"]) == (None, "partial", 0)
    assert {row["ratio"] for row in written["rows"]} == {None}
    assert table_of(capsys)[1] == "ratio: output tokens/s against nothing: no job finished"


# ---- who is in it -------------------------------------------------------------------------------------------------


def test_failed_and_lost_jobs_have_their_rows(sweep, capsys):
    sweep.job({"block_size": "16"}, 10.0, block_size=16)
    sweep.job({"block_size": "999"}, error="block_size=999: expected at least 1 and at most 256")
    sweep.job({"block_size": "8"})
    sweep.job({"block_size": "4"}, 3.0, status="interrupted", block_size=4)
    sweep.job({"block_size": "2"}, 1.0, error="RuntimeError: x", status="failed", block_size=2)
    written = sweep.finish()
    assert [row["status"] for row in written["rows"]] == ["completed", "failed", "lost", "interrupted", "failed"]
    assert [row["folder"] for row in written["rows"]] == ["0", "1", "2", "3", "4"]
    assert written["rows"][1]["error"] == "block_size=999: expected at least 1 and at most 256"
    assert written["rows"][1]["output_tokens_per_s"] is None
    assert (written["status"], written["jobs"], written["completed"]) == ("partial", 5, 1)
    cells, _ = table_of(capsys)
    assert cells[2] == ["999", "-", "-", "-", "-", "-", "-", "-", "failed"]
    assert cells[3] == ["8", "-", "-", "-", "-", "-", "-", "-", "lost"]
    assert cells[4][0] == "4"
    assert cells[4][-1] == "interrupted"


def test_a_sweep_whose_jobs_all_finished_is_completed(sweep):
    written = sweep.job({"seed": "0"}, 1.0).job({"seed": "1"}, 1.0).finish()
    assert (written["status"], written["jobs"], written["completed"], written["schema_version"]) == (
        "completed",
        2,
        2,
        1,
    )


def test_only_what_differs_between_the_jobs_is_an_axis(sweep, capsys):
    for size in ("8", "16"):
        sweep.job({"executor": "fingerprint", "block_size": size, "seed": "0"}, 1.0)
    written = sweep.finish()
    assert written["baseline"] == {"block_size": "8"}
    assert table_of(capsys)[0][0][:2] == ["block_size", "waste"]


def test_a_sweep_of_one_job_has_all_that_was_given_as_axes(sweep, capsys):
    written = sweep.job({"executor": "fingerprint", "seed": "0"}, 1.0).finish()
    assert written["baseline"] == {"executor": "fingerprint", "seed": "0"}
    assert table_of(capsys)[0][0][:2] == ["executor", "seed"]


def test_jobs_that_were_in_no_sweep_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not of a sweep"):
        finish_sweep([Job(None, tmp_path, {}, None)])


# ---- the files ----------------------------------------------------------------------------------------------------


def test_a_row_holds_every_number_of_its_run_flat(sweep):
    written = sweep.job({"seed": "0"}, 12.5, seed=0).job({"seed": "1"}, 25.0, seed=1).finish()
    assert written["rows"][1] == {
        "seed": 1,
        "folder": "1",
        "error": None,
        "kv_waste_fraction": 0.25,
        "kv_waste_fraction_when_full": None,
        "mean_batch_size": 2.5,
        "output_tokens_per_s": 25.0,
        **dict.fromkeys(("blocks_saved_fraction", "prefix_hit_rate", "goodput_fraction", "service_gap_tokens")),
        **dict.fromkeys(("e2e_s_mean", "itl_s_p99")),
        "preemptions": 3,
        "recompute_tax": None,
        "swapped_bytes": None,
        "refused": 0,
        "status": "completed",
        "schema_version": 1,
        "num_requests": 4,
        "completed": 4,
        "ttft_s_mean": 1.0,
        "ttft_s_p50": 1.5,
        "ttft_s_p90": None,
        "ttft_s_p99": 2.0,
        "ratio": 2.0,
    }


def test_the_csv_holds_the_same_rows_whatever_is_missing_in_some(sweep):
    error = 'a "quoted", line'
    written = sweep.job({"seed": "0"}, error=error).job({"seed": "1"}, 2.0, label="x").finish()
    with (sweep.folder / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {key for row in written["rows"] for key in row}
    for row, expected in zip(rows, written["rows"], strict=True):
        assert row == {key: "" if expected.get(key) is None else str(expected[key]) for key in row}
    assert rows[0]["error"] == error
    assert (rows[1]["label"], rows[1]["ratio"]) == ("x", "1.0")


def test_no_secret_of_an_error_or_of_an_axis_gets_into_the_files(sweep, monkeypatch, capsys):
    monkeypatch.setenv("PLANTED_TOKEN", "planted-in-environment")
    sweep.job({"model.path": "https://user:planted-password@host/a"}, 1.0)
    sweep.job({"model.path": "b", "+tracker.api_key": "planted-key"}, error="x: planted-in-environment is no path")
    sweep.finish()
    written = (sweep.folder / "summary.json").read_text() + (sweep.folder / "summary.csv").read_text()
    assert "https://user:***@host/a" in written
    assert "x: *** is no path" in written
    assert "planted" not in written + capsys.readouterr().out


def test_values_in_square_brackets_are_shown_as_they_are(sweep, capsys):
    sweep.job({"tracker.tags": "[a]"}, 1.0).job({"tracker.tags": "[/b]"}, 1.0).finish()
    cells, caption = table_of(capsys)
    assert [row[0] for row in cells] == ["tracker.tags", "[a]", "[/b]"]
    assert caption == "ratio: output tokens/s against tracker.tags=[a]"


# ---- a folder that is used again ----------------------------------------------------------------------------------


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Launches a sweep over block sizes into tmp_path, in this process; the task does what the test says."""
    monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "1")

    def start(task, *words):
        monkeypatch.setattr(sys, "argv", ["serve", "-m", "block_size=8,16", f"hydra.sweep.dir={tmp_path}", *words])
        interrupts = Interrupts()
        interrupts.install()
        return launch(task, interrupts)

    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield start
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_a_sweep_into_the_folder_of_an_earlier_one_shows_nothing_of_it(tmp_path, launched, capsys):
    def finishes(job):
        write_json(job.folder / "summary.json", FINISHED | {"output_tokens_per_s": 1.0})

    def second_fails(job):
        # While a sweep runs, nothing in its folder says that it is done.
        assert not (tmp_path / "summary.json").exists()
        assert not (tmp_path / "summary.csv").exists()
        if job.swept["block_size"] == "16":
            raise RuntimeError("broken")
        finishes(job)

    finish_sweep(launched(finishes).jobs)
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "completed"
    done = launched(second_fails, "resume=false")
    finish_sweep(done.jobs)
    rows = json.loads((tmp_path / "summary.json").read_text())["rows"]
    assert [(row["status"], row["output_tokens_per_s"]) for row in rows] == [("completed", 1.0), ("failed", None)]
    assert done.exit_code == 1
    assert "RuntimeError: broken" in capsys.readouterr().err


def test_an_interruption_that_a_library_turned_into_another_error_is_one_still(launched, capsys):
    def struck(job):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except Interrupted as stop:
            raise RuntimeError("Error calling __set_name__") from stop

    done = launched(struck)
    assert (done.exit_code, [job.interrupted for job in done.jobs]) == (130, [True])
    assert capsys.readouterr().err == "interrupted by SIGINT\n"
