"""The presets of later systems on Llama-3-8B and an H100: conversations, and a recorded trace where it is given."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from hydra import compose
from matplotlib.figure import Figure as Drawing

from pagedlab.config import load_settings
from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import Bench
from pagedlab.paper.capacity import capacity
from pagedlab.paper.chats import Chats
from pagedlab.paper.drawing import bars
from pagedlab.paper.overload import Overload, misses
from pagedlab.paper.points import Point, mean_of
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
# What a reader of a chat notices, and of how many requests it is asked.
SLO, MET = Slo(ttft_s=1.0, tpot_s=0.05), 0.9
# A tenth of the device's KV memory, as if a larger model left no more: where memory decides.
SLOTS = {"whole": None, "tenth": 40_000}
RATE = 12.0
SHARE, SEEDS, TOLERANCE = 0.15, 2, 0.05


@FIGURES.register("figuremodern")
class FigureModern(Figure):
    title = "Later systems, Llama-3-8B on an H100, conversations"
    notes = (
        "No figure of the paper: nothing is published. Conversations of the lengths of Fig. 11, each turn told "
        "all before it, up to 6144 tokens, outputs up to 1024. Waste and hit rate at "
        f"{RATE:g} req/s; capacity: the rate at which {100 * MET:.0f} % of the requests still get their first token "
        f"within {SLO.ttft_s:g} s and the others at {1e3 * (SLO.tpot_s or 0):.0f} ms each. `whole`: all the KV memory "
        "that the device has; `tenth`: 40,000 slots. Requests arrive for "
        f"{SHARE:g} of the time (1,200 of them at most), {SEEDS} seeds, capacity within {100 * TOLERANCE:.0f} %. "
        "Not run: Azure 2023 and Mooncake, which are not shipped; "
        "`pagedlab serve system=NAME workload=azure workload.path=FILE` and `workload=mooncake` serve them."
    )

    def parts(self) -> dict[str, Part]:
        return {f"{slots} {system}": partial(_of, slots, system) for slots in SLOTS for system in SYSTEMS}

    def draw(self, points: list[Point]) -> Drawing:
        drawing = Drawing(figsize=(11, 4), layout="constrained")
        for place, metric in enumerate(("capacity_req_s", "waste_pct", "hit_rate_pct"), 1):
            of = [p for p in points if p.metric == metric and p.workload == "chat tenth"]
            bars(drawing, place, 3, of, metric, "a tenth of the memory")
        return drawing


def _settings(slots: str, system: str) -> Settings:
    words = [f"system={system}", "executor=simulated", f"model={MODEL}", f"hardware={HARDWARE}"]
    words += ["workload=synthetic", "workload.arrival.process=poisson", "workload.arrival.rate=1"]
    settings = load_settings(compose("config", overrides=words))
    most = SLOTS[slots]
    if most is not None:
        settings.kv_num_blocks = most // settings.block_size
    return settings


def _of(slots: str, system: str, bench: Bench) -> list[Point]:
    settings, drafts, seeds = _settings(slots, system), Chats(6144, 1024, VOCABULARY), bench.seeds[:SEEDS]

    full = {seed: bench.serve(settings, RATE, seed, share=SHARE, drafts=drafts) for seed in seeds}

    @cache
    def missed(seed: int, rate: float) -> float:
        """The share of the requests; or what it is at least, where that is more than is allowed."""
        if rate == RATE:
            return float(np.mean([met is not True for met in SLO.met_by(full[seed].recorder.sequences)]))
        over = Overload(1 - MET, misses(SLO))
        run = bench.serve(settings, rate, seed, share=SHARE, drafts=drafts, stop=over)
        if over.bound is not None:
            return over.bound
        return float(np.mean([met is not True for met in SLO.met_by(run.recorder.sequences)]))

    sums = [
        summarize(run.recorder, run.lab.executor.num_blocks, settings.block_size, "completed") for run in full.values()
    ]
    low = high = RATE
    knees: list[float | None] = []
    for seed in seeds:
        knees.append(knee := capacity(partial(missed, seed), low, high, 1 - MET, TOLERANCE))
        if knee is not None:
            low, high = knee / (1 + 2 * TOLERANCE), knee * (1 + 2 * TOLERANCE)
    found: dict[tuple[str, float | None], list[float | None]] = {
        ("capacity_req_s", None): knees,
        ("waste_pct", RATE): [100 * of["kv_waste_fraction"] for of in sums],
        ("hit_rate_pct", RATE): [100 * of["prefix_hit_rate"] for of in sums],
        ("mean_batch", RATE): [of["mean_batch_size"] for of in sums],
        ("preemptions", RATE): [float(of["preemptions"]) for of in sums],
    }
    return [
        Point("modern", f"chat {slots}", MODEL, system, metric, x, **mean_of(values))
        for (metric, x), values in found.items()
    ]
