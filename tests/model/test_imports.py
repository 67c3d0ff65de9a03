"""Simulated runs find a model, its shape and its tokenizer without the seconds that torch takes to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_folder_shape_and_tokenizer_need_neither_torch_nor_transformers(tiny_folder: Path) -> None:
    program = f"""
import sys
from pathlib import Path
import pagedlab.model.dtype
from pagedlab.model.config import read_config
from pagedlab.model.locate import model_folder
from pagedlab.model.shape import shape_of
from pagedlab.model.tokenizer import load_tokenizer
from pagedlab.settings import ModelSettings

settings = ModelSettings(name="x", path={str(tiny_folder)!r})
folder = model_folder(settings)
shape = shape_of(read_config(settings, folder))
tokenizer = load_tokenizer(folder, shape.vocab_size)
print(len(tokenizer.message("user", "Hi")) > 0, load_tokenizer(None, 512).encode("a"))
print(sorted({{"torch", "transformers"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines() == ["True [101]", "[]"]
