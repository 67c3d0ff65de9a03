"""What a run of pytest says of its tests: checks that exist as tests are run as such, and counted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.audit.harness import ROOT


@dataclass(frozen=True)
class Tested:
    """name: with its parameters. outcome: passed, failed or skipped; said: of the last two, why. caught_by: what the
    test recorded under that name."""

    name: str
    outcome: str
    said: str
    caught_by: str | None


def tested(*words: str, **environment: str) -> list[Tested]:
    """The tests of `pytest WORDS`. Raises where it ran none, or could not collect them."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", f"--junit-xml={report}"]
        done = subprocess.run(
            [*command, *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest {' '.join(words)} ended with {done.returncode}: {done.stdout[-500:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    return [_of(case) for case in cases]


def _of(case: ElementTree.Element) -> Tested:
    properties = {found.get("name"): found.get("value") for found in case.iter("property")}
    for outcome, tags in (("failed", ("failure", "error")), ("skipped", ("skipped",))):
        for tag in tags:
            if (element := case.find(tag)) is not None:
                said = (element.get("message") or "").partition("\n")[0]
                return Tested(case.get("name", ""), outcome, said, properties.get("caught_by"))
    return Tested(case.get("name", ""), "passed", "", properties.get("caught_by"))
