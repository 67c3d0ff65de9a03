"""pagedlab: a benchmark-driven research lab for paged KV caches in LLM serving."""

import sys as _sys
from pathlib import Path as _Path

__version__ = "0.1.0"

# In a checkout kernels/, experiments/ and conf/ lie beside this package; a wheel holds them inside it.
_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "conf").is_dir():
    __path__.append(str(_root))

# Hydra finds plugins by one name on the path, which the package therefore has to be on before Hydra looks.
_sys.path.append(str(_Path(__file__).resolve().parent / "_hydra"))
