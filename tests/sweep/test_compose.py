"""A sweep composes the config of each job once."""

import pytest
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

import pagedlab.launch  # noqa: F401  (the resolver that names a job's folder)
from pagedlab.sweep.compose import ComposedOnce

WORDS = ["block_size=8", "executor=fingerprint", "+experiment=allocators"]


@pytest.fixture
def composed():
    """(what was composed for, the composer of once, Hydra's own)"""
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        calls = []

        def compose(config, words):
            calls.append(tuple(words))
            return loader.load_sweep_config(config, words)

        once = ComposedOnce(compose)
        yield calls, lambda words: once(master, words), lambda words: loader.load_sweep_config(master, words)


def as_written(config):
    return OmegaConf.to_container(config, resolve=False)


def test_the_second_call_gets_what_hydra_would_have_made(composed):
    calls, once, hydra = composed
    assert as_written(once(WORDS)) == as_written(once(WORDS)) == as_written(hydra(WORDS))
    assert calls == [tuple(WORDS)]
    assert once(["block_size=16"]).block_size == 16
    assert calls == [tuple(WORDS), ("block_size=16",)]


def test_what_a_caller_does_to_its_config_is_not_in_the_other_one(composed):
    _, once, hydra = composed
    once(WORDS).block_size = 99
    second = once(WORDS)
    assert second.block_size == 8
    # It is still a config of Hydra's: closed to what it does not have, its interpolations not resolved yet.
    with pytest.raises(ConfigAttributeError):
        second.no_such_setting  # noqa: B018
    assert as_written(second) == as_written(hydra(WORDS))


def test_nothing_is_kept_for_a_third(composed):
    calls, once, _ = composed
    for _ in range(3):
        once(WORDS)
    assert calls == [tuple(WORDS)] * 2
