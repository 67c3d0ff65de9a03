"""An exception at the k-th allocation, copy, kernel, record, tracker and file call of a run, for every k: no block is
lost, and results are whole or absent."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.host import Host
from pagedlab.allocator.pool import BlockPool
from pagedlab.analysis.display import Display
from pagedlab.config import load_settings
from pagedlab.engine import serve
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.eviction.lru import Lru
from pagedlab.executor.fingerprint import FingerprintExecutor
from pagedlab.executor.inputs import InputBuilder
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.folder import holds_completed_run
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import run
from pagedlab.tracker import base as tracker_module
from tests.audit.harness import Check, Found
from tests.config.composed import QUICK, composed
from tests.lab import make_executor, make_scheduler, request

# In a run -> whose function fails.
IN_THE_ENGINE: dict[str, tuple[type, str]] = {
    "allocation": (BlockPool, "allocate"),
    "allocation of a cache": (CachingPool, "allocate"),
    "room on the host": (Host, "store"),
    "kernel": (FingerprintExecutor, "execute"),
    "inputs of a kernel": (InputBuilder, "build"),
    "copy of a block": (FingerprintExecutor, "_block"),
    "copy to or from the host": (FingerprintExecutor, "_host_block"),
    "record of a step": (Recorder, "step"),
}
# A policy may be somebody else's. What it makes of its own failing is its affair, the pool's blocks are not.
OF_A_POLICY: dict[str, tuple[type, str]] = {
    f"policy's {name}": (LeafFirst, name)
    for name in ("miss", "insert", "hit", "free", "offer", "withdraw", "forget", "evict")
}
RAISED: dict[str, Callable[[], BaseException]] = {
    "MemoryError": lambda: MemoryError("injected"),
    "RuntimeError": lambda: RuntimeError("CUDA out of memory (injected)"),
    "interrupt": lambda: KeyboardInterrupt("injected"),
}
WORLDS: dict[str, dict[str, Any]] = {
    "recompute": {},
    "swap": {"preemption": "swap", "host_blocks": 8},
    "hash_chain": {"prefix_cache": "hash_chain"},
    "radix and swap": {"prefix_cache": "radix", "preemption": "swap", "host_blocks": 8},
    "hash_chain and swap": {"prefix_cache": "hash_chain", "preemption": "swap", "host_blocks": 8},
    "radix, by need": {"prefix_cache": "radix", "batching": "static"},
}
MANY = [{}, {"temperature": 1.0, "n": 2}, {"beam_width": 2}]
ASKED = [request([1, 2, 3, 0, 1, 2, 3, 0, i % 3], 6 + i, id=i, arrival=0.01 * i, **MANY[i % 3]) for i in range(6)]


def failing(patch: pytest.MonkeyPatch, owner: Any, name: str, k: int, error: BaseException) -> list[int]:
    """The k-th call of owner.name raises instead. Returns a list of one number, that of calls so far."""
    calls, real = [0], getattr(owner, name)

    def call(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == k:
            raise error
        return real(*args, **named)

    patch.setattr(owner, name, call)
    return calls


def engine_call(found: Found, world: str, what: str, raised: str, k: int) -> bool:
    """Whether there was a k-th call. Afterwards everybody is aborted, which must bring every block back."""
    scheduler, recorder = make_scheduler(11, 4, **WORLDS[world]), Recorder()
    error = RAISED[raised]()
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, *(IN_THE_ENGINE | OF_A_POLICY)[what], k, error)
        try:
            serve(ASKED, scheduler, make_executor(scheduler), recorder)
        except type(error) as caught:
            if caught is not error:
                raise
        else:
            return False
    pool, name = scheduler.allocator.pool, f"{world}, {what} {k}, {raised}"
    try:
        for seq in recorder.sequences:
            scheduler.abort(seq)
        scheduler.allocator.step_over()
        if what not in OF_A_POLICY:
            scheduler.audit()
        left = pool.num_blocks - pool.num_free - pool.num_idle + sum(pool.ref)
        found.attempt(name, left == 0 == scheduler.allocator.host_blocks, f"{left} blocks leaked")
    except Exception as leaked:
        found.attempt(name, False, f"{type(leaked).__name__}: {leaked}")
    return True


# ---- files ----------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[Any, str]] = {
    "write_text": (Path, "write_text"),
    "open": (Path, "open"),
    "replace": (Path, "replace"),
    "chmod": (Path, "chmod"),
    "fsync": (os, "fsync"),
    "mkstemp": (tempfile, "mkstemp"),
    "write_table": (pq, "write_table"),
    "ParquetWriter": (pq, "ParquetWriter"),
    "mkdir": (Path, "mkdir"),
    "unlink": (Path, "unlink"),
}
DISK: dict[str, Callable[[], BaseException]] = {
    "full": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "broken": lambda: OSError(errno.EIO, "Input/output error"),
    "out of memory": lambda: MemoryError("injected"),
}


def file_call(found: Found, what: str, raised: str, k: int, before: bool) -> bool:
    """Whether there was a k-th call. before: the folder holds a whole run already."""
    settings, config = _small()
    error = DISK[raised]()
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made) / "run"
        if before:
            run(settings, config, folder, Interrupts(), Display(False))
        failing(patch, *FILES[what], k, error)
        try:
            run(settings, config, folder, Interrupts(), Display(False))
        except type(error) as caught:
            if caught is not error:
                raise
        else:
            return False
        finally:
            patch.undo()
        name = f"disk {raised}, {what} {k}" + ", over a whole run" * before
        try:
            found.attempt(name, _whole_or_absent(folder), "a summary stands beside files that are not its own")
        except Exception as torn:
            found.attempt(name, False, f"{type(torn).__name__}: {torn}")
    return True


def _whole_or_absent(folder: Path) -> bool:
    if not folder.exists():
        return True
    temporary = list(folder.rglob(".tmp-*"))
    summary = folder / "summary.json"
    complete = not summary.exists() or json.loads(summary.read_text())["status"] == "completed"
    return complete and not temporary


@cache
def _small(*words: str) -> tuple[Any, dict[str, Any]]:
    from omegaconf import OmegaConf

    config = composed("workload.num_requests=3", *words, base=QUICK)
    made: Any = OmegaConf.to_container(config)
    return load_settings(config), made


# ---- the books of the pool and of the eviction policy ----------------------------------------------------------------

# What fails between two of its entries leaves the books of a pool torn: a policy, which may be a plugin, cannot take
# back what it was told. So nothing of that engine goes on, and nothing of it is kept as a result.
BOOKS: dict[str, tuple[type, str]] = {
    "release": (CachingPool, "release"),
    "a block let go": (CachingPool, "_let_go"),
    "a hit": (CachingPool, "hold"),
    "a block cached": (CachingPool, "cache"),
    "fences lifted": (CachingPool, "lift_fences"),
    **{f"policy: {name}": (Lru, name) for name in ("insert", "hit", "free", "offer", "withdraw", "evict", "forget")},
}
STRIDE = 7  # a run has thousands of these calls


def book_call(found: Found, what: str, raised: str, k: int) -> bool:
    """Whether there was a k-th call. The run ends with what was raised, and leaves a whole folder or none."""
    settings, config = _small("prefix_cache=hash_chain", "kv_num_blocks=9", "workload.num_requests=6")
    error = RAISED[raised]()
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made) / "run"
        failing(patch, *BOOKS[what], k, error)
        try:
            run(settings, config, folder, Interrupts(), Display(False))
        except type(error) as caught:
            if caught is not error:
                raise
        else:
            return False
        finally:
            patch.undo()
        left = list(folder.rglob(".tmp-*")) if folder.exists() else []
        done = holds_completed_run(folder)
        found.attempt(f"books: {what} {k}, {raised}", not (done or left), f"a summary says completed: {done}, {left}")
    return True


# ---- the tracker ----------------------------------------------------------------------------------------------------


def tracker_call(found: Found) -> None:
    """Whatever a tracker raises, the run is as it was, and one line says so."""
    settings, config = _small()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run(settings, config, folder, Interrupts(), Display(False))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        for error in (OSError(errno.ENOSPC, "full"), MemoryError("none"), RuntimeError("a\nb"), ImportError("wandb")):

            class Failing:
                def __init__(self, settings: Any, error: BaseException = error):
                    self.error = error

                def publish(self, *_: Any) -> None:
                    raise self.error

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tracker_module, "TRACKERS", {"none": Failing})
                said = tracker_module.publish(settings.tracker, folder, "name", None)
            same = before == {path.name: path.read_bytes() for path in folder.iterdir()}
            found.attempt(f"tracker: {error!r}", same and said is not None and "\n" not in said, said)


# ---- pieces ---------------------------------------------------------------------------------------------------------

MOST = 400  # calls: more than any of these runs makes


def pieces(short: bool) -> list[tuple[str, str, int]]:
    """(kind, in what, every how many calls)."""
    engine = [("engine", world, 40 if short else 1) for world in WORLDS]
    return [*engine, ("files", "", 3 if short else 1), ("books", "", 60 if short else STRIDE), ("tracker", "", 1)]


def attempt(piece: tuple[str, str, int]) -> Found:
    kind, world, stride = piece
    found = Found()
    if kind == "tracker":
        tracker_call(found)
    elif kind == "books":
        for what in BOOKS:
            for i, k in enumerate(range(1, MOST, stride)):
                if not book_call(found, what, list(RAISED)[i % len(RAISED)], k):
                    break
    elif kind == "engine":
        for what in IN_THE_ENGINE | OF_A_POLICY:
            for k in range(1, MOST, stride):
                there = [engine_call(found, world, what, raised, k) for raised in RAISED]
                if not all(there):
                    break
    else:
        for what in FILES:
            for i, k in enumerate(range(1, MOST, stride)):
                there = [file_call(found, what, raised, k, before=i % 2 == 0) for raised in DISK]
                if not all(there):
                    break
    return found


CHECK = Check("an exception at the k-th call: no block lost, results whole or absent", pieces, attempt, 2000)
