"""Who held which block: a map of the pool over time, sampled while a run goes on."""

from __future__ import annotations

import json
from array import array

import numpy as np
import pyarrow as pa

from pagedlab.allocator.base import Allocator
from pagedlab.allocator.caching_pool import CachingPool

FREE, CACHED_IDLE, BETWEEN = -1, -2, -3
"""A block that nobody holds: free, kept for prefix hits, or neither until the step that reads it is over."""


class BlockMap:
    """At most `most_samples` steps, about evenly spread over the run, and of them at most `most_blocks` blocks, evenly
    spread over the pool. However long the run gets, a step that is not sampled costs nothing, and how many are looked
    at grows with the logarithm of its length: when there are too many samples, every other one goes, and from then on
    only half as many are taken."""

    def __init__(self, most_samples: int = 256, most_blocks: int = 4096):
        self._most_samples = most_samples
        self._most_blocks = most_blocks
        self._stride = 1
        self._next = 0
        self.steps: list[int] = []
        self.times: list[float] = []
        self.holders: list[np.ndarray] = []
        """int32 [blocks] of each sample: the request that holds the block, the first one of several, else a code."""
        self.references: list[np.ndarray] = []
        """int32 [blocks]: block tables that map it."""
        self.blocks = np.zeros(0, dtype=np.int64)
        """The blocks that are looked at, the same in every sample."""

    def see(self, now_s: float, step: int, allocator: Allocator) -> None:
        """A step has been planned, its blocks assigned."""
        if step < self._next:
            return
        pool = allocator.pool
        if not len(self.blocks):
            count = min(pool.num_blocks, self._most_blocks)
            self.blocks = np.linspace(0, pool.num_blocks - 1, count).round().astype(np.int64)
        holder = np.full(pool.num_blocks, FREE, dtype=np.int32)
        references = np.frombuffer(array("i", pool.ref), dtype=np.int32)
        holder[references > 0] = BETWEEN
        # The first to hold a block is written last.
        for key, holding in reversed(allocator.holdings.items()):
            holder[holding.table] = key if isinstance(key, int) else key[0]
        if isinstance(pool, CachingPool):
            idle = [block for block in np.flatnonzero(references == 0).tolist() if pool.is_cached(block)]
            holder[idle] = CACHED_IDLE
        self.steps.append(step)
        self.times.append(now_s)
        self.holders.append(holder[self.blocks])
        self.references.append(references[self.blocks])
        if len(self.steps) > self._most_samples:
            self._thin()
        self._next = self._after(step)

    def _after(self, step: int) -> int:
        return (step // self._stride + 1) * self._stride

    def _thin(self) -> None:
        self._stride *= 2
        kept: list[int] = []
        following = 0
        for place, step in enumerate(self.steps):
            if step >= following:
                kept.append(place)
                following = self._after(step)
        self.steps = [self.steps[place] for place in kept]
        self.times = [self.times[place] for place in kept]
        self.holders = [self.holders[place] for place in kept]
        self.references = [self.references[place] for place in kept]


def blocks_table(seen: BlockMap) -> pa.Table:
    """One row a sample: step, time_s (of its start), and for each block its holder and references, in lists. The ids of
    these blocks are in the schema's metadata under `blocks`."""
    schema = pa.schema(
        [
            ("step", pa.int64()),
            ("time_s", pa.float64()),
            ("holder", pa.list_(pa.int32())),
            ("references", pa.list_(pa.int32())),
        ],
        metadata={"blocks": json.dumps(seen.blocks.tolist())},
    )
    return pa.table([seen.steps, seen.times, seen.holders, seen.references], schema=schema)
