"""One configuration of the engine, loaded once in a process of its own and run as often as asked: what `bench_engine`
interleaves. The functions run in that process."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, replace
from typing import Any

from pagedlab.core.errors import InvariantError
from pagedlab.engine import serve
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import Lab, build, build_scheduler
from pagedlab.settings import Settings
from pagedlab.workload.base import WORKLOADS, PromptTokenizer
from pagedlab.workload.lazy_tokenizer import LazyTokenizer

_KEPT = ("output_tokens", "steps", "duration_s", "mean_batch_size", "preemptions", "kv_waste_fraction", "completed")


@dataclass(slots=True)
class _Open:
    settings: Settings
    lab: Lab


_open: list[_Open] = []  # the one that this process has loaded


def load(settings: Settings) -> dict[str, Any]:
    """Build the engine. Returns what is fixed: bytes of weights and of KV memory, what was optimized, the kernel."""
    lab = build(settings, Interrupts())
    _open[:] = [_Open(settings, lab)]
    executor: Any = lab.executor
    return {
        "kernel": executor.kernel_name,
        "optimized": executor.optimized,
        "kv_bytes": executor.num_blocks * settings.block_size * lab.kv_bytes_per_token,
        "kv_bytes_per_token": lab.kv_bytes_per_token,
    }


def warm_up() -> None:
    """A few short requests, as a peer is given: what is made at first use is."""
    lab = fresh()
    few = [replace(r, prompt=r.prompt[:8], max_tokens=4, true_output_tokens=4) for r in lab.requests[:4]]
    serve(few, lab.scheduler, lab.executor, Recorder())


def run() -> dict[str, Any]:
    """Serve the workload once, from an empty pool. Wall and CPU seconds (of all threads) of serving alone; of each
    step the tokens fed and the tokens in the cache."""
    lab, recorder = fresh(), Recorder()
    wall, cpu = time.perf_counter(), time.process_time()
    serve(lab.requests, lab.scheduler, lab.executor, recorder)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    settings, steps = _open[0].settings, recorder.steps
    summary = summarize(recorder, lab.executor.num_blocks, settings.block_size, "completed")
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "output_tokens_per_s": recorder.output_tokens / wall,
        "output_tokens_per_cpu_s": recorder.output_tokens / cpu,
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "step_tokens": steps.column("tokens").tolist(),
        "step_kv_tokens": steps.column("usage.tokens").tolist(),
        **{name: summary[name] for name in _KEPT},
    }


def fresh() -> Lab:
    """The lab of this process, its pool and scheduler as new."""
    settings, lab = _open[0].settings, _open[0].lab
    scheduler = build_scheduler(settings, lab.executor.num_blocks, lab.max_model_len)
    return replace(lab, scheduler=scheduler)


def workload(settings: Settings, vocab_size: int) -> list[dict[str, Any]]:
    """The token ids of each prompt, and how many tokens are to be generated, as another engine is given them."""
    tokenizer = LazyTokenizer(vocab_size, _none)
    requests = WORKLOADS[settings.workload.name](settings.workload, settings.sampling, tokenizer, settings.seed)
    return [{"prompt": r.prompt.tolist(), "output_tokens": r.max_tokens} for r in requests]


def _none() -> PromptTokenizer:
    raise InvariantError("a workload of drawn lengths has no text")
