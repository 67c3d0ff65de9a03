"""A folder from the internet cannot run code, and a damaged one is refused in one line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagedlab.core.errors import ModelError
from pagedlab.model.load import load_model
from pagedlab.model.locate import model_folder
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.settings import ModelSettings

EditConfig = Callable[..., None]


class Bomb:
    """Unpickling it writes the canary."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.write_text, (self.canary, "ran"))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def hostile(tiny_folder: Path, canary: Path, edit_config: EditConfig) -> Path:
    """A model folder that brings code for everything that transformers can be asked to load."""
    code = f"from pathlib import Path\nPath({str(canary)!r}).write_text('ran')\nclass Evil: pass\n"
    (tiny_folder / "evil.py").write_text(code)
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
    edit_config(tiny_folder, auto_map=dict.fromkeys(names, "evil.Evil"))
    tokenizer = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    (tiny_folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return tiny_folder


def refusal(folder: Path) -> str:
    settings = ModelSettings(name="x", path=str(folder))
    with pytest.raises(ModelError) as caught:
        load_model(settings, model_folder(settings), "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_code_of_a_model_is_never_run(hostile: Path, canary: Path, edit_config: EditConfig) -> None:
    edit_config(hostile, model_type="evil", architectures=["Evil"])
    assert "model_type=evil needs code of its own (auto_map), which is never run" in refusal(hostile)
    assert not canary.exists()


def test_an_architecture_that_transformers_has_is_loaded_without_the_code(hostile: Path, canary: Path) -> None:
    model = load_model(ModelSettings(name="x", path=str(hostile)), hostile, "cpu")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not canary.exists()


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_code_of_a_tokenizer_is_never_run(hostile: Path, canary: Path, has_tokenizer: bool) -> None:
    if has_tokenizer:
        load_tokenizer(hostile, 512)
    else:
        (hostile / "tokenizer.json").unlink()
        with pytest.raises(ModelError, match=r"no tokenizer\.json, and no other"):
            load_tokenizer(hostile, 512)
    assert not canary.exists()


def test_pickles_are_refused_unread(tiny_folder: Path, canary: Path, edit_config: EditConfig) -> None:
    weights = tiny_folder / "model.safetensors"
    stored = weights.read_bytes()
    weights.unlink()
    for name in ("pytorch_model.bin", "adapter_model.bin"):
        (tiny_folder / name).write_bytes(pickle.dumps(Bomb(canary)))
    assert "safetensors only" in refusal(tiny_folder)
    # Nor when the config sends transformers to the pickle.
    weights.write_bytes(stored)
    edit_config(tiny_folder, transformers_weights="adapter_model.bin")
    assert "transformers_weights=adapter_model.bin, expected safetensors" in refusal(tiny_folder)
    assert not canary.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 4,
        b"\xff" * 64,
        (1 << 62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{]",
        (9).to_bytes(8, "little") + b'{"a": 5} ',
    ],
    ids=["empty", "short", "noise", "huge_header", "no_json", "no_tensor"],
)
def test_a_malformed_safetensors_file_is_one_line(tiny_folder: Path, data: bytes) -> None:
    (tiny_folder / "model.safetensors").write_bytes(data)
    message = refusal(tiny_folder)
    assert message.startswith(f"{tiny_folder / 'model.safetensors'}: cannot be read as safetensors: ")


def test_a_file_cut_short_is_one_line(tiny_folder: Path) -> None:
    weights = tiny_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "cannot be read as safetensors" in refusal(tiny_folder)


def test_an_attention_kernel_named_by_the_config_is_not_fetched(tiny_folder: Path, edit_config: EditConfig) -> None:
    edit_config(tiny_folder, attn_implementation="nobody/evil-kernel", _attn_implementation="nobody/evil-kernel")
    model = load_model(ModelSettings(name="x"), tiny_folder, "cpu")
    assert model.config._attn_implementation == "eager"
    assert model(torch.arange(5, 9)[None]).logits.shape == (1, 4, 512)


def test_a_template_cannot_reach_python(tiny_folder: Path, canary: Path) -> None:
    attack = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{{ cycler.__init__.__globals__.os.system('echo ran > " + str(canary) + "') }}"
    )
    (tiny_folder / "chat_template.jinja").write_text(attack)
    tokenizer = load_tokenizer(tiny_folder, 512)
    assert tokenizer.decode(tokenizer.message("user", "Hi")) == "User: Hi\n"
    assert not canary.exists()
