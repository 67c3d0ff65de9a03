"""`pagedlab ablate`: effects and interactions worked out by hand, complete blocks, the best settings, files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedlab.analysis.ablation import ablate
from pagedlab.analysis.ablation_files import write_ablation
from pagedlab.analysis.runs import find_runs, levels_of, ordered
from pagedlab.core.errors import ConfigError
from tests.analysis.made import make_run

ROOT = Path(__file__).resolve().parents[2]
# Tokens per second: rows are block sizes 8 and 16, columns allocators paged and oracle.
RATES = {(8, "paged"): 100.0, (8, "oracle"): 140.0, (16, "paged"): 120.0, (16, "oracle"): 200.0}


def grid(folder, seeds=(0, 1), leave_out=(), per_seed=10.0):
    for (size, allocator), rate in RATES.items():
        for seed in seeds:
            if (size, allocator, seed) not in leave_out:
                settings = {"block_size": size, "allocator": allocator}
                summary = {"output_tokens_per_s": rate + per_seed * seed, "kv_waste_fraction": size / 100}
                summary |= {"ttft_s": {"mean": 1000 / rate}}
                make_run(folder / f"{size}-{allocator}-{seed}", seed=seed, settings=settings, **summary)
    return find_runs(folder).runs


def effects(cells, column="output_tokens_per_s"):
    return {cell.values: (cell.mean.mean, cell.effect.mean) for cell in cells if cell.metric.column == column}


def test_main_effects_and_interaction_by_hand(tmp_path):
    """Cell means with two seeds are 5 above RATES; the mean of all is 145."""
    found = ablate(grid(tmp_path), ["block_size", "allocator"], ["output_tokens_per_s"])
    assert effects(found.cells) == {("8",): (125.0, -20.0), ("16",): (165.0, 20.0)}
    assert effects(found.crossed) == {
        ("8", "paged"): (105.0, 10.0),
        ("8", "oracle"): (145.0, -10.0),
        ("16", "paged"): (125.0, -10.0),
        ("16", "oracle"): (205.0, 10.0),
    }
    # Sums of squares over 8 runs: 8 x 20^2, 8 x 30^2, 8 x 10^2, and 8 x 5^2 between seeds.
    assert found.shares["output_tokens_per_s"] == pytest.approx(
        {"block_size": 400 / 1425, "allocator": 900 / 1425, "interaction": 100 / 1425, "seeds": 25 / 1425}
    )


def test_seeds_that_shift_everything_alike_widen_the_mean_and_not_the_effect(tmp_path):
    found = ablate(grid(tmp_path, seeds=range(5)), ["block_size"], ["output_tokens_per_s"])
    for cell in found.cells:
        assert cell.mean.high - cell.mean.low > 20
        assert cell.effect.low == pytest.approx(cell.effect.mean) == pytest.approx(cell.effect.high)


def test_only_complete_blocks_count(tmp_path):
    """Without it, block size 16 would look slower for having lost its fastest runs."""
    runs = grid(tmp_path, leave_out=[(16, "oracle", 1)])
    found = ablate(runs, ["block_size"], ["output_tokens_per_s"])
    assert (found.runs, found.left_out) == (6, 1)
    runs = grid(tmp_path / "more", leave_out=[(16, "oracle", 0), (16, "oracle", 1), (8, "paged", 0), (8, "paged", 1)])
    with pytest.raises(ConfigError, match="no setting of seed, allocator was run with every value of block_size"):
        ablate(runs, ["block_size"], ["output_tokens_per_s"])


def test_the_best_settings_and_those_that_nobody_beats_in_all(tmp_path):
    found = {
        tuple(c.settings.values()): c for c in ablate(grid(tmp_path), ["block_size", "allocator"], []).combinations
    }
    assert found["16", "oracle"].best == ["output_tokens_per_s", "ttft_s_mean"]
    assert found["8", "oracle"].best == ["kv_waste_fraction"]
    assert found["8", "paged"].best == ["kv_waste_fraction"]
    assert {key for key, c in found.items() if c.on_front} == {("16", "oracle"), ("8", "oracle")}
    assert found["8", "paged"].seeds == 2


@pytest.mark.parametrize(
    ("axis", "said"),
    [("block_sise", "differ in seed, block_size, allocator"), ("seed", "seeds are what the intervals are over")],
)
def test_what_is_no_axis_is_refused(tmp_path, axis, said):
    with pytest.raises(ConfigError, match=f"--axis {axis}: .*{said}"):
        ablate(grid(tmp_path), [axis], [])


def test_the_same_runs_give_the_same_files(tmp_path):
    found = ablate(grid(tmp_path / "runs"), ["block_size", "allocator"], ["kv_waste_fraction", "output_tokens_per_s"])
    files = write_ablation(tmp_path / "one", found)
    for path in files:
        assert path.read_bytes()
    names = {path.name for path in files}
    assert {"effects.svg", "effects.png", "effects.md", "effects.tex", "interaction.svg", "pareto.png"} <= names
    again = write_ablation(tmp_path / "two", found)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files]
    written = json.loads((tmp_path / "one" / "ablation.json").read_text())
    rates = [row["effect"] for row in written["effects"] if row["metric"] == "output_tokens_per_s"]
    assert rates == [-20.0, 20.0]
    assert (tmp_path / "one" / "effects.md").read_text().splitlines()[2].startswith("| 8 | waste | 8.0 % |")


def test_the_command_writes_beside_the_runs(tmp_path):
    grid(tmp_path)
    command = [sys.executable, "-m", "experiments.ablate", str(tmp_path), "--axis", "allocator"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "8 runs, 2 seeds, 0 runs left out" in done.stdout
    assert (tmp_path / "ablation" / "allocator" / "ablation.json").is_file()
    assert len(find_runs(tmp_path).runs) == 8  # the tables are no runs


def test_settings_come_in_the_order_of_their_values_and_not_of_their_folders(tmp_path):
    for place, size in enumerate((128, 8, 16)):
        make_run(tmp_path / f"{place}", settings={"block_size": size})
    runs = find_runs(tmp_path).runs
    assert levels_of(runs, "block_size") == ["8", "16", "128"]
    assert [run.config["block_size"] for run in ordered(runs, ["block_size"])] == [8, 16, 128]
    found = ablate(runs, ["block_size"], ["kv_waste_fraction"])
    assert [one.settings["block_size"] for one in found.combinations] == ["8", "16", "128"]
