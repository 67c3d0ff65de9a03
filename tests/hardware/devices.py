"""Devices and models as conf/ has them, without Hydra."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from pagedlab.hardware.cost import CostModel
from pagedlab.model.architecture import architecture_of
from pagedlab.settings import HardwareSettings

CONF = Path(__file__).resolve().parents[2] / "conf"
DEVICES = sorted(path.stem for path in (CONF / "hardware").glob("*.yaml"))
MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))


@cache
def read(group, name):
    return yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))


def device(name="a100_40gb", **changes):
    return HardwareSettings(**{**read("hardware", name), **changes})


def architecture(name="opt_13b", **changes):
    return architecture_of({**read("model", name)["config"], **changes})


def cost_model(model="opt_13b", hardware="a100_40gb", dtype_bytes=2, block_size=16, **changes):
    return CostModel(architecture(model), device(hardware, **changes), dtype_bytes, block_size)
