"""The pinned set: that all of it is pinned, its licences, its advisories where a source of them can be asked, and that
nothing is installed, run or downloaded that is not pinned."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
    return ["pins", "sources"] if short else ["pins", "sources", "licences", "advisories"]


def attempt(piece: str) -> Found:
    found = Found()
    if piece == "pins":
        for line in (ROOT / "constraints.txt").read_text().splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                found.attempt(f"constraints.txt: {line}", re.match(r"[A-Za-z0-9._-]+==\S+", line) is not None, "no ==")
    elif piece == "sources":
        sources(found)
    elif piece == "licences":
        said = {name: text for name in pinned() if (text := licence(name)) is not None}
        for name, text in said.items():
            free = name in OF_TESTS or re.search(FREE, text, re.IGNORECASE) is not None
            found.attempt(f"licence of {name}", free, text)
        found.figures["licences"] = said
    else:
        advisories(found)
    return found


# ---- advisories -----------------------------------------------------------------------------------------------------

MOST_S = 400  # of pip-audit, which asks a server once a package


def advisories(found: Found) -> None:
    tool = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if tool is None:
        found.skipped = "advisories, pip-audit is not installed"
        return
    command = [tool, "-r", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip", "--progress-spinner=off"]
    command += ["--format=json", "--timeout=5"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S)
    except subprocess.TimeoutExpired:
        found.skipped = f"advisories, no source answered for all of them in {MOST_S} s"
        return
    judge(found, done.stdout, done.stderr)


def judge(found: Found, printed: str, said: str) -> None:
    """By what pip-audit prints. A package that its source does not have counts as not known: it says the same of all
    where the source is a mirror without advisories."""
    try:
        packages = json.loads(printed)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (said.strip().splitlines() or ["nothing said"])[-1]
        found.skipped = f"advisories, no source answered ({last[:120]})"
        return
    known = [one for one in packages if "skip_reason" not in one]
    for one in known:
        names = [advisory["id"] for advisory in one.get("vulns", [])]
        found.attempt(f"advisories of {one['name']} {one.get('version')}", not names, ", ".join(names))
    found.figures["advisories asked of"] = len(known)
    if len(known) < len(packages):
        found.skipped = f"advisories of {len(packages) - len(known)} of {len(packages)} packages, no source answered"


# ---- what is installed, run or downloaded ---------------------------------------------------------------------------

RECIPES = ("Makefile", ".ci/run", ".github", ".gitlab-ci.yml", ".pre-commit-config.yaml", "Dockerfile")
CODE = ("pagedlab", "experiments", "kernels")
# Calls that fetch, and what each must be given so that it fetches nothing, or only what the user named.
LOADERS = {"from_pretrained": ("local_files_only", "trust_remote_code"), "snapshot_download": ("revision",)}
LOADERS |= {"hf_hub_download": ("revision",), "load_dataset": ("revision",)}
NEVER = ("urlopen", "urlretrieve", "hub.load", "load_state_dict_from_url", "requests.get", "httpx.get", "get_kernel")


def sources(found: Found) -> None:
    for path in recipes():
        for fault in faults_of_recipe(path.read_text(encoding="utf-8")):
            found.attempt(str(path.relative_to(ROOT)), False, fault)
        found.attempt(f"{path.relative_to(ROOT)}: read", True)
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "peers" in path.parts and path.name in ("vllm.py",):
                continue
            faults = list(faults_of_code(path.read_text(encoding="utf-8")))
            found.attempt(str(path.relative_to(ROOT)), not faults, faults)
    build = re.search(r"(?m)^requires = \[(.*)\]", (ROOT / "pyproject.toml").read_text())
    for name in re.findall(r'"([A-Za-z0-9_.-]+)', build[1] if build else ""):
        found.attempt(f"build requires {name}", name.lower() in pinned(), "is not in constraints.txt")


def recipes() -> Iterator[Path]:
    for name in RECIPES:
        path = ROOT / name
        yield from ([path] if path.is_file() else (one for one in sorted(path.rglob("*")) if one.is_file()))


def faults_of_recipe(text: str) -> Iterator[str]:
    """Of a Makefile, a workflow or a Dockerfile: what it takes from elsewhere without saying which version."""
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("#"):
            continue
        if re.search(r"pip3?\s+install", line) and not re.search(r"-c\s+\S*constraints\.txt|==|--require-hashes", line):
            yield f"{line}: installs without -c constraints.txt"
        if re.search(r"\b(curl|wget)\b.*https?://|git clone|npx |npm install(?! --ci)|apt(-get)? install", line):
            yield f"{line}: downloads what is not pinned"
        used = re.match(r"-?\s*uses:\s*(\S+)", line)
        if used and not used[1].startswith("./") and not re.search(r"@[0-9a-f]{40}$|@sha256:[0-9a-f]{64}$", used[1]):
            yield f"{line}: an action that is not pinned by its commit"
        image = re.match(r"(?:FROM|image:)\s+(\S+)", line)
        if image and "@sha256:" not in image[1]:
            yield f"{line}: an image that is not pinned by its digest"
        if re.match(r"rev:\s*(main|master|HEAD)\b", line):
            yield f"{line}: a branch"


def faults_of_code(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called.endswith(NEVER):
            yield f"line {node.lineno}: {called} downloads"
        for needed in LOADERS.get(called.rpartition(".")[2], ()):
            if needed not in given:
                yield f"line {node.lineno}: {called} without {needed}"
        if given.get("trust_remote_code", "False") != "False":
            yield f"line {node.lineno}: {called} with trust_remote_code={given['trust_remote_code']}"


CHECK = Check(
    "packages: pinned, licensed freely, without an advisory; nothing unpinned is run or downloaded",
    pieces,
    attempt,
    300,
)
