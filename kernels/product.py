"""Products with a weight of a linear layer on a CPU, laid out once for `product_compiled.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from pagedlab.core.errors import ConfigError
from pagedlab.kernels.memory import zeros
from pagedlab.kernels.threads import run


class Product:
    """x [rows, in_features] times weight^T plus bias, fp32 sums rounded once. Keeps no other copy of the weight
    [out_features, in_features]. ConfigError where numba is missing."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        try:
            from pagedlab.kernels.product_compiled import product_body
            from pagedlab.kernels.strip_vectors import ABREAST, MOST_ABREAST, WIDTH
        except ImportError as error:
            raise ConfigError(f"packed weights on a CPU: need numba ({error}), expected it installed") from None
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.body = product_body(8 * weight.element_size())
        self._words = 4 // weight.element_size()  # numbers in 32 bits, which lie side by side
        missing = -self.out_features % WIDTH, -self.in_features % self._words
        self.padded = missing[1] > 0  # rows of x have to be
        padded = pad(weight.detach(), (0, missing[1], 0, missing[0]))
        strips = padded.view(-1, WIDTH, padded.shape[1] // self._words, self._words)
        self._weight = strips.transpose(1, 2).contiguous()
        self._bias = None if bias is None else pad(bias.detach(), (0, missing[0])).contiguous()
        self._piece = _piece(len(self._weight), torch.get_num_threads(), (MOST_ABREAST, ABREAST, 1))
        self.columns = len(self._weight) * WIDTH  # of the output in memory: as many as out_features, or a few more

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in_features] in the weight's dtype. Out [..., out_features], rows perhaps with a gap between."""
        if x.dtype is not self.dtype:
            raise TypeError(f"x is {x.dtype}, the weight {self.dtype}: expected the same")
        rows = x.reshape(-1, self.in_features)
        if self.padded:
            rows = pad(rows, (0, self._words - self.in_features % self._words))
        rows = rows.contiguous()
        out = torch.empty(len(rows), self.columns, dtype=self.dtype)
        run(self.body, self.fields(rows, out, None), torch.get_num_threads())
        return out[:, : self.out_features].view(*x.shape[:-1], self.out_features)

    def fields(self, x: torch.Tensor, out: torch.Tensor, more: torch.Tensor | None) -> tuple[int, ...]:
        """For the compiled body: x [rows, in_features], out and what is added to it [rows, columns], contiguous."""
        added = [0 if tensor is None else tensor.data_ptr() for tensor in (self._bias, more)]
        addresses = x.data_ptr(), self._weight.data_ptr(), out.data_ptr()
        return (0, len(x), *addresses, len(self._weight), x.shape[1] * x.element_size(), *added, self._piece)


def _piece(strips: int, threads: int, sizes: tuple[int, ...]) -> int:
    """Strips that a thread takes at a time: the largest of `sizes` with which none is left with more than a tenth above
    its share."""
    for size in sizes:
        if -(-strips // (size * threads)) * size <= 1.1 * strips / threads:
            return size
    return sizes[-1]


def settle(products: Sequence[Product]) -> None:
    """Move the weights of these, all of one dtype, side by side into huge pages. One row of x is as fast as memory."""
    if not products:
        return
    kind = products[0].dtype
    (region,) = zeros(1, (sum(product._weight.numel() for product in products),), kind, torch.device("cpu"))
    start = 0
    for product in products:
        place = region[start : start + product._weight.numel()]
        product._weight = place.view(product._weight.shape).copy_(product._weight)
        start += product._weight.numel()
