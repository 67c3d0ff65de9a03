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
    programs,
    signals,
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
    "determinism": determinism.CHECK,
    "cases": cases.CHECK,
    "dependencies": dependencies.CHECK,
}
