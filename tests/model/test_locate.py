"""Where a model is looked for, and what is refused before anything of it is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.utils import filter_repo_objects

from pagedlab.core.errors import ModelError
from pagedlab.model import locate
from pagedlab.model.cache import cache_folder
from pagedlab.model.locate import model_folder
from pagedlab.settings import ModelSettings

ROOT = Path(__file__).parents[2]


def folder_with(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def refusal(settings: ModelSettings, weights: bool = True) -> str:
    with pytest.raises(ModelError) as caught:
        model_folder(settings, weights)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_random_weights_have_no_folder() -> None:
    assert model_folder(ModelSettings(name="x", source="random")) is None


@pytest.mark.parametrize("source", ["path", "random", "smollm2"])
def test_a_path_wins_over_the_source(tmp_path: Path, source: str) -> None:
    folder = folder_with(tmp_path, "config.json", "model.safetensors")
    assert model_folder(ModelSettings(name="x", source=source, path=str(folder))) == folder


def test_smollm2_is_the_converted_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate, "converted_folder", lambda: tmp_path)
    assert model_folder(ModelSettings(name="x", source="smollm2")) == tmp_path


def test_settings_that_name_no_model() -> None:
    assert refusal(ModelSettings(name="x", source="path")).startswith("model.path=null: expected a folder or a hub id")
    assert refusal(ModelSettings(name="x", source="gguf")).startswith("model.source=gguf: no such source, expected")


def test_a_local_path_that_is_no_model_folder(tmp_path: Path) -> None:
    assert refusal(ModelSettings(name="x", path=str(tmp_path))).endswith(
        "has no config.json, expected the folder of a transformers model"
    )
    file = folder_with(tmp_path, "weights.gguf") / "weights.gguf"
    assert "is a file, expected the folder" in refusal(ModelSettings(name="x", path=str(file)))
    for path in (str(tmp_path / "nowhere"), "./nowhere", "~/nowhere/at/all", "no/where/here"):
        assert refusal(ModelSettings(name="x", path=path)) == f"model.path={path}: no such folder"


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "consolidated.pth", "model.pt"])
def test_weights_in_pickles_only_are_refused(tmp_path: Path, pickle: str) -> None:
    folder = folder_with(tmp_path, "config.json", pickle)
    message = refusal(ModelSettings(name="x", path=str(folder)))
    assert f"weights only as pickle ({pickle})" in message
    assert "safetensors only" in message
    folder_with(folder, "model.safetensors")
    assert model_folder(ModelSettings(name="x", path=str(folder))) == folder


def test_a_folder_without_weights_serves_runs_that_need_none(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json", "tokenizer.json")
    assert model_folder(ModelSettings(name="x", path=str(folder)), weights=False) == folder
    assert "no weights; safetensors only are loaded" in refusal(ModelSettings(name="x", path=str(folder)))


REPOSITORY = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "merges.txt",
    "chat_template.jinja",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "modeling_evil.py",
    "consolidated.00.pth",
    "flax_model.msgpack",
    "original/model.safetensors",
    "onnx/config.json",
    "README.md",
]


@pytest.mark.parametrize(("weights", "count"), [(True, 8), (False, 7)])
def test_of_a_hub_repository_only_data_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: bool, count: int
) -> None:
    fetched: list[str] = []

    def snapshot(repo_id: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert (repo_id, revision) == ("owner/name", "v2")
        fetched.extend(filter_repo_objects(REPOSITORY, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns))
        return str(folder_with(tmp_path, *fetched))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    found = model_folder(ModelSettings(name="x", path="owner/name", revision="v2"), weights)
    assert found == tmp_path
    expected = [name for name in REPOSITORY[:8] if weights or not name.endswith(".safetensors")]
    assert (fetched, len(fetched)) == (expected, count)


def test_a_name_the_hub_cannot_have() -> None:
    assert refusal(ModelSettings(name="x", path="a b/c")).endswith("neither a folder nor a hub id such as owner/name")


@pytest.mark.parametrize("network", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_a_hub_out_of_reach_is_one_line(tmp_path: Path, network: dict[str, str]) -> None:
    # The hub's client reads its environment when it is imported, so this needs a process of its own.
    program = (
        "from pagedlab.core.errors import ModelError\n"
        "from pagedlab.model.locate import model_folder\n"
        "from pagedlab.settings import ModelSettings\n"
        "try: model_folder(ModelSettings(name='x', path='nobody/nothing', revision='v1'))\n"
        "except ModelError as error: print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment | network | {"HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith("model.path=nobody/nothing revision=v1: no such folder, and it cannot be fetched")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PAGEDLAB_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "pagedlab"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "pagedlab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "pagedlab"
    monkeypatch.setenv("PAGEDLAB_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"
