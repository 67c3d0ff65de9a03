"""How many requests a second the simulator serves on one core, with full metrics, by number of requests.

Llama-3-8B on an A100, lengths like Azure's conversations of 2023, Poisson arrivals at 6.45 requests a second, unless
the command line says otherwise. Each size runs in a process of its own, so that its peak memory is its own. The same
requests are served with every step planned (executor.skip=false), which is what the others are compared with.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pagedlab.interrupts import Interrupts, guarded

if TYPE_CHECKING:
    from pagedlab.launch import Job
    from pagedlab.settings import Settings

# Every fifth percentile of AzureLLMInferenceTrace_conv.csv (github.com/Azure/AzurePublicDataset, CC-BY-4.0), 19,366
# requests, the last the 99th: means 1,154.7 and 211.1, drawn 1,127 and 208. Prompts and outputs are drawn
# independently, by straight lines between these.
PROMPT_TOKENS = (
    2,
    181,
    207,
    372,
    387,
    396,
    403,
    414,
    703,
    984,
    1020,
    1045,
    1071,
    1097,
    1130,
    1189,
    1315,
    1876,
    2734,
    4083,
    4142,
)
OUTPUT_TOKENS = (7, 41, 54, 67, 77, 85, 91, 96, 103, 113, 129, 151, 177, 217, 384, 395, 400, 411, 424, 451, 601)


def main() -> int:
    return guarded(bench)


def bench(interrupts: Interrupts) -> int:
    from pagedlab.launch import launch

    return launch(bench_job, interrupts, config_name="bench_simulator").exit_code


def bench_job(job: Job) -> None:
    from concurrent.futures import ProcessPoolExecutor
    from copy import deepcopy
    from multiprocessing import get_context

    from omegaconf import OmegaConf

    from pagedlab.config import load_settings
    from pagedlab.experiments.bench_simulator import measure, profile
    from pagedlab.recorder.folder import write_json
    from pagedlab.sweep.timing import check_plain

    own = OmegaConf.to_container(job.config.bench)
    del job.config.bench
    settings = load_settings(job.config)
    check_plain(settings, job.launcher, job.sweep_folder is not None)
    sizes, profiled, most_stepped = _sizes(own)
    stepped = deepcopy(settings)
    stepped.executor.skip = False
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        planned = processes.submit(measure, stepped, min(most_stepped, max(sizes))).result()
        rows = [processes.submit(measure, settings, size).result() for size in sizes]
        rooms = processes.submit(profile, settings, profiled).result() if profiled else {}
    for row in (planned, *rows):
        row["ratio_to_stepped"] = row["requests_per_s"] / planned["requests_per_s"]
    slope = _slope(rows)
    _show(planned, rows, slope, rooms)
    summary = {
        "stepped_requests_per_s": planned["requests_per_s"],
        "skipped_requests_per_s": rows[-1]["requests_per_s"],
        "slope": slope,
        "stepped": planned,
        "rows": rows,
        "profile": rooms,
    }
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(job.folder / "summary.json", summary)
    print(f"run folder: {job.folder}")


def _sizes(own: Any) -> tuple[list[int], int, int]:
    from pagedlab.core.errors import ConfigError
    from pagedlab.workload.checks import whole

    if not isinstance(own, dict) or set(own) != {"requests", "stepped", "profile"}:
        raise ConfigError("bench: expected requests, stepped and profile, and nothing else")
    if not isinstance(own["requests"], list) or not own["requests"]:
        raise ConfigError(f"bench.requests={own['requests']}: expected a list of numbers of requests")
    sizes = [whole("bench.requests", size) for size in own["requests"]]
    return sizes, whole("bench.profile", own["profile"], low=0), whole("bench.stepped", own["stepped"])


def measure(settings: Settings, count: int) -> dict[str, Any]:
    """Serve `count` requests in this process. seconds_cpu: of serving and summarizing, the requests made before."""
    import resource
    import time

    from pagedlab.core.collector import uncollected
    from pagedlab.engine import serve
    from pagedlab.recorder.metrics import summarize
    from pagedlab.recorder.recorder import Recorder

    lab = _lab(settings, count)
    recorder = Recorder()
    with uncollected():  # as `run` does
        start = time.process_time()
        serve(lab.requests, lab.scheduler, lab.executor, recorder)
        served = time.process_time()
        summary = summarize(recorder, lab.executor.num_blocks, settings.block_size, "completed")
        seconds = time.process_time() - start
    return {
        "requests": count,
        "seconds_cpu": seconds,
        "seconds_cpu_summary": seconds - (served - start),
        "requests_per_s": count / seconds,
        "steps_per_s": summary["steps"] / seconds,
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        **{name: summary[name] for name in ("completed", "steps", "mean_batch_size", "preemptions", "duration_s")},
    }


def profile(settings: Settings, count: int) -> dict[str, float]:
    """Share of the time by module, the slowest first; what is outside of pagedlab under the name `libraries`."""
    import cProfile
    from collections import defaultdict
    from pathlib import Path

    from pagedlab.engine import serve
    from pagedlab.recorder.metrics import summarize
    from pagedlab.recorder.recorder import Recorder

    lab = _lab(settings, count)
    recorder = Recorder()
    profiler = cProfile.Profile()
    profiler.runcall(serve, lab.requests, lab.scheduler, lab.executor, recorder)
    profiler.runcall(summarize, recorder, lab.executor.num_blocks, settings.block_size, "completed")
    by_module: defaultdict[str, float] = defaultdict(float)
    for entry in profiler.getstats():
        parts = Path(getattr(entry.code, "co_filename", "built in")).with_suffix("").parts
        inside = parts.index("pagedlab") if "pagedlab" in parts else None
        by_module[".".join(parts[inside + 1 :]) if inside is not None else "libraries"] += entry.inlinetime
    total = sum(by_module.values())
    slowest = sorted(by_module, key=by_module.__getitem__, reverse=True)[:12]
    return {name: by_module[name] / total for name in slowest}


def _lab(settings: Settings, count: int) -> Any:
    """The lab of a run of `settings` with `count` requests: of the trace in workload.path, or of the lengths above."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    import numpy as np

    from pagedlab.interrupts import Interrupts
    from pagedlab.run import build

    settings.workload.num_requests = count
    if settings.workload.path is not None:
        return build(settings, Interrupts())
    rng, at = np.random.default_rng(settings.seed), np.linspace(0, 1, len(PROMPT_TOKENS))
    lengths = [np.rint(np.interp(rng.random(count), at, side)) for side in (PROMPT_TOKENS, OUTPUT_TOKENS)]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "lengths.csv"
        header = "prompt_tokens,output_tokens"
        np.savetxt(file, np.stack(lengths, axis=1), "%d", ",", header=header, comments="")
        settings.workload.path = str(file)
        return build(settings, Interrupts())


def _slope(rows: list[dict[str, Any]]) -> float | None:
    """Of seconds a request against requests, both as logarithms: 0 where the cost of a request is flat."""
    import numpy as np

    if len({row["requests"] for row in rows}) < 2:
        return None
    sizes = np.log([row["requests"] for row in rows])
    return float(np.polyfit(sizes, np.log([row["seconds_cpu"] for row in rows]), 1)[0]) - 1


def _show(planned: dict[str, Any], rows: list[dict[str, Any]], slope: float | None, rooms: dict[str, float]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="simulator, one core, CPU time of serving and summarizing")
    for column in (
        "requests",
        "seconds",
        "requests/s",
        "to planned",
        "steps/s",
        "mean batch",
        "preemptions",
        "peak RSS, MB",
    ):
        table.add_column(column, justify="right")
    for row in (planned, *rows):
        table.add_row(
            f"{row['requests']}{' planned' if row is planned else ''}",
            f"{row['seconds_cpu']:.2f}",
            f"{row['requests_per_s']:.0f}",
            f"{row['ratio_to_stepped']:.2f}",
            f"{row['steps_per_s']:.0f}",
            f"{row['mean_batch_size']:.1f}",
            str(row["preemptions"]),
            f"{row['peak_rss_bytes'] / 1e6:.0f}",
        )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    if slope is not None:
        console.print(f"seconds a request grow with the number of requests to the power {slope:+.3f}")
    if rooms:
        shares = Table(title="time by module, profiled")
        shares.add_column("module")
        shares.add_column("share", justify="right")
        for name, share in rooms.items():
            shares.add_row(name, f"{100 * share:.1f} %")
        console.print(shares)


if __name__ == "__main__":
    sys.exit(main())
