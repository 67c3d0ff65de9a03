"""A counter-based random source: the same number for the same key, whatever was drawn before."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """The finaliser of splitmix64 (Steele et al., OOPSLA 2014): 64 bits in, 64 well-mixed bits out."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, index: int) -> float:
    """The index-th number in [0, 1) of the stream `seed`."""
    return (mix(mix(seed & _MASK) ^ index) >> 11) * 2.0**-53
