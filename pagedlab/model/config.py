"""A model's config as a plain dict, from its folder or from the settings: what `shape_of` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagedlab.core.errors import ModelError
from pagedlab.model.files import read_json
from pagedlab.settings import ModelSettings


def read_config(settings: ModelSettings, folder: Path | None) -> dict[str, Any]:
    """The config of the model in `folder` (or in that file); for None the one in the settings.

    `eos_token_id` is generation_config.json's where the folder has one: chat models end their answers with other
    tokens than the base model's. A config in the settings must say all sizes itself. ModelError if there is none,
    or it has no `model_type`.
    """
    if folder is None:
        config, where = dict(settings.config), f"model={settings.name}: config"
    else:
        file = folder if folder.is_file() else folder / "config.json"
        config, where = read_json(file), str(file)
        generation = file.parent / "generation_config.json"
        eos = read_json(generation).get("eos_token_id") if generation.is_file() else None
        if eos is not None:
            config["eos_token_id"] = eos
    if not isinstance(config.get("model_type"), str):
        raise ModelError(f"{where}: model_type={config.get('model_type')!r}, expected the name of an architecture")
    return config
