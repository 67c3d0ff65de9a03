"""The model's own products with weights, by the layers that compute them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from pagedlab.core.errors import ModelError
from pagedlab.executor.torch import TorchExecutor
from pagedlab.hardware.cost import CostModel
from pagedlab.microprofile.turns import Cell


def linear_layers(executor: TorchExecutor) -> list[torch.nn.Module]:
    """In the order in which a step runs them, the head last. By their kind: torch's Linear and GPT-2's Conv1D."""
    found: list[torch.nn.Module] = []
    handles = [
        module.register_forward_pre_hook(lambda module, args: found.append(module))
        for module in executor.model.modules()
        if not any(True for _ in module.children()) and type(module).__name__.lower().endswith(("linear", "conv1d"))
    ]
    try:
        executor.warm_up()
    finally:
        for handle in handles:
            handle.remove()
    return found


def shape(module: torch.nn.Module) -> tuple[int, int]:
    """(k, n) of a linear layer; GPT-2's Conv1D has its weights the other way round and no in_features."""
    if hasattr(module, "in_features"):
        return int(module.in_features), int(module.out_features)  # type: ignore[arg-type]
    rows, columns = map(int, module.weight.shape)  # type: ignore[arg-type]
    return rows, columns


def are_separate(executor: TorchExecutor, linears: list[torch.nn.Module], costs: tuple[CostModel, CostModel]) -> bool:
    """Whether the model computes what the second of the two cost models counts, products of their own for queries,
    keys and values, or what the first does. ModelError where it is neither: a mixture of experts, for one."""
    model = costs[0].model
    head = (model.shape.hidden_size, model.shape.vocab_size)
    found = Counter(map(shape, linears))
    for separate, cost in enumerate(costs):
        if found == Counter({head: 1}) + Counter(cost.products() * model.shape.num_layers) and model.experts is None:
            return bool(separate)
    raise ModelError(
        f"{type(executor.model).__name__} computes {len(linears)} products of {len(found)} sizes a step, which are not "
        "those that the cost model counts: calibration is for dense models"
    )


def product_cells(executor: TorchExecutor, linears: list[torch.nn.Module], rows: list[int], seed: int) -> list[Cell]:
    """For each size the products of all layers, one after the other, so that weights come from memory as in a step."""
    generator = torch.Generator().manual_seed(seed)
    sizes: dict[tuple[int, int], list[torch.nn.Module]] = {}
    for module in linears:
        sizes.setdefault(shape(module), []).append(module)
    cells = []
    for m in rows:
        for (k, n), modules in sizes.items():
            numbers = torch.empty(1, m, k).uniform_(-1, 1, generator=generator)
            x = numbers.to(executor.device, executor.model.dtype)

            def run(x: torch.Tensor = x, modules: list[torch.nn.Module] = modules) -> None:
                for module in modules:
                    module(x)

            cells.append(Cell("product", {"m": m, "k": k, "n": n}, run, len(modules)))
    return cells


class ProductsAway:
    """Between `remove` and `restore`, linear layers return numbers that lie ready."""

    def __init__(self, linears: list[torch.nn.Module]):
        self._stubs = [(module, self._stub(shape(module)[1])) for module in linears]
        self._ready: dict[tuple[int, ...], torch.Tensor] = {}

    def _stub(self, columns: int) -> Any:
        def forward(x: torch.Tensor) -> torch.Tensor:
            size = (*x.shape[:-1], columns)
            if size not in self._ready:
                self._ready[size] = torch.full(size, 0.5, dtype=x.dtype, device=x.device)
            return self._ready[size]

        return forward

    def remove(self) -> None:
        for module, stub in self._stubs:
            module.forward = stub

    def restore(self) -> None:
        for module, _ in self._stubs:
            del module.forward
