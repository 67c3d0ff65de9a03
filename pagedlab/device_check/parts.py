"""The parts of a device check, in the order in which they are run: what is right first, then how fast it is."""

from __future__ import annotations

from pagedlab.device_check.attention import decode, prefill
from pagedlab.device_check.base import Part
from pagedlab.device_check.ceilings import ceilings
from pagedlab.device_check.engine import engine
from pagedlab.device_check.graphs import graphs
from pagedlab.device_check.memory import memory
from pagedlab.device_check.moves import copy, swap, write
from pagedlab.device_check.numerics import numerics
from pagedlab.device_check.versions import versions

PARTS = (
    Part("versions", 5, versions),
    Part("numerics", 60, numerics, judges=True),
    Part("engine", 25, engine, judges=True),
    Part("ceilings", 8, ceilings),
    Part("decode", 35, decode),
    Part("prefill", 20, prefill),
    Part("write", 8, write),
    Part("copy", 8, copy),
    Part("swap", 12, swap),
    Part("graphs", 12, graphs, judges=True),
    Part("memory", 40, memory),
)
