"""Linear layers for a CPU: weights laid out once as products read them, and products merged that share an input."""

from __future__ import annotations

import torch
from torch import nn

from pagedlab.kernels.product import Product


class PackedLinear(nn.Module):
    """x [..., in_features] times weight^T, plus bias: nn.Linear without gradients, for the weight's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.product = Product(weight, bias)
        self.out_features, self.in_features = weight.shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x)


class Part(nn.Module):
    """One of several linear layers of the same input, which `product` computes together. Whoever is asked first
    computes for all; the others are expected to be asked for the same tensor, and compute anew where they are not."""

    def __init__(self, product: nn.Module, shared: Shared, columns: slice, owner: bool):
        super().__init__()
        # A module has one parent: the others refer to it without being that.
        self.whole = product if owner else (product,)
        self._shared, self._columns = shared, columns
        self.in_features, self.out_features = product.in_features, columns.stop - columns.start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._shared.of(x)[..., self._columns]


class Shared:
    """The product of the tensor that was asked for last, until each part has had its share."""

    def __init__(self, product: nn.Module, parts: int):
        self._product = product
        self._parts = parts
        self._left = 0
        self._input: torch.Tensor | None = None
        self._output: torch.Tensor | None = None

    def of(self, x: torch.Tensor) -> torch.Tensor:
        if self._input is not x or self._output is None:
            self._input, self._output, self._left = x, self._product(x), self._parts
        out = self._output
        self._left -= 1
        if not self._left:
            self._input = self._output = None
        return out


def merged(linears: list[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias of one linear layer that computes all of these, one after the other in its columns."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    if all(linear.bias is None for linear in linears):
        return weight, None
    biases = [
        torch.zeros(linear.out_features, dtype=weight.dtype) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return weight, torch.cat(biases)
