"""A real run folder: some requests on the virtual clock, without a model, from the configs that users compose."""

from __future__ import annotations

from typing import Any, cast

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from pagedlab.analysis.display import Display
from pagedlab.config import load_settings
from pagedlab.interrupts import Interrupts
from pagedlab.run import run

SMALL = [
    "executor=fingerprint",
    "model=tiny_llama",
    "workload=synthetic",
    "workload.num_requests=6",
    "workload.prompt.high=60",
    "workload.output.high=30",
    "progress=false",
]


def serve_run(folder, *words):
    """words: further overrides. Returns the folder."""
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        config = compose("config", [*SMALL, *words])
    settings = load_settings(config)
    run(settings, cast(dict[str, Any], OmegaConf.to_container(config)), folder, Interrupts(), Display(False))
    return folder
