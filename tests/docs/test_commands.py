"""Every command that README.md and docs/ show: what it says is accepted, and those about finished runs are executed."""

import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from pagedlab.cli import COMMANDS
from pagedlab.config import load_settings
from pagedlab.interrupts import Interrupts
from tests.analysis.served_run import serve_run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OF_RUNS = ("results", "compare", "ablate", "report", "trace", "dashboard")


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


@pytest.mark.parametrize("words", SERVED, ids=named)
def test_what_is_served_is_accepted(words):
    """Every job of it composes, and its settings are checked as before a run."""
    words = [word for word in words[1:] if not word.startswith(("-", "hydra."))]
    axes = [
        (word.split("=", 1)[0], word.split("=", 1)[1].split(",")) for word in words if "," in word and "[" not in word
    ]
    for place in range(max([len(values) for _, values in axes], default=1)):
        chosen = {name: values[min(place, len(values) - 1)] for name, values in axes}
        taken = [
            f"{word.split('=')[0]}={chosen[word.split('=')[0]]}" if word.split("=")[0] in chosen else word
            for word in words
        ]
        with initialize_config_module("pagedlab.conf", version_base="1.3"):
            load_settings(compose("config", taken))


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
    places = {"SWEEP": sweep / "sweep", "RUN": run, "RUN_OR_SWEEP": run, "results": sweep}
    places |= {"RUN_OR_SWEEP_A": other, "RUN_OR_SWEEP_B": run}
    given = [str(places.get(word, word)) for word in words[1:]]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [words[0], *given])
    # The signal handlers of a command would outlive it here.
    monkeypatch.setattr("pagedlab.analysis.command.guarded", lambda run: run(Interrupts()))
    assert import_module(f"pagedlab.experiments.{words[0]}").main() == 0, capsys.readouterr().err
    assert capsys.readouterr().out
