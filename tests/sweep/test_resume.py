"""A sweep into the folder of an earlier one: what is finished stays, what failed is tried again."""

import json

from pagedlab.analysis.sweep import finish_sweep
from pagedlab.core.errors import ConfigError
from tests.sweep.launched import Finishes, launched, record

__all__ = ["launched"]


def test_finished_jobs_are_skipped_whatever_the_order_and_their_rows_are_there(tmp_path, launched, capsys):
    first = launched(Finishes(), "block_size=8,16")
    again = Finishes()
    second = launched(again, "block_size=32,16,8")
    assert again.ran == ["32"]
    assert {job.folder for job in first.jobs} < {job.folder for job in second.jobs}
    finish_sweep(second.jobs)
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["rows"]
    assert [(row["block_size"], row["size"], row["status"]) for row in rows] == [
        ("32", 32, "completed"),
        ("16", 16, "completed"),
        ("8", 8, "completed"),
    ]


def test_resume_false_runs_all_anew(launched):
    launched(Finishes(), "block_size=8,16")
    again = Finishes()
    launched(again, "block_size=8,16", "resume=false")
    assert again.ran == ["8", "16"]


def test_failed_jobs_are_tried_again_and_leave_no_error_once_they_succeed(launched, capsys):
    done = launched(Finishes({"8": RuntimeError("broken"), "16": ConfigError("16: no")}), "block_size=8,16,32")
    eight, sixteen, other = done.jobs
    assert done.exit_code == 1  # a fault outdoes an error of the user
    assert [record(job)["status"] for job in done.jobs] == ["failed", "failed", "completed"]
    assert "Traceback" in (eight.folder / "error.txt").read_text()
    assert (sixteen.folder / "error.txt").read_text() == "16: no\n"
    assert not (other.folder / "error.txt").exists()
    again = Finishes()
    done = launched(again, "block_size=8,16,32")
    assert (again.ran, done.exit_code) == (["8", "16"], 0)
    assert not list(eight.folder.parent.glob("*/error.txt"))


def test_a_summary_of_a_run_that_did_not_finish_counts_for_nothing(launched):
    first = launched(Finishes(), "block_size=8")
    for status in ("interrupted", "failed"):
        (first.jobs[0].folder / "summary.json").write_text(json.dumps({"status": status}))
        again = Finishes()
        launched(again, "block_size=8")
        assert again.ran == ["8"]
    (first.jobs[0].folder / "summary.json").write_text('{"status": "comp')
    again = Finishes()
    launched(again, "block_size=8")
    assert again.ran == ["8"]


def test_fail_fast_stops_at_the_first_failure(launched, capsys):
    task = Finishes({"8": RuntimeError("broken")})
    done = launched(task, "block_size=4,8,16", "fail_fast=true")
    assert (task.ran, done.exit_code) == (["4", "8"], 1)


def test_what_is_said_twice_is_one_job_and_one_row(tmp_path, launched, capsys):
    task = Finishes()
    finish_sweep(launched(task, "block_size=8,16,8").jobs)
    assert task.ran == ["8", "16"]
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["rows"]
    assert [row["size"] for row in rows] == [8, 16]


def test_hydras_copy_of_the_command_line_does_not_stay(tmp_path, launched):
    """It has secrets in clear, and is not written whole or not at all."""
    launched(Finishes(), "block_size=8", "workload.path=https://user:planted-password@host/a")
    texts = [path.read_text() for path in (tmp_path / "sweep").rglob("*") if path.is_file()]
    assert texts
    assert not any("planted" in text for text in texts)


def test_a_folder_that_another_sweep_writes_into_is_refused(tmp_path, launched, monkeypatch, capsys):
    from filelock import FileLock

    from pagedlab.sweep import folder

    monkeypatch.setattr(folder, "_LOCK_S", 0.05)
    (tmp_path / "sweep").mkdir()
    with FileLock(tmp_path / "sweep" / ".lock"):
        done = launched(Finishes(), "block_size=8")
    assert (done.exit_code, done.jobs) == (2, [])
    assert capsys.readouterr().err.endswith("another sweep is writing into it\n")


def test_a_search_is_told_the_numbers_it_asks_for(launched, capsys):
    done = launched(Finishes(), "block_size=8,16", "objectives=[size]")
    launched(Finishes(), "block_size=8")
    again = launched(Finishes(), "block_size=8,16", "objectives=[size]")
    assert [job.answer for job in again.jobs] == [8.0, 16.0]
    assert [job.folder for job in again.jobs] == [job.folder for job in done.jobs]
