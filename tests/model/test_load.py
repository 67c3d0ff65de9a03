"""What a loaded model is: its weights, their dtype, and that loading leaves everything else alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from pagedlab.core.errors import ModelError
from pagedlab.model.load import load_model
from pagedlab.settings import ModelSettings

ROOT = Path(__file__).parents[2]
IDS = torch.arange(5, 21)[None]

EditConfig = Callable[..., None]


def refusal(settings: ModelSettings, folder: Path | None = None, device: str = "cpu") -> str:
    with pytest.raises(ModelError) as caught:
        load_model(settings, folder, device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", ["tiny_llama", "tiny_opt", "tiny_mixtral"])
def test_the_random_models_of_conf_run_in_every_dtype(name: str, dtype: str) -> None:
    values: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf" / "model" / f"{name}.yaml"))
    settings = ModelSettings(**values | {"dtype": dtype})
    model = load_model(settings, None, "cpu")
    logits = model(IDS).logits
    assert logits.dtype == model.dtype == getattr(torch, dtype)
    assert not model.training
    assert not logits.requires_grad
    exact = load_model(replace(settings, dtype="float32"), None, "cpu")
    # The same weights, rounded.
    for parameter, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        assert torch.equal(parameter, theirs.to(parameter.dtype))
    torch.testing.assert_close(logits.float(), exact(IDS).logits, atol=0.15, rtol=0.15)


def test_random_weights_come_from_the_seed_and_from_nothing_else(tiny: ModelSettings) -> None:
    torch.manual_seed(1)
    first = load_model(tiny, None, "cpu").state_dict()
    drawn = torch.rand(4)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(4), drawn)
    again = load_model(tiny, None, "cpu").state_dict()
    other = load_model(replace(tiny, seed=1), None, "cpu").state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[name], other[name])


def test_a_folder_is_loaded_as_it_was_saved(tiny: ModelSettings, tiny_folder: Path) -> None:
    saved = load_model(tiny, None, "cpu").state_dict()
    loaded = load_model(ModelSettings(name="x", path=str(tiny_folder)), tiny_folder, "cpu")
    assert all(torch.equal(tensor, loaded.state_dict()[key]) for key, tensor in saved.items())
    half = load_model(ModelSettings(name="x", dtype="bfloat16"), tiny_folder, "cpu")
    theirs = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16, attn_implementation="eager")
    assert torch.equal(half(IDS).logits, theirs(IDS).logits)


def test_loading_is_silent_and_leaves_transformers_as_it_was(
    tiny: ModelSettings, tiny_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_model(ModelSettings(name="x"), tiny_folder, "cpu")
    load_model(tiny, None, "cpu")
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "nonsense"}, "model_type=nonsense is not known, expected an architecture of transformers"),
        ({"model_type": "llama", "hidden_sise": 64}, "config.hidden_sise: no such field of model_type=llama"),
        ({"model_type": "llama", "hidden_size": "wide"}, "cannot be loaded on cpu"),
        ({"model_type": "t5"}, "t5 is no causal language model"),
        ({"model_type": "bart"}, "bart is no causal language model"),
        ({"model_type": "vit"}, "vit is no causal language model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is no causal language model"),
    ],
)
def test_a_config_that_makes_no_model(config: dict[str, Any], says: str) -> None:
    message = refusal(ModelSettings(name="some", source="random", config=config))
    assert message.startswith("model=some: ")
    assert says in message


def test_a_device_or_dtype_that_is_not_there(tiny: ModelSettings) -> None:
    assert refusal(tiny, device="abacus").startswith("model=tiny: cannot be loaded on abacus: ")
    assert refusal(replace(tiny, dtype="float8")).startswith("model.dtype=float8: no such dtype")


def test_weights_that_do_not_fit_the_config(tiny_folder: Path, edit_config: EditConfig) -> None:
    edit_config(tiny_folder, num_hidden_layers=3)
    assert "9 tensors do not fit config.json (missing_keys), first model.layers.2." in refusal(
        ModelSettings(name="x"), tiny_folder
    )
    edit_config(tiny_folder, num_hidden_layers=2, intermediate_size=96)
    assert str(tiny_folder) in refusal(ModelSettings(name="x"), tiny_folder)
