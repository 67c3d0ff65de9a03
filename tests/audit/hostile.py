"""Input of somebody who means harm: configs that name code, checkpoints that carry it, secrets that must not be kept.

The suites of refusals run once more under `python -O`, which drops assert statements.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pagedlab.core.errors import PagedlabError
from tests.audit.harness import ROOT, Check, Found
from tests.audit.tested import tested


def words_of(text: str) -> list[str]:
    return text.split()


# ---- configs that name code -----------------------------------------------------------------------------------------

TARGETS = words_of("""
os.system os.popen os.execv os.remove os.symlink os.getenv os.putenv os.kill os.fork os.chmod subprocess.run
subprocess.Popen subprocess.check_output subprocess.getoutput builtins.eval builtins.exec builtins.open
builtins.__import__ builtins.compile builtins.getattr builtins.print pickle.loads pickle.load marshal.loads
shelve.open dill.loads joblib.load numpy.load torch.load torch.hub.load importlib.import_module runpy.run_path
runpy.run_module code.interact pty.spawn shutil.rmtree shutil.copy shutil.move pathlib.Path.write_text
pathlib.Path.unlink urllib.request.urlopen socket.socket http.server.test ftplib.FTP smtplib.SMTP sqlite3.connect
ctypes.CDLL sys.exit functools.partial tempfile.mkdtemp logging.FileHandler hydra.utils.instantiate
omegaconf.OmegaConf.load yaml.unsafe_load pagedlab.run.run pagedlab.cli.main
""")
GROUPS = ("model", "allocator", "scheduler", "preemption", "executor", "hardware", "kernel", "workload", "tracker")
RESOLVERS = words_of("""
${eval:1+1} ${python:os.system} ${oc.create:{a:1}} ${oc.decode:1} ${exec:ls} ${shell:ls} ${sh:ls} ${cmd:ls} ${py:1}
${env:HOME} ${instantiate:os.system} ${import:os} ${load:/etc/passwd} ${file:/etc/passwd}
${read:/etc/passwd} ${nothing} ${..nothing} ${.nothing} ${a.b.c} ${${nothing}} ${oc.env:}
${oc.env:NO_SUCH_VARIABLE_HERE} ${oc.select} ${oc.dict.keys:nothing} ${oc.dict.values:nothing} ${hydra:runtime.cwd}
${oc.deprecated:nothing}
""")


def configs(found: Found, every: int) -> None:
    """`_target_` with every hostile name in every group, with what it would be called with; resolvers in texts."""
    from pagedlab.config import load_settings
    from tests.config.composed import overridden

    with tempfile.TemporaryDirectory() as made:
        canary = Path(made) / "canary"
        canary.write_text("untouched")
        for number, target in list(enumerate(TARGETS))[::every]:
            for group in (GROUPS[number % len(GROUPS)], GROUPS[(number + 4) % len(GROUPS)]):
                words = [f"+{group}._target_={target}", f"+{group}._args_=['echo ran > {canary}']"]
                for given in (words, words[:1]):
                    _refused(found, f"{group}: {target}", lambda given=given: load_settings(overridden((), *given)))
        for text in RESOLVERS[::every]:
            for setting in ("model.revision", "block_size"):
                # Quoted, or Hydra's own grammar would refuse it before.
                name = f"{setting}={text}"
                _refused(found, name, lambda name=name: load_settings(overridden((), name)))
        found.attempt("canary", canary.read_text() == "untouched", "code of a config ran")
        found.attempt("canary's folder", [path.name for path in Path(made).iterdir()] == ["canary"], "files were made")


def _refused(found: Found, name: str, attempt: Any) -> None:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        attempt()
    except (PagedlabError, HydraException, OmegaConfBaseException):
        found.attempt(name, True)
    except Exception as error:
        found.attempt(name, False, f"{type(error).__name__}: {error}")
    else:
        found.attempt(name, False, "was taken")


# ---- secrets --------------------------------------------------------------------------------------------------------

SECRETS = {
    "of the environment": "planted-env-5d0c61a3",
    "by a resolver": "planted-resolved-77f2e0b9",
    "by an override": "planted-override-19ac4e55",
    "nested": "planted-nested-c3b8d612",
    "in a URL": "planted-url-e41f90d7",
}


def secrets(found: Found, tracker: str) -> None:
    """Five of them in one run, with every file and all that is printed searched afterwards."""
    words = ["executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=4"]
    words += ["workload.prompt.high=60", "workload.output.high=40", "kv_num_blocks=32", f"tracker={tracker}"]
    words += ["model.revision='${oc.env:PLANTED_TOKEN}'"]
    words += [f"+model.provenance.api_key={SECRETS['by an override']}"]
    words += [f"+model.provenance.db.deep.password={SECRETS['nested']}"]
    words += [f"+model.provenance.from='https://someone:{SECRETS['in a URL']}@host.example/x'"]
    environment = os.environ | {"HF_TOKEN": SECRETS["of the environment"], "PLANTED_TOKEN": SECRETS["by a resolver"]}
    environment |= {"WANDB_API_KEY": "k" * 40, "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        command = [sys.executable, "-m", "pagedlab.cli", "serve", *words, f"hydra.run.dir={folder}"]
        done = subprocess.run(command, cwd=made, env=environment, capture_output=True, timeout=300)
        found.attempt(f"{tracker}: the run", done.returncode == 0, done.stderr[-300:])
        files = {path: path.read_bytes() for path in Path(made).rglob("*") if path.is_file()}
        found.figures["files searched"] = len(files)
        for kind, secret in SECRETS.items():
            where = [str(path.relative_to(made)) for path, content in files.items() if secret.encode() in content]
            where += ["what it printed"] if secret.encode() in done.stdout + done.stderr else []
            found.attempt(f"{tracker}: the secret {kind}", not where, f"is in {where}")


# ---- under python -O ------------------------------------------------------------------------------------------------

REFUSALS = {
    "config": ("tests/config/test_settings.py",),
    "checkpoints": ("tests/model/test_hostile_folder.py",),
    "conversations": ("tests/workload/test_malformed_files.py",),
    "traces": ("tests/workload/test_traces.py", "tests/workload/test_block_traces.py"),
    "secrets": ("tests/tracker/test_redact.py",),
    "a tracker refused, slow, or full": ("tests/tracker/test_wandb_failures.py",),
    # Tokens whose Python hashes collide, digests cut to a few bits or all the same, salts, adapters, other weights.
    "forged hashes": (
        "tests/prefix_cache/test_engine.py",
        "tests/prefix_cache/test_index.py",
        "-k",
        "e16 or s18 or s19 or e17 or e18 or e19 or e20 or hit or policy",
    ),
}


def suites(found: Found, name: str, optimize: str) -> None:
    for test in tested(*REFUSALS[name], PYTHONOPTIMIZE=optimize, PYTHONWARNINGS="ignore"):
        if test.outcome != "skipped":
            found.attempt(f"{name}{' under -O' * bool(optimize)}: {test.name}", test.outcome == "passed", test.said)


# ---- pieces ---------------------------------------------------------------------------------------------------------


def pieces(short: bool) -> list[tuple[str, str]]:
    """(what, of which kind, or every how many)."""
    if short:
        return [("configs", "8")]
    refusals = [("refusals", name) for name in REFUSALS]
    optimized = [("refusals under -O", name) for name in REFUSALS]
    return [("configs", "1"), ("secrets", "none"), ("secrets", "wandb"), *refusals, *optimized]


def attempt(piece: tuple[str, str]) -> Found:
    what, kind = piece
    found = Found()
    if what == "configs":
        configs(found, every=int(kind))
    elif what == "secrets":
        secrets(found, kind)
    else:
        suites(found, kind, "1" if what.endswith("-O") else "")
    return found


CHECK = Check("hostile configs, checkpoints, names, hashes; secrets in no file; also under -O", pieces, attempt, 600)
