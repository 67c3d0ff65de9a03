"""Python's JSON decoder made strict, and every way in which it fails made one line.

json takes more than JSON is (NaN, a key twice, a number as long as the file) and fails with errors of three kinds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pagedlab.core.errors import WorkloadError
from pagedlab.workload.checks import shown

DIGIT_LIMIT = 4300  # of an integer: Python's own limit, as the time to read one grows with the square of them


class Refused(Exception):
    """Something that Python's json takes and this decoder does not. Its text says what."""


@contextmanager
def located(name: str, place: str) -> Iterator[None]:
    """Turn whatever decoding raises into a WorkloadError that names the file and the place in it."""
    try:
        yield
    except Refused as error:
        raise WorkloadError(f"{name}: {place}: {error}") from error
    except RecursionError as error:
        raise WorkloadError(f"{name}: {place}: nested too deeply") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{name}: {place}: byte {error.start}: not UTF-8 ({error.reason})") from error
    except json.JSONDecodeError as error:
        rest = error.doc[error.pos : error.pos + 20]
        found = f"at {shown(rest)}" if rest else "at its end"
        raise WorkloadError(f"{name}: {place}: not JSON: {error.msg} {found}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise Refused(f"the key {shown(twice)} twice in one object")
    return found


def _constant(text: str) -> None:
    raise Refused(f"{text}, which is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > DIGIT_LIMIT:
        raise Refused(f"an integer of {len(digits)} digits, expected at most {DIGIT_LIMIT}")
    return int(digits)


DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer)
