"""From a composed Hydra config to checked `Settings`: every fault is one line that names field, value and choices."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any, TypeVar, get_type_hints

from omegaconf import AnyNode, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.errors import ConfigError
from pagedlab.core.registry import Registry
from pagedlab.eviction.base import EVICTIONS
from pagedlab.eviction.check import check_eviction
from pagedlab.executor.base import EXECUTORS
from pagedlab.hardware.constants import check_constants
from pagedlab.kernels.base import KERNELS
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.prefix_cache.digest import HASHES
from pagedlab.router.base import ROUTERS
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.scheduler.predictor.base import PREDICTORS
from pagedlab.settings import (
    OPTIONS,
    TRACES,
    BlockTraceSettings,
    NameOnlySettings,
    SchedulerSettings,
    Settings,
    nested_settings,
)
from pagedlab.workload.base import check_workload

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_EARLY_STOPPING = ("false", "true", "never")
MOST_REPLICAS = 1024
_OPTIMIZE = ("none", "auto")
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def load_settings(config: DictConfig) -> Settings:
    """Check types, unknown keys, values and combinations. ConfigError before anything is loaded or written."""
    name = OmegaConf.select(config, "workload.name")
    if name in TRACES and name not in OPTIONS["workload"]:
        raise ConfigError(f"workload={name}: a trace of block ids, which only `pagedlab replay` takes")
    settings = typed_settings(config, Settings, OPTIONS)
    _check_values(settings)
    _check_combinations(settings)
    _check_outputs(settings)
    _check_prefix_cache(settings)
    _check_swapping(settings)
    _check_replicas(settings)
    _check_tiers(settings)
    check_workload(settings.workload)
    check_texts(settings, "")
    return settings


S = TypeVar("S")


def typed_settings(config: DictConfig, kind: type[S], groups: dict[str, dict[str, type]]) -> S:
    """The config as dataclasses of `kind`. groups: as OPTIONS. ConfigError for unknown keys and wrong types."""
    schema = OmegaConf.structured(kind)
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    groups = {group: options for group, options in groups.items() if group in names}
    for group, options in groups.items():
        name = OmegaConf.select(config, f"{group}.name")
        if name not in options:
            raise ConfigError(f"{group}={name}: no such option, expected one of {', '.join(options)}")
        schema[group] = OmegaConf.structured(options[name])
    refused = next(_refused_keys(config, kind, "", groups), None)
    if refused:
        raise ConfigError(refused)
    try:
        merged = OmegaConf.merge(schema, config)
        missing = OmegaConf.missing_keys(merged)
        if missing:
            raise ConfigError(f"{min(missing)}: no value given")
        settings = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error
    if not isinstance(settings, kind):
        raise ConfigError(f"config of type {type(settings).__name__}, expected {kind.__name__}")
    return settings


def parse_bytes(text: str, path: str = "kv_bytes") -> int:
    """'512MiB', '1.5 GB' or '1073741824', the value of `path`, as a number of bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError(f"{path}={text}: expected a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else f", expected one of {', '.join(sorted(known))}"


def _refused_keys(config: DictConfig, kind: type, prefix: str, groups: dict[str, dict[str, type]]) -> Iterator[str]:
    """What a structured config lets pass: keys added by `+key=`, and a number for a bool (2 would be true)."""
    known, types = [field.name for field in fields(kind)], get_type_hints(kind)
    for key in map(str, config):
        path = prefix + key
        if key not in known:
            yield f"{path}: no such setting{suggestion(key, known)}"
            continue
        child = config._get_node(key)
        value = child._value() if isinstance(child, AnyNode) else None
        if types[key] is bool and type(value) is int and value not in (0, 1):
            yield f"{path}={value}: expected true or false"
        nested = groups[path][config[key]["name"]] if path in groups else nested_settings(kind, key)
        if nested is not None and isinstance(child, DictConfig) and not child._is_none():
            yield from _refused_keys(child, nested, f"{path}.", groups)


def _one_line(error: OmegaConfBaseException) -> str:
    key = getattr(error, "full_key", None) or getattr(error, "key", None)
    said = str(error).partition("\n    full_key")[0]
    return f"{key}: {said}" if key else said


def _check_values(s: Settings) -> None:
    named: list[tuple[str, str, Registry[Any]]] = [
        ("allocator", s.allocator.name, ALLOCATORS),
        ("executor", s.executor.name, EXECUTORS),
        ("kernel", "cpu" if s.kernel.name == "auto" else s.kernel.name, KERNELS),
        ("preemption", s.preemption.name, PREEMPTIONS),
        ("preemption.victim", s.preemption.victim, VICTIMS),
        ("scheduler.order", s.scheduler.order, ORDERS),
        ("scheduler.batching", s.scheduler.batching, BATCHINGS),
        ("scheduler.admission", s.scheduler.admission, ADMISSIONS),
        ("scheduler.predictor", s.scheduler.predictor, PREDICTORS),
    ]
    for path, name, registry in named:
        if name not in registry:
            raise ConfigError(f"{path}={name}: no such option, expected one of {', '.join(registry)}")
    _within("block_size", s.block_size, 1, 256)
    _within("seed", s.seed, 0, 2**63 - 1)
    _within("model.seed", s.model.seed, 0, 2**63 - 1)
    _within("audit_every", s.audit_every, 0, None)
    _check_repeating(s)
    _within("scheduler.max_num_seqs", s.scheduler.max_num_seqs, 1, 65536)
    _within("scheduler.max_num_batched_tokens", s.scheduler.max_num_batched_tokens, 1, None)
    _within("scheduler.watermark", s.scheduler.watermark, 0, 1)
    _check_scheduler_values(s.scheduler)
    for name, limit in (("ttft_s", s.slo.ttft_s), ("tpot_s", s.slo.tpot_s)):
        if limit is not None:
            _within(f"slo.{name}", limit, 0, None)
    _within("sampling.temperature", s.sampling.temperature, 0, None)
    _within("sampling.top_k", s.sampling.top_k, 0, 2**31 - 1)
    if not 0 < s.sampling.top_p <= 1:
        raise ConfigError(f"sampling.top_p={s.sampling.top_p}: expected more than 0 and at most 1")
    _within("sampling.n", s.sampling.n, 1, 65536)
    if s.sampling.best_of is not None:
        _within("sampling.best_of", s.sampling.best_of, 1, 65536)
    _within("sampling.beam_width", s.sampling.beam_width, 1, 65536)
    _within("sampling.length_penalty", s.sampling.length_penalty, -100, 100)
    if s.sampling.early_stopping.lower() not in _EARLY_STOPPING:
        raise ConfigError(
            f"sampling.early_stopping={s.sampling.early_stopping}: expected one of {', '.join(_EARLY_STOPPING)}"
        )
    if s.max_model_len is not None:
        _within("max_model_len", s.max_model_len, 1, None)
    if s.model.dtype not in _DTYPES:
        raise ConfigError(f"model.dtype={s.model.dtype}: expected one of {', '.join(_DTYPES)}")
    if s.model.optimize not in _OPTIMIZE:
        raise ConfigError(f"model.optimize={s.model.optimize}: expected one of {', '.join(_OPTIMIZE)}")
    if s.executor.name == "torch":
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", s.executor.device):
            raise ConfigError(f"executor.device={s.executor.device}: expected auto, cpu, cuda or cuda:N")
        if s.executor.threads is not None:
            _within("executor.threads", s.executor.threads, 1, 1024)
    if s.executor.name == "fingerprint":
        _within("executor.vocab_size", s.executor.vocab_size, 2, 2**31 - 1)
        if s.executor.eos_token_id is not None:
            _within("executor.eos_token_id", s.executor.eos_token_id, 0, s.executor.vocab_size - 1)
        _within("executor.step_s", s.executor.step_s, 0, 1e6)
        _within("executor.token_s", s.executor.token_s, 0, 1e6)
        _within("executor.copy_s", s.executor.copy_s, 0, 1e6)
        _within("executor.swap_s", s.executor.swap_s, 0, 1e6)
        if s.executor.step_s + s.executor.token_s < 1e-9:
            raise ConfigError(
                f"executor.step_s={s.executor.step_s} and executor.token_s={s.executor.token_s}: "
                "expected a step to take some time, at least 1e-09 s"
            )
    _check_hardware(s)
    if s.tracker.name == "wandb":
        if s.tracker.mode not in ("offline", "online"):
            raise ConfigError(f"tracker.mode={s.tracker.mode}: expected offline or online")
        if not 0 < s.tracker.timeout_s <= 86400:
            raise ConfigError(f"tracker.timeout_s={s.tracker.timeout_s}: expected more than 0 and at most 86400")
        for i, tag in enumerate(s.tracker.tags):
            if not isinstance(tag, str) or not tag.strip():
                raise ConfigError(f"tracker.tags[{i}]={tag}: expected a text that is not empty")


def _check_hardware(s: Settings) -> None:
    check_constants(s.hardware)
    if s.executor.name != "simulated":
        if s.hardware.name != "local":
            raise ConfigError(
                f"hardware={s.hardware.name}: executor={s.executor.name} has no use for it, expected local"
            )
        return
    if s.hardware.name != "local" and s.hardware.calibration is not None:
        raise ConfigError(
            f"hardware.calibration={s.hardware.calibration}: measured on the machine at hand, expected hardware=local"
        )
    if s.model.dtype == "float64":
        raise ConfigError("model.dtype=float64: executor=simulated prices 16 and 32 bits")
    if not s.sampling.ignore_eos:
        raise ConfigError("sampling.ignore_eos=false: executor=simulated has no end-of-sequence token, expected true")
    h = s.hardware
    if not any((h.gemm_fixed_us, h.elementwise_layer_us, h.host_step_us)):
        raise ConfigError("hardware.host_step_us=0: expected a step to take some time")


def _check_scheduler_values(s: SchedulerSettings) -> None:
    _within("scheduler.predictor_sigma", s.predictor_sigma, 0, 100)
    _within("scheduler.lpm_max_waiting", s.lpm_max_waiting, 0, None)
    _within("scheduler.mlfq.levels", s.mlfq.levels, 1, 64)
    _within("scheduler.mlfq.quantum", s.mlfq.quantum, 1, None)
    _within("scheduler.mlfq.ageing_s", s.mlfq.ageing_s, 0, None)
    for name, weight in (("input_weight", s.vtc.input_weight), ("output_weight", s.vtc.output_weight)):
        if not 0 < weight < math.inf:
            raise ConfigError(f"scheduler.vtc.{name}={weight}: expected more than 0, and finite")
    guess = s.estimated_peak
    _within("scheduler.estimated_peak.initial", guess.initial, 0, 1)
    _within("scheduler.estimated_peak.minimum", guess.minimum, 0, guess.initial)
    _within("scheduler.estimated_peak.decay_steps", guess.decay_steps, 1, None)
    _within("scheduler.estimated_peak.retract_steps", guess.retract_steps, 0, None)


def _within(path: str, value: float, low: float, high: float | None) -> None:
    # Written so that NaN and infinity fail as well.
    if not (low <= value < math.inf and (high is None or value <= high)):
        upper = f" and at most {high}" if high is not None else ", and finite" if isinstance(value, float) else ""
        raise ConfigError(f"{path}={value}: expected at least {low}{upper}")


def _check_combinations(s: Settings) -> None:
    budgets = {"kv_num_blocks": s.kv_num_blocks, "kv_bytes": s.kv_bytes, "kv_fraction": s.kv_fraction}
    given = {name: value for name, value in budgets.items() if value is not None}
    if len(given) > 1:
        said = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ConfigError(f"{said}: expected at most one of {', '.join(budgets)}")
    if s.kv_num_blocks is not None:
        _within("kv_num_blocks", s.kv_num_blocks, 1, 2**31 - 1)
    if s.kv_bytes is not None:
        parse_bytes(s.kv_bytes)
    if s.kv_fraction is not None and not 0 < s.kv_fraction < 1:
        raise ConfigError(f"kv_fraction={s.kv_fraction}: expected more than 0 and less than 1")
    for said, needs_true_length in (
        (f"allocator={s.allocator.name}", ALLOCATORS[s.allocator.name].needs_true_length),
        (f"preemption.victim={s.preemption.victim}", VICTIMS[s.preemption.victim].needs_true_length),
        (
            f"scheduler.order={s.scheduler.order} with scheduler.predictor={s.scheduler.predictor}",
            ORDERS[s.scheduler.order].needs_true_length,
        ),
    ):
        if needs_true_length and not s.sampling.ignore_eos:
            raise ConfigError(f"{said} must know each output length beforehand, expected sampling.ignore_eos=true")
    _check_scheduling(s)


def _check_scheduling(s: Settings) -> None:
    """What the scheduler's policies need of each other, of the allocator and of the cache."""
    choice, allocator = s.scheduler, ALLOCATORS[s.allocator.name]
    order, admission = ORDERS[choice.order], ADMISSIONS[choice.admission]
    if order.needs_prefix_cache and s.prefix_cache.name == "none":
        raise ConfigError(
            f"scheduler.order={choice.order} with prefix_cache=none: nothing is cached to go by, "
            "expected prefix_cache=hash_chain or radix"
        )
    if admission.needs_paging and not allocator.on_demand:
        raise ConfigError(
            f"scheduler.admission={choice.admission} with allocator={s.allocator.name}: that one reserves by itself, "
            "expected allocator=paged or scheduler.admission=on_demand"
        )
    preempts = PREEMPTIONS[s.preemption.name].preempts
    if not preempts and allocator.on_demand and admission.overcommits:
        safe = ", ".join(name for name in ADMISSIONS if not ADMISSIONS[name].overcommits)
        raise ConfigError(
            f"preemption={s.preemption.name} with scheduler.admission={choice.admission}: those that run could wait "
            f"for each other's blocks for ever, expected scheduler.admission to be one of {safe}"
        )
    if not choice.preemptive:
        return
    if not order.preempts:
        able = ", ".join(name for name in ORDERS if ORDERS[name].preempts)
        raise ConfigError(
            f"scheduler.preemptive=true with scheduler.order={choice.order}: in that order nobody yields, "
            f"expected one of {able}"
        )
    if not allocator.on_demand:
        raise ConfigError(
            f"scheduler.preemptive=true with allocator={s.allocator.name}: runs that come free need not be one long "
            "enough, expected allocator=paged"
        )
    if not preempts:
        raise ConfigError(f"scheduler.preemptive=true with preemption={s.preemption.name}: expected one that preempts")
    if choice.batching == "static":
        raise ConfigError(
            "scheduler.preemptive=true with scheduler.batching=static: a batch that nobody enters has nobody to yield "
            "to, expected another batching"
        )


def _check_prefix_cache(s: Settings) -> None:
    cache = s.prefix_cache
    check_eviction(s.eviction, "eviction")
    if cache.name == "none":
        return
    if cache.hash not in HASHES:
        raise ConfigError(f"prefix_cache.hash={cache.hash}: expected one of {', '.join(HASHES)}")
    _within("prefix_cache.pin_blocks", cache.pin_blocks, 0, 2**31 - 1)
    if isinstance(s.workload, BlockTraceSettings) and s.workload.block_tokens % s.block_size:
        raise ConfigError(
            f"block_size={s.block_size} with prefix_cache={cache.name}: workload={s.workload.name} says what is equal "
            f"in blocks of {s.workload.block_tokens} tokens, expected a divisor of that"
        )
    if s.allocator.name != "paged":
        raise ConfigError(
            f"prefix_cache={cache.name} with allocator={s.allocator.name}: a run of a request's own cannot be shared, "
            "expected allocator=paged"
        )
    if EVICTIONS[s.eviction.name].needs_future:
        raise ConfigError(
            f"eviction={s.eviction.name} must know what will be asked for, which only `pagedlab replay` does"
        )


def _check_swapping(s: Settings) -> None:
    if not PREEMPTIONS[s.preemption.name].needs_host:
        return
    choice = s.preemption
    if s.allocator.name != "paged":
        raise ConfigError(
            f"preemption={choice.name} with allocator={s.allocator.name}: what reserves all that a request can need "
            "never preempts one, expected allocator=paged"
        )
    if choice.swap_space is not None and choice.swap_num_blocks is not None:
        raise ConfigError(
            f"preemption.swap_space={choice.swap_space} and preemption.swap_num_blocks={choice.swap_num_blocks}: "
            "expected at most one of them"
        )
    if choice.swap_num_blocks is not None:
        _within("preemption.swap_num_blocks", choice.swap_num_blocks, 1, 2**31 - 1)
    if choice.swap_space is not None and parse_bytes(choice.swap_space, "preemption.swap_space") < 1:
        raise ConfigError(
            f"preemption.swap_space={choice.swap_space}: nothing could be swapped out, expected more "
            "(or preemption=recompute)"
        )
    if choice.name == "adaptive":
        if choice.cost not in ("measured", "model"):
            raise ConfigError(f"preemption.cost={choice.cost}: expected measured or model")
        _within("preemption.token_s", choice.token_s, 0, 1e6)
        _within("preemption.pair_s", choice.pair_s, 0, 1e6)
        if not 0 < choice.bytes_per_s < math.inf:
            raise ConfigError(f"preemption.bytes_per_s={choice.bytes_per_s}: expected more than 0, and finite")


def _check_replicas(s: Settings) -> None:
    _within("replicas", s.replicas, 1, MOST_REPLICAS)
    if s.record_blocks and s.replicas > 1:
        raise ConfigError(f"record_blocks=true with replicas={s.replicas}: a map is of one pool, expected replicas=1")
    router = s.router
    if router.name == "none":
        if s.replicas > 1:
            raise ConfigError(f"replicas={s.replicas} with router=none: expected one of {', '.join(ROUTERS)}")
        return
    if s.executor.name == "torch":
        raise ConfigError(
            f"router={router.name} with executor=torch: replicas on one machine would wait for each other "
            "and their times mean nothing, expected executor=simulated or fingerprint"
        )
    if router.name == "least_loaded" and router.by not in ("requests", "tokens"):
        raise ConfigError(f"router.by={router.by}: expected requests or tokens")
    if router.name == "prefix_aware":
        _within("router.cache_threshold", router.cache_threshold, 0, 1)
        _within("router.balance_requests", router.balance_requests, 0, None)
        _within("router.balance_ratio", router.balance_ratio, 1, None)


def _check_tiers(s: Settings) -> None:
    # A block comes down without what its request had asked for it, and policies with settings have one file of them.
    able = [name for name, kind in OPTIONS["eviction"].items() if kind is NameOnlySettings]
    able = [name for name in able if not (name.startswith("priority") or EVICTIONS[name].needs_future)]
    for option, value, known in (
        ("load", s.tiers.load, ("cheaper", "always")),
        ("store", s.tiers.store, ("beside", "first", "free")),
    ):
        if value not in known:
            raise ConfigError(f"tiers.{option}={value}: expected one of {', '.join(known)}")
    for name, tier in (("host", s.tiers.host), ("disk", s.tiers.disk)):
        where = f"tiers.{name}"
        _within(f"{where}.gib", tier.gib, 0, 1e9)
        _within(f"{where}.latency_us", tier.latency_us, 0, 1e9)
        if tier.bandwidth_gb_s is not None and not 0 < tier.bandwidth_gb_s < math.inf:
            raise ConfigError(f"{where}.bandwidth_gb_s={tier.bandwidth_gb_s}: expected more than 0, and finite")
        if tier.eviction not in able:
            raise ConfigError(f"{where}.eviction={tier.eviction}: expected one of {', '.join(able)}")
        if tier.gib and s.executor.name != "simulated":
            raise ConfigError(
                f"{where}.gib={tier.gib} with executor={s.executor.name}: blocks move between tiers in simulation "
                "alone, expected executor=simulated"
            )
        if tier.gib and s.prefix_cache.name == "none":
            raise ConfigError(
                f"{where}.gib={tier.gib} with prefix_cache=none: nothing is evicted that could be kept, "
                "expected prefix_cache=hash_chain or radix"
            )


def _check_outputs(s: Settings) -> None:
    """Several outputs of a request: what goes together, and what the scheduler can ever run."""
    of, temperature = s.sampling, f"sampling.temperature={s.sampling.temperature}"
    if of.best_of is not None and of.best_of < of.n:
        raise ConfigError(f"sampling.best_of={of.best_of}: expected at least sampling.n={of.n}")
    if of.beam_width > 1:
        if of.n > 1 or of.best_of is not None:
            said = f"sampling.n={of.n}" if of.best_of is None else f"sampling.best_of={of.best_of}"
            raise ConfigError(f"{said} with sampling.beam_width={of.beam_width}: a beam search answers with its beams")
        if of.temperature or of.top_k or of.top_p < 1:
            raise ConfigError(
                f"sampling.beam_width={of.beam_width} with {temperature}, top_k={of.top_k}, top_p={of.top_p}: "
                "beam search draws nothing, expected temperature=0, top_k=0, top_p=1"
            )
        width, said = of.beam_width, "sampling.beam_width"
    else:
        if of.length_penalty != 1 or of.early_stopping.lower() != "false":
            raise ConfigError(
                f"sampling.length_penalty={of.length_penalty} and sampling.early_stopping={of.early_stopping}: "
                "of beam search alone, expected sampling.beam_width above 1"
            )
        width, said = of.best_of or of.n, "sampling.n" if of.best_of is None else "sampling.best_of"
        if width > 1 and of.temperature < 1e-5:
            raise ConfigError(f"{said}={width} with {temperature}: all outputs would be one, expected a higher one")
    for limit in ("max_num_seqs", "max_num_batched_tokens"):
        if width > getattr(s.scheduler, limit):
            raise ConfigError(f"{said}={width}: expected at most scheduler.{limit}={getattr(s.scheduler, limit)}")


def _check_repeating(s: Settings) -> None:
    """Of seeds, and of the jobs of a sweep."""
    for seed in s.seeds or []:
        _within("seeds", seed, 0, 2**63 - 1)
    if s.seeds is not None and (not s.seeds or len(set(s.seeds)) < len(s.seeds)):
        raise ConfigError(f"seeds={s.seeds}: expected one seed or more, each of them once")
    _within("jobs", s.jobs, 1, 4096)
    if s.job_timeout_s is not None and not 0 < s.job_timeout_s < math.inf:
        raise ConfigError(f"job_timeout_s={s.job_timeout_s}: expected more than 0, and finite")


def check_texts(settings: Any, prefix: str) -> None:
    """No text may be empty: an unset shell variable makes `model.path=`, which must not mean the folder `.`."""
    for field in fields(settings):
        value, path = getattr(settings, field.name), prefix + field.name
        if is_dataclass(value):
            check_texts(value, f"{path}.")
        elif isinstance(value, str) and not value.strip():
            raise ConfigError(f"{path}={value}: expected a text that is not empty")
