"""Options of the user's own: a Python file named on the command line, or an installed package's entry point.

Code is run because the user named it, or installed it, and never because a config says so: a config is data.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.errors import ConfigError
from pagedlab.core.registry import Registry
from pagedlab.eviction.base import EVICTIONS
from pagedlab.executor.base import EXECUTORS
from pagedlab.settings import OPTIONS, NameOnlySettings
from pagedlab.workload.base import WORKLOADS

ENTRY_POINTS = "pagedlab.plugins"
FLAG = "--plugin"

# Groups whose options are chosen by a config file of their name, which a plugin has none of: it is made here. The other
# seams (scheduler.order and the like) are plain names, which a registration is enough for.
_GROUPS: dict[str, Registry[Any]] = {
    "allocator": ALLOCATORS,
    "eviction": EVICTIONS,
    "executor": EXECUTORS,
    "workload": WORKLOADS,
}


def load_plugins(argv: list[str]) -> None:
    """Run all plugins, those of installed packages first, and make what they register choices of the config.

    `--plugin FILE` and `--plugin=FILE`, as often as there are files, are taken out of `argv`. ConfigError for a file
    that is not there, that fails, or that takes a name that is taken.
    """
    files = _take_files(argv)
    known = {group: set(registry) for group, registry in _GROUPS.items()}
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        _run(f"entry point {entry.name} = {entry.value}", entry.load)
    for number, file in enumerate(files):
        path = Path(file).expanduser()
        _run(f"{FLAG} {file}", lambda path=path, number=number: _import_file(path, number))
    for group, registry in _GROUPS.items():
        for name in registry:
            if name not in known[group]:
                _make_choice(group, name, registry[name])


def _take_files(argv: list[str]) -> list[str]:
    files, i = [], 1
    while i < len(argv):
        word, equals, value = argv[i].partition("=")
        if word != FLAG:
            i += 1
            continue
        del argv[i]
        if not equals:
            if i == len(argv):
                raise ConfigError(f"{FLAG}: expected a Python file after it")
            value = argv.pop(i)
        files.append(value)
    return files


def _import_file(path: Path, number: int) -> None:
    """Under a name that nothing else has. It is in sys.modules, where dataclasses look for their annotations."""
    if not path.is_file():
        raise ConfigError("no such file")
    name = f"pagedlab_plugin_{number}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("expected a Python file, whose name ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _run(what: str, load: Any) -> None:
    """One line for whatever goes wrong in a plugin, with the place in it."""
    try:
        load()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, ConfigError) else f" (line {frame.lineno} of {frame.filename})"
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        raise ConfigError(f"{what}: {kind}{error}{place}") from error


def _make_choice(group: str, name: str, option: Any) -> None:
    """What conf/GROUP/NAME.yaml and a dataclass of the settings are for an option of pagedlab's own."""
    settings = getattr(option, "Settings", NameOnlySettings)
    if not (isinstance(settings, type) and is_dataclass(settings) and "name" in {f.name for f in fields(settings)}):
        raise ConfigError(f"{group}={name}: its Settings must be a dataclass with a field `name: str`")
    if group in OPTIONS:
        OPTIONS[group][name] = settings
    node = OmegaConf.structured(settings)
    node.name = name
    ConfigStore.instance().store(name=name, group=group, node=OmegaConf.to_container(node), provider="plugin")
