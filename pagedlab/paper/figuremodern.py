"""The presets of later systems on Llama-3-8B and an H100: conversations, and recorded traces that are given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from hydra import compose
from matplotlib.figure import Figure as Drawing

from pagedlab.config import load_settings
from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import Bench, Drafts, Times
from pagedlab.paper.capacity import capacity
from pagedlab.paper.chats import Chats
from pagedlab.paper.drawing import bars
from pagedlab.paper.overload import Overload, misses
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.traces import recorded
from pagedlab.recorder.metrics import Slo, summarize
from pagedlab.settings import Settings

MODEL, HARDWARE, VOCABULARY = "llama3_8b", "h100", 128_256
SYSTEMS = (
    "vllm",
    "vllm_v1",
    "sglang",
    "tgi",
    "tensorrt_llm_no_evict",
    "tensorrt_llm_max_utilization",
    "lmdeploy",
    "hf_continuous",
)
MET = 0.9  # of the requests, within what is asked
# A tenth of the device's KV memory, as if a larger model left no more: where memory decides.
SLOTS = {"whole": None, "tenth": 40_000}
SHARE, SEEDS, TOLERANCE = 0.15, 2, 0.05


@dataclass(frozen=True, slots=True)
class Workload:
    """rate: requests a second at which waste and hits are counted. slo: what a reader notices. slots: of SLOTS.
    positions: of the model, where it needs more than Llama-3-8B has: those of Llama-3.1-8B, of the same sizes."""

    rate: float
    slo: Slo
    slots: tuple[str, ...]
    positions: int = 8192

    @property
    def server(self) -> tuple[str, ...]:
        return (f"model={MODEL}", f"model.config.max_position_embeddings={self.positions}", f"hardware={HARDWARE}")


WORKLOADS = {
    "chat": Workload(12.0, Slo(ttft_s=1.0, tpot_s=0.05), ("whole", "tenth")),
    "azure": Workload(12.0, Slo(ttft_s=1.0, tpot_s=0.05), ("whole", "tenth")),
    # Prompts of 12,000 tokens on average, of 126,000 at most, which no tenth of the memory holds.
    "mooncake": Workload(1.0, Slo(ttft_s=10.0, tpot_s=0.1), ("whole",), positions=131_072),
}


@FIGURES.register("figuremodern")
class FigureModern(Figure):
    title = "Later systems, Llama-3-8B on an H100"
    notes = (
        "No figure of the paper: nothing is published. `chat`: conversations of the lengths of Fig. 11, each turn told "
        "all before it, up to 6144 tokens, outputs up to 1024; Poisson arrivals. `azure`, `mooncake`: recorded traces, "
        "where their files are given (`azure=FILE mooncake=FILE`): 1,200 requests from the first on, another seed the "
        "next, with their own gaps, so many times as fast; those that do not fit 8,192 tokens left out (of Mooncake "
        "131,072, the positions of Llama-3.1-8B, of the same sizes). Azure tells no text: no two prompts "
        "begin alike, and who hits anything was preempted and finds blocks of its own. "
        + "; ".join(
            f"{name}: waste and hit rate at {of.rate:g} req/s, first token within {of.slo.ttft_s:g} s and the others "
            f"at {1e3 * (of.slo.tpot_s or 0):.0f} ms each"
            for name, of in WORKLOADS.items()
        )
        + f". Capacity: the rate at which {100 * MET:.0f} % of the requests still get that. "
        "`whole`: all the KV memory that the device has; `tenth`: 40,000 slots. Requests arrive for "
        f"{SHARE:g} of the time (1,200 of them at most), {SEEDS} seeds, capacity within {100 * TOLERANCE:.0f} %: in "
        "so short a time a queue cannot get long, and what is sustained is the more flattered the longer one may wait."
    )

    def parts(self) -> dict[str, Part]:
        return {
            f"{name} {slots} {system}": partial(_of, name, slots, system)
            for name, workload in WORKLOADS.items()
            for slots in workload.slots
            for system in SYSTEMS
        }

    def draw(self, points: list[Point]) -> Drawing:
        shown = [name for name in (f"{of} {WORKLOADS[of].slots[-1]}" for of in WORKLOADS) if _of_workload(points, name)]
        drawing = Drawing(figsize=(11, 4 * max(1, len(shown))), layout="constrained")
        for row, name in enumerate(shown):
            for column, metric in enumerate(("capacity_req_s", "waste_pct", "hit_rate_pct"), 1):
                of = [p for p in _of_workload(points, name) if p.metric == metric]
                bars(drawing, 3 * row + column, 3, of, metric, f"{name} of the memory", rows=len(shown))
        return drawing


def _of_workload(points: list[Point], name: str) -> list[Point]:
    return [p for p in points if p.workload == name]


def _settings(workload: Workload, slots: str, system: str) -> Settings:
    words = [f"system={system}", "executor=simulated", *workload.server]
    words += ["workload=synthetic", "workload.arrival.process=poisson", "workload.arrival.rate=1"]
    settings = load_settings(compose("config", overrides=words))
    most = SLOTS[slots]
    if most is not None:
        settings.kv_num_blocks = most // settings.block_size
    return settings


def _of(name: str, slots: str, system: str, bench: Bench) -> list[Point]:
    """No point of a recorded workload whose file was not given."""
    workload, seeds = WORKLOADS[name], bench.seeds[:SEEDS]
    settings, rate_of_sums, slo = _settings(workload, slots, system), workload.rate, workload.slo
    drafts: Drafts
    times: Times | None = None
    if name == "chat":
        drafts = Chats(6144, 1024, VOCABULARY)
    elif name in bench.traces:
        trace = recorded(name, bench.traces[name], max(seeds) + 1, workload.positions, workload.server)
        drafts, times = trace.drafts, trace.times
    else:
        return []

    serve = partial(bench.serve, settings, share=SHARE, drafts=drafts, times=times)
    full = {seed: serve(rate_of_sums, seed) for seed in seeds}

    @cache
    def missed(seed: int, rate: float) -> float:
        """The share of the requests; or what it is at least, where that is more than is allowed."""
        over = Overload(1 - MET, misses(slo))
        run = full[seed] if rate == rate_of_sums else serve(rate, seed, stop=over)
        if over.bound is not None:
            return over.bound
        return float(np.mean([met is not True for met in slo.met_by(run.recorder.sequences)]))

    sums = [
        summarize(run.recorder, run.lab.executor.num_blocks, settings.block_size, "completed") for run in full.values()
    ]
    low = high = rate_of_sums
    knees: list[float | None] = []
    for seed in seeds:
        knees.append(knee := capacity(partial(missed, seed), low, high, 1 - MET, TOLERANCE))
        if knee is not None:
            low, high = knee / (1 + 2 * TOLERANCE), knee * (1 + 2 * TOLERANCE)
    found: dict[tuple[str, float | None], list[float | None]] = {
        ("capacity_req_s", None): knees,
        ("waste_pct", rate_of_sums): [100 * of["kv_waste_fraction"] for of in sums],
        ("hit_rate_pct", rate_of_sums): [100 * of["prefix_hit_rate"] for of in sums],
        ("mean_batch", rate_of_sums): [of["mean_batch_size"] for of in sums],
        ("preemptions", rate_of_sums): [float(of["preemptions"]) for of in sums],
    }
    return [
        Point("modern", f"{name} {slots}", MODEL, system, metric, x, **mean_of(values))
        for (metric, x), values in found.items()
    ]
