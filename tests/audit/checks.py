"""The checks of the audit, by name. The longest first."""

from __future__ import annotations

from tests.audit import (
    bad_files,
    cases,
    dependencies,
    determinism,
    explorer,
    fault_injection,
    hostile,
    long_run,
    mutations,
    page,
    programs,
    signals,
    trackers,
    workers,
)
from tests.audit.harness import Check

CHECKS: dict[str, Check] = {
    "mutations": mutations.CHECK,
    "programs": programs.CHECK,
    "explorer": explorer.CHECK,
    "long run": long_run.CHECK,
    "signals": signals.CHECK,
    "faults": fault_injection.CHECK,
    "bad files": bad_files.CHECK,
    "hostile": hostile.CHECK,
    "report page": page.CHECK,
    "W&B": trackers.CHECK,
    "determinism": determinism.CHECK,
    "workers": workers.CHECK,
    "cases": cases.CHECK,
    "dependencies": dependencies.CHECK,
}
