"""Fig. 12: normalized latency against the request rate, three models, ShareGPT and Alpaca, five systems."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from matplotlib.figure import Figure as Drawing

from pagedlab.paper.base import FIGURES, Figure, Part
from pagedlab.paper.bench import ORCAS, Bench
from pagedlab.paper.drawing import PAPER_NAMES
from pagedlab.paper.measures import normalized_latency_s
from pagedlab.paper.points import Point, mean_of
from pagedlab.paper.published import published
from pagedlab.paper.sweep import CAPACITY, LATENCY, THRESHOLD_S, Sweep, evenly, knees_of, panels, ratios
from pagedlab.settings import Settings

FIVE = ("fastertransformer", *ORCAS, "vllm")
PANELS = {
    "12a": ("opt_13b", "sharegpt", ()),
    "12b": ("opt_66b", "sharegpt", evenly(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
    "12c": ("opt_175b", "sharegpt", evenly(0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)),
    "12d": ("opt_13b", "alpaca", ()),
    "12e": ("opt_66b", "alpaca", evenly(0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.5, 15.0, 17.5, 20.0)),
    "12f": ("opt_175b", "alpaca", evenly(1.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5, 20.0, 22.5, 25.0)),
}
OTHERS = ("orca_oracle", "orca_pow2", "orca_max", "fastertransformer")
# What else could have been assumed, and where: name -> (system, panels, overrides). `iteration`: prompts beside
# decodes, as Orca itself feeds them. `host`: a step whose host time grows with its sequences, which Fig. 1 cannot tell
# from the slope of attention. `prompts`: each prompt costs a fixed time that it shares with no other. `whole`: lengths
# of one to three tokens as well. `prompts up to 1024`: longer ones are left out, as the released benchmark does.
# `2048`: a batch of FasterTransformer reserves what the model could need, not what the longest request of the trace
# does. `ahead`: its host launches kernels ahead of the device. `longer`: requests arrive for twice as long.
PROMPTS = ("scheduler.batching=iteration", "hardware.host_admission_us=15000")
WHOLE = ("workload.prompt.low=null", "workload.output.low=null")
UP_TO_1024 = ("workload.prompt.high=1024",)
ABLATIONS = {
    "orca_oracle iteration": ("orca_oracle", ("12a", "12d"), ("scheduler.batching=iteration",)),
    "vllm iteration": ("vllm", ("12d",), ("scheduler.batching=iteration",)),
    "vllm host": ("vllm", ("12a", "12d"), ("hardware.host_sequence_us=50",)),
    **{f"{system} prompts": (system, ("12a", "12d"), PROMPTS) for system in (*ORCAS, "vllm")},
    "vllm whole": ("vllm", ("12d",), WHOLE),
    "fastertransformer whole": ("fastertransformer", ("12a", "12d"), WHOLE),
    "vllm prompts up to 1024": ("vllm", ("12a",), UP_TO_1024),
    "orca_oracle prompts up to 1024": ("orca_oracle", ("12a",), UP_TO_1024),
    "fastertransformer 2048": ("fastertransformer", ("12d",), ("max_model_len=2048",)),
    "fastertransformer ahead": ("fastertransformer", ("12a", "12d"), ("executor.overlap=true",)),
    **{f"{system} longer": (system, ("12d",), ()) for system in FIVE},
}
_LONGER = "requests for twice as long, at most three times as many,"
# FasterTransformer's batch is what memory allows with every request reserved to the maximum length. Orca (Max) has the
# model's; this is read as that of the trace, up to a power of two: the longest of an hour of Alpaca has 632 to 990.
MAXIMUM = {"sharegpt": 2048, "alpaca": 1024}
# Of FasterTransformer's low rates a trace has a few dozen requests, whose mean is a matter of luck.
SPREAD, SPREAD_SEEDS = "fastertransformer, ten seeds", range(10)


@FIGURES.register("figure12")
class Figure12(Figure):
    title = "Fig. 12: normalized latency by request rate"
    notes = (
        f"Capacity: the rate at {THRESHOLD_S} s/token, by bisection within 3 %, for each seed; the curves are of the "
        "first. Each run is served to its end, or until it is certain to leave the plot: a value of 1.5 or more is a "
        "lower bound. A short trace flatters what saturates, most of all on Alpaca, where 0.5 s/token are 7 s of "
        "waiting: in the ablation `longer` they arrive for twice as long, at most three times as many. "
        "An absolute knee is not promised; compare orders and ratios. A request of FasterTransformer is answered when "
        "its whole batch has ended (Orca, OSDI 2022, section 3). Its batch is what memory allows with every request "
        f"reserved to the maximum length, read as that of the trace: {MAXIMUM['sharegpt']:,} tokens of ShareGPT, "
        f"{MAXIMUM['alpaca']:,} of Alpaca (the longest of an hour has 632 to 990). On 12f 256 sequences, vLLM's limit, "
        "bind before the memory does. Requests of OPT-175B arrive for a quarter of the "
        "time, as in the paper. Its A100-80GB has the bandwidth and memory of the datasheet and, as the A100-40GB, the "
        "host and the kernels of Fig. 1. Ablations, capacity of one seed: `iteration`, prompts fed beside decodes "
        "(scheduler.batching=iteration), as Orca itself does; `host`, 50 us of host time for every sequence of a step "
        "(hardware.host_sequence_us), though Fig. 1 leaves it nothing: its slope is .42 ms a sequence, and to read 413 "
        "tokens at the bandwidth of Fig. 18a takes .43; `prompts`, prompts beside decodes, each at 15 ms that no other "
        "prompt shares (hardware.host_admission_us); `whole`, lengths from one token on; `prompts up to 1024`, longer "
        "ones left out, as the released benchmark does, for which the mean prompt would be 118 tokens and not the "
        "161.31 that Fig. 11 prints; `2048`, FasterTransformer reserves on Alpaca what the model could need; "
        "`ahead`, its host launches kernels ahead of the device (executor.overlap). `ten seeds`: of "
        "FasterTransformer's low rates a trace has some dozen requests, of which those of few tokens that "
        "wait for a long batch decide the mean: the paper's own points are one draw."
    )

    def parts(self) -> dict[str, Part]:
        of: dict[str, Part] = {}
        for panel in PANELS:
            for system in FIVE:
                of[f"{panel} {system}"] = partial(_curve, panel, system)
        for name, (_, ablated, _) in ABLATIONS.items():
            for panel in ablated:
                of[f"{panel} {name}"] = partial(_ablation, panel, name)
        of[f"12a {SPREAD}"] = _spread
        return of

    def said(self, points: list[Point]) -> list[str]:
        lines = []
        for panel in PANELS:
            knees = {name: p for name, p in knees_of(points, panel).items() if name in FIVE}
            ours = sorted(knees, key=lambda system: knees[system].value or 0.0)
            line = f"{panel}: by capacity {', '.join(PAPER_NAMES[name] for name in ours)}"
            if all(p.published for p in knees.values()):
                theirs = sorted(knees, key=lambda system: knees[system].published or 0.0)
                line += ", as published" if ours == theirs else f"; published: {', '.join(theirs)}"
            lines += [line + ".", *ratios(points, panel, OTHERS), *_moved(points, panel)]
            lines += _shifted(points, panel)
        return lines + _of_seeds(points)

    def draw(self, points: list[Point]) -> Drawing:
        names = {panel: f"{panel} {model}, {workload}" for panel, (model, workload, _) in PANELS.items()}
        drawing = panels(points, names, 3)
        drawing.suptitle("lines: ours, dots: published")
        return drawing


def _moved(points: list[Point], panel: str) -> list[str]:
    """How an ablation moves a capacity: whether what it changes explains the difference."""
    knees, lines = knees_of(points, panel), []
    for name, (system, _, changes) in ABLATIONS.items():
        before, after = (knees[of].value if of in knees else None for of in (system, name))
        if before and after:
            paper = knees[system].published
            said = f" (published: {paper:.3g})" if paper else ""
            lines.append(
                f"{panel}: with {', '.join(changes) or _LONGER} {PAPER_NAMES[system]} sustains {after:.3g} req/s, not "
                f"{before:.3g}{said}."
            )
    for kind, said in (("prompts", ", ".join(PROMPTS)), ("longer", _LONGER)):
        of = tuple(f"{system} {kind}" for system in OTHERS)
        lines += [
            f"{line[:-1]}, with {said.rstrip(',')} for both."
            for line in ratios(_as_published(points, kind), panel, of, f"vllm {kind}")
        ]
    return lines


def _of_seeds(points: list[Point]) -> list[str]:
    return [
        f"{p.figure}: FasterTransformer at {p.x:g} req/s, {len(SPREAD_SEEDS)} seeds: {p.value:.4f} s/token, 95 % "
        f"interval {p.ci_low:.4f} to {p.ci_high:.4f}, published {p.published}."
        for p in points
        if p.system == SPREAD and None not in (p.value, p.ci_low, p.ci_high)
    ]


def _as_published(points: list[Point], kind: str) -> list[Point]:
    """The points, capacities of an ablation beside the published ones."""
    paper = {(p.figure, f"{p.system} {kind}"): p.published for p in points if p.metric == CAPACITY}
    return [replace(p, published=paper.get((p.figure, p.system), p.published)) for p in points]


def _shifted(points: list[Point], panel: str) -> list[str]:
    """Where nobody queues the latency counts; from there on curves are steep, and what counts is at which rate ours
    gets to the published latency."""
    lines, low = [], []
    for system, knee in knees_of(points, panel).items():
        if not knee.published or knee.value is None:
            continue
        curve = [p for p in points if p.figure == panel and p.metric == LATENCY and p.system == system]
        low += [p for p in curve if p.error is not None and (p.x or 0.0) <= knee.published / 2]
        ours = sorted([(p.value or 0.0, p.x or 0.0) for p in curve] + [(THRESHOLD_S, knee.value)])
        shifts = [
            np.interp(p.published, *np.transpose(ours)) / p.x - 1
            for p in curve
            if p.published and p.x and p.x > knee.published / 2 and ours[0][0] <= p.published <= ours[-1][0]
        ]
        if shifts:
            lines.append(
                f"{panel}: above half its capacity {PAPER_NAMES[system]} gets to the published latencies at rates "
                f"{100 * min(shifts):+.0f} to {100 * max(shifts):+.0f} % off, and to {THRESHOLD_S} s/token at "
                f"{100 * (knee.error or 0.0):+.0f} %."
            )
    if low:
        worst = max(low, key=lambda p: abs(p.error or 0.0))
        orcas = [abs(p.error or 0.0) for p in low if p.system != "fastertransformer"]
        lines.append(
            f"{panel}: up to half the published capacity the largest error of a latency is "
            f"{100 * (worst.error or 0):+.0f} %, of {PAPER_NAMES[worst.system]} at {worst.x:g} req/s"
            + (f"; without FasterTransformer {100 * max(orcas):.0f} %" if orcas else "")
            + " (wanted at low load: 15)."
        )
    return lines


def _curve(panel: str, system: str, bench: Bench) -> list[Point]:
    model, workload, rates = PANELS[panel]
    knee = None
    if not rates:
        paper = published()[f"fig{panel}"]
        # Where a curve leaves the plot it has no value; two values of one rate are the edge of a drawn step.
        known = {rate: latency for rate, latency, *leaves in paper["points"][system] if not leaves}
        rates, knee = tuple(known.items()), paper["capacity"][system]
    sweep = Sweep(panel, workload, model, system, rates, knee)
    return sweep.points(bench, _settings(panel, system, bench))


def _settings(panel: str, system: str, bench: Bench, *changes: str) -> Settings:
    model, workload, _ = PANELS[panel]
    longest = [f"max_model_len={MAXIMUM[workload]}"] if system == "fastertransformer" else []
    return bench.settings(system, workload, *longest, *changes, model=model)


def _ablation(panel: str, name: str, bench: Bench) -> list[Point]:
    model, workload, _ = PANELS[panel]
    system, _, changes = ABLATIONS[name]
    rates = evenly(*{rate: None for rate, _, *leaves in published()[f"fig{panel}"]["points"][system] if not leaves})
    sweep = Sweep(panel, workload, model, name, rates, most_seeds=1)
    if not changes:
        bench = replace(bench, trace_s=2 * bench.trace_s, most_requests=3 * bench.most_requests)
    return sweep.points(bench, _settings(panel, system, bench, *changes))


def _spread(bench: Bench) -> list[Point]:
    """FasterTransformer up to half its capacity, a mean over many seeds."""
    panel, system = "12a", "fastertransformer"
    (model, workload, _), paper = PANELS[panel], published()[f"fig{panel}"]
    settings, points = _settings(panel, system, bench), list[Point]()
    for rate, known, *_ in paper["points"][system]:
        if rate <= paper["capacity"][system] / 2:
            runs = [normalized_latency_s(bench.serve(settings, rate, seed)) for seed in SPREAD_SEEDS]
            mean = mean_of([*runs])
            points.append(Point(panel, workload, model, SPREAD, LATENCY, rate, **mean, published=known))
    return points
