"""How fast the engine is on a CPU.

Offline throughput beside what the machine could do and beside other engines, where a step's time goes, what a block
size costs, small memory, one request alone, and the step without the model.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from pathlib import Path

    from pagedlab.enginebench.parts import Cell
    from pagedlab.enginebench.peer import Peer
    from pagedlab.launch import Job
    from pagedlab.settings import Settings

PARTS = ("throughput", "blocks", "memory", "latency", "loop")
LOOP_BATCH, LOOP_STEPS = 256, 200
RSS_FACTOR, RSS_SPARE = 1.2, 500e6  # at most so many times weights, KV memory and the spare bytes


def main() -> int:
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, interrupts, config_name="bench_engine").exit_code


def bench_job(job: Job) -> None:
    from copy import deepcopy

    from omegaconf import OmegaConf

    from pagedlab.config import load_settings
    from pagedlab.core.errors import ConfigError
    from pagedlab.enginebench.display import show, show_machine
    from pagedlab.enginebench.loop import loop_costs
    from pagedlab.enginebench.parts import blocks, latency, memory
    from pagedlab.recorder.environment import environment
    from pagedlab.recorder.folder import write_json
    from pagedlab.sweep.timing import check_plain

    own: Any = OmegaConf.to_container(job.config.bench)
    del job.config.bench
    settings = load_settings(job.config)
    check_plain(settings, job.launcher, job.sweep_folder is not None)
    if settings.executor.name != "torch" or settings.workload.name != "synthetic":
        raise ConfigError("bench_engine: expected executor=torch and workload=synthetic")
    _check(own)
    first = settings.model.dtype = own["dtypes"][0]
    repeats, limits = own["repeats"], _limits(settings, own["dtypes"])
    summary: dict[str, Any] = {"model": settings.model.path or settings.model.name, "machine": limits}
    show_machine(limits)
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "env.json", environment(settings.seed))
    parts = {
        "throughput": lambda: throughput(settings, own, limits, job.folder),
        "blocks": lambda: blocks(settings, repeats),
        "memory": lambda: memory(settings, repeats, own["longest"]),
        "latency": lambda: latency(settings, repeats, limits[first]["weight_bytes"]),
        "loop": lambda: loop_costs(deepcopy(settings), LOOP_BATCH, LOOP_STEPS),
    }
    for part in own["parts"]:
        summary[part] = parts[part]()
        show(part, summary[part])
        write_json(job.folder / "summary.json", summary)
    print(f"run folder: {job.folder}")


def _check(own: Any) -> None:
    from pagedlab.core.errors import ConfigError
    from pagedlab.enginebench.peer import PEERS
    from pagedlab.workload.checks import whole

    known = {
        *("parts", "dtypes", "block_sizes", "repeats", "longest", "against", "python", "peer_model", "peer_block_size"),
    }
    if not isinstance(own, dict) or set(own) != known:
        raise ConfigError(f"bench: expected {', '.join(sorted(known))}, and nothing else")
    for name, choices in (("parts", PARTS), ("dtypes", ("bfloat16", "float32"))):
        if not own[name] or not set(own[name]) <= set(choices):
            raise ConfigError(f"bench.{name}={own[name]}: expected some of {', '.join(choices)}")
    if not own["block_sizes"]:
        raise ConfigError("bench.block_sizes=[]: expected at least one")
    for size in (*own["block_sizes"], own["peer_block_size"]):
        whole("bench.block_sizes", size)
    longest = own["longest"]
    if not isinstance(longest, list) or not longest or len(set(longest)) < len(longest):
        raise ConfigError(f"bench.longest={longest}: expected a list of different numbers of tokens")
    for tokens in longest:
        whole("bench.longest", tokens)
    whole("bench.repeats", own["repeats"])
    if own["against"] is not None and own["against"] not in PEERS:
        raise ConfigError(f"bench.against={own['against']}: no such peer, expected one of {', '.join(PEERS)}")


def _limits(settings: Settings, dtypes: list[str]) -> dict[str, dict[str, float]]:
    """What the machine can do in each dtype, measured in a process of its own, and the bytes of the weights."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from pagedlab.enginebench.bound import machine
    from pagedlab.model.dtype import dtype_bytes

    parameters, limits = _architecture(settings).parameters(), {}
    for dtype in dtypes:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            limits[dtype] = process.submit(machine, dtype, settings.executor.threads).result()
        limits[dtype]["weight_bytes"] = float(parameters * dtype_bytes(dtype))
    return limits


def _architecture(settings: Settings) -> Any:
    from pagedlab.model.architecture import architecture_of
    from pagedlab.model.config import read_config
    from pagedlab.model.locate import model_folder

    return architecture_of(read_config(settings.model, model_folder(settings.model, weights=True)))


def throughput(settings: Settings, own: Any, limits: dict[str, dict[str, float]], folder: Path) -> dict[str, Any]:
    """All requests at once: each dtype and block size, the first of them also with the model as transformers has it,
    and the peer, which takes its turn after them."""
    from statistics import median

    from pagedlab.enginebench.bound import bound_s
    from pagedlab.enginebench.parts import ratio, take_turns, variant
    from pagedlab.experiments.bench_engine import profile
    from pagedlab.model.dtype import dtype_bytes

    settings_of = [{"dtype": d, "block_size": b, "optimize": "auto"} for d in own["dtypes"] for b in own["block_sizes"]]
    cells = [variant(settings, **labels) for labels in settings_of]
    plain = variant(settings, **{**settings_of[0], "optimize": "none"})
    profiles: dict[str, list[dict[str, Any]]] = {}

    def after(cell: Cell, process: ProcessPoolExecutor) -> None:
        if cell in (cells[0], plain):
            profiles[cell.labels["optimize"]] = process.submit(profile).result()

    peer = _peer(settings, own, folder) if own["against"] else None
    try:
        of_peer = take_turns([plain, *cells], own["repeats"], peer, after)
    finally:
        if peer is not None:
            peer.close()
    model, rows = _architecture(settings), []
    for cell in (*cells, plain):
        dtype, row = cell.labels["dtype"], cell.row()
        limit = limits[dtype]
        least = bound_s(model, dtype_bytes(dtype), row["kv_bytes_per_token"], cell.runs[-1], limit)
        allowed = RSS_FACTOR * (limit["weight_bytes"] + row["kv_bytes"] + RSS_SPARE)
        row |= {"bound_s": least, "of_bound": least and least / row["wall_s"], "rss_bytes_allowed": allowed}
        rows.append(row)
    result: dict[str, Any] = {
        "rows": rows,
        "optimize_speedup": ratio(cells[0], plain, "output_tokens_per_s"),
        "optimize_cpu_speedup": ratio(plain, cells[0], "cpu_s"),
        "profile": profiles,
    }
    if of_peer:
        scalars = ("wall_s", "cpu_s", "output_tokens_per_s", "output_tokens", "peak_rss_bytes")
        result["against"] = {
            "name": own["against"],
            "runs": [{name: one[name] for name in scalars} for one in of_peer],
            "speedup": ratio(cells[0], of_peer, "output_tokens_per_s"),
            # How much faster than the peer this machine could be at all.
            "bound": rows[0]["bound_s"] and median(one["wall_s"] for one in of_peer) / rows[0]["bound_s"],
            "cpu_speedup": ratio(of_peer, cells[0], "cpu_s"),
        }
    return result


def _peer(settings: Settings, own: Any, folder: Path) -> Peer:
    import torch

    from pagedlab.config import parse_bytes
    from pagedlab.core.errors import ConfigError
    from pagedlab.enginebench.cell import workload
    from pagedlab.enginebench.peer import Peer
    from pagedlab.model.dtype import dtype_bytes
    from pagedlab.model.locate import model_folder

    place = own["peer_model"] or model_folder(settings.model, weights=True)
    if place is None:
        raise ConfigError(f"bench.against={own['against']}: model={settings.model.name} lies in no folder a peer reads")
    dtype = own["dtypes"][0]
    work = {
        "model": str(place),
        "dtype": dtype,
        "block_size": own["peer_block_size"],
        "kv_bytes": parse_bytes(settings.kv_bytes or "1GiB"),
        "kv_bytes_per_token": _architecture(settings).shape.kv_bytes_per_token(dtype_bytes(dtype)),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.scheduler.max_num_seqs,
        "max_num_batched_tokens": settings.scheduler.max_num_batched_tokens,
        "threads": settings.executor.threads or torch.get_num_threads(),
        "requests": workload(settings, _architecture(settings).shape.vocab_size),
    }
    return Peer(own["against"], own["python"] or sys.executable, work, folder / "workload.json")


def profile() -> list[dict[str, Any]]:
    """Of the engine that this process has loaded: one run with a stopwatch at every part. The rows sum to a step."""
    import time

    from pagedlab.engine import serve
    from pagedlab.enginebench.cell import fresh
    from pagedlab.experiments.profile_step import Stopwatch
    from pagedlab.recorder.recorder import Recorder

    lab, recorder, watch = fresh(), Recorder(), Stopwatch()
    watch.attach(lab, recorder)
    start = time.perf_counter()
    serve(lab.requests, lab.scheduler, lab.executor, recorder)
    total = time.perf_counter() - start
    return watch.rows(total, sum(step.batch > 0 for step in recorder.steps))


if __name__ == "__main__":
    sys.exit(main())
