"""Hydra takes plugins from packages inside `hydra_plugins` alone. Here are their names; what they do is elsewhere.

Hydra imports this at every start, so what is slow to import is imported where it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher


class PoolLauncher(Launcher):  # type: ignore[misc]
    """hydra/launcher=pool, which `pagedlab serve` has where no other is named."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        from pagedlab.sweep.compose import ComposedOnce

        self._context, self._task, self._config = hydra_context, task_function, config
        loader = hydra_context.config_loader
        loader.load_sweep_config = ComposedOnce(loader.load_sweep_config)

    def launch(self, job_overrides: Any, initial_job_idx: int) -> Any:
        from pagedlab.launcher import launch_jobs

        return launch_jobs(self._context, self._task, self._config, job_overrides, initial_job_idx)


class PlanSweeper(BasicSweeper):  # type: ignore[misc]
    """hydra/sweeper=plan, for `pagedlab plan`: expands a sweep as the basic sweeper does, and launches nothing."""

    def sweep(self, arguments: list[str]) -> Any:
        from pagedlab.plan import plan_jobs

        plan_jobs(self.hydra_context.config_loader, self.config, self._parse_config() + arguments)


class SweepBegun(Callback):  # type: ignore[misc]
    """Tells the launch where its sweep lies, which under other launchers it would not hear of."""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        from pagedlab.sweep.folder import begin

        begin(Path(str(config.hydra.sweep.dir)).resolve())


def _store(group: str, name: str, node: dict[str, Any]) -> None:
    ConfigStore.instance().store(name, node, group=group, provider="pagedlab")


_store("hydra/launcher", "pool", {"_target_": f"{__name__}.PoolLauncher"})
_store("hydra/sweeper", "plan", {"_target_": f"{__name__}.PlanSweeper", "max_batch_size": None, "params": None})
_store("hydra/callbacks", "pagedlab", {"pagedlab": {"_target_": f"{__name__}.SweepBegun"}})
