"""A model's config comes from its folder or the settings; its end-of-answer tokens from generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagedlab.core.errors import ModelError
from pagedlab.model.config import read_config
from pagedlab.model.dtype import dtype_bytes
from pagedlab.settings import ModelSettings

SETTINGS = ModelSettings(name="some", source="random", config={"model_type": "llama", "eos_token_id": 3})


@pytest.mark.parametrize(
    ("generation", "eos"), [(None, 2), ({}, 2), ({"eos_token_id": [2, 7]}, [2, 7]), ({"eos_token_id": 0}, 0)]
)
def test_generation_config_decides_what_ends_an_answer(
    tmp_path: Path, generation: dict[str, object] | None, eos: object
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "eos_token_id": 2}')
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_config(SETTINGS, tmp_path)["eos_token_id"] == eos


def test_without_a_folder_it_is_a_copy_of_the_settings() -> None:
    config = read_config(SETTINGS, None)
    config["model_type"] = "opt"
    assert SETTINGS.config == {"model_type": "llama", "eos_token_id": 3}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "holds a list, expected a JSON object"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("\xff", "cannot be read as JSON"),
        ("{}", "model_type=None, expected the name of an architecture"),
        ('{"model_type": 5}', "model_type=5, expected the name of an architecture"),
    ],
)
def test_a_damaged_config_is_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError) as caught:
        read_config(SETTINGS, tmp_path)
    assert says in str(caught.value)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_random_model_needs_a_config() -> None:
    with pytest.raises(ModelError, match=r"^model=some: config: model_type=None"):
        read_config(ModelSettings(name="some", source="random"), None)


def test_dtypes_are_known_by_name() -> None:
    assert [dtype_bytes(name) for name in ("float64", "float32", "bfloat16", "float16")] == [8, 4, 2, 2]
    with pytest.raises(ModelError, match=r"^model.dtype=int8: no such dtype, expected one of float64, float32"):
        dtype_bytes("int8")
