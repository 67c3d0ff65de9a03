"""Modules of transformers computed in one pass each: what `optimize.py` puts in their place where it has found that
they compute the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from pagedlab.kernels.elementwise import Elementwise

_ROTARY = "apply_rotary_pos_emb"


class FusedNorm(nn.Module):
    """The root mean square norm `plain`, of its weight [C] and eps, for x [..., C] in the weight's dtype. The two share
    a copy of the weight."""

    def __init__(self, plain: nn.Module, weight: torch.Tensor, eps: float, ops: Elementwise):
        super().__init__()
        self._plain = (plain,)  # for x in another dtype; in a tuple, so that it counts as no part of the model
        self.weight = weight.detach().clone()
        weight.data = self.weight
        self.eps = torch.tensor([eps], dtype=torch.float32)
        self._ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is self.weight.dtype:
            return self._ops.norm(x, self.weight, self.eps)
        out: torch.Tensor = self._plain[0](x)
        return out


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), gate and up as one product."""

    def __init__(self, gate_up: nn.Module, down: nn.Module, ops: Elementwise):
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self._ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self._ops.gate(self.gate_up(x)))
        return out


def rotary_of(attention: nn.Module) -> Callable[..., Any] | None:
    """The function by which the module's own code rotates queries and keys, None where it has none of that name."""
    forward = inspect.unwrap(type(attention).forward)
    if _ROTARY not in forward.__code__.co_names:
        return None
    found: Callable[..., Any] | None = forward.__globals__.get(_ROTARY)
    return found


def rotate_by(attention: nn.Module, rotary: Callable[..., Any]) -> None:
    """Let this module alone run its class's code with another function of that name."""
    forward = inspect.unwrap(type(attention).forward)
    own = FunctionType(
        forward.__code__,
        {**forward.__globals__, _ROTARY: rotary},
        forward.__name__,
        forward.__defaults__,
        forward.__closure__,
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    attention.forward = MethodType(own, attention)


def rotates_halves(attention: nn.Module) -> bool:
    """Whether this module's own code rotates by a FusedRotary."""
    code = getattr(attention.forward, "__func__", None)
    return isinstance(getattr(code, "__globals__", {}).get(_ROTARY), FusedRotary)


class FusedRotary:
    """Rotates as `plain` does, in one pass where it can: whole heads, one batch, no other arguments."""

    def __init__(self, plain: Callable[..., Any], ops: Elementwise):
        self._plain = plain
        self._ops = ops

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        simple = not args and not kwargs and cos.shape == sin.shape == (1, *q.shape[2:]) and q.shape[0] == 1
        if simple and q.dtype == k.dtype == cos.dtype and q.stride(3) == k.stride(3) == 1:
            return self._ops.rotate(q, k, cos.contiguous(), sin.contiguous())
        return self._plain(q, k, cos, sin, *args, **kwargs)
