"""From the settings to the folder that holds the model."""

from __future__ import annotations

from pathlib import Path

from pagedlab.core.errors import ModelError
from pagedlab.model.hub import download
from pagedlab.model.smollm2 import converted_folder
from pagedlab.settings import ModelSettings

_PICKLES = ("*.bin", "*.pt", "*.pth")


def model_folder(settings: ModelSettings, weights: bool = True) -> Path | None:
    """The folder with the model's config.json, tokenizer and safetensors; None for random weights.

    `path` wins over `source`: a local folder if there is one of that name, else a model of the hub. weights=False is
    for runs that only want the tokenizer and the shape: no weights are fetched or asked for. Imports neither torch
    nor transformers, except to convert SmolLM2 at its first use. ModelError in one line when there is no such model,
    or its weights are not safetensors.
    """
    if settings.path is not None:
        folder = _local_or_hub(settings.path, settings.revision, weights)
        _check(folder, weights)
        return folder
    if settings.source == "random":
        return None
    if settings.source == "shape":
        if weights:
            raise ModelError(
                f"model={settings.name}: its sizes are known and nothing else: expected executor=simulated, or the "
                "model itself by model.path"
            )
        return None
    if settings.source == "smollm2":
        return converted_folder()
    if settings.source == "path":
        raise ModelError("model.path=null: expected a folder or a hub id, as model.source=path says")
    raise ModelError(f"model.source={settings.source}: no such source, expected one of smollm2, path, random, shape")


def shape_place(settings: ModelSettings) -> Path | None:
    """Where a simulation reads the sizes of a model: its folder, or a config.json itself; None: in the settings."""
    if settings.path is None and settings.config:
        return None
    if settings.path is not None and (file := Path(settings.path).expanduser()).is_file():
        return file
    return model_folder(settings, weights=False)


def _local_or_hub(path: str, revision: str | None, weights: bool) -> Path:
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if local.exists():
        raise ModelError(f"model.path={path}: is a file, expected the folder that holds config.json")
    # A hub id is at most owner/name: such a path can only be a folder that is not there.
    if local.is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ModelError(f"model.path={path}: no such folder")
    return download(path, revision, weights)


def _check(folder: Path, weights: bool) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder}: has no config.json, expected the folder of a transformers model")
    if not weights or any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    found = f"weights only as pickle ({pickled[0]}), which can run code" if pickled else "no weights"
    raise ModelError(f"{folder}: {found}; safetensors only are loaded, expected *.safetensors")
