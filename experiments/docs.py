"""Writes docs/policies from the docstrings and configs of the policies: `python -m experiments.docs` in a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs" / "policies"


def main() -> int:
    from pagedlab.analysis.policy_pages import pages

    DOCS.mkdir(parents=True, exist_ok=True)
    made = pages()
    for stale in DOCS.glob("*.md"):
        if stale.name not in made:
            stale.unlink()
    for name, text in made.items():
        (DOCS / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} pages: {DOCS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
