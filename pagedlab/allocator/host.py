"""Host memory for the KV of preempted requests: a pool of its own block ids, and what lies in it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from pagedlab.allocator.pool import BlockPool
from pagedlab.core.errors import InvariantError
from pagedlab.core.request import Key


class Host:
    """Blocks of the same size as those of the device's pool, with ids of their own (PagedAttention, SOSP 2023, section
    4.5: the CPU block allocator). A block that sequences of a request shared is here once, with a reference each.

    block_bytes: of keys and values of all layers.
    """

    def __init__(self, num_blocks: int, block_size: int, block_bytes: int = 0):
        self.pool = BlockPool(num_blocks, block_size)
        self.block_bytes = block_bytes
        self.tables: dict[int, dict[Key, list[int]]] = {}
        """Of every request that is here, by id: the block table of each of its sequences, as far as it is computed."""

    def store(self, request_id: int, tables: Mapping[Key, Seq[int]]) -> list[tuple[int, int]] | None:
        """Take in the blocks of these tables. Returns (device block, host block), each block once; None, and nothing
        changed, where there is no room for all of them."""
        if request_id in self.tables:
            raise InvariantError(f"request {request_id} is swapped out twice")
        blocks = list(dict.fromkeys(block for table in tables.values() for block in table))
        if len(blocks) > self.pool.num_available:
            return None
        place = dict(zip(blocks, self.pool.allocate(len(blocks)), strict=True))
        seen: set[int] = set()
        for table in tables.values():
            self.pool.retain([place[block] for block in table if block in seen])
            seen.update(table)
        self.tables[request_id] = {key: [place[block] for block in table] for key, table in tables.items()}
        return list(place.items())

    def blocks(self, request_id: int) -> set[int]:
        return {block for table in self.tables[request_id].values() for block in table}

    def take_back(self, request_id: int) -> dict[Key, list[int]]:
        """The request goes back to the device in the step being planned: until that is over its blocks are read."""
        for block in self.blocks(request_id):
            self.pool.fence(block)
        return self.forget(request_id)

    def forget(self, request_id: int) -> dict[Key, list[int]]:
        """The request is gone. Returns its tables."""
        tables = self.tables.pop(request_id)
        for table in tables.values():
            self.pool.release(table)
        return tables

    def audit(self) -> None:
        """Every block is free, of the tables, or read by the step being planned: InvariantError names the fault."""
        self.pool.audit([table for tables in self.tables.values() for table in tables.values()])
