"""How long prompts and outputs are: the distributions of a `LengthSettings`."""

from __future__ import annotations

import math

import numpy as np

from pagedlab.settings import LengthSettings
from pagedlab.workload.checks import LARGEST, choice, number, refused, whole
from pagedlab.workload.paper_lengths import Side, paper_lengths

# Which fields each distribution needs. One that it does not need must be null: it would do nothing.
FIELDS = {
    "fixed": ("mean",),
    "uniform": ("low", "high"),
    "lognormal": ("mean", "sigma", "low", "high"),
    "paper_sharegpt": (),
    "paper_alpaca": (),
}
PAPER_TRACES = {"paper_sharegpt": "ShareGPT", "paper_alpaca": "Alpaca"}
# A histogram of the paper may be cut, and need not be.
OPTIONAL = dict.fromkeys(PAPER_TRACES, ("low", "high"))


def check_lengths(settings: LengthSettings, where: str) -> None:
    """Raise ConfigError unless the distribution has the fields it needs, in range, and no other.

    where: dotted path of the settings, for the message.
    """
    name = choice(f"{where}.distribution", settings.distribution, tuple(FIELDS))
    why = f", which {name} needs"
    for field in ("mean", "sigma", "low", "high"):
        value = getattr(settings, field)
        if field in OPTIONAL.get(name, ()):
            if value is not None:
                whole(f"{where}.{field}", value, why=", or null")
        elif field not in FIELDS[name]:
            if value is not None:
                raise refused(f"{where}.{field}", value, f"null, as {name} has no {field}")
        elif field in ("low", "high"):
            whole(f"{where}.{field}", value, why=why)
        else:
            number(f"{where}.{field}", value, 1 if field == "mean" else 1e-6, LARGEST, why)
    if name == "fixed" and not float(settings.mean or 0).is_integer():
        raise refused(f"{where}.mean", settings.mean, "a whole number of tokens, as fixed draws nothing")
    if settings.low is not None and settings.high is not None and settings.low > settings.high:
        raise refused(f"{where}.low", settings.low, f"at most {where}.high={settings.high}")


def draw_lengths(settings: LengthSettings, side: Side, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` lengths in tokens, int64 [count], each at least 1. Takes settings that passed `check_lengths`.

    side: "input" or "output", the histogram to draw from where the paper prints one for each. Whoever draws both
    sides draws them independently: the paper does not publish how inputs and outputs pair.
    paper_*: of a histogram's bins those within low..high, if given; a bin across a bound keeps its mass.
    lognormal: `mean` is the mean of the lengths before they are rounded and cut to low..high, which moves it.
    """
    # A field is null only where its distribution has no use for it, and so for what stands in for it here.
    mean, sigma, low, high = settings.mean or 1, settings.sigma or 1, settings.low or 1, settings.high or LARGEST
    if settings.distribution == "fixed":
        return np.full(count, int(mean), dtype=np.int64)
    if settings.distribution == "uniform":
        return rng.integers(low, high, endpoint=True, size=count)
    if settings.distribution == "lognormal":
        # E[exp(N(mu, sigma^2))] = exp(mu + sigma^2 / 2), solved for mu.
        drawn = rng.lognormal(math.log(mean) - sigma * sigma / 2, sigma, size=count)
    else:
        trace = PAPER_TRACES[settings.distribution]
        drawn = paper_lengths(trace, side, rng.random(count), settings.low, settings.high)
    return np.clip(np.rint(drawn), low, high).astype(np.int64)
