"""Commands that README.md and docs/ show are executed, shortened where one would take minutes or a model's weights."""

import json
import os
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pagedlab.cli import COMMANDS
from pagedlab.experiments.plan import plan
from pagedlab.experiments.serve import serve
from pagedlab.interrupts import Interrupts
from tests.analysis.served_run import serve_run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_RUNS = ("results", "compare", "ablate", "report", "trace", "publish", "dashboard")


def commands():
    """(page, words) of each; a line may go on in the next one."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^    pagedlab (.*)$", text, re.MULTILINE):
            yield page.name, shlex.split(line, comments=True)


SHOWN = list(commands())
SERVED = [words for _, words in SHOWN if words[0] == "serve" and "--help" not in words]


def named(words):
    return " ".join(words)[:60]


def test_every_command_shown_exists_and_every_one_that_exists_is_shown():
    assert {words[0] for _, words in SHOWN} == set(COMMANDS) - {"bench_eviction"}


# Where a command would take minutes, or a model's weights: what is said in its place. The first that fits counts.
TINY = "model=tiny_llama model.optimize=none kernel=torch workload=synthetic workload.num_requests=3 "
TINY += "workload.prompt.high=40 workload.output.high=6"
SHORTER = [
    ("+experiment=block_size", "workload.num_requests=2 workload.max_tokens=8 seeds=[0] +experiment/on=simulated_a100"),
    ("seed=range(0,1000)", "seed=0,1"),
    ("workload.path=AzureLLMInferenceTrace_conv.csv.gz", "workload.path=AZURE"),
    ("workload.num_dialogues=400", "workload.num_dialogues=4"),
    ("workload.num_dialogues=200", "workload.num_dialogues=4"),
    ("workload=dialogues", "workload.num_dialogues=4"),
    ("workload.multi_turn=true", "workload.num_requests=8"),
    ("executor=simulated", "workload.num_requests=16"),
    ("executor=fingerprint", "workload.num_requests=16"),
    ("max_model_len=1024", f"max_model_len=512 {TINY}"),
    # All that is left runs a real model: the smallest there is, which needs no weights.
    ("serve", TINY),
]
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second}.0000000,{100 + second},9\n" for second in range(10, 18)
)


def shortened(words, folder):
    """The words of a command with what SHORTER says in the place of, or beside, its own."""
    shorter = next(said for fits, said in SHORTER if fits in words)
    given = dict.fromkeys(words[1:], None)
    for word in shorter.split():
        same = [own for own in given if own.lstrip("+").split("=")[0] == word.lstrip("+").split("=")[0]]
        for own in same:
            del given[own]
        if not (same and word.startswith("model=")):
            given[word.replace("AZURE", str(folder / "azure.csv"))] = None
        elif same:
            given[same[0]] = None  # a model of its own choice
    kept = [word for word in given if not word.startswith("hydra.")]
    where = "sweep" if "-m" in words or any(word.startswith("+experiment=") for word in words) else "run"
    return [*kept, "progress=false", f"hydra.{where}.dir={folder / where}"]


@pytest.mark.parametrize("words", SERVED, ids=named)
def test_what_is_served_runs(words, tmp_path, monkeypatch, capsys):
    """Every job of it, to its end."""
    (tmp_path / "azure.csv").write_text(AZURE)
    # Not what the user of this machine has calibrated.
    monkeypatch.setattr("pagedlab.hardware.calibration.file.folder", lambda: tmp_path / "calibration")
    monkeypatch.setattr(sys, "argv", ["serve", *shortened(words, tmp_path)])
    monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "1")
    interrupts = Interrupts()
    assert serve(interrupts) == 0, capsys.readouterr().err
    found = json.loads(next(iter(tmp_path.glob("*/summary.json"))).read_text())
    assert found["status"] == "completed"
    assert found.get("completed")


@pytest.mark.parametrize("words", [words for _, words in SHOWN if words[0] == "plan"], ids=named)
def test_what_is_planned_can_run(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [*words, f"hydra.sweep.dir={tmp_path / 'sweep'}"])
    monkeypatch.setitem(os.environ, "HYDRA_FULL_ERROR", "1")
    assert plan(Interrupts()) == 0, capsys.readouterr().err
    assert ", 0 refused" in capsys.readouterr().out


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two allocators x two block sizes, as the documented commands ask of a sweep."""
    folder = tmp_path_factory.mktemp("documented")
    for allocator in ("paged", "reserve_max"):
        for size in (16, 32):
            words = [f"allocator={allocator}", f"block_size={size}", "kv_bytes=4MiB"]
            serve_run(folder / "sweep" / f"{allocator}-{size}", *words)
    return folder


@pytest.mark.parametrize(("page", "words"), [(p, w) for p, w in SHOWN if w[0] in OF_RUNS], ids=str)
def test_what_is_shown_of_finished_runs_works(page, words, sweep, monkeypatch, capsys, tmp_path):
    """Placeholders are folders of these runs; what would be sent to a server is not."""
    if "--entity" in words:
        pytest.skip("saves to a server: tests/tracker/test_dashboard.py does it to a local one")
    if words[0] == "dashboard":
        pytest.importorskip("wandb_workspaces", reason="needs the extra `dashboard`")
    run, other = (sweep / "sweep" / f"{allocator}-16" for allocator in ("paged", "reserve_max"))
    places = {"results/block_size": sweep, "SWEEP": sweep / "sweep", "RUN": run, "RUN_OR_SWEEP": run, "results": sweep}
    places |= {"RUN_OR_SWEEP_A": other, "RUN_OR_SWEEP_B": run}
    given = [str(places.get(word, word)) for word in words[1:]]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [words[0], *given])
    # The signal handlers of a command would outlive it here.
    monkeypatch.setattr("pagedlab.analysis.command.guarded", lambda run: run(Interrupts()))
    assert import_module(f"pagedlab.experiments.{words[0]}").main() == 0, capsys.readouterr().err
    assert capsys.readouterr().out
