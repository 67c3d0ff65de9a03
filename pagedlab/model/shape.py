"""The numbers of a model that decide its KV cache, read from its config: no weights, no transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pagedlab.core.errors import ModelError

# What the model families call the same thing; the first name found counts.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")

_LATENT_CACHE = ("kv_lora_rank", "qk_rope_head_dim")
_LATENT_KEY = ("qk_nope_head_dim", "qk_rope_head_dim")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one causal language model.

    num_heads, num_kv_heads: query heads and key-value heads of a layer. head_dim: numbers in one query or key head.
    latent_dim: of latent attention, the numbers that it caches of a token in each layer in place of keys and values.
    context_length: the longest sequence, in tokens. eos_token_ids: the ids that end an answer; may be empty.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_length: int
    eos_token_ids: tuple[int, ...]
    latent_dim: int | None = None

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of the keys and values of one token in all layers, at `dtype_bytes` a number."""
        return self.num_layers * (self.latent_dim or 2 * self.num_kv_heads * self.head_dim) * dtype_bytes


def shape_of(config: Mapping[str, Any], latent_attention: bool = False) -> ModelShape:
    """The shape that a transformers `config` (see `read_config`) describes.

    latent_attention: whether the caller can serve it, as only a simulation can; else ModelError.

    ModelError names the field that is missing or cannot be. A model of text and more keeps its language model's
    fields in `text_config`; those count first.
    """
    fields = text_fields(config)
    latent = fields.get("kv_lora_rank") is not None
    if latent and not latent_attention:
        raise ModelError(
            f"config: kv_lora_rank={fields['kv_lora_rank']}: latent attention has keys and values of two sizes, "
            "expected a model with one head_dim"
        )
    heads = number(fields, _HEADS)
    hidden = number(fields, _HIDDEN)
    kv_heads = _kv_heads(fields, heads)
    if heads % kv_heads:
        raise ModelError(f"config: {heads} attention heads over {kv_heads} key-value heads, expected a multiple")
    return ModelShape(
        num_layers=number(fields, _LAYERS),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_sum(fields, _LATENT_KEY) if latent else _head_dim(fields, heads, hidden),
        hidden_size=hidden,
        vocab_size=number(fields, ("vocab_size",)),
        context_length=context_length(config),
        eos_token_ids=_eos_token_ids(config),
        latent_dim=_sum(fields, _LATENT_CACHE) if latent else None,
    )


def context_length(config: Mapping[str, Any]) -> int:
    """The most tokens a sequence of the model may have, prompt and answer together. ModelError if it is not said."""
    return number(text_fields(config), _CONTEXT)


def text_fields(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the language model, where a model of text and more has them apart."""
    nested = config.get("text_config")
    return {**config, **nested} if isinstance(nested, Mapping) else config


def number(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The number under the first of these names that the config has. ModelError if there is none of 1 or more."""
    name = next((name for name in names if fields.get(name) is not None), None)
    if name is None:
        raise ModelError(f"config: {names[0]} is missing (nor is there {', '.join(names[1:]) or 'another name of it'})")
    value = fields[name]
    # Some research models give one number for each layer, and True is an int to Python.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config: {name}={value!r}, expected a whole number of at least 1")
    return value


def _sum(fields: Mapping[str, Any], names: tuple[str, ...]) -> int:
    return sum(number(fields, (name,)) for name in names)


def _kv_heads(fields: Mapping[str, Any], heads: int) -> int:
    # Falcon and GPTBigCode: one head for all queries, whatever num_kv_heads says; the larger Falcons are grouped.
    if fields.get("multi_query") and not fields.get("new_decoder_architecture"):
        return 1
    given = any(fields.get(name) is not None for name in _KV_HEADS)
    return number(fields, _KV_HEADS) if given else heads


def _head_dim(fields: Mapping[str, Any], heads: int, hidden: int) -> int:
    if fields.get("head_dim") is not None:
        return number(fields, ("head_dim",))
    if hidden % heads:
        raise ModelError(f"config: hidden_size={hidden} over {heads} attention heads, expected a multiple or head_dim")
    return hidden // heads


def _eos_token_ids(config: Mapping[str, Any]) -> tuple[int, ...]:
    # The outer value counts first here: it is what generation_config.json gave.
    value = config.get("eos_token_id")
    if value is None:
        value = text_fields(config).get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
        raise ModelError(f"config: eos_token_id={value!r}, expected a token id or a list of them")
    return tuple(ids)
