"""The number formats a model can be served in, by name: simulations count bytes without torch."""

from __future__ import annotations

from pagedlab.core.errors import ModelError

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def dtype_bytes(name: str) -> int:
    """Bytes of one number of the dtype `name`. ModelError on a name that is none of the four."""
    if name not in _BYTES:
        raise ModelError(f"model.dtype={name}: no such dtype, expected one of {', '.join(_BYTES)}")
    return _BYTES[name]
