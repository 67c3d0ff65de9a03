"""One run, from settings to a written run folder: where all the rooms are put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from pagedlab.allocator.base import ALLOCATORS, Allocator
from pagedlab.allocator.caching_pool import CachingPool
from pagedlab.allocator.host import Host
from pagedlab.allocator.paged import PagedAllocator
from pagedlab.allocator.pool import BlockPool
from pagedlab.allocator.prefixes import Prefixes
from pagedlab.allocator.run_pool import RunPool
from pagedlab.allocator.stack_pool import StackPool
from pagedlab.allocator.tiers import Tier, Tiers
from pagedlab.analysis.display import Display
from pagedlab.cluster import serve_replicas
from pagedlab.config import parse_bytes
from pagedlab.core.collector import uncollected
from pagedlab.core.errors import ConfigError, PagedlabError
from pagedlab.core.request import Request
from pagedlab.engine import serve
from pagedlab.eviction.base import EVICTIONS
from pagedlab.eviction.leaf_first import LeafFirst
from pagedlab.executor.base import EXECUTORS, CachePlan, Executor
from pagedlab.hardware.calibration.file import Calibration, calibration_of
from pagedlab.hardware.calibration.hull import warnings
from pagedlab.hardware.tiers import tier_settings
from pagedlab.interrupts import Interrupted, Interrupts
from pagedlab.model.architecture import architecture_of
from pagedlab.model.config import read_config
from pagedlab.model.dtype import dtype_bytes
from pagedlab.model.locate import model_folder, shape_place
from pagedlab.model.shape import shape_of
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.base import PREFIX_CACHES
from pagedlab.prefix_cache.digest import Digest
from pagedlab.recorder.blocks import BlockMap
from pagedlab.recorder.environment import environment
from pagedlab.recorder.folder import holds_completed_run, write_run_folder
from pagedlab.recorder.metrics import Slo, summarize
from pagedlab.recorder.protocol import protocol
from pagedlab.recorder.recorder import Recorder
from pagedlab.recorder.redact import redact
from pagedlab.recorder.replicas import shared_out
from pagedlab.router.base import ROUTERS, Router
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.cohort import Foretold
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.scheduler import Scheduler
from pagedlab.settings import NameOnlySettings, Settings
from pagedlab.workload.base import WORKLOADS, PromptTokenizer
from pagedlab.workload.lazy_tokenizer import LazyTokenizer

DEFAULT_KV_BYTES = "1GiB"
DEFAULT_SWAP_SPACE = "1GiB"


@dataclass(slots=True)
class Lab:
    """Everything a run needs, built and checked, nothing run yet."""

    requests: list[Request]
    executor: Executor
    scheduler: Scheduler
    max_model_len: int
    kv_bytes_per_token: int
    kv_budget: str
    """What the number of blocks follows from, in words."""
    calibration: Calibration | None = None
    """What the constants of a simulation were measured by."""
    constants: str = ""
    """Where they are from, in words, where that is not said by `hardware`."""
    others: list[tuple[Executor, Scheduler]] = field(default_factory=list)
    """Of several replicas, those beside the first."""
    router: Router | None = None

    @property
    def replicas(self) -> list[tuple[Executor, Scheduler]]:
        return [(self.executor, self.scheduler), *self.others]

    @property
    def num_requests(self) -> int:
        """Follow-ups included."""
        return sum(1 + (request.follow_up.turns if request.follow_up else 0) for request in self.requests)


def build(settings: Settings, interrupts: Interrupts) -> Lab:
    """Put a run together, cheapest faults first: config, workload file, then the weights."""
    simulated = settings.executor.name == "simulated"
    folder = (
        shape_place(settings.model)
        if simulated
        else model_folder(settings.model, weights=settings.executor.name == "torch")
    )
    config = read_config(settings.model, folder)
    shape = shape_of(config, latent_attention=simulated)
    max_model_len = settings.max_model_len or shape.context_length
    if max_model_len > shape.context_length:
        raise ConfigError(
            f"max_model_len={max_model_len}: model {settings.model.name} has {shape.context_length} positions"
        )
    per_token = shape.kv_bytes_per_token(dtype_bytes(settings.model.dtype))
    tokenizer = LazyTokenizer(shape.vocab_size, lambda: _tokenizer(settings, shape.vocab_size))
    build_workload = WORKLOADS[settings.workload.name]
    requests = build_workload(settings.workload, settings.sampling, tokenizer, settings.seed)
    interrupts.raise_if_requested()
    cache = CachePlan(
        lambda free_bytes: _num_blocks(settings, per_token, free_bytes),
        settings.block_size,
        settings.scheduler.max_num_seqs,
        max_model_len,
        lambda free_bytes: _num_host_blocks(settings, per_token, free_bytes),
        not ALLOCATORS[settings.allocator.name].grows,
    )
    vocabulary = settings.executor.vocab_size if settings.executor.name == "fingerprint" else shape.vocab_size
    _check_beams(settings, vocabulary, len(shape.eos_token_ids))
    calibration = calibration_of(settings, architecture_of(config)) if simulated else None
    if calibration is not None:
        settings = replace(settings, hardware=calibration.hardware)

    def engine() -> tuple[Executor, Scheduler]:
        executor = EXECUTORS[settings.executor.name].create(settings, folder, shape, cache)
        skip = simulated and settings.executor.skip and not settings.record_blocks
        scheduler = build_scheduler(settings, executor.num_blocks, max_model_len, executor.foretold, skip)
        give_host_pool(scheduler, executor, settings.block_size * per_token)
        give_tiers(settings, scheduler, executor, settings.block_size * per_token)
        return executor, scheduler

    (executor, scheduler), *others = [engine() for _ in range(settings.replicas)]
    constants = _constants(settings, calibration) if simulated and settings.hardware.name == "local" else ""
    return Lab(
        requests,
        executor,
        scheduler,
        max_model_len,
        per_token,
        _budget(settings)[1],
        calibration,
        constants,
        others,
        build_router(settings, executor.num_blocks),
    )


def build_router(settings: Settings, num_blocks: int) -> Router | None:
    choice = settings.router
    if choice.name == "none":
        return None
    return ROUTERS[choice.name](choice, settings.replicas, settings.block_size, num_blocks, settings.seed)


def give_host_pool(scheduler: Scheduler, executor: Executor, block_bytes: int) -> None:
    """Where requests are swapped out, if they are."""
    if executor.num_host_blocks:
        pool = scheduler.allocator.pool
        scheduler.allocator.host = Host(executor.num_host_blocks, pool.block_size, block_bytes)


def _constants(settings: Settings, calibration: Calibration | None) -> str:
    if calibration is None:
        return "hardware=local: constants are orders of magnitude; `pagedlab calibrate` measures them for this model"
    of = calibration.key
    return (
        f"hardware=local: calibrated {calibration.made_at}, {of['threads']} threads of {of['cpu']}: {calibration.file}"
    )


def _check_beams(settings: Settings, vocab_size: int, num_eos_tokens: int) -> None:
    """Of the candidates of a single beam enough must go on to fill all of them."""
    width, ends = settings.sampling.beam_width, 0 if settings.sampling.ignore_eos else num_eos_tokens
    if width > 1 and width * max(2, 1 + ends) > vocab_size:
        raise ConfigError(
            f"sampling.beam_width={width} looks at {width * max(2, 1 + ends)} tokens a step, the vocabulary has "
            f"{vocab_size}"
        )


def _tokenizer(settings: Settings, vocab_size: int) -> PromptTokenizer:
    # Here, as a simulation of token counts has no use for the libraries behind it.
    from pagedlab.model.tokenizer import load_tokenizer

    if settings.model.source == "shape" and settings.model.path is None:
        raise ConfigError(
            f"workload={settings.workload.name} holds text, and of model={settings.model.name} the sizes alone are "
            "known: expected a workload of token counts, or a model with a tokenizer"
        )
    return load_tokenizer(model_folder(settings.model, weights=settings.executor.name == "torch"), vocab_size)


def build_scheduler(
    settings: Settings, num_blocks: int, max_model_len: int, foretold: Foretold | None = None, skip: bool = False
) -> Scheduler:
    """The pool and all its policies, as configured. foretold: of the executor (`Executor.foretold`). skip: take steps
    together where the policies agree."""
    choice = settings.scheduler
    allocator = build_allocator(settings, num_blocks, max_model_len)
    return Scheduler(
        allocator,
        ORDERS[choice.order](choice, allocator, settings.seed),
        ADMISSIONS[choice.admission](choice, allocator),
        BATCHINGS[choice.batching](choice.max_num_batched_tokens),
        PREEMPTIONS[settings.preemption.name](allocator, settings.preemption),
        VICTIMS[settings.preemption.victim](allocator),
        choice.max_num_seqs,
        choice.preemptive,
        foretold,
        skip,
    )


def build_allocator(settings: Settings, num_blocks: int, max_model_len: int) -> Allocator:
    size, choice = settings.block_size, settings.prefix_cache
    if choice.name == "none":
        return ALLOCATORS[settings.allocator.name](_pool(settings, num_blocks), max_model_len)
    if choice.pin_blocks >= num_blocks:
        raise ConfigError(
            f"prefix_cache.pin_blocks={choice.pin_blocks}: expected less than the pool's {num_blocks} blocks"
        )
    eviction = EVICTIONS[settings.eviction.name](num_blocks, settings.eviction, settings.seed)
    if choice.leaf_first:
        eviction = LeafFirst(eviction)
    model = settings.model
    identity = "|".join((model.path or model.name, str(model.revision), str(model.seed), model.dtype))
    index = PREFIX_CACHES[choice.name](size, Digest(choice.hash), identity)
    pool = CachingPool(num_blocks, size, eviction)
    return PagedAllocator(pool, max_model_len, Prefixes(index, pool, choice.pin_blocks))


def give_tiers(settings: Settings, scheduler: Scheduler, executor: Executor, block_bytes: int) -> None:
    """What lies below the prefix cache, if anything does."""
    allocator, levels = scheduler.allocator, []
    for name, tier in tier_settings(settings.tiers).items():
        capacity = int(tier.gib * 2**30) // block_bytes
        if capacity < 1:
            raise ConfigError(
                f"tiers.{name}.gib={tier.gib}: less than one block of {settings.block_size} slots, which takes "
                f"{block_bytes} bytes, expected more, or 0"
            )
        policy = EVICTIONS[tier.eviction](capacity, NameOnlySettings(tier.eviction), settings.seed)
        levels.append(Tier(name, capacity, policy))
    if isinstance(allocator, PagedAllocator) and allocator.prefixes is not None:
        allocator.prefixes.tiers = Tiers(levels)
        allocator.prefixes.worth = executor.worth_loading if settings.tiers.load == "cheaper" else None


def _pool(settings: Settings, num_blocks: int) -> BlockPool:
    """Without a cache. In a simulation nobody reads a block: it needs no look of its own unless shared or moved."""
    of = settings.sampling
    counted = settings.executor.name == "simulated" and settings.preemption.name == "recompute"
    counted = counted and not settings.record_blocks
    counted = counted and max(of.n, of.best_of or 1, of.beam_width) == 1
    if not counted:
        return BlockPool(num_blocks, settings.block_size)
    kind = StackPool if ALLOCATORS[settings.allocator.name].grows else RunPool
    return kind(num_blocks, settings.block_size)


def _budget(settings: Settings) -> tuple[Callable[[int], int], str]:
    """The bytes of KV memory, from the device's free bytes, and the setting that says so. kv_num_blocks apart."""
    if settings.kv_num_blocks is not None:
        return lambda free: 0, f"kv_num_blocks={settings.kv_num_blocks}"
    fraction = settings.kv_fraction
    if fraction is not None:
        return lambda free: int(fraction * free), f"kv_fraction={fraction}"
    if settings.kv_bytes is None and settings.executor.name == "simulated":
        return lambda free: free, f"what {settings.hardware.name} has left beside weights and activations"
    text = settings.kv_bytes or DEFAULT_KV_BYTES
    return lambda free: parse_bytes(text), f"kv_bytes={text}"


def _num_blocks(settings: Settings, bytes_per_token: int, free_bytes: int) -> int:
    """The KV budget in blocks. One block at least, and no more than the device has room for: a simulated one may be
    given more than it has, to ask what that would do."""
    block_bytes = settings.block_size * bytes_per_token
    budget, said = _budget(settings)
    blocks = settings.kv_num_blocks or budget(free_bytes) // block_bytes
    if blocks < 1 and free_bytes < block_bytes and settings.executor.name == "simulated":
        devices = f"hardware={settings.hardware.name}, tensor_parallel={settings.hardware.tensor_parallel}"
        said = f"{devices}: weights and activations leave {free_bytes} bytes"
    return _checked_blocks(settings, blocks, said, block_bytes, free_bytes, "the device")


def _checked_blocks(settings: Settings, blocks: int, said: str, block_bytes: int, free_bytes: int, where: str) -> int:
    """ConfigError for less than one block, or more than there is memory for. said: the setting that asks for them."""
    if blocks < 1:
        raise ConfigError(
            f"{said}: less than one block of {settings.block_size} slots, which takes {block_bytes} bytes"
        )
    if settings.executor.name == "simulated":
        return blocks
    cost = blocks * _real_bytes(settings, block_bytes)
    if cost > free_bytes:
        raise ConfigError(f"{said}: {blocks} blocks take {cost} bytes, {where} has {free_bytes} free")
    return blocks


def _real_bytes(settings: Settings, block_bytes: int) -> int:
    """Without a model a block costs only its entry in the pool and a fingerprint a slot."""
    return block_bytes if settings.executor.name == "torch" else 256 + 8 * settings.block_size


def _num_host_blocks(settings: Settings, bytes_per_token: int, free_bytes: int) -> int:
    """The swap space in blocks: none without swapping, else one at least, and no more than there is memory for."""
    choice = settings.preemption
    if not PREEMPTIONS[choice.name].needs_host:
        return 0
    block_bytes = settings.block_size * bytes_per_token
    if choice.swap_num_blocks is not None:
        blocks, said = int(choice.swap_num_blocks), f"preemption.swap_num_blocks={choice.swap_num_blocks}"
    else:
        text = choice.swap_space or DEFAULT_SWAP_SPACE
        blocks, said = parse_bytes(text, "preemption.swap_space") // block_bytes, f"preemption.swap_space={text}"
    return _checked_blocks(settings, blocks, said, block_bytes, free_bytes, "the host")


def run(
    settings: Settings, config: dict[str, Any], run_dir: Path, interrupts: Interrupts, show: Display
) -> dict[str, Any]:
    """Serve the configured workload and write its run folder; returns the summary.

    PagedlabError before anything is written. A run that is interrupted, or that fails in the middle, writes what it
    has, marked as such, and then raises; a completed run that is already there is not replaced by it: it goes into a
    folder of its status below.
    """
    show.doing(f"loading {settings.model.path or settings.model.name}")
    lab = None
    recorders = [Recorder()]
    failure: BaseException | None = None
    status = "interrupted"
    # All of it deferred: torch aborts the process when an exception strikes its import, and a step, a summary and a
    # folder are to be finished. `serve` asks between steps.
    with interrupts.deferred(), uncollected(settings.executor.name == "simulated"):
        try:
            lab = build(settings, interrupts)
            interrupts.raise_if_requested()
            block_map = BlockMap if settings.record_blocks else lambda: None
            on_progress = show.serving(lab)
            recorders = [Recorder(on_progress, i, block_map()) for i in range(len(lab.replicas))]
            finished = _serve(lab, recorders, lambda: interrupts.requested, settings.audit_every)
            status = "completed" if finished else "interrupted"
        except PagedlabError:
            raise
        except Interrupted:
            pass
        except Exception as error:
            if not interrupts.requested:  # else a library made something else of the interruption
                status, failure = "failed", error
        finally:
            interrupts.finish()
            show.done()
            if lab is not None:
                for executor, _ in lab.replicas:
                    executor.close()
        num_blocks = lab.scheduler.allocator.pool.num_blocks if lab else 0
        host_blocks = lab.executor.num_host_blocks if lab else 0
        slo = Slo(settings.slo.ttft_s, settings.slo.tpot_s)
        weights = (settings.scheduler.vtc.input_weight, settings.scheduler.vtc.output_weight)
        what = (num_blocks, settings.block_size, status, host_blocks, slo, weights)
        summary = summarize(recorders, *what)
        if len(recorders) > 1:
            summary |= shared_out([summarize(recorder, *what) for recorder in recorders])
        summary |= labels(settings, lab)
        if failure is not None:
            summary["error"] = f"{type(failure).__name__}: {failure}"
        if lab is not None and lab.calibration is not None:
            summary["outside_calibration"] = warnings(lab.calibration.hull, reached(*recorders))
            show.warn(summary["outside_calibration"])
        summary = redact(summary)
        config_yaml = yaml.safe_dump(redact(config), sort_keys=False, allow_unicode=True)
        folder = run_dir if status == "completed" or not holds_completed_run(run_dir) else run_dir / status
        write_run_folder(folder, config_yaml, environment(settings.seed), recorders, summary, slo)
    if status != "completed":
        print(f"run folder: {folder}")
    if failure is not None:
        raise failure
    interrupts.raise_if_requested()
    return summary


def _serve(lab: Lab, recorders: list[Recorder], stop_requested: Callable[[], bool], audit_every: int) -> bool:
    if lab.router is None:
        return serve(lab.requests, lab.scheduler, lab.executor, recorders[0], stop_requested, audit_every)
    replicas = [
        (scheduler, executor, recorder) for (executor, scheduler), recorder in zip(lab.replicas, recorders, strict=True)
    ]
    return serve_replicas(lab.requests, replicas, lab.router, stop_requested, audit_every)


def reached(*recorders: Recorder) -> dict[str, int]:
    """The most tokens and sequences of a step, and the longest context, of a run."""
    seqs = [seq for recorder in recorders for seq in recorder.sequences]
    return {
        "tokens": max(int(recorder.steps.column("tokens").max(initial=0)) for recorder in recorders),
        "sequences": max(int(recorder.steps.column("batch").max(initial=0)) for recorder in recorders),
        "context": max((part.computed for seq in seqs for part in (seq, *seq.branches)), default=0),
    }


def labels(settings: Settings, lab: Lab | None) -> dict[str, Any]:
    """What a row of a comparison is told apart by."""
    return {
        "model": settings.model.name if settings.model.path is None else settings.model.path,
        "dtype": settings.model.dtype,
        "executor": settings.executor.name,
        "clock": lab.executor.clock.kind if lab else None,
        "kernel": lab.executor.kernel_name if lab else None,
        "optimized": lab.executor.optimized if lab else None,
        "hardware": settings.hardware.name if settings.executor.name == "simulated" else None,
        "calibration": lab.calibration.data_sha256 if lab and lab.calibration else None,
        "allocator": settings.allocator.name,
        "order": settings.scheduler.order,
        "batching": settings.scheduler.batching,
        "admission": settings.scheduler.admission,
        "preemptive": settings.scheduler.preemptive,
        "predictor": settings.scheduler.predictor if ORDERS[settings.scheduler.order].needs_true_length else None,
        "watermark": settings.scheduler.watermark,
        "preemption": settings.preemption.name,
        "victim": settings.preemption.victim,
        "prefix_cache": settings.prefix_cache.name,
        "eviction": settings.eviction.name if settings.prefix_cache.name != "none" else None,
        "workload": settings.workload.name,
        "replicas": settings.replicas,
        "router": settings.router.name if settings.router.name != "none" else None,
        "seed": settings.seed,
        "max_model_len": lab.max_model_len if lab else None,
        "kv_bytes_per_token": lab.kv_bytes_per_token if lab else None,
        **protocol(lab.requests if lab else []),
    }
