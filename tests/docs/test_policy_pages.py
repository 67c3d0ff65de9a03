"""docs/policies is what the docstrings and configs say now, of every choice that there is."""

from pathlib import Path

import pytest

from pagedlab.analysis.policy_pages import SEAMS, pages

ROOT = Path(__file__).resolve().parents[2]
MADE = pages()


def test_the_pages_are_not_stale():
    """`python -m experiments.docs` writes them anew."""
    folder = ROOT / "docs" / "policies"
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")} == MADE


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.kind)
def test_every_option_has_a_section_that_says_something(seam):
    page = MADE[f"{seam.kind}.md"]
    for name in seam:
        _, found, section = page.partition(f"\n## `{name}`\n")
        assert found, name
        assert len(section.partition("\n## ")[0].split()) >= 5, name


def test_sources_and_parameters_come_from_code_and_config():
    assert "SIEVE (Zhang et al., NSDI 2024)" in MADE["eviction.md"]
    assert "| `eviction.small_fraction` | `0.1` |" in MADE["eviction.md"]
    assert "warmup: paper or libcachesim" in MADE["eviction.md"]
    assert "Orca (Max)" in MADE["allocator.md"]
