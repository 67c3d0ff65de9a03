"""Products of a few rows with a weight, as machine code: what a decode step is mostly made of. Needs numba.

A weight is laid out once as it is read: one strip (`strip_vectors.py`) after the other. A thread takes the next few
strips from a counter and computes them for all rows of x.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from numba import carray

from pagedlab.kernels import cpu_vectors, strip_vectors
from pagedlab.kernels.compiled import body, version
from pagedlab.kernels.cpu_vectors import take
from pagedlab.kernels.strip_vectors import ABREAST, MOST_ABREAST, ROWS, WIDTH, all_rows

_VECTORS = version(strip_vectors) ^ version(cpu_vectors)


@lru_cache
def product_body(bits: int) -> Any:
    """out = x . weight^T + bias + more. Fields: 0 next piece, 1 rows, 2 x [rows, columns of the weight], 3 weight in
    strips, 4 out [rows, strips * WIDTH], 5 strips, 6 bytes of a row of x, 7 bias or 0, 8 more, as out, or 0, 9 strips
    of a piece, of few rows."""
    vectors = _VECTORS

    def product(fields: Any) -> None:
        f = carray(fields, 10 if vectors >= 0 else 0)
        rows, x, weight, out, strips, x_bytes, bias, more = f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]
        few, fewer = rows <= ROWS // ABREAST, rows <= ROWS // MOST_ABREAST
        piece = f[9] if few else 1  # more rows are bound by their arithmetic, and use each vector for more of them
        words, wide = x_bytes // 4, WIDTH * bits // 8
        out_bytes = strips * wide
        while True:
            strip = take(fields, 0) * piece
            if strip >= strips:
                break
            end = min(strip + piece, strips)
            while strip < end:
                at, start = strip * wide, weight + strip * words * (4 * WIDTH)
                bias_at, more_at, to = bias + at if bias != 0 else 0, more + at if more != 0 else 0, out + at
                if fewer and strip + MOST_ABREAST <= end:
                    all_rows(bits, bits, MOST_ABREAST, rows, x, x_bytes, start, words, bias_at, more_at, to, out_bytes)
                    strip += MOST_ABREAST
                elif few and strip + ABREAST <= end:
                    all_rows(bits, bits, ABREAST, rows, x, x_bytes, start, words, bias_at, more_at, to, out_bytes)
                    strip += ABREAST
                else:
                    all_rows(bits, bits, 1, rows, x, x_bytes, start, words, bias_at, more_at, to, out_bytes)
                    strip += 1

    return body(product)
