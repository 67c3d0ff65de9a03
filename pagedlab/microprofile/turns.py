"""Calls that take turns: what else the machine does, and how fast it is just then, falls on all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pagedlab.hardware.calibration.observation import Observation


@dataclass(frozen=True, slots=True)
class Cell:
    """One observation to be made. run: what is timed; it stands for `count` times what `sizes` says. prepare and
    restore: before and after each run, not timed."""

    operator: str
    sizes: dict[str, Any]
    run: Callable[[], object]
    count: int = 1
    prepare: Callable[[], object] = lambda: None
    restore: Callable[[], object] = lambda: None


def observe(
    cells: list[Cell], rounds: int, seed: int, device: torch.device, done: Callable[[], None]
) -> list[Observation]:
    """Medians over the rounds, each in an order of its own. One round before, for what is compiled or chosen at first
    use, does not count. done: called after every run."""
    wall, cpu = np.empty((len(cells), rounds)), np.empty((len(cells), rounds))
    dice = random.Random(seed)
    for number in range(-1, rounds):
        for i in dice.sample(range(len(cells)), len(cells)):
            cell = cells[i]
            cell.prepare()
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            cell.run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if number >= 0:
                wall[i, number] = (time.perf_counter() - wall_start) / cell.count
                cpu[i, number] = (time.process_time() - cpu_start) / cell.count
            cell.restore()
            done()
    middle = np.median(wall, axis=1)
    columns = zip(cells, middle, np.median(cpu, axis=1), np.ptp(wall, axis=1) / middle, strict=True)
    return [Observation(cell.operator, cell.sizes, *map(float, numbers)) for cell, *numbers in columns]
