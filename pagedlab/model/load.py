"""Loading a model's weights. Imports torch and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from pagedlab.core.errors import ModelError
from pagedlab.model.config import read_config
from pagedlab.model.dtype import dtype_bytes
from pagedlab.model.files import first_line
from pagedlab.model.quiet import quiet_transformers
from pagedlab.settings import ModelSettings

# What the heads of models are called that predict the next token.
_CAUSAL = ("CausalLM", "LMHeadModel", "ForConditionalGeneration")


def load_model(settings: ModelSettings, folder: Path | None, device: str) -> PreTrainedModel:
    """The model on `device` in eval mode, its weights in `settings.dtype`, with eager attention.

    folder: from `model_folder`; None draws the weights of `settings.config` from `settings.seed`: the same on every
    device, rounded from the same fp32 numbers in every dtype, and without touching torch's own random state.
    No code of the folder is run and no pickle read. ModelError in one line when it cannot be loaded.
    """
    dtype_bytes(settings.dtype)
    dtype: torch.dtype = getattr(torch, settings.dtype)
    config = read_config(settings, folder)
    where = f"model={settings.name}" if folder is None else str(folder)
    with quiet_transformers():
        try:
            _check_causal(config, where)
            model = _random(config, settings.seed, dtype, where) if folder is None else _stored(folder, dtype)
            if dtype is torch.float64:
                # The grouped product, which mixtures of experts use by default, does not know it.
                model.set_experts_implementation("eager")
            torch.nn.Module.to(model, torch.device(device))
        except ModelError:
            raise
        # Transformers, torch and the quantisation libraries raise what they like.
        except Exception as error:
            raise ModelError(f"{where}: cannot be loaded on {device}: {first_line(error)}") from error
    model.eval()
    model.requires_grad_(False)
    return model


def _check_causal(config: dict[str, Any], where: str) -> None:
    kind = config["model_type"]
    if kind not in CONFIG_MAPPING:
        why = "needs code of its own (auto_map), which is never run" if "auto_map" in config else "is not known"
        raise ModelError(
            f"{where}: model_type={kind} {why}, expected an architecture of transformers {transformers.__version__}"
        )
    architectures = list(map(str, config.get("architectures") or ()))
    known = CONFIG_MAPPING[kind]
    # Their decoders count as causal language models, but attend to what an encoder reads.
    encoder = config.get("is_encoder_decoder", getattr(known, "is_encoder_decoder", False))
    causal = known in MODEL_FOR_CAUSAL_LM_MAPPING and not encoder
    if not causal or (architectures and not any(name.endswith(_CAUSAL) for name in architectures)):
        raise ModelError(f"{where}: {(architectures or [kind])[0]} is no causal language model")


def _random(config: dict[str, Any], seed: int, dtype: torch.dtype, where: str) -> PreTrainedModel:
    kind = config["model_type"]
    known = CONFIG_MAPPING[kind]()
    fields = {name: value for name, value in config.items() if name != "model_type"}
    # Transformers keeps a misspelled field and takes its default for the right one.
    if unknown := [name for name in fields if not hasattr(known, name)]:
        raise ModelError(f"{where}: config.{unknown[0]}: no such field of model_type={kind}")
    # On the CPU and in fp32 whatever is asked for, so that all devices and dtypes get the same weights.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, **fields), dtype=torch.float32, attn_implementation="eager"
        )
    # The parameters alone: rotary frequencies are fp32 buffers in every dtype.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


def _stored(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    _check_headers(folder)
    config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    # With this field a config can name a pickle.
    named = getattr(config, "transformers_weights", None)
    if named is not None and ".safetensors" not in named:
        raise ModelError(f"{folder / 'config.json'}: transformers_weights={named}, expected safetensors")
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        # A config may name an attention kernel to be fetched from the hub.
        attn_implementation="eager",
        output_loading_info=True,
    )
    model: PreTrainedModel = loaded[0]
    # Transformers fills up what is missing with random numbers.
    for problem in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, loaded[1][problem])):
            raise ModelError(f"{folder}: {len(names)} tensors do not fit config.json ({problem}), first {names[0]}")
    return model


def _check_headers(folder: Path) -> None:
    """Transformers does not say which file is damaged."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: cannot be read as safetensors: {first_line(error)}") from error
