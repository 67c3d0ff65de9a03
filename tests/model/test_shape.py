"""The shape read from a config agrees with transformers' own config classes, and says what is wrong with a bad one."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from pagedlab.core.errors import ModelError
from pagedlab.model.shape import ModelShape, context_length, shape_of

LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("llama", {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}),
        ("llama", {"num_attention_heads": 8, "hidden_size": 64, "head_dim": 32, "eos_token_id": [7, 9]}),
        ("opt", {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 99}),
        ("mixtral", {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}),
        ("qwen2", {"num_attention_heads": 14, "num_key_value_heads": 2, "hidden_size": 896, "vocab_size": 151936}),
        ("qwen3", {"num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 1024, "head_dim": 128}),
    ],
)
def test_fields_are_those_transformers_reads(model_type: str, fields: dict[str, Any]) -> None:
    theirs = AutoConfig.for_model(model_type, **fields)
    ours = shape_of(theirs.to_dict())
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.num_heads == theirs.num_attention_heads
    assert ours.num_kv_heads == getattr(theirs, "num_key_value_heads", theirs.num_attention_heads)
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.hidden_size == theirs.hidden_size
    assert ours.vocab_size == theirs.vocab_size
    assert ours.context_length == theirs.max_position_embeddings
    eos = theirs.eos_token_id
    assert list(ours.eos_token_ids) == (eos if isinstance(eos, list) else [] if eos is None else [eos])


def test_gpt2_has_names_of_its_own() -> None:
    config = AutoConfig.for_model("gpt2", n_layer=3, n_head=4, n_embd=64, n_positions=128, vocab_size=100)
    assert shape_of(config.to_dict()) == ModelShape(3, 4, 4, 16, 64, 100, 128, (50256,))


@pytest.mark.parametrize(
    ("fields", "kv_heads"),
    [
        ({}, 8),
        ({"num_key_value_heads": None}, 8),
        ({"num_key_value_heads": 2}, 2),
        ({"multi_query": True, "num_kv_heads": 8}, 1),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 4}, 4),
    ],
)
def test_key_value_heads(fields: dict[str, Any], kv_heads: int) -> None:
    assert shape_of(LLAMA | fields).num_kv_heads == kv_heads


def test_text_config_of_a_model_that_also_sees() -> None:
    config = {"text_config": LLAMA | {"eos_token_id": 5}, "vision_config": {"hidden_size": 999}, "hidden_size": None}
    assert shape_of(config) == ModelShape(3, 8, 8, 8, 64, 100, 32, (5,))
    assert context_length(config) == 32
    # The outer one is what generation_config.json says.
    assert shape_of(config | {"eos_token_id": [6]}).eos_token_ids == (6,)


def test_bytes_of_a_token_are_those_of_keys_and_values_in_all_layers() -> None:
    smollm2 = ModelShape(30, 9, 3, 64, 576, 49152, 8192, (2,))
    assert smollm2.kv_bytes_per_token(2) == 23040


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"vocab_size": None}, "config: vocab_size is missing"),
        ({"num_hidden_layers": None}, "config: num_hidden_layers is missing"),
        ({"max_position_embeddings": None}, "config: max_position_embeddings is missing"),
        ({"hidden_size": 0}, "config: hidden_size=0, expected a whole number of at least 1"),
        ({"num_key_value_heads": [2, 2, 4]}, "config: num_key_value_heads=[2, 2, 4], expected a whole number"),
        ({"num_key_value_heads": True}, "config: num_key_value_heads=True, expected a whole number"),
        ({"num_key_value_heads": 3}, "config: 8 attention heads over 3 key-value heads, expected a multiple"),
        ({"hidden_size": 60}, "config: hidden_size=60 over 8 attention heads, expected a multiple or head_dim"),
        ({"eos_token_id": ["</s>"]}, "config: eos_token_id=['</s>'], expected a token id or a list of them"),
        ({"kv_lora_rank": 512}, "config: kv_lora_rank=512: latent attention"),
    ],
)
def test_a_field_that_cannot_be_is_named(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ModelError) as caught:
        shape_of(LLAMA | fields)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
