"""The checks of the audit, by name. The longest first."""

from __future__ import annotations

from tests.audit import cases, explorer, mutations, programs
from tests.audit.harness import Check

CHECKS: dict[str, Check] = {
    "mutations": mutations.CHECK,
    "programs": programs.CHECK,
    "cases": cases.CHECK,
    "explorer": explorer.CHECK,
}
