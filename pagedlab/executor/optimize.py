"""`model.optimize=auto`: a transformers model made faster on a CPU, module by module, without code of our own for any.

The modules stay the definition of what is computed. One is replaced only where its own output on random numbers is that
of its replacement, within the rounding of the dtype; whatever is not known, or computes something else, stays as it is.

- weights of linear layers laid out once (kernels/product.py); queries, keys and values as one product, gate and up too
- norms, gates and rotary embeddings in one pass each (kernels/elementwise.py)
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from pagedlab.core.errors import ConfigError
from pagedlab.executor.fused import FusedNorm, FusedRotary, GatedFeedForward, rotary_of, rotate_by
from pagedlab.executor.packed import PackedLinear, Part, Shared, merged
from pagedlab.kernels.elementwise import DTYPES, Elementwise
from pagedlab.kernels.product import settle

_QKV = ("q_proj", "k_proj", "v_proj")
_MLP = ("gate_proj", "up_proj", "down_proj", "act_fn")
_PROBE_ROWS = 5


@torch.no_grad()
def optimize(model: PreTrainedModel) -> str:
    """Replace what can be in `model`, in place. Returns what was done, and what was left, in words."""
    if model.device.type != "cpu":
        return f"nothing: written for a CPU, the model is on {model.device.type}"
    if model.dtype not in DTYPES:
        return f"nothing: no such code for {str(model.dtype).removeprefix('torch.')}"
    try:
        return _Pass(model, Elementwise(model.dtype)).run()
    except ConfigError as error:  # of what nothing has been replaced yet
        return f"nothing: {error}"


class _Pass:
    def __init__(self, model: PreTrainedModel, ops: Elementwise):
        self._model = model
        self._dtype = model.dtype
        self._ops = ops
        self._done: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        # Leaves of random numbers of its own, so that no other draw depends on what was optimised.
        self._random = torch.Generator().manual_seed(0)

    def run(self) -> str:
        for parent in list(self._model.modules()):
            self._feed_forwards(parent)
            self._attention(parent)
            self._norms(parent)
        for parent in list(self._model.modules()):
            self._linears(parent)
        packed = [module for module in self._model.modules() if isinstance(module, PackedLinear)]
        settle([module.product for module in packed])
        if packed:
            self._done["weights packed"] = len(packed)
        for module in self._model.modules():
            if not isinstance(module, nn.Embedding) and _has_matrices(module):
                self._left[type(module).__name__] += 1
        _give_back(self._model)
        done = ", ".join(f"{count} {what}" for what, count in self._done.items()) or "nothing"
        left = ", ".join(f"{count} {what}" for what, count in self._left.items())
        return f"{done}; as they were: {left}" if left else done

    def _feed_forwards(self, parent: nn.Module) -> None:
        for name, module in list(parent.named_children()):
            if {n for n, _ in module.named_children()} != set(_MLP):
                continue
            gate, up, down = (getattr(module, n) for n in _MLP[:3])
            if not all(type(x) is nn.Linear for x in (gate, up, down)) or up.in_features != gate.in_features:
                continue
            fused = GatedFeedForward(PackedLinear(*merged([gate, up])), PackedLinear(down.weight, down.bias), self._ops)
            if self._same(module, fused, gate.in_features):
                setattr(parent, name, fused)
                self._done["gated feed-forwards fused"] += 1
            else:
                self._left[type(module).__name__] += 1

    def _attention(self, module: nn.Module) -> None:
        linears = [x for name in _QKV if type(x := getattr(module, name, None)) is nn.Linear]
        if len(linears) == len(_QKV) and len({x.in_features for x in linears}) == 1:
            self._merge(module, linears)
        rotary = rotary_of(module) if hasattr(module, "layer_idx") else None
        if rotary is None:
            return
        fused = FusedRotary(rotary, self._ops)
        if self._rotates(rotary, fused, getattr(module, "head_dim", 0)):
            rotate_by(module, fused)
            self._done["rotary embeddings fused"] += 1
        else:
            self._left[f"{type(module).__name__}'s rotary embeddings"] += 1

    def _merge(self, module: nn.Module, linears: list[nn.Linear]) -> None:
        product = PackedLinear(*merged(linears))
        shared, start = Shared(product, len(linears)), 0
        for name, linear in zip(_QKV, linears, strict=True):
            stop = start + linear.out_features
            setattr(module, name, Part(product, shared, slice(start, stop), owner=start == 0))
            start = stop
        self._done["queries, keys and values merged"] += 1

    def _norms(self, parent: nn.Module) -> None:
        for name, module in list(parent.named_children()):
            if not type(module).__name__.endswith("RMSNorm"):
                continue
            eps, weight = getattr(module, "variance_epsilon", getattr(module, "eps", None)), module.weight
            if isinstance(eps, float) and isinstance(weight, torch.Tensor) and weight.dtype is self._dtype:
                fused = FusedNorm(module, weight, eps, self._ops)
                if self._same(module, fused, len(weight)):
                    setattr(parent, name, fused)
                    self._done["norms fused"] += 1
                    continue
            self._left[type(module).__name__] += 1

    def _linears(self, parent: nn.Module) -> None:
        for name, module in list(parent.named_children()):
            if type(module) is nn.Linear:
                setattr(parent, name, PackedLinear(module.weight, module.bias))

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._random).to(self._dtype)

    def _same(self, plain: nn.Module, fused: nn.Module, columns: int) -> bool:
        x = self._draw(1, _PROBE_ROWS, columns)
        return _close(plain(x), fused(x))

    def _rotates(self, plain: Callable[..., Any], fused: Callable[..., Any], dim: int) -> bool:
        if dim < 2 or dim % 2:
            return False
        query, key = self._draw(1, 2, _PROBE_ROWS, dim), self._draw(1, 1, _PROBE_ROWS, dim)
        angles = self._draw(1, _PROBE_ROWS, dim), self._draw(1, _PROBE_ROWS, dim)
        return all(_close(*pair) for pair in zip(plain(query, key, *angles), fused(query, key, *angles), strict=True))


def _give_back(model: nn.Module) -> None:
    """The memory of the weights that have been packed. A tensor that still lies in a model's file keeps all of that
    mapped, and the C library keeps what it has freed."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _has_matrices(module: nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))


def _close(plain: torch.Tensor, fused: torch.Tensor) -> bool:
    """Within a few roundings of the largest number: bf16 code of several operations rounds after each."""
    if plain.shape != fused.shape or plain.dtype != fused.dtype:
        return False
    rounding = 2**-6 if plain.dtype is torch.bfloat16 else 2**-18
    return bool((plain - fused).abs().max() <= rounding * plain.abs().max())
