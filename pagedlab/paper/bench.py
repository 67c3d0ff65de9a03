"""The paper's servers in simulation: model and device, traces, one of the systems, at a rate."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np
from hydra import compose

from pagedlab.config import load_settings
from pagedlab.core.request import Request
from pagedlab.engine import serve
from pagedlab.hardware.cost import CostModel
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import Lab, build
from pagedlab.settings import Settings
from pagedlab.workload.arrival import arrival_times
from pagedlab.workload.assemble import Draft, assemble

Drafts = Callable[[int, int], list[Draft]]
Times = Callable[[float, int, int], np.ndarray]
MODEL = "opt_13b"
HARDWARE = "a100_40gb"
ORCAS = ("orca_max", "orca_pow2", "orca_oracle")
SYSTEMS = (*ORCAS, "vllm")
# The released benchmark takes prompts and outputs of four tokens at least, and of both together what the models hold.
# It drops prompts of more than 1,024 as well; Fig. 11 has them, and its printed mean counts them: so have ours.
SHORTEST, LONGEST = 4, 2048
_LENGTHS = f"{{{{distribution: paper_{{}}, mean: null, sigma: null, low: {SHORTEST}, high: null}}}}"


@dataclass(frozen=True, slots=True)
class Server:
    """Of Table 1. kv_slots: tokens of all the cache, as printed (of OPT-13B 12 GiB / 819,200 bytes a token): given, not
    derived from the device, as a small error in it moves every result. device: overrides of conf/hardware/a100_40gb,
    whose host and kernels are the software of the paper on all three. share: of the paper's hour, for how long
    requests arrive."""

    kv_slots: int
    device: tuple[str, ...] = ()
    share: float = 1.0


# 264 GB and 21 GB of the larger two: 60.1K and 9.7K slots.
SERVERS = {
    "opt_13b": Server(15_728),
    "opt_66b": Server(9_700, ("hardware.tensor_parallel=4",)),
    "opt_175b": Server(
        60_100,
        ("hardware.tensor_parallel=8", "hardware.memory_gib=80", "hardware.bandwidth_gb_s=2039"),
        share=0.25,
    ),
    "llama_13b": Server(15_728),
}
KV_SLOTS = SERVERS[MODEL].kv_slots


@dataclass(frozen=True, slots=True)
class Served:
    """A run, and until when (seconds) requests arrived."""

    lab: Lab
    recorder: Recorder
    last_arrival_s: float


def _silent(what: str) -> None:
    """By name, so that a bench can travel to another process."""


def _never(lab: Lab, recorder: Recorder) -> bool:
    return False


@dataclass(slots=True)
class Bench:
    """What every figure runs on. trace_s: seconds for which requests arrive, most_requests: but no more than so many
    where all of them are served to their ends.
    seeds: each draws another trace.

    traces: of recorded workloads that were given, name -> file.

    tick: called before every run with what it is; it may raise to end the study.
    """

    trace_s: float
    seeds: tuple[int, ...]
    tick: Callable[[str], None] = _silent
    most_requests: int = 100_000
    traces: dict[str, str] = field(default_factory=dict)
    _composed: dict[tuple[str, ...], Settings] = field(default_factory=dict)
    _drawn: tuple[object, ...] = ()
    _requests: list[Request] = field(default_factory=list)

    def settings(self, system: str, workload: str, *changes: str, model: str = MODEL) -> Settings:
        """Of a run of `system` on lengths of `workload`, sharegpt or alpaca, on the server of `model`; to be called in
        a Hydra application. changes: overrides besides, as on the command line."""
        key = (system, workload, model, *changes)
        if key not in self._composed:
            lengths, server = _LENGTHS.format(workload), SERVERS[model]
            words = [f"system={system}", "executor=simulated", f"model={model}", f"hardware={HARDWARE}"]
            words += ["workload=synthetic", f"workload.prompt={lengths}", f"workload.output={lengths}"]
            words += ["workload.arrival.process=poisson", "workload.arrival.rate=1", *server.device, *changes]
            settings = load_settings(compose("config", overrides=words))
            settings.kv_num_blocks = server.kv_slots // settings.block_size
            self._composed[key] = settings
        return deepcopy(self._composed[key])

    def serve(
        self,
        settings: Settings,
        rate: float,
        seed: int,
        drain: bool = True,
        share: float = 1.0,
        drafts: Drafts | None = None,
        stop: Callable[[Lab, Recorder], bool] = _never,
        times: Times | None = None,
    ) -> Served:
        """Requests arrive for trace_s seconds at `rate` a second, Poisson. drain: until all have ended; else the run
        stops soon after the last arrival. share: of that time, and of most_requests. drafts: (count, seed) -> the
        requests, in the place of drawn ones. stop: asked between any two steps whether to stop there. times: (rate,
        count, seed) -> seconds of the arrivals, float64 [count], ascending, in the place of Poisson's."""
        self.tick(f"{settings.system.name} at {rate:.4g} req/s, seed {seed}")
        settings.seed = seed
        settings.workload.arrival.rate = rate
        share *= SERVERS[settings.model.name].share if settings.model.name in SERVERS else 1.0
        count = max(1, round((min(rate * self.trace_s, self.most_requests) if drain else rate * self.trace_s) * share))
        at = times(rate, count, seed) if times else arrival_times(settings.workload.arrival, count, seed)
        lab, recorder = self._lab(settings, at, seed, drafts), Recorder()
        last = float(lab.requests[-1].arrival_s)

        def stops() -> bool:
            return (not drain and lab.executor.clock.now() > last) or stop(lab, recorder)

        serve(lab.requests, lab.scheduler, lab.executor, recorder, stops)
        return Served(lab, recorder, last)

    def _lab(self, settings: Settings, times: np.ndarray, seed: int, drafts: Drafts | None) -> Lab:
        """The engine and its requests. Those of one workload and seed differ by their times alone at another rate: they
        are drawn once, as the first of many are those of a few."""
        count = len(times)
        lengths = repr(replace(settings.workload, arrival=None, num_requests=0))
        drawn = (settings.model.name, lengths, repr(settings.sampling), drafts, seed)
        if drawn != self._drawn or len(self._requests) < count:
            self._drawn, self._requests = drawn, _requests(settings, count, seed, drafts)
        settings.workload.num_requests = 1
        lab = build(settings, Interrupts())
        lab.requests = [
            replace(one, id=i, arrival_s=at)
            for i, (one, at) in enumerate(zip(self._requests, times.tolist(), strict=False))
        ]
        return lab

    def cost(self, *changes: str, system: str = "vllm") -> CostModel:
        """The prices of the paper's server for OPT-13B."""
        settings = self.settings(system, "sharegpt", "workload.num_requests=1", *changes)
        executor = build(settings, Interrupts()).executor
        cost: CostModel = executor.cost  # type: ignore[attr-defined]  # a simulated one
        return cost


def _requests(settings: Settings, count: int, seed: int, drafts: Drafts | None) -> list[Request]:
    """So many, or a few more, all at one time."""
    if drafts:
        return assemble(drafts(count, seed), settings.workload.arrival, settings.sampling, seed)
    settings.workload.num_requests = count + 16
    return _paired(build(settings, Interrupts()).requests)


def _paired(requests: list[Request]) -> list[Request]:
    """Where prompt and output together are longer than the benchmark takes (.6 % of ShareGPT, drawn independently) the
    output is exchanged for that of the next request that allows it: the lengths of either side stay as they were drawn.
    One for which there is none is left out."""
    paired = list(requests)
    for i, one in enumerate(paired):
        for j in range(i + 1, len(paired) if _too_long(one, one) else 0):
            other = paired[j]
            if not _too_long(one, other) and not _too_long(other, one):
                paired[i], paired[j] = _with_output(one, other), _with_output(other, one)
                break
    return [one for one in paired if not _too_long(one, one)]


def _too_long(prompt: Request, output: Request) -> bool:
    return prompt.prompt_tokens + output.max_tokens > LONGEST


def _with_output(one: Request, other: Request) -> Request:
    """The benchmark ignores ends of sequences: what may be generated is."""
    return replace(one, max_tokens=other.max_tokens, true_output_tokens=other.max_tokens)
