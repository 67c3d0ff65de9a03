"""The pinned set: that all of it is pinned, its licences, and its advisories, where there is a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.audit.harness import ROOT, Check, Found

# Of a licence's text or classifier: what a user of pagedlab need not ask a lawyer about.
FREE = r"apache|mit\b|mit license|bsd|python software foundation|psf|isc|mpl|mozilla|unlicense|zlib|0bsd|cc0|lgpl"
FREE += r"|nvidia|the unlicense|public domain|historical permission"

OF_TESTS = {"libcachesim"}  # GPL 3: run beside ours to compare with, no part of what a user installs


def pinned() -> dict[str, str]:
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)", line):
            found[match[1].lower()] = match[2]
    return found


def licence(name: str) -> str | None:
    """What the installed package says; None where it is not installed."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    classifiers = [one.rpartition("::")[2].strip() for one in said.get_all("Classifier") or [] if "License ::" in one]
    short = (said.get("License") or "").strip().partition("\n")[0][:80]
    return said.get("License-Expression") or ", ".join(classifiers) or short or "none stated"


def pieces(short: bool) -> list[str]:
    return ["pins"] if short else ["pins", "licences", "advisories"]


def attempt(piece: str) -> Found:
    found = Found()
    if piece == "pins":
        for line in (ROOT / "constraints.txt").read_text().splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                found.attempt(f"constraints.txt: {line}", re.match(r"[A-Za-z0-9._-]+==\S+", line) is not None, "no ==")
    elif piece == "licences":
        said = {name: text for name in pinned() if (text := licence(name)) is not None}
        for name, text in said.items():
            free = name in OF_TESTS or re.search(FREE, text, re.IGNORECASE) is not None
            found.attempt(f"licence of {name}", free, text)
        found.figures["licences"] = said
    else:
        advisories(found)
    return found


def advisories(found: Found) -> None:
    tool = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if tool is None:
        found.skipped = "advisories: pip-audit is not installed"
        return
    command = [tool, "-r", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip", "--progress-spinner=off"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "ConnectionError" in done.stderr or "Max retries" in done.stderr:
        found.skipped = "advisories: no network"
        return
    found.attempt("pip-audit", done.returncode == 0, (done.stdout + done.stderr)[-400:])


CHECK = Check("packages: pinned, licensed freely, without an advisory", pieces, attempt, 20)
