"""What was profiled, as a box: outside of it a calibrated model guesses."""

from __future__ import annotations

from collections.abc import Iterable

from pagedlab.hardware.calibration.observation import Observation, work

# What a step, or a sequence in it, can have too much of.
_WORDS = {"tokens": "tokens in a step", "sequences": "sequences in a step", "context": "tokens of context"}


def hull(observations: Iterable[Observation]) -> dict[str, int]:
    """The most tokens and sequences of a whole step, and the longest context, that were measured."""
    most = dict.fromkeys(_WORDS, 0)
    for seen in observations:
        if seen.operator == "step":
            step = work(seen.sizes, 1)
            contexts = [*seen.sizes["contexts"], *(new + cached for new, cached in step.chunks)]
            found = {"tokens": step.tokens, "sequences": step.sequences, "context": max(contexts)}
            most = {name: max(most[name], found[name]) for name in most}
    return most


def warnings(profiled: dict[str, int], reached: dict[str, int]) -> list[str]:
    """A line for each side of the box that a run went beyond."""
    return [
        f"{reached[name]} {words}, calibrated up to {profiled[name]}: times beyond are extrapolated"
        for name, words in _WORDS.items()
        if reached[name] > profiled[name]
    ]
