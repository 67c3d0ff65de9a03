"""docs/scheduling.md lists exactly what there is, and what it says of starving and yielding is what the classes say."""

import re
from pathlib import Path

import pytest

from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "scheduling.md").read_text()


def table(head):
    """Name -> the other cells, of the table whose first column is `head`."""
    rows = TEXT.partition(f"| `{head}` |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {name.strip("`"): rest for name, *rest in cells}


@pytest.mark.parametrize(
    ("head", "registry"),
    [
        ("scheduler.order", ORDERS),
        ("scheduler.batching", BATCHINGS),
        ("scheduler.admission", ADMISSIONS),
        ("preemption.victim", VICTIMS),
    ],
)
def test_a_table_lists_what_is_registered(head, registry):
    assert set(table(head)) == set(registry)


def test_the_orders_starve_and_yield_as_the_table_says():
    for name, (_, yields, waits, source) in table("scheduler.order").items():
        assert ORDERS[name].preempts == (yields == "yes"), name
        assert ORDERS[name].starves == waits.startswith("yes"), name
        assert source


def test_the_admissions_run_out_as_the_table_says():
    for name, (_, runs_out, _) in table("scheduler.admission").items():
        assert ADMISSIONS[name].overcommits == (runs_out == "yes"), name


def test_every_predictor_is_named():
    assert all(f"`{name}`" in TEXT for name in PREDICTORS)


def test_every_policy_has_a_docstring_of_its_own():
    for registry in (ORDERS, BATCHINGS, ADMISSIONS, VICTIMS, PREDICTORS):
        docs = [registry[name].__doc__ for name in registry]
        assert len(set(docs)) == len(docs)
        assert all(len(re.findall(r"\w+", doc or "")) > 2 for doc in docs), docs
