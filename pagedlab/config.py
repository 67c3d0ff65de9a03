"""From a composed Hydra config to checked `Settings`: every fault is one line that names field, value and choices."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pagedlab.allocator.base import ALLOCATORS
from pagedlab.core.errors import ConfigError
from pagedlab.core.registry import Registry
from pagedlab.executor.base import EXECUTORS
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
    unknown = next(_unknown_keys(config, Settings, ""), None)
    if unknown:
        raise ConfigError(unknown)
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
    return settings


def parse_bytes(text: str) -> int:
    """'512MiB', '1.5 GB' or '1073741824' as a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError(f"kv_bytes={text}: expected a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
    return int(float(match[1]) * _UNITS[match[2]])


def suggestion(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else f", expected one of {', '.join(sorted(known))}"


def _unknown_keys(config: DictConfig, kind: type, prefix: str) -> Iterator[str]:
    """A structured config refuses unknown keys, but not those added by `+key=`: look at all of them ourselves."""
    known = [field.name for field in fields(kind)]
    for key in map(str, config):
        path = prefix + key
        if key not in known:
            yield f"{path}: no such setting{suggestion(key, known)}"
            continue
        child = config._get_node(key)
        nested = OPTIONS[path][config[key]["name"]] if path in OPTIONS else nested_settings(kind, key)
        if nested is not None and isinstance(child, DictConfig) and not child._is_none():
            yield from _unknown_keys(child, nested, f"{path}.")


def _one_line(error: OmegaConfBaseException) -> str:
    key = getattr(error, "full_key", None) or getattr(error, "key", None)
    first = str(error).splitlines()[0]
    return f"{key}: {first}" if key else first


def _check_values(s: Settings) -> None:
    named: list[tuple[str, str, Registry[Any]]] = [
        ("allocator", s.allocator.name, ALLOCATORS),
        ("executor", s.executor.name, EXECUTORS),
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
    _within("audit_every", s.audit_every, 0, None)
    _within("scheduler.max_num_seqs", s.scheduler.max_num_seqs, 1, 65536)
    _within("scheduler.max_num_batched_tokens", s.scheduler.max_num_batched_tokens, 1, None)
    _within("scheduler.watermark", s.scheduler.watermark, 0, 1)
    _within("sampling.temperature", s.sampling.temperature, 0, None)
    _within("sampling.top_k", s.sampling.top_k, 0, None)
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
            _within("executor.threads", s.executor.threads, 1, None)
    if s.executor.name == "fingerprint":
        _within("executor.vocab_size", s.executor.vocab_size, 2, 2**31 - 1)
        _within("executor.step_s", s.executor.step_s, 0, None)
        _within("executor.token_s", s.executor.token_s, 0, None)
        if s.executor.step_s == s.executor.token_s == 0:
            raise ConfigError("executor.step_s=0.0 and executor.token_s=0.0: expected a step to take some time")
    if s.tracker.name == "wandb":
        if s.tracker.mode not in ("offline", "online"):
            raise ConfigError(f"tracker.mode={s.tracker.mode}: expected offline or online")
        if s.tracker.timeout_s <= 0:
            raise ConfigError(f"tracker.timeout_s={s.tracker.timeout_s}: expected more than 0")


def _within(path: str, value: float, low: float, high: float | None) -> None:
    # Written so that NaN fails as well.
    if not (value >= low and (high is None or value <= high)):
        upper = "" if high is None else f" and at most {high}"
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
