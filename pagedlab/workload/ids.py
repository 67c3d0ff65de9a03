"""A plain list of block ids: one request a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pagedlab.core.errors import WorkloadError
from pagedlab.settings import BlockTraceSettings
from pagedlab.workload.block_trace import BlockRequest, block_id
from pagedlab.workload.checks import one_line, shown
from pagedlab.workload.jsonfile import LINE_LIMIT, regular_file

_SEPARATOR = re.compile(rb"[\s,]+")


def read(settings: BlockTraceSettings, path: Path) -> Iterator[BlockRequest]:
    """The requests of a text file, in its order: the ids of a line, decimal, with blanks or commas between them, are
    the blocks of one request. So a file of one id a line is a flat trace. Blank lines are skipped.

    It has no times: requests are one second apart. Raises WorkloadError: file, line, value, what was expected.
    """
    name = one_line(path)
    with regular_file(path) as file:
        number = requests = 0
        while line := file.readline(LINE_LIMIT + 1):
            number += 1
            where = f"{name}: line {number}"
            if len(line) > LINE_LIMIT:
                raise WorkloadError(f"{where}: longer than {LINE_LIMIT} bytes")
            words = [word for word in _SEPARATOR.split(line) if word]
            if words:
                yield BlockRequest(float(requests), [_id(word, f"{where}: id {i}") for i, word in enumerate(words)])
                requests += 1


def _id(word: bytes, where: str) -> int:
    if not word.isdigit() or len(word) > 20:
        raise WorkloadError(f"{where}: {shown(word.decode('utf-8', 'replace'))}, expected a whole number from 0")
    return block_id(int(word), where)
