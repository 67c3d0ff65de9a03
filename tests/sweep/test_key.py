"""The key of a job: the same for the same work, another for any other."""

import os

import pytest

from pagedlab.sweep import key as key_module
from pagedlab.sweep.key import code_digest, job_key
from tests.config.composed import overridden


def key(*values, groups=()):
    return job_key(overridden(groups, *values))


def test_the_order_of_the_words_and_what_is_the_default_anyway_do_not_matter():
    assert key("block_size=8", "seed=1") == key("seed=1", "block_size=8")
    assert key("block_size=16") == key()


@pytest.mark.parametrize(
    "word", ["block_size=8", "seed=1", "workload.num_requests=9", "seeds=[0]", "executor.step_s=0.5"]
)
def test_what_can_change_a_result_changes_the_key(word):
    assert key(word) != key()


@pytest.mark.parametrize(
    "word",
    ["progress=false", "resume=false", "fail_fast=true", "jobs=2", "job_timeout_s=9", "objectives=[preemptions]"],
)
def test_how_a_sweep_is_run_does_not(word):
    assert key(word) == key()


def test_nor_does_the_tracker():
    assert key(groups=("tracker=wandb",)) == key()


def test_an_interpolation_counts_by_what_it_comes_to(monkeypatch):
    monkeypatch.setenv("SEED_OF_TEST", "3")
    word = "model.revision='${oc.env:SEED_OF_TEST}'"
    assert key(word) == key("model.revision='3'")
    monkeypatch.delenv("SEED_OF_TEST")
    assert len(key(word)) == 12  # the job refuses it, and says why


def test_a_file_that_the_config_names_counts_with_its_last_change(tmp_path):
    trace = tmp_path / "trace.csv"

    def key_now():
        return job_key(overridden(("workload=token_counts",), f"workload.path={trace}", base=()))

    before = key_now()
    trace.write_text("1,2\n")
    written = key_now()
    os.utime(trace, ns=(1, 1))
    assert len({before, written, key_now()}) == 3


def test_the_code_counts_where_it_can_change_a_result(tmp_path, monkeypatch):
    """A package made by hand: an edit of its engine is another code, one of its plots is not."""
    (tmp_path / "analysis").mkdir()
    engine, plots, notes = tmp_path / "engine.py", tmp_path / "analysis" / "plots.py", tmp_path / "notes.md"
    for path in (engine, plots, notes):
        path.write_text("1")
    monkeypatch.setattr(key_module.pagedlab, "__path__", [str(tmp_path)])
    first = code_digest.__wrapped__()
    for path in (plots, notes):
        path.write_text("2")
    assert code_digest.__wrapped__() == first
    engine.write_text("2")
    assert code_digest.__wrapped__() != first


def test_the_rooms_that_decide_are_in_it():
    from pathlib import Path

    import pagedlab

    names = set(key_module._sources([Path(root) for root in pagedlab.__path__]))
    assert {"engine.py", "run.py", "allocator/paged.py", "scheduler/scheduler.py", "kernels/cpu.py"} <= names
    assert not {"cli.py", "launch.py", "analysis/display.py", "tracker/wandb.py"} & names
