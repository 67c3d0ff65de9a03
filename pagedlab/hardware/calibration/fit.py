"""From observations to the constants of the cost model: least squares on the logarithm of the error, with bounds.

First each operator by itself, then all constants together with whole steps beside the operators: a step is more than
its parts run alone, and it is steps that a simulation adds up. A quarter of the observations of each kind is not fitted
and says what the constants are worth.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import copysign, exp, log, sqrt
from typing import Any

import numpy as np

from pagedlab.core.errors import ConfigError
from pagedlab.hardware.calibration.observation import Observation, predicted_s, work
from pagedlab.hardware.cost import CostModel
from pagedlab.model.architecture import Architecture
from pagedlab.settings import HardwareSettings

# The constants that each kind of observation decides.
CONSTANTS: dict[str, tuple[str, ...]] = {
    "product": ("gemm_compute_efficiency", "gemm_memory_efficiency", "gemm_fixed_us", "roofline_norm"),
    "decode": (
        "decode_memory_efficiency",
        "gather_half_tokens",
        "decode_fixed_us",
        "decode_sequence_us",
        "decode_stream_us",
    ),
    "prefill": (
        "prefill_compute_efficiency",
        "prefill_memory_efficiency",
        "prefill_fixed_us",
        "prefill_chunk_us",
        "prefill_skipped_share",
    ),
    "rest": ("elementwise_streams", "elementwise_layer_us", "host_step_us", "host_sequence_us"),
    "engine": ("host_step_us", "host_sequence_us", "host_admission_us", "host_block_us"),
    "copy": ("copy_fixed_us",),
    "swap": ("pcie_gb_s",),  # swap_copy_us grows with the blocks as the bytes do: no time tells them apart
}
_TOGETHER = ("product", "decode", "prefill", "rest", "step")
_STEPS_COUNT = 10  # as much as so many operators

# (least, most, where the search begins), by the end of the name. Names ending in _us are microseconds.
_BOUNDS: dict[str, tuple[float, float, float]] = {
    "_efficiency": (1e-4, 1.0, 0.5),
    "_share": (1e-3, 1.0, 0.5),
    "_us": (1e-3, 1e7, 10.0),
    "roofline_norm": (1.0, 16.0, 2.0),
    "gather_half_tokens": (1e-3, 256.0, 1.0),
    "elementwise_streams": (1e-2, 1e5, 30.0),
    "pcie_gb_s": (1e-4, 1e4, 10.0),
}
# Pulls constants that the data cannot tell apart towards where they are: an error of so much for a factor of e.
_PRIOR = 0.003
_OUTLIER = 0.2  # from about this error on, one counts less and less: other work of the machine


@dataclass(frozen=True, slots=True)
class Errors:
    """Of one kind of observation, |predicted / measured - 1|: fitted ones, and those held out (none: None)."""

    fitted: int
    fitted_mean: float
    held_out: int
    held_out_mean: float | None
    held_out_worst: float | None


@dataclass(frozen=True, slots=True)
class Fit:
    """hardware: `base` with the constants that the observations decide. fitted: their names."""

    hardware: HardwareSettings
    fitted: tuple[str, ...]
    errors: dict[str, Errors]


def fit(
    observations: list[Observation], base: HardwareSettings, model: Architecture, dtype_bytes: int, block_size: int
) -> Fit:
    """The same observations give the same constants. ConfigError where a kind that is needed was not observed."""
    kinds = {kind: [seen for seen in observations if seen.operator == kind] for kind in (*CONSTANTS, "step")}
    for kind in (*_TOGETHER, "engine"):
        if len(kinds[kind]) < 4:
            raise ConfigError(f"{len(kinds[kind])} observations of kind {kind}: a calibration needs at least 4")
    held_out = {kind: _drawn(len(found)) for kind, found in kinds.items()}

    def kept(kind: str, of: list[Observation]) -> list[Observation]:
        return [seen for i, seen in enumerate(of) if i not in held_out[kind]]

    def cost(hardware: HardwareSettings, size: int = block_size) -> CostModel:
        return CostModel(model, hardware, dtype_bytes, size)

    hardware = _peaks(kinds["product"] + kinds["decode"], base, cost(base))
    hardware = replace(hardware, roofline_norm=_BOUNDS["roofline_norm"][2])
    engine = _solve(CONSTANTS["engine"], [(kept("engine", kinds["engine"]), 1.0)], hardware, cost)
    outside = cost(engine)
    whole = dict(kinds)
    for kind in ("rest", "step"):
        whole[kind] = [_with_engine(seen, outside) for seen in kinds[kind]]

    hardware = replace(engine, host_step_us=_BOUNDS["_us"][2], host_sequence_us=_BOUNDS["_us"][2])
    for kind in ("product", "decode", "prefill", "rest"):
        hardware = _solve(CONSTANTS[kind], [(kept(kind, whole[kind]), 1.0)], hardware, cost)
    names = tuple(dict.fromkeys(name for kind in _TOGETHER for name in CONSTANTS.get(kind, ())))
    parts = [(kept(kind, whole[kind]), float(_STEPS_COUNT if kind == "step" else 1)) for kind in _TOGETHER]
    hardware = _solve(names, parts, hardware, cost, begin_here=True)
    for kind in ("copy", "swap"):
        if kinds[kind]:
            hardware = _solve(CONSTANTS[kind], [(kept(kind, kinds[kind]), 1.0)], hardware, cost)
    found = {
        kind: _errors(whole[kind], held_out[kind], _Prices(engine if kind == "engine" else hardware, cost))
        for kind in whole
        if kinds[kind]
    }
    used = [name for kind in CONSTANTS if kinds[kind] for name in CONSTANTS[kind]]
    return Fit(hardware, ("bandwidth_gb_s", "tflops_16bit", *dict.fromkeys(used)), found)


class _Prices:
    """Predictions for one set of constants; attention also of other block sizes than the run's."""

    def __init__(self, hardware: HardwareSettings, cost: Callable[..., CostModel]):
        self._hardware, self._cost = hardware, cost
        self._own = cost(hardware)
        self._others: dict[int, CostModel] = {}

    def __call__(self, seen: Observation) -> float:
        size = seen.sizes.get("block_size", self._own.block_size)
        if size == self._own.block_size:
            return predicted_s(self._own, seen)
        if size not in self._others:
            self._others[size] = self._cost(self._hardware, size)
        return predicted_s(self._others[size], seen)


def _solve(
    names: tuple[str, ...],
    parts: list[tuple[list[Observation], float]],
    hardware: HardwareSettings,
    cost: Callable[..., CostModel],
    begin_here: bool = False,
) -> HardwareSettings:
    """hardware with the named constants fitted. parts: observations and what each lot of them counts together."""
    from scipy.optimize import least_squares  # half a second that a simulation has no use for

    bounds = [_bounds(name) for name in names]
    low, high = (np.log([b[side] for b in bounds]) for side in (0, 1))
    here = [getattr(hardware, name) if begin_here else start for name, (_, _, start) in zip(names, bounds, strict=True)]
    start = np.clip(np.log(np.maximum(here, 1e-12)), low + 1e-6, high - 1e-6)
    weights = [(seen, (count / len(of)) ** 0.5) for of, count in parts for seen in of]

    def changed(x: np.ndarray) -> HardwareSettings:
        values: dict[str, Any] = {name: exp(value) for name, value in zip(names, x.tolist(), strict=True)}
        return replace(hardware, **values)

    def residuals(x: np.ndarray) -> np.ndarray:
        price = _Prices(changed(x), cost)
        errors = [weight * _damped(log(price(seen) / seen.seconds)) for seen, weight in weights]
        return np.concatenate([errors, _PRIOR * (x - start)])

    return changed(least_squares(residuals, start, bounds=(low, high), x_scale="jac", max_nfev=100).x)


def _damped(error: float) -> float:
    """The square of it is soft L1: quadratic for small errors, linear for large ones."""
    z = (error / _OUTLIER) ** 2
    return copysign(_OUTLIER * sqrt(2 * (sqrt(1 + z) - 1)), error)


def _bounds(name: str) -> tuple[float, float, float]:
    return _BOUNDS[name] if name in _BOUNDS else next(of for end, of in _BOUNDS.items() if name.endswith(end))


def _peaks(observations: Iterable[Observation], base: HardwareSettings, cost: CostModel) -> HardwareSettings:
    """The best rates that anything reached, so that what else is reached is a share of them."""
    width, flops, moved = cost.width, 0.0, 0.0
    for seen in observations:
        if seen.operator == "product":
            m, k, n = (seen.sizes[name] for name in "mkn")
            flops = max(flops, 2 * m * k * n / seen.seconds)
            moved = max(moved, width * (k * n + m * (k + n)) / seen.seconds)
        else:
            read = sum(seen.sizes["contexts"]) * cost.kv_bytes * cost.model.shape.num_layers
            moved = max(moved, read / seen.seconds)
    return replace(base, tflops_16bit=flops * max(width, 2) / 2 / 1e12, bandwidth_gb_s=moved / 1e9)


def _with_engine(seen: Observation, outside: CostModel) -> Observation:
    """With what the engine takes around the executor's step."""
    extra = outside.host_s(work(seen.sizes, outside.block_size).sequences, 0, 0)
    return replace(seen, seconds=seen.seconds + extra)


def _drawn(count: int) -> set[int]:
    """A quarter of them, always the same."""
    return set(random.Random(count).sample(range(count), count // 4))


def _errors(observations: list[Observation], held_out: set[int], price: _Prices) -> Errors:
    errors = [abs(price(seen) / seen.seconds - 1) for seen in observations]
    fitted = [error for i, error in enumerate(errors) if i not in held_out]
    apart = [error for i, error in enumerate(errors) if i in held_out]
    mean = float(np.mean(apart)) if apart else None
    return Errors(len(fitted), float(np.mean(fitted)), len(apart), mean, max(apart, default=None))
