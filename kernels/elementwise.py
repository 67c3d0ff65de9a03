"""Norms, gates and rotary embeddings of a decoder layer on a CPU, each in one pass (`elementwise_compiled.py`).

dtypes fp32 and bf16. Arithmetic in fp32, rounded once: bf16 results may differ by a rounding from those of operations
one after the other, which round in between.
"""

from __future__ import annotations

import torch

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.threads import run

DTYPES = (torch.float32, torch.bfloat16)
_SERIAL = 1 << 16  # numbers that one thread is done with before others have woken up


class Elementwise:
    """Compiles at first use (some seconds), then loads from disk. ConfigError where numba is missing."""

    def __init__(self, dtype: torch.dtype):
        try:
            from pagedlab.kernels import elementwise_compiled as compiled
        except ImportError as error:
            raise ConfigError(f"element-wise parts on a CPU: need numba ({error}), expected it installed") from None
        bits = 8 * dtype.itemsize
        self._norm = compiled.norm_body(bits)
        self._gate = compiled.gate_body(bits)
        self._rotate = compiled.rotate_body(bits)

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        """Root mean square norm (Zhang and Sennrich, 2019, eq. 4): x [..., C], weight [C], eps fp32 [1]. Like x."""
        rows = x.reshape(-1, x.shape[-1])
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        addresses = rows.data_ptr(), weight.data_ptr(), out.data_ptr()
        fields = (0, len(rows), *addresses, rows.shape[1], rows.stride(0), eps.data_ptr())
        run(self._norm, fields, _threads(out))
        return out

    def gate(self, both: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up (SwiGLU: Shazeer, 2020, eq. 6). both [..., 2 F]: gate, then up, rows perhaps with a gap. Out
        [..., F]."""
        columns = both.shape[-1] // 2
        rows = both.reshape(-1, 2 * columns)
        if rows.stride(1) != 1:
            rows = rows.contiguous()
        out = torch.empty((*both.shape[:-1], columns), dtype=both.dtype)
        gate, up = rows.data_ptr(), rows[:, columns:].data_ptr()
        fields = (0, len(rows), gate, up, out.data_ptr(), columns, rows.stride(0))
        run(self._gate, fields, _threads(out))
        return out

    def rotate(
        self, query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotary embedding (Su et al., 2021, eq. 34, halves against each other as in transformers): query [1, H, T, D],
        key [1, KVH, T, D], their last dimension contiguous; cos, sin [1, T, D], contiguous. Shapes stay; in memory the
        results are [T, heads, D]."""
        tokens, dim = query.shape[2:]
        outs = [torch.empty((tokens, x.shape[1], dim), dtype=x.dtype) for x in (query, key)]
        fields = [0, tokens, cos.data_ptr(), sin.data_ptr(), dim]
        for x, out in zip((query, key), outs, strict=True):
            fields += [x.data_ptr(), x.stride(2), x.stride(1), x.shape[1], out.data_ptr()]
        run(self._rotate, tuple(fields), _threads(outs[0]))
        q, k = (out.transpose(0, 1)[None] for out in outs)
        return q, k


def _threads(out: torch.Tensor) -> int:
    return 1 if out.numel() <= _SERIAL else torch.get_num_threads()
