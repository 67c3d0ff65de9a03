"""From a composed Hydra config to checked `ReplaySettings`, and the eviction policies that it names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra import compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from pagedlab.config import check_texts, typed_settings
from pagedlab.core.errors import ConfigError
from pagedlab.eviction.base import EVICTIONS, Eviction
from pagedlab.eviction.check import check_eviction
from pagedlab.settings import OPTIONS, TRACES, ReplaySettings
from pagedlab.workload.block_trace import check_block_trace
from pagedlab.workload.checks import shown, whole

GROUPS = OPTIONS | {"workload": OPTIONS["workload"] | TRACES}
MOST_BLOCKS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with its settings. label: what it is called in tables, unlike that of any other choice."""

    label: str
    settings: Any

    def build(self, capacity: int, seed: int) -> Eviction:
        return EVICTIONS[self.settings.name](capacity, self.settings, seed)


def load_replay_settings(config: DictConfig) -> ReplaySettings:
    """Check types, unknown keys and values. ConfigError before anything is read or written."""
    settings = typed_settings(config, ReplaySettings, GROUPS)
    whole("block_size", settings.block_size)
    whole("seed", settings.seed, low=0)
    if not settings.capacity_blocks:
        raise ConfigError("capacity_blocks=[]: expected at least one size")
    for i, blocks in enumerate(settings.capacity_blocks):
        if not 1 <= blocks <= MOST_BLOCKS:
            raise ConfigError(f"capacity_blocks[{i}]={blocks}: expected 1 to {MOST_BLOCKS}")
    if len(set(settings.capacity_blocks)) < len(settings.capacity_blocks):
        raise ConfigError(f"capacity_blocks={settings.capacity_blocks}: a size twice, expected each once")
    if settings.workload.name in TRACES:
        check_block_trace(settings.workload)
    check_eviction(settings.eviction, "eviction")
    check_texts(settings, "")
    return settings


def choices(settings: ReplaySettings) -> list[Choice]:
    """The policies to try, in order. A name in `policies` has the settings of its config file. ConfigError.

    To be called in a running Hydra application, whose config folders are searched.
    """
    if settings.policies is None:
        return [Choice(settings.eviction.name, settings.eviction)]
    if not settings.policies:
        raise ConfigError("policies=[]: expected at least one, or null for the one of eviction=")
    chosen = [choice_of(item, f"policies[{i}]") for i, item in enumerate(settings.policies)]
    labels = [choice.label for choice in chosen]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"policies: {twice} twice, expected each once")
    return chosen


def choice_of(item: object, where: str) -> Choice:
    """The policy that `name`, or {name: ..., setting: value}, means. where: what holds it, for the message."""
    changes = {"name": item} if isinstance(item, str) else item
    if not isinstance(changes, dict) or not isinstance(changes.get("name"), str):
        raise ConfigError(f"{where}={shown(item)}: expected a name, or {{name: ..., setting: value}}")
    name = changes["name"]
    if name not in EVICTIONS:
        raise ConfigError(f"{where}={name}: no such option, expected one of {', '.join(EVICTIONS)}")
    try:
        settings = typed_settings(_with(name, changes), _Only, OPTIONS).eviction
    except ConfigError as error:
        raise ConfigError(str(error).replace("eviction", where, 1)) from error
    check_eviction(settings, where)
    said = [f"{key}={value}" for key, value in changes.items() if key != "name"]
    return Choice(" ".join([name, *said]), settings)


@dataclass
class _Only:
    """The one group, so that its keys and types are checked like those of a whole config."""

    eviction: Any


def _with(name: str, changes: dict[Any, Any]) -> DictConfig:
    """The option's config file with some values changed."""
    try:
        config = compose(f"eviction/{name}")
    except HydraException as error:
        raise ConfigError(f"eviction={name}: no config file ({str(error).splitlines()[0]})") from error
    OmegaConf.set_struct(config, False)
    merged = OmegaConf.merge(config, {"eviction": changes})
    if not isinstance(merged, DictConfig):
        raise ConfigError(f"eviction={name}: its config is no mapping")
    return merged
