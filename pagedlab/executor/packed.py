"""Linear layers for a CPU: weights laid out once as oneDNN's products read them, and products merged that share an
input."""

from __future__ import annotations

import torch
from torch import nn

_ROWS = 512  # the layout for products of so many rows is as good as any other down to two


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this CPU and this torch have packed products in `dtype`."""
    ops = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not hasattr(ops, "_reorder_linear_weight"):  # type: ignore[no-untyped-call]
        return False
    return dtype is torch.float32 or (dtype is torch.bfloat16 and bool(ops._is_mkldnn_bf16_supported()))


class PackedLinear(nn.Module):
    """x [..., in_features] times weight^T, plus bias: nn.Linear without gradients. It keeps no other copy of the
    weight [out_features, in_features]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


class Part(nn.Module):
    """One of several linear layers of the same input, which `product` computes together. Whoever is asked first
    computes for all; the others are expected to be asked for the same tensor, and compute anew where they are not."""

    def __init__(self, product: nn.Module, shared: Shared, columns: slice, owner: bool):
        super().__init__()
        # A module has one parent: the others refer to it without being that.
        self._product = product if owner else (product,)
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
