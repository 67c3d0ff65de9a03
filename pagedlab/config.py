"""From a composed Hydra config to checked `Settings`: every fault is one line that names field, value and choices."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any, get_type_hints

from omegaconf import AnyNode, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.errors import ConfigError
from pagedlab.core.registry import Registry
from pagedlab.executor.base import EXECUTORS
from pagedlab.kernels.base import KERNELS
from pagedlab.preemption.base import PREEMPTIONS
from pagedlab.preemption.victim.base import VICTIMS
from pagedlab.scheduler.admission.base import ADMISSIONS
from pagedlab.scheduler.batching.base import BATCHINGS
from pagedlab.scheduler.order.base import ORDERS
from pagedlab.settings import OPTIONS, Settings, nested_settings

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def load_settings(config: DictConfig) -> Settings:
    """Check types, unknown keys, values and combinations. ConfigError before anything is loaded or written."""
    schema = OmegaConf.structured(Settings)
    for group, options in OPTIONS.items():
        name = OmegaConf.select(config, f"{group}.name")
        if name not in options:
            raise ConfigError(f"{group}={name}: no such option, expected one of {', '.join(options)}")
        schema[group] = OmegaConf.structured(options[name])
    refused = next(_refused_keys(config, Settings, ""), None)
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
    if not isinstance(settings, Settings):
        raise ConfigError(f"config of type {type(settings).__name__}, expected Settings")
    _check_values(settings)
    _check_combinations(settings)
    _check_texts(settings, "")
    return settings


def parse_bytes(text: str) -> int:
    """'512MiB', '1.5 GB' or '1073741824' as a number of bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError(f"kv_bytes={text}: expected a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else f", expected one of {', '.join(sorted(known))}"


def _refused_keys(config: DictConfig, kind: type, prefix: str) -> Iterator[str]:
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
        nested = OPTIONS[path][config[key]["name"]] if path in OPTIONS else nested_settings(kind, key)
        if nested is not None and isinstance(child, DictConfig) and not child._is_none():
            yield from _refused_keys(child, nested, f"{path}.")


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
    ]
    for path, name, registry in named:
        if name not in registry:
            raise ConfigError(f"{path}={name}: no such option, expected one of {', '.join(registry)}")
    _within("block_size", s.block_size, 1, 256)
    _within("seed", s.seed, 0, 2**63 - 1)
    _within("model.seed", s.model.seed, 0, 2**63 - 1)
    _within("audit_every", s.audit_every, 0, None)
    _within("scheduler.max_num_seqs", s.scheduler.max_num_seqs, 1, 65536)
    _within("scheduler.max_num_batched_tokens", s.scheduler.max_num_batched_tokens, 1, None)
    _within("scheduler.watermark", s.scheduler.watermark, 0, 1)
    _within("sampling.temperature", s.sampling.temperature, 0, None)
    _within("sampling.top_k", s.sampling.top_k, 0, 2**31 - 1)
    if not 0 < s.sampling.top_p <= 1:
        raise ConfigError(f"sampling.top_p={s.sampling.top_p}: expected more than 0 and at most 1")
    if s.max_model_len is not None:
        _within("max_model_len", s.max_model_len, 1, None)
    if s.model.dtype not in _DTYPES:
        raise ConfigError(f"model.dtype={s.model.dtype}: expected one of {', '.join(_DTYPES)}")
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


# What may be 0, or is a share of a peak; every other constant of a device is a positive number.
_MAY_BE_ZERO = ("_us", "gather_half_tokens", "elementwise_streams")
_SHARES = ("_efficiency", "_utilization")


def _check_hardware(s: Settings) -> None:
    _within("hardware.tensor_parallel", s.hardware.tensor_parallel, 1, 1024)
    for field in fields(s.hardware):
        if field.type == "float":
            value, path = getattr(s.hardware, field.name), f"hardware.{field.name}"
            if field.name.endswith(_SHARES) and not 0 < value <= 1:
                raise ConfigError(f"{path}={value}: expected more than 0 and at most 1")
            _within(path, value, 0 if field.name.endswith(_MAY_BE_ZERO) else 1e-9, 1e12)
    if s.executor.name != "simulated":
        if s.hardware.name != "local":
            raise ConfigError(
                f"hardware={s.hardware.name}: executor={s.executor.name} has no use for it, expected local"
            )
        return
    if s.model.dtype == "float64":
        raise ConfigError("model.dtype=float64: executor=simulated prices 16 and 32 bits")
    if not s.sampling.ignore_eos:
        raise ConfigError("sampling.ignore_eos=false: executor=simulated has no end-of-sequence token, expected true")
    h = s.hardware
    if not any((h.gemm_fixed_us, h.elementwise_layer_us, h.host_step_us)):
        raise ConfigError("hardware.host_step_us=0: expected a step to take some time")


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
    if ALLOCATORS[s.allocator.name].needs_true_length and not s.sampling.ignore_eos:
        raise ConfigError(
            f"allocator={s.allocator.name} must know each output length beforehand, expected sampling.ignore_eos=true"
        )


def _check_texts(settings: Any, prefix: str) -> None:
    """No text may be empty: an unset shell variable makes `model.path=`, which must not mean the folder `.`."""
    for field in fields(settings):
        value, path = getattr(settings, field.name), prefix + field.name
        if is_dataclass(value):
            _check_texts(value, f"{path}.")
        elif isinstance(value, str) and not value.strip():
            raise ConfigError(f"{path}={value}: expected a text that is not empty")
