"""Composes configs as the command does, without a command: what the tests of the config and of the run folder share."""

from __future__ import annotations

from functools import cache

from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from pagedlab.config import load_settings
from pagedlab.core.errors import PagedlabError
from pagedlab.interrupts import Interrupts
from pagedlab.launch import one_line
from pagedlab.run import build

# No model, no torch, seconds of virtual time.
QUICK = ("executor=fingerprint", "model=tiny_llama", "workload=synthetic", "workload.num_requests=8")
QUICK += ("workload.prompt.high=60", "workload.output.high=40", "kv_num_blocks=32")


def composed(*overrides, base=QUICK, command="config"):
    """The config of `pagedlab serve BASE OVERRIDES`, or of the command with another file of conf/."""
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        return compose(command, overrides=[*base, *overrides])


_base = cache(composed)


def overridden(groups, *values, base=QUICK):
    """The same twenty times faster, where composing is not what is tested: `values` are no choices of a group."""
    config = _base(*groups, base=base).copy()
    # What compose does last, once it has read the files.
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(list(values)), config)
    return config


def said_of(make_config):
    """The one line that the command says of a config, built up to its model; None where there is nothing to say."""
    try:
        settings = load_settings(make_config())
        if settings.executor.name == "fingerprint":
            build(settings, Interrupts())
    except PagedlabError as error:
        return str(error)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        return one_line(error)
    return None


def settings_of(*values, groups=(), base=QUICK):
    return load_settings(overridden(groups, *values, base=base))
