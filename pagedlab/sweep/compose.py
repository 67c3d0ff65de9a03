"""Hydra composes the config of each job of a sweep twice: to check them all before the first one runs, and again where
each is launched. Composing is most of what a sweep costs beyond its jobs, and a kept config a hundredth of that."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from omegaconf import DictConfig


class ComposedOnce:
    """Stands for `load_sweep_config` of Hydra's config loader: of the same overrides the second call gets what the
    first one did, as it was, and nobody a third time. A kept config is a pickle of 30 kB."""

    def __init__(self, compose: Callable[[DictConfig, list[str]], DictConfig]):
        self._compose = compose
        self._kept: dict[tuple[str, ...], bytes] = {}

    def __call__(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        kept = self._kept.pop(tuple(sweep_overrides), None)
        if kept is not None:
            config: DictConfig = pickle.loads(kept)
            return config
        config = self._compose(master_config, list(sweep_overrides))
        self._kept[tuple(sweep_overrides)] = pickle.dumps(config)
        return config
