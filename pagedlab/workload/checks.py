"""One-line refusals: how a bad configuration value, or a bad value in a file, is shown and named."""

from __future__ import annotations

from pagedlab.core.errors import ConfigError

# No count or length of a workload may exceed this: above it lies only a typing error, and memory would be gone.
LARGEST = 2**24


def shown(value: object, limit: int = 40) -> str:
    """`value` on one line, in the words of JSON, never longer than about `limit` characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, str):
        return repr(value) if len(value) <= limit else f"{value[:limit]!r}..."
    return repr(value)[:limit]


def one_line(text: object) -> str:
    """`text` as it is where it fits a line, quoted where it does not (a path may hold a line break)."""
    return str(text) if str(text).isprintable() else repr(str(text))


def refused(name: str, value: object, expected: str) -> ConfigError:
    """The error for the field `name` (its dotted path), which has `value` where `expected` was expected."""
    text = one_line(value) if isinstance(value, str) else shown(value)
    return ConfigError(f"{name}={text}: expected {expected}")


def whole(name: str, value: object, low: int = 1, why: str = "") -> int:
    """`value` if it is an integer from `low` to LARGEST (true is none), else ConfigError. `why` ends its message."""
    if type(value) is not int or not low <= value <= LARGEST:
        raise refused(name, value, f"a whole number from {low} to {LARGEST}{why}")
    return value


def number(name: str, value: object, low: float, high: float, why: str = "") -> float:
    """`value` if it is a number from `low` to `high`, both included, else ConfigError. `why` ends its message."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise refused(name, value, f"a number from {low:g} to {high:g}{why}")
    return float(value)


def choice(name: str, value: object, options: tuple[str, ...]) -> str:
    """`value` if it is one of `options`, else ConfigError."""
    if not isinstance(value, str) or value not in options:
        raise refused(name, value, f"one of {', '.join(options)}")
    return value
