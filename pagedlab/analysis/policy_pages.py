"""The pages of docs/policies: what can be chosen at each seam, from the docstrings and configs of the choices.

They are read, not imported: some of them need a GPU's libraries.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

import pagedlab
from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.registry import Registry
from pagedlab.eviction.base import EVICTIONS
from pagedlab.executor.base import EXECUTORS
from pagedlab.kernels.base import KERNELS
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.base import PREFIX_CACHES
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS
from pagedlab.settings import OPTIONS
from pagedlab.workload.base import WORKLOADS

SEAMS: tuple[Registry[Any], ...] = (
    ALLOCATORS,
    PREFIX_CACHES,
    EVICTIONS,
    ORDERS,
    BATCHINGS,
    ADMISSIONS,
    PREDICTORS,
    PREEMPTIONS,
    VICTIMS,
    EXECUTORS,
    KERNELS,
    WORKLOADS,
)
_MADE = "<!-- Made by `python -m experiments.docs` from docstrings and conf/: change those. -->"
_MEANT = {ord("*"): r"\*", ord("_"): r"\_", ord("<"): "&lt;"}  # what Markdown would take for markup
# Where a page says more than docstrings do.
_MORE = {
    "prefix_cache": "prefix_cache.md",
    "eviction": "eviction.md",
    "scheduler.order": "scheduling.md",
    "scheduler.batching": "scheduling.md",
    "scheduler.admission": "scheduling.md",
    "scheduler.predictor": "scheduling.md",
    "preemption": "preemption.md",
    "preemption.victim": "preemption.md",
    "executor": "simulation.md",
    "kernel": "kernels.md",
}


def pages() -> dict[str, str]:
    """File name -> Markdown: a page a seam, and README.md that names them."""
    found = {f"{seam.kind}.md": _page(seam) for seam in SEAMS}
    lines = ["# What can be chosen", "", _MADE, "", "| choice | options |", "| --- | --- |"]
    lines += [
        f"| [`{seam.kind}=`]({seam.kind}.md) | {', '.join(f'`{name}`' for name in _own(seam))} |" for seam in SEAMS
    ]
    return found | {"README.md": "\n".join(lines) + "\n"}


def _own(seam: Registry[Any]) -> list[str]:
    """Those that pagedlab brings: plugins have no file in it."""
    return [name for name in seam if _source(seam, name).is_file()]


def _page(seam: Registry[Any]) -> str:
    contract, _ = _documented(_source(seam, "base"), None)
    lines = [f"# `{seam.kind}=`", "", _MADE, "", *_text(contract)]
    if seam.kind in _MORE:
        lines += ["", f"More: [{_MORE[seam.kind]}](../{_MORE[seam.kind]})."]
    for name in _own(seam):
        source, what = _documented(_source(seam, name), name)
        lines += ["", f"## `{name}`", "", *_text(source)]
        if what:
            lines += ["", *_text(what)]
        lines += _parameters(seam.kind, name)
    return "\n".join(lines) + "\n"


def _source(seam: Registry[Any], name: str) -> Path:
    folders = [Path(folder).joinpath(*seam.package.split(".")[1:]) for folder in pagedlab.__path__]
    return next((folder for folder in folders if folder.is_dir()), folders[0]) / f"{name}.py"


def _documented(path: Path, name: str | None) -> tuple[str, str]:
    """The docstring of a module, and of what it registers under `name`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    registered = (
        node
        for node in tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        and any(_names(decorator) == name for decorator in node.decorator_list)
    )
    option = next(registered, None)
    return ast.get_docstring(tree) or "", (ast.get_docstring(option) or "") if option is not None else ""


def _names(decorator: ast.expr) -> object:
    """What a decorator `@X.register("name")` says."""
    if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute):
        argument = decorator.args[0] if decorator.func.attr == "register" and decorator.args else None
        return argument.value if isinstance(argument, ast.Constant) else None
    return None


def _parameters(kind: str, name: str) -> list[str]:
    """Its own settings: their defaults from its config, what they mean from its dataclass."""
    group, _, seam = kind.partition(".")
    path = Path(pagedlab.__file__).parent.parent / "conf" / group / f"{name}.yaml"
    if not path.is_file():
        path = Path(pagedlab.__file__).parent / "conf" / group / f"{name}.yaml"
    if seam or not path.is_file():
        return []
    values = {key: value for key, value in yaml.safe_load(path.read_text(encoding="utf-8")).items() if key != "name"}
    if not values:
        return []
    kind_of = OPTIONS.get(group, {}).get(name)
    meaning = inspect.getdoc(kind_of) if kind_of is not None else None
    shown = [f"| `{group}.{key}` | `{_plain(value)}` |" for key, value in values.items()]
    return ["", "| setting | default |", "| --- | --- |", *shown, *(["", *_text(meaning)] if meaning else [])]


def _plain(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True, width=10_000)).strip().removesuffix("...").strip()


def _text(docstring: str) -> Iterable[str]:
    """As Markdown: what is not code has no meaning of its own there."""
    for line in docstring.splitlines():
        pieces = line.split("`")
        pieces[::2] = [piece.translate(_MEANT) for piece in pieces[::2]]
        yield "`".join(pieces)
