"""Random streams: every use of chance in a workload has a stream of its own.

So a change of one (another arrival process, more requests) leaves what the others draw as it was.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from pagedlab.workload.checks import refused


class Stream(IntEnum):
    """The uses of chance. The numbers are part of every workload: changing one changes the requests of a seed."""

    PICK = 0
    ARRIVAL = 1
    PROMPT_LENGTH = 2
    OUTPUT_LENGTH = 3
    PREFIX = 4
    PROMPT = 5
    SAMPLING = 6
    TURNS = 7
    THINKING = 8


def generator(seed: int, stream: Stream, *keys: int) -> np.random.Generator:
    """The generator of one stream, or with `keys` (a request's id, say) of one part of it.

    Raises ConfigError for a seed that is not an integer of 0 or more.
    """
    return np.random.default_rng(_sequence(seed, stream, *keys))


def sampling_seed(seed: int, request_id: int) -> int:
    """The seed with which one request samples its tokens: 63 bits, which every library takes as a seed."""
    return int(_sequence(seed, Stream.SAMPLING, request_id).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(seed: int, *key: int) -> np.random.SeedSequence:
    if type(seed) is not int or seed < 0:
        raise refused("seed", seed, "a whole number from 0")
    return np.random.SeedSequence(seed, spawn_key=key)
