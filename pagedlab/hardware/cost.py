"""What one step costs on a device: an analytic price for each operator. docs/simulation.md derives the equations.

All times are seconds, all sizes bytes, all rates a second; P: peak floating-point operations, BW: memory bandwidth.
A step's operators run one after another; with tensor parallelism over g devices each does its g-th part, and two
all-reduces a layer join them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

from pagedlab.core.errors import ConfigError
from pagedlab.model.architecture import Architecture
from pagedlab.settings import HardwareSettings

GIB = 2**30
_US = 1e-6
# The decode efficiency is given for blocks of this many tokens, as it was measured.
_BLOCK_OF_EFFICIENCY = 16


@dataclass(slots=True)
class StepWork:
    """What a step does. tokens: fed, in all; sequences: fed at all. decodes: of these, those that feed one token;
    decode_slots: their contexts, this step's token included, each rounded up to whole blocks. chunks: (new, cached)
    tokens of every sequence that feeds more. sampled: tokens whose logits are needed. admitted: sequences new in the
    batch; blocks: block-table entries written."""

    tokens: int
    sequences: int
    decodes: int
    decode_slots: int
    sampled: int
    admitted: int = 0
    blocks: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)


class StepPrice(NamedTuple):
    """Seconds of a step by operator."""

    dense: float
    """Products with weights, element-wise kernels and all-reduces of all layers."""
    decode_attention: float
    prefill_attention: float
    head: float
    host: float


class CostModel:
    """The prices of one architecture, in one number format and block size, on one kind of device.

    contiguous: a sequence is one run, which attention reads in a piece: nothing is gathered.

    ConfigError when the model cannot be divided over `hardware.tensor_parallel` devices.
    """

    def __init__(
        self,
        model: Architecture,
        hardware: HardwareSettings,
        dtype_bytes: int,
        block_size: int,
        contiguous: bool = False,
    ):
        self.model, self.hardware, self.block_size = model, hardware, block_size
        _check_division(model, hardware)
        shape, g = model.shape, hardware.tensor_parallel
        self.width = dtype_bytes
        self._bandwidth = hardware.bandwidth_gb_s * 1e9
        # 32-bit products run as TF32, at half the rate of 16 bits on every device listed.
        self._peak = hardware.tflops_16bit * 1e12 * 2 / max(dtype_bytes, 2)
        self._gemm_flops = hardware.gemm_compute_efficiency * self._peak
        self._gemm_bandwidth = hardware.gemm_memory_efficiency * self._bandwidth
        gather = hardware.gather_half_tokens
        gathering = 1.0 if contiguous else block_size / (block_size + gather)
        share = gathering * (_BLOCK_OF_EFFICIENCY + gather) / _BLOCK_OF_EFFICIENCY
        self._decode_bandwidth = hardware.decode_memory_efficiency * share * self._bandwidth
        self._attention_flops = hardware.prefill_compute_efficiency * self._peak
        self._prefill_bandwidth = hardware.prefill_memory_efficiency * self._bandwidth
        self._heads = shape.num_heads // g
        # A key-value head is never divided: with more devices than heads, several devices hold the same one.
        self._kv_heads = max(1, shape.num_kv_heads // g)
        latent = model.latent
        if latent is None:
            self.kv_bytes = 2 * self._kv_heads * shape.head_dim * dtype_bytes
            self._decode_flops = self._prefill_flops = 4 * self._heads * shape.head_dim
            self._new_bytes = shape.head_dim * 2 * (self._heads + self._kv_heads) * dtype_bytes
            self._cached_bytes = self.kv_bytes
        else:
            # Decode reads the latent itself, absorbed into the projections; prefill unfolds it.
            self.kv_bytes = (latent.kv_rank + latent.rope_dim) * dtype_bytes
            self._decode_flops = 2 * self._heads * (2 * latent.kv_rank + latent.rope_dim)
            self._prefill_flops = 2 * self._heads * (latent.nope_dim + latent.rope_dim + latent.v_dim)
            self._new_bytes = 2 * self._heads * (shape.head_dim + latent.v_dim) * dtype_bytes
            self._cached_bytes = self._heads * (shape.head_dim + latent.v_dim) * dtype_bytes
        self._projections = _projections(model, g, hardware.separate_products)
        # The cost of m tokens' products and of r tokens' logits: a few thousand values at most, each computed once.
        self.dense_s = cache(self._dense_s)
        self.head_s = cache(self._head_s)
        self.of_decodes = cache(self._of_decodes)

    @property
    def block_bytes(self) -> int:
        """Of a block of the cache, counted in single copies of it."""
        return self.block_size * self.model.shape.kv_bytes_per_token(self.width)

    # ---- a step ------------------------------------------------------------------------------------------------

    def price(self, work: StepWork) -> StepPrice:
        return StepPrice(
            self.dense_s(work.tokens),
            self.decode_attention_s(work.decodes, work.decode_slots),
            self.prefill_attention_s(work.chunks),
            self.head_s(work.sampled),
            self.host_s(work.sequences, work.admitted, work.blocks),
        )

    def step_s(self, work: StepWork, overlap: bool = False) -> float:
        """Seconds of a step. overlap: the host prepares the next one meanwhile, so that only the slower of the two
        counts; else the device waits for it."""
        device = self.dense_s(work.tokens) + self.decode_attention_s(work.decodes, work.decode_slots)
        device = device + self.prefill_attention_s(work.chunks) + self.head_s(work.sampled)
        host = self.host_s(work.sequences, work.admitted, work.blocks)
        return max(device, host) if overlap else device + host

    def _of_decodes(self, sequences: int, overlap: bool) -> Callable[[int, int], float]:
        """(slots, blocks) -> seconds of a step in which so many sequences decode, and nothing else, as `step_s`."""
        h, layers = self.hardware, self.model.shape.num_layers
        before, head = self.dense_s(sequences), self.head_s(sequences)
        floor, stream = self._decode_floor(sequences), h.decode_stream_us * _US
        kv_bytes, bandwidth, flops, rate = (
            self.kv_bytes,
            self._decode_bandwidth,
            self._decode_flops,
            self._attention_flops,
        )
        host, block = h.host_step_us + h.host_sequence_us * sequences + h.host_admission_us * 0, h.host_block_us

        def seconds(slots: int, blocks: int) -> float:
            # The very operations of decode_attention_s, host_s and step_s, in their order: the same to the last bit.
            read, computed = slots * kv_bytes / bandwidth, slots * flops / rate
            streamed = stream + (read if read > computed else computed)
            device = before + layers * (floor if floor > streamed else streamed) + 0.0 + head
            on_host = _US * (host + block * blocks)
            return max(device, on_host) if overlap else device + on_host

        return seconds

    # ---- operators ---------------------------------------------------------------------------------------------

    def gemm_s(self, m: int, k: int, n: int, copies: float = 1.0) -> float:
        """m rows times a weight matrix [k, n]. copies: how many matrices of that size are read, of experts that share
        the rows among them."""
        if m == 0:
            return 0.0
        moved = self.width * (copies * k * n + m * (k + n))
        joint = self._joint(2 * m * k * n / self._gemm_flops, moved / self._gemm_bandwidth)
        return self.hardware.gemm_fixed_us * _US + joint

    def _joint(self, one: float, other: float) -> float:
        """Two parts of an operator that may run at once: the longer of them; with roofline_norm q, to which degree."""
        q = self.hardware.roofline_norm
        return max(one, other) if q is None else (one**q + other**q) ** (1 / q)

    def elementwise_s(self, m: int) -> float:
        """Norms, rotations, activations and residuals of one layer, m tokens."""
        streams = self.hardware.elementwise_streams * self.model.shape.hidden_size * self.width
        return self.hardware.elementwise_layer_us * _US + m * streams / self._gemm_bandwidth

    def all_reduce_s(self, m: int) -> float:
        """A ring over g devices joins m rows of the hidden size: 2 (g - 1) / g of the bytes pass each link."""
        g = self.hardware.tensor_parallel
        if g == 1:
            return 0.0
        moved = 2 * (g - 1) / g * m * self.model.shape.hidden_size * self.width
        rate = self.hardware.link_efficiency * self.hardware.link_gb_s * 1e9
        return self.hardware.all_reduce_us * _US + moved / rate

    def decode_attention_s(self, decodes: int, slots: int) -> float:
        """All layers' attention of sequences that feed one token each, over `slots` cached tokens in whole blocks."""
        if decodes == 0:
            return 0.0
        h = self.hardware
        floor = self._decode_floor(decodes)
        read = slots * self.kv_bytes / self._decode_bandwidth
        computed = slots * self._decode_flops / self._attention_flops
        return self.model.shape.num_layers * self._joint(floor, h.decode_stream_us * _US + max(read, computed))

    def _decode_floor(self, decodes: int) -> float:
        h = self.hardware
        return h.decode_fixed_us * _US + h.decode_sequence_us * _US * decodes * self._kv_heads / 8

    def prefill_attention_s(self, chunks: list[tuple[int, int]]) -> float:
        """All layers' attention of prompt chunks: `new` tokens after `cached` ones, each seeing all before it."""
        if not chunks:
            return 0.0
        h = self.hardware
        seconds = _US * (h.prefill_fixed_us + h.prefill_chunk_us * len(chunks))
        seen = 1 - h.prefill_skipped_share / 2  # of a chunk's own square
        for new, cached in chunks:
            seconds += self._prefill_flops * new * (cached + new * seen) / self._attention_flops
            seconds += (new * self._new_bytes + cached * self._cached_bytes) / self._prefill_bandwidth
        return self.model.shape.num_layers * seconds

    def host_s(self, sequences: int, admitted: int, blocks: int) -> float:
        """What the engine around the device takes: scheduling, inputs, outputs."""
        h = self.hardware
        return _US * (
            h.host_step_us + h.host_sequence_us * sequences + h.host_admission_us * admitted + h.host_block_us * blocks
        )

    def swap_in_s(self, blocks: int) -> float:
        """Move blocks from host memory to the device."""
        return self._swap_s(blocks, self.hardware.pcie_gb_s, self.hardware.swap_copy_us)

    def swap_out_s(self, blocks: int) -> float:
        """Move blocks from the device to host memory: by constants of its own where the directions were told apart."""
        h = self.hardware
        rate = h.pcie_gb_s if h.pcie_out_gb_s is None else h.pcie_out_gb_s
        return self._swap_s(blocks, rate, h.swap_copy_us if h.swap_out_copy_us is None else h.swap_out_copy_us)

    def _swap_s(self, blocks: int, gb_s: float, copy_us: float) -> float:
        """Keys and values of every layer lie apart (vLLM's first layout), so a block is 2 x layers copies."""
        copies = blocks * self.model.shape.num_layers * (2 if self.model.latent is None else 1)
        moved = blocks * self.block_size * self.kv_bytes * self.model.shape.num_layers
        return moved / (gb_s * 1e9) + copies * copy_us * _US

    def copy_s(self, blocks: int) -> float:
        """Copy blocks within the device, before a shared one is written: read and written once, one launch a layer."""
        if blocks == 0:
            return 0.0
        layers = self.model.shape.num_layers
        moved = 2 * blocks * self.block_size * self.kv_bytes * layers
        return layers * self.hardware.copy_fixed_us * _US + moved / self._gemm_bandwidth

    # ---- memory ------------------------------------------------------------------------------------------------

    def weight_bytes(self) -> float:
        """On one device."""
        return self.model.parameters() * self.width / self.hardware.tensor_parallel

    def activation_bytes(self, max_tokens: int, max_sequences: int) -> int:
        """The most that a step holds beside weights and cache, on one device: the widest layer of max_tokens tokens,
        two residual streams, and the logits of max_sequences in 32 bits."""
        shape, g, e = self.model.shape, self.hardware.tensor_parallel, self.model.experts
        ffn = self.model.ffn if e is None else max(e.per_token * e.ffn + e.shared_ffn, self.model.ffn)
        width = max((2 if self.model.gated else 1) * ffn, shape.head_dim * (shape.num_heads + 2 * shape.num_kv_heads))
        return (
            max_tokens * (width // g + 2 * shape.hidden_size) * self.width + 4 * max_sequences * shape.vocab_size // g
        )

    def free_bytes(self, max_tokens: int, max_sequences: int) -> int:
        """What all devices together have for the cache, counted in single copies of it; negative when the weights do
        not fit. Where devices hold the same key-value head, or the same latent, less of it is new."""
        h, shape = self.hardware, self.model.shape
        each = h.memory_gib * GIB * h.memory_utilization - self.weight_bytes()
        each -= self.activation_bytes(max_tokens, max_sequences)
        single = shape.kv_bytes_per_token(self.width) / (shape.num_layers * self.kv_bytes)
        return int(each * single)

    # ---- all layers --------------------------------------------------------------------------------------------

    def _dense_s(self, m: int) -> float:
        layers, e = self.model.shape.num_layers, self.model.experts
        everywhere = sum(self.gemm_s(m, k, n) for k, n in self._projections)
        everywhere += self.elementwise_s(m) + 2 * self.all_reduce_s(m)
        dense = layers if e is None else e.dense_layers
        return layers * everywhere + dense * self._ffn_s(m, self.model.ffn) + (layers - dense) * self._experts_s(m)

    def _ffn_s(self, m: int, width: int) -> float:
        return sum(self.gemm_s(m, k, n) for k, n in self._ffn(width))

    def _ffn(self, width: int) -> list[tuple[int, int]]:
        hidden, share = self.model.shape.hidden_size, width // self.hardware.tensor_parallel
        into = 2 if self.model.gated else 1
        if self.hardware.separate_products:
            return [(hidden, share)] * into + [(share, hidden)]
        return [(hidden, into * share), (share, hidden)]

    def products(self) -> list[tuple[int, int]]:
        """The weight matrices (k, n) of a layer without experts, on one device."""
        return [*self._projections, *self._ffn(self.model.ffn)]

    def _experts_s(self, m: int) -> float:
        """Router, shared experts, and the routed ones: with tokens drawn evenly, E (1 - (1 - k/E)^m) of the E are read,
        for k m rows."""
        e, hidden = self.model.experts, self.model.shape.hidden_size
        if e is None:
            return 0.0
        share = e.ffn // self.hardware.tensor_parallel
        touched = e.count * (1 - (1 - e.per_token / e.count) ** m)
        rows = m * e.per_token
        seconds = self.gemm_s(m, hidden, e.count) + self._ffn_s(m, e.shared_ffn) * (e.shared_ffn > 0)
        seconds += self.gemm_s(rows, hidden, (2 if self.model.gated else 1) * share, touched)
        return seconds + self.gemm_s(rows, share, hidden, touched)

    def _head_s(self, rows: int) -> float:
        return self.gemm_s(
            rows, self.model.shape.hidden_size, self.model.shape.vocab_size // self.hardware.tensor_parallel
        )


def _projections(model: Architecture, g: int, separate: bool) -> list[tuple[int, int]]:
    """The weight matrices (k, n) of an attention layer, as one of g devices holds them. separate: queries, keys and
    values each in one of their own."""
    s, latent = model.shape, model.latent
    if latent is None:
        q, kv = s.head_dim * (s.num_heads // g), s.head_dim * max(1, s.num_kv_heads // g)
        into = [q, kv, kv] if separate else [q + 2 * kv]
        return [*((s.hidden_size, n) for n in into), (q, s.hidden_size)]
    heads = s.num_heads // g
    queries = heads * (latent.nope_dim + latent.rope_dim)
    to_queries = [(s.hidden_size, queries)]
    if latent.q_rank is not None:
        to_queries = [(s.hidden_size, latent.q_rank), (latent.q_rank, queries)]
    return [
        *to_queries,
        (s.hidden_size, latent.kv_rank + latent.rope_dim),
        (latent.kv_rank, heads * (latent.nope_dim + latent.v_dim)),
        (heads * latent.v_dim, s.hidden_size),
    ]


def _check_division(model: Architecture, hardware: HardwareSettings) -> None:
    g, s = hardware.tensor_parallel, model.shape
    ffn = model.ffn if model.experts is None else model.experts.ffn
    for what, count in (("attention heads", s.num_heads), ("feed-forward columns", ffn)):
        if count % g:
            raise ConfigError(f"hardware.tensor_parallel={g}: expected a divisor of the model's {count} {what}")
    if g > 1 and max(g, s.num_kv_heads) % min(g, s.num_kv_heads):
        raise ConfigError(
            f"hardware.tensor_parallel={g}: expected a divisor, or a multiple, of the model's {s.num_kv_heads} "
            "key-value heads"
        )
