"""What the files of compiled bodies share. A body is a C function of one argument, an array of numbers and addresses:
cheap to call from Python, and any pool of threads can run it. Needs numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import cfunc

_SIGNATURE = "void(CPointer(int64))"


def body(function: Callable[..., None], **options: Any) -> Any:
    """Compile to void(int64 *fields), or load it from where numba keeps it: __pycache__, or where that cannot be
    written the user's cache folder ($NUMBA_CACHE_DIR wins). Where neither can, it is compiled in every process."""
    try:
        return cfunc(_SIGNATURE, cache=True, **options)(function)
    except RuntimeError:  # "no locator available"
        return cfunc(_SIGNATURE, **options)(function)


def version(module: ModuleType) -> int:
    """Of a module whose code is compiled into bodies of others. A body that has this number among its constants is
    compiled anew when that module changes; numba itself looks at the file of the function alone."""
    return int.from_bytes(hashlib.sha256(Path(str(module.__file__)).read_bytes()).digest()[:4], "big")
