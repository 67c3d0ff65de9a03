"""Products of a few rows with a weight, as machine code: what a decode step is mostly made of. Needs numba.

A weight is laid out once as it is read: one strip (`strip_vectors.py`) after the other. A thread takes the next strip
from a counter and computes it for all rows of x.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from numba import carray

from pagedlab.kernels import cpu_vectors, strip_vectors
from pagedlab.kernels.compiled import body, version
from pagedlab.kernels.cpu_vectors import take
from pagedlab.kernels.strip_vectors import WIDTH, all_rows

_VECTORS = version(strip_vectors) ^ version(cpu_vectors)


@lru_cache
def product_body(bits: int) -> Any:
    """out = x . weight^T + bias + more. Fields: 0 next strip, 1 rows, 2 x [rows, columns of the weight], 3 weight in
    strips, 4 out [rows, strips * WIDTH], 5 strips, 6 bytes of a row of x, 7 bias or 0, 8 more, as out, or 0."""
    vectors = _VECTORS

    def product(fields: Any) -> None:
        f = carray(fields, 9 if vectors >= 0 else 0)
        rows, x, weight, out, strips, x_bytes, bias, more = f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]
        words, wide = x_bytes // 4, WIDTH * bits // 8
        out_bytes = strips * wide
        while True:
            strip = take(fields, 0)
            if strip >= strips:
                break
            at, start = strip * wide, weight + strip * words * (4 * WIDTH)
            bias_here, more_here = bias + at if bias != 0 else 0, more + at if more != 0 else 0
            all_rows(bits, bits, rows, x, x_bytes, start, words, bias_here, more_here, out + at, out_bytes)

    return body(product)
