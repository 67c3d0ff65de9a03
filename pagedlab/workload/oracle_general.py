"""libCacheSim's binary oracleGeneral: 24 bytes a reference, of which time and id are read."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from pagedlab.core.errors import WorkloadError
from pagedlab.settings import BlockTraceSettings
from pagedlab.workload.block_trace import BlockRequest
from pagedlab.workload.checks import one_line
from pagedlab.workload.jsonfile import regular_file

RECORD = struct.Struct("<IQIq")
"""uint32 seconds, uint64 id, uint32 size, int64 index of the next access to the id, -1 for none."""
_AT_ONCE = 65536


def read(settings: BlockTraceSettings, path: Path) -> Iterator[BlockRequest]:
    """A request of one block for each reference, in order. Sizes are not looked at, every object is one block, and
    next accesses are computed anew. Time may not go back. WorkloadError where the file is no such trace."""
    name = one_line(path)
    index, first, before = 0, None, 0
    with regular_file(path) as file:
        while chunk := file.read(RECORD.size * _AT_ONCE):
            if rest := len(chunk) % RECORD.size:
                at = index + len(chunk) // RECORD.size
                raise WorkloadError(f"{name}: reference {at}: {rest} bytes, expected {RECORD.size}")
            for seconds, id, _, _ in RECORD.iter_unpack(chunk):
                if seconds < before:
                    raise WorkloadError(f"{name}: reference {index}: time: {seconds}, expected at least {before}")
                first = seconds if first is None else first
                before = seconds
                yield BlockRequest(float(seconds - first), [id])
                index += 1
