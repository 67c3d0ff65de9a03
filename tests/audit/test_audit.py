"""The audit: its short form, and that it can fall short."""

from __future__ import annotations

import ast
import json
import os
import time

import pytest

from pagedlab.allocator.base import Allocator
from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.prefixes import Prefixes
from pagedlab.eviction.lru import Lru
from tests.audit import cases, dependencies
from tests.audit.checks import CHECKS
from tests.audit.explorer import explore
from tests.audit.harness import ROOT, Check, Found, record, run_checks, run_piece
from tests.engine.test_mutations import rewrite

SHORT = [(name, piece) for name, check in CHECKS.items() for piece in check.pieces(True)]


@pytest.mark.parametrize(("name", "piece"), SHORT, ids=str)
def test_the_short_form_holds(name, piece):
    # Who forks does so in a process of its own: this one may have threads.
    found = run_piece(CHECKS[name], name, piece)[0] if name == "signals" else CHECKS[name].attempt(piece)
    assert not found.faults
    assert found.tried > 0 or found.skipped


# ---- it can fall short ----------------------------------------------------------------------------------------------


def one(tried, faults=(), least=1):
    return Check("", lambda short: [0], lambda piece: Found(tried, list(faults)), least)


def test_a_fault_and_too_few_tries_fall_short(monkeypatch):
    checks = {"sound": one(3), "at fault": one(3, ["it leaks"]), "too few": one(3, least=4)}
    monkeypatch.setattr("tests.audit.harness.run_piece", lambda check, name, piece: (check.attempt(piece), 0.0))
    written = record(run_checks(checks, short=False, processes=1), short=False)
    assert {name: check["holds"] for name, check in written["checks"].items()} == {
        "sound": True,
        "at fault": False,
        "too few": False,
    }
    assert not written["holds"]
    assert json.loads(json.dumps(written)) == written


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        ("exit", "ended with 3"),
        ("die", "ended with -9"),
        ("raise", "ended with 1: KeyError"),
        ("hang", "still running"),
    ],
)
def test_whatever_becomes_of_a_piece_is_a_fault_of_it(piece, said, tmp_path, monkeypatch):
    program = {"exit": "exit(3)", "die": "os.kill(os.getpid(), 9)", "raise": "{}['a']", "hang": "time.sleep(60)"}[piece]
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {__import__("sys").executable} -c "import os, time; {program}"\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    limit_s = 1 if piece == "hang" else 60
    found, _ = run_piece(Check("", lambda short: [], lambda piece: Found(), limit_s=limit_s), "any", piece)
    assert len(found.faults) == 1
    assert said in found.faults[0]


# ---- packages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "tried", "faults", "skipped"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 1, [], ""),
        (
            {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}]},
            1,
            ["advisories of a 1: CVE-1, CVE-2"],
            "",
        ),
        (
            {"dependencies": [{"name": "a", "skip_reason": "Dependency not found on PyPI"}]},
            0,
            [],
            "advisories of 1 of 1 packages, no source answered",
        ),
        (None, 0, [], "advisories, no source answered (ConnectionError: no)"),
    ],
)
def test_no_answer_about_a_package_is_not_one_that_it_is_sound(printed, tried, faults, skipped):
    found = Found()
    dependencies.judge(found, "" if printed is None else json.dumps(printed), "warning\nConnectionError: no\n")
    assert (found.tried, found.faults, found.skipped) == (tried, faults, skipped)


@pytest.mark.parametrize(
    "line",
    [
        "$(BIN)/python -m pip install --quiet -e .",
        "curl -sSf https://example.org/install.sh | sh",
        "- uses: actions/checkout@v4",
        "uses: actions/checkout@main",
        "FROM python:3.11",
        "image: ubuntu:latest",
        "rev: main",
        "git clone https://example.org/x",
    ],
)
def test_what_is_not_pinned_is_found(line):
    assert list(dependencies.faults_of_recipe(f"all:\n\t{line}\n"))


def test_what_is_pinned_is_not():
    assert not list(
        dependencies.faults_of_recipe(
            f"- uses: actions/checkout@{'0a' * 20}\nFROM python@sha256:{'0a' * 32}\n# curl https://x\n"
            "\tpip install -c constraints.txt \\\n  -e .\n- uses: ./here\n"
        )
    )


@pytest.mark.parametrize(
    "call",
    [
        "AutoModel.from_pretrained('a', trust_remote_code=False)",
        "AutoModel.from_pretrained('a', local_files_only=True)",
        "AutoModel.from_pretrained('a', local_files_only=True, trust_remote_code=settings.trust)",
        "snapshot_download('a/b')",
        "urllib.request.urlopen('https://example.org')",
        "torch.hub.load('a', 'b')",
    ],
)
def test_a_download_of_no_version_is_found(call):
    assert list(dependencies.faults_of_code(call))


def test_an_audit_that_is_stopped_leaves_no_piece_running(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$4" in *quick*) exit 3;; esac\necho $$ > {tmp_path / "pid"}\nexec sleep 60\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))

    def stop(line):
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    check = Check("", lambda short: ["slow", "quick"], lambda piece: Found())
    with pytest.raises(KeyboardInterrupt):
        run_checks({"any": check}, short=False, processes=2, say=stop)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


# ---- the cases -----------------------------------------------------------------------------------------------------


def test_all_43_cases_have_a_test_or_a_reason():
    numbers = [int(case.split()[0].removeprefix("E")) for case in (*cases.CASES, *cases.ABSENT)]
    assert len(set(numbers)) == len(numbers) == 43


def test_every_test_of_a_case_is_there():
    for tests in cases.CASES.values():
        for test in tests:
            file, _, function = test.partition("::")
            tree = ast.parse((ROOT / "tests" / f"{file}.py").read_text())
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert function in names or function == "runTest", test


def test_e30_uses_at_one_moment_keep_their_order():
    """LRU goes by the order of uses, not by a clock that two of them may read alike."""
    for again in range(4):
        lru = Lru(4)
        lru.now_s = 1.0
        for key in range(4):
            lru.insert(key)
            lru.offer(key)
        lru.withdraw(again)
        lru.hit(again)
        lru.free(again)
        lru.offer(again)
        assert lru.evict_all(4) == [*(key for key in range(4) if key != again), again]


# ---- the explorer ---------------------------------------------------------------------------------------------------

EXPLORED_FAULTS = {
    "no copy-on-write": (BlockPool, "is_shared", "self.ref[block] > 1", "False"),
    "a fork without references": (PagedAllocator, "fork", "self.pool.retain(source.table)", "pass"),
    "a block is cached half full": (Prefixes, "publish", "seq.computed // index", "1 + seq.computed // index"),
    "what is shared is not held": (CachingPool, "hold", "self._idle.remove(block)", "pass"),
    "the tail is not swapped out": (Allocator, "swap_out", "blocks_for(part.computed, size)", "part.computed // size"),
}


@pytest.mark.parametrize("name", EXPLORED_FAULTS)
def test_the_explorer_finds(name, monkeypatch):
    monkeypatch.setattr(PagedAllocator, "audit", lambda self: None)
    rewrite(monkeypatch, *EXPLORED_FAULTS[name])
    assert any(explore(configuration, 1500).faults for configuration in ("hash_chain, host", "radix, host"))
