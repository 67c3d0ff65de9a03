"""Decode steps on a CPU as one program: what the modules of a model compute for a batch of single tokens, as a list of
compiled bodies (`kernels/program_compiled.py`) that all threads run through without Python between.

It is to a CPU what a recorded graph is to a GPU (`graphs.py`): between two decode steps only numbers change, so the
bodies' fields are filled in once, and a step writes its numbers where they read them. A step of a small model is some
thousand calls of modules otherwise, which take longer than their arithmetic.

The modules stay the definition: a program is read off those that `optimize.py` has made, and `program_trial.py` takes
it only if each layer makes of a step of random tokens what the modules make of it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from pagedlab.executor.decoder_parts import NoProgram, decoder_parts
from pagedlab.executor.fused import FusedNorm
from pagedlab.executor.inputs import StepInputs
from pagedlab.kernels.cpu import divide
from pagedlab.kernels.product import Product
from pagedlab.kernels.threads import helpers, run

_FIELDS = 24  # int64 numbers kept for a body, more than any has
NORM, PRODUCT, PLACE, ATTEND, FINISH, GATE, HEAD = (
    "norms", "GEMMs", "rotary and KV write", "attention, decode", "attention, rounding", "activations", "head",
)  # fmt: skip


def _integers(tensor: torch.Tensor) -> np.ndarray:
    """Its numbers' bits, to be copied: NumPy has no bf16."""
    return tensor.detach().view(torch.int32 if tensor.dtype.itemsize == 4 else torch.int16).numpy()


def angles_of(
    rotary: torch.nn.Module, positions: int, dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of all positions, [positions, dim]. NoProgram where they are of other shapes, or those of the first
    positions are others when they are asked for alone."""
    name = type(rotary).__name__
    like, of = torch.zeros(1, 1, dim, dtype=dtype), torch.arange(positions)[None]
    found, first = rotary(like, of), rotary(like, of[:, :2])
    for table, alone in zip(found, first, strict=True):
        if table.shape != (1, positions, dim) or table.dtype is not dtype:
            raise NoProgram(f"{name} makes {tuple(table.shape[1:])} {table.dtype}, not {(positions, dim)} {dtype}")
        if not torch.equal(table[:, : alone.shape[1]], alone):
            raise NoProgram(f"{name}'s angles depend on the longest position")
    return found[0][0].contiguous(), found[1][0].contiguous()


class DecodeProgram:
    """Buffers, fields and the list for up to `rows` sequences of `positions` tokens. k_cache, v_cache: one a layer,
    [N, B, KVH, D]."""

    def __init__(
        self,
        model: PreTrainedModel,
        k_cache: list[torch.Tensor],
        v_cache: list[torch.Tensor],
        rows: int,
        positions: int,
        threads: int,
    ):
        from pagedlab.kernels import cpu_compiled, elementwise_compiled, program_compiled

        block_size, kv_heads, dim = k_cache[0].shape[1:]
        parts = decoder_parts(model, kv_heads, dim)
        dtype, bits = model.dtype, 8 * model.dtype.itemsize
        self._body = program_compiled.program_body()
        self._tile, self._threads = cpu_compiled.TILE, threads
        hidden, heads, inner = parts.hidden, parts.heads, parts.inner

        def space(count: int, *shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
            self._kept.append(torch.zeros((count, *shape), dtype=kind))
            return self._kept[-1]

        self._kept: list[torch.Tensor] = []  # whatever the fields point to
        most = 2 * rows + 2 * threads  # rows of attention: each piece of a sequence that is cut has its own
        self.x, normed = space(rows, hidden), space(rows, hidden)
        qkv, gates = space(rows, parts.layers[0].qkv.columns), space(rows, parts.layers[0].gate_up.columns)
        query, attended = space(rows, heads, dim, kind=torch.float32), space(most, heads, dim, kind=torch.float32)
        maxima, sums = space(most, heads, kind=torch.float32), space(most, heads, kind=torch.float32)
        out, activated = space(rows, heads * dim), space(rows, inner)
        scratch = space(threads * cpu_compiled.scratch_bytes(heads), kind=torch.uint8)
        cos, sin = space(rows, dim), space(rows, dim)
        slots, items = space(rows, kind=torch.int64), space(most, cpu_compiled.ITEM, kind=torch.int64)
        pieces = space(rows, 2, kind=torch.int64)
        # What a step writes: by NumPy, whose calls on a few numbers take a fraction of torch's.
        self._slots, self._items, self._pieces = slots.numpy(), items.numpy(), pieces.numpy()
        angles = angles_of(parts.rotary, positions, dim, dtype)
        self._gathered = [
            (_integers(table), _integers(to))
            for table, to in zip((parts.embedding.weight, *angles), (self.x, cos, sin), strict=True)
        ]
        self.logits = space(rows, parts.head.columns)
        self._vocabulary = parts.head.out_features
        self._kinds: list[str] = []
        fields: list[list[int]] = []
        bodies: list[int] = []

        def step(kind: str, body: Any, *numbers: int) -> None:
            self._kinds.append(kind)
            bodies.append(body.address)
            fields.append([*numbers] + [0] * (_FIELDS - len(numbers)))

        def norm(of: FusedNorm) -> None:
            addresses = self.x.data_ptr(), of.weight.data_ptr(), normed.data_ptr()
            step(NORM, elementwise_compiled.norm_body(bits), 0, 0, *addresses, hidden, hidden, of.eps.data_ptr())

        def product(of: Product, x: torch.Tensor, to: torch.Tensor, more: bool = False, kind: str = PRODUCT) -> None:
            step(kind, of.body, *of.fields(x, to, to if more else None))

        self._starts = []
        for part, k, v in zip(parts.layers, k_cache, v_cache, strict=True):
            self._starts.append(len(fields))
            factor = space(1, kind=torch.float32).fill_(part.scale * math.log2(math.e))
            norm(part.before)
            product(part.qkv, normed, qkv)
            step(
                PLACE, elementwise_compiled.place_body(bits), 0, 0, qkv.data_ptr(), part.qkv.columns,
                cos.data_ptr(), sin.data_ptr(), dim, heads, kv_heads, factor.data_ptr(),
                query.data_ptr(), k.data_ptr(), v.data_ptr(), slots.data_ptr(),
            )  # fmt: skip
            step(
                ATTEND, cpu_compiled.decode_body(bits), 0, 0, items.data_ptr(), 0, query.data_ptr(), k.data_ptr(),
                v.data_ptr(), 0, 0, attended.data_ptr(), maxima.data_ptr(), sums.data_ptr(), scratch.data_ptr(),
                block_size, kv_heads, heads // kv_heads, dim,
            )  # fmt: skip
            step(
                FINISH, elementwise_compiled.finish_body(bits), 0, 0, attended.data_ptr(), maxima.data_ptr(),
                sums.data_ptr(), heads, dim, pieces.data_ptr(), out.data_ptr(),
            )  # fmt: skip
            product(part.out, out, self.x, more=True)
            norm(part.after)
            product(part.gate_up, normed, gates)
            step(
                GATE, elementwise_compiled.gate_body(bits), 0, 0, gates.data_ptr(), gates[:, inner:].data_ptr(),
                activated.data_ptr(), inner, part.gate_up.columns,
            )  # fmt: skip
            product(part.down, activated, self.x, more=True)
        self._starts.append(len(fields))
        norm(parts.norm)
        product(parts.head, normed, self.logits, kind=HEAD)

        self._fields = np.array(fields, dtype=np.int64)
        self._attends = np.flatnonzero(np.array(self._kinds) == ATTEND)
        self._by_rows = np.flatnonzero(np.array(self._kinds) != ATTEND)
        self._list = np.zeros((len(fields), 3), dtype=np.int64)
        self._list[:, 0] = bodies
        self._list[:, 1] = self._fields.ctypes.data + 8 * _FIELDS * np.arange(len(fields))
        self._run_list = self._list
        self._points_to = parts, k_cache, v_cache

    def run(self, step: StepInputs) -> torch.Tensor:
        """Logits of the step's sequences, [S, V], valid until the next run."""
        self.begin(step)
        self._go(self._run_list)
        return self.logits[: step.num_decodes, : self._vocabulary]

    def begin(self, step: StepInputs) -> None:
        """Write the step's numbers where the bodies read them."""
        count, fields = step.num_decodes, self._fields
        for (table, to), at in zip(self._gathered, (step.token_ids, step.positions, step.positions), strict=True):
            table.take(at, axis=0, out=to[:count], mode="clip")  # checked before; to raise would take a copy
        self._slots[:count] = step.slot_mapping
        work = divide(step.context_lens.tolist(), None, self._threads, self._tile)
        self._items[: len(work.items)] = work.items.numpy()
        self._pieces[:count] = 0
        if len(work.merges):
            merges = work.merges.numpy()
            self._pieces[merges[:, 0]] = merges[:, 1:]
        self._tables = np.ascontiguousarray(step.block_tables)  # kept while the bodies read them
        fields[:, 0] = 0
        fields[self._by_rows, 1] = count
        fields[self._attends, 1] = 0
        fields[self._attends, 3] = len(work.items)
        fields[self._attends, 7] = self._tables.ctypes.data
        fields[self._attends, 8] = self._tables.shape[1]

    def _go(self, bodies: np.ndarray) -> None:
        run(self._body, (0, 0, 0, len(bodies), bodies.ctypes.data, self._threads, *helpers()), self._threads)

    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """What one layer makes of x [S, C]."""
        self.x[: len(x)] = x
        self._go(self._list[self._starts[index] : self._starts[index + 1]])
        return self.x[: len(x)].clone()

    def head(self, x: torch.Tensor) -> torch.Tensor:
        """The logits of x [S, C], which comes out of the last layer."""
        self.x[: len(x)] = x
        self._go(self._list[self._starts[-1] :])
        return self.logits[: len(x), : self._vocabulary].clone()

    def leave_out(self, kinds: frozenset[str]) -> None:
        """From now on no body of these kinds runs: to see what a step takes without them. An empty set: all run."""
        kept = [kind not in kinds for kind in self._kinds]
        self._run_list = self._list if all(kept) else self._list[kept]

    def bodies(self) -> Counter[str]:
        """How many there are of each kind."""
        return Counter(self._kinds)

    def ticks(self) -> Counter[str]:
        """The processor's ticks so far, by kind of body, in runs from which none was left out."""
        ticks: Counter[str] = Counter()
        for kind, spent in zip(self._kinds, self._list[:, 2].tolist(), strict=True):
            ticks[kind] += spent
        return ticks
