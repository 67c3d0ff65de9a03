"""The paper's server in simulation: its model and device, its traces, one of its systems, at a rate."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

from hydra import compose

from pagedlab.config import load_settings
from pagedlab.engine import serve
from pagedlab.hardware.cost import CostModel
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import Lab, build
from pagedlab.settings import Settings

MODEL = "opt_13b"
HARDWARE = "a100_40gb"
# Table 1 prints 12 GB for the cache, 15.7K slots: 12 x 2**30 / 819,200 bytes a token. Given, not derived from the
# device: a small error in it moves every result.
KV_SLOTS = 15_728
ORCAS = ("orca_max", "orca_pow2", "orca_oracle")
SYSTEMS = (*ORCAS, "vllm")
_LENGTHS = "{{distribution: paper_{}, mean: null, sigma: null, low: null, high: null}}"


@dataclass(frozen=True, slots=True)
class Served:
    """A run, and until when (seconds) requests arrived."""

    lab: Lab
    recorder: Recorder
    last_arrival_s: float


@dataclass(slots=True)
class Bench:
    """What every figure runs on. trace_s: seconds for which requests arrive. seeds: each draws another trace.

    tick: called before every run with what it is; it may raise to end the study.
    """

    trace_s: float
    seeds: tuple[int, ...]
    tick: Callable[[str], None] = lambda what: None
    _composed: dict[tuple[str, ...], Settings] = field(default_factory=dict)

    def settings(self, system: str, workload: str, *changes: str) -> Settings:
        """Of a run of `system` on lengths of `workload`, sharegpt or alpaca; to be called in a Hydra application.
        changes: overrides besides, as on the command line."""
        key = (system, workload, *changes)
        if key not in self._composed:
            lengths = _LENGTHS.format(workload)
            words = [f"system={system}", "executor=simulated", f"model={MODEL}", f"hardware={HARDWARE}"]
            words += ["workload=synthetic", f"workload.prompt={lengths}", f"workload.output={lengths}"]
            words += ["workload.arrival.process=poisson", "workload.arrival.rate=1", *changes]
            settings = load_settings(compose("config", overrides=words))
            settings.kv_num_blocks = KV_SLOTS // settings.block_size
            self._composed[key] = settings
        return deepcopy(self._composed[key])

    def serve(self, settings: Settings, rate: float, seed: int, drain: bool = True) -> Served:
        """Requests arrive for trace_s seconds at `rate` a second, Poisson. drain: until all have ended; else the run
        stops soon after the last arrival."""
        self.tick(f"{settings.workload.prompt.distribution.removeprefix('paper_')} at {rate:.4g} req/s, seed {seed}")
        settings.seed = seed
        settings.workload.arrival.rate = rate
        settings.workload.num_requests = max(1, round(rate * self.trace_s))
        lab, recorder = build(settings, Interrupts()), Recorder()
        last = float(lab.requests[-1].arrival_s)
        serve(
            lab.requests, lab.scheduler, lab.executor, recorder, lambda: not drain and lab.executor.clock.now() > last
        )
        return Served(lab, recorder, last)

    def cost(self, *changes: str) -> CostModel:
        """The prices of the paper's server for vLLM."""
        settings = self.settings("vllm", "sharegpt", "workload.num_requests=1", *changes)
        executor = build(settings, Interrupts()).executor
        cost: CostModel = executor.cost  # type: ignore[attr-defined]  # a simulated one
        return cost
