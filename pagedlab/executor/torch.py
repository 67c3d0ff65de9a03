"""A real model: any transformers causal LM over paged KV tensors, through its own attention interface."""

from __future__ import annotations

import inspect
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from transformers import AttentionInterface, PreTrainedModel

from pagedlab.core.clock import WallClock
from pagedlab.core.errors import ConfigError, ModelError
from pagedlab.core.plan import Choice, Copy, Outcome, Plan
from pagedlab.executor.base import EXECUTORS, CachePlan, Executor, finish_reason
from pagedlab.executor.choices import choose
from pagedlab.executor.decoder_parts import NoProgram
from pagedlab.executor.graphs import DecodeGraphs, Fed, Record, cuda_record, pinned
from pagedlab.executor.inputs import InputBuilder, StepInputs
from pagedlab.executor.optimize import optimize
from pagedlab.executor.program import DecodeProgram
from pagedlab.executor.program_trial import try_program
from pagedlab.kernels import memory
from pagedlab.kernels.base import Kernel, PagedBatch, make_kernel
from pagedlab.model.load import load_model
from pagedlab.model.shape import ModelShape
from pagedlab.settings import Settings

_names = count()
_THREADS = torch.get_num_threads()  # torch's choice, before any job of a sweep makes another

# Arguments of the attention interface that change the result and that no kernel of ours computes.
_UNSUPPORTED = ("softcap", "s_aux", "sinks", "head_mask", "position_bias", "indices", "block_indices")

# Kinds of layer that keep keys and values and nothing else, and see all of the past or a window of it.
_LAYER_TYPES = ("full_attention", "sliding_attention")


@EXECUTORS.register("torch")
class TorchExecutor(Executor):
    """Owns the KV cache: per layer, keys and values as [N, B, KVH, D] on the model's device, in the model's dtype.

    A step is one forward of a flattened ragged batch, [1, T] tokens without padding. The model's layers call back
    for attention: the new keys and values are written to their slots, then decodes and prefills are computed by
    the kernel through the block tables. Logits are computed only for the tokens that are sampled.
    """

    name = "torch"

    def __init__(
        self,
        model: PreTrainedModel,
        shape: ModelShape,
        kernel: Kernel,
        cache: CachePlan,
        record: Record | None = None,
    ):
        self.clock = WallClock()
        self.model = model
        self.kernel = kernel
        self.kernel_name = kernel.name
        self.device = model.device
        kernel.check(model.dtype, self.device, shape.head_dim, cache.block_size)
        _check_model(model, cache.max_model_len)
        self.num_blocks = cache.num_blocks(_free_bytes(self.device))
        layer = (self.num_blocks, cache.block_size, shape.num_kv_heads, shape.head_dim)
        both = memory.zeros(2 * shape.num_layers, layer, model.dtype, self.device)
        self.k_cache, self.v_cache = both[: shape.num_layers], both[shape.num_layers :]
        on_gpu = self.device.type == "cuda"
        cached = 0 if on_gpu else sum(tensor.nbytes for tensor in self.k_cache + self.v_cache)
        self.num_host_blocks = cache.host_blocks(psutil.virtual_memory().available - cached)
        # Keys and values of all layers, in the order of k_cache + v_cache. Pinned, so that the GPU can copy by itself.
        self.host_cache = [
            torch.empty((self.num_host_blocks, *layer[1:]), dtype=model.dtype, pin_memory=on_gpu)
            for _ in range(2 * shape.num_layers if self.num_host_blocks else 0)
        ]
        self.inputs = InputBuilder(cache.max_num_seqs, cache.max_model_len, cache.block_size)
        self._eos = frozenset(shape.eos_token_ids)
        self._batch: PagedBatch | None = None
        self._attended: set[int] = set()  # layers that have called back in this step
        self._windows = _config_windows(model, shape.num_layers, cache.max_model_len)
        # One name an executor: the interface is a table of functions, and ours belongs to this cache alone.
        self._attention = f"pagedlab_{next(_names)}"
        AttentionInterface.register(self._attention, self._attend)
        model.set_attn_implementation(self._attention)
        self._rows_only = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.program: DecodeProgram | None = None
        self._graphs: DecodeGraphs | None = None
        if record is not None:
            if not kernel.capturable:
                raise ConfigError(f"executor.cuda_graphs=true: kernel={kernel.name} cannot be recorded")
            width = self.inputs.block_table.shape[1]
            self._graphs = DecodeGraphs(self._logits, record, cache.max_num_seqs, width, cache.max_model_len)

    @classmethod
    def create(cls, settings: Settings, folder: Path | None, shape: ModelShape, cache: CachePlan) -> Executor:
        torch.set_num_threads(settings.executor.threads or _THREADS)
        device = settings.executor.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise ConfigError(f"executor.device={device}: this torch sees no CUDA device, expected cpu or auto")
        dtype = getattr(torch, settings.model.dtype)
        # Before seconds of loading: a kernel that cannot serve this says so.
        kernel = make_kernel(settings.kernel.name, dtype, torch.device(device), shape.head_dim, cache.block_size)
        if settings.executor.cuda_graphs and not device.startswith("cuda"):
            raise ConfigError(f"executor.cuda_graphs=true: executor.device={device}, expected a CUDA device")
        record = cuda_record if settings.executor.cuda_graphs else None
        model = load_model(settings.model, folder, device)
        optimized = optimize(model) if settings.model.optimize == "auto" else None
        executor = cls(model, shape, kernel, cache, record)
        executor.optimized = optimized
        executor.warm_up()
        if settings.model.optimize == "auto":
            executor.optimized = f"{optimized}; decode steps {executor.make_program()}"
        return executor

    def close(self) -> None:
        AttentionInterface._global_mapping.pop(self._attention, None)
        self.program = None  # it points into the cache
        self.k_cache, self.v_cache, self.host_cache = [], [], []
        if self.device.type == "cuda":
            del self.model
            torch.cuda.empty_cache()  # else the next job of a sweep sees no free memory

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Copies of a block that holds nothing yet, here and to the host, one decode and one prefill of two tokens that
        write nothing: what is compiled or chosen at first use is, and a model that cannot be served says so, before any
        time is measured.
        """
        if self.num_blocks > 1:
            self._copy([Copy(row=0, source=0, destination=1)])
        if self.host_cache:
            self._swap([(0, 0)], self.k_cache + self.v_cache, self.host_cache)
            self._swap([(0, 0)], self.host_cache, self.k_cache + self.v_cache)
        nothing = np.zeros(3, dtype=np.int64)
        self._forward(
            StepInputs(
                token_ids=nothing.astype(np.int32),
                positions=np.array([0, 0, 1]),
                slot_mapping=nothing - 1,
                query_start=np.array([0, 1, 3], dtype=np.int32),
                context_lens=np.array([1, 2], dtype=np.int32),
                block_tables=np.zeros((2, 2), dtype=np.int32),
                order=np.arange(2),
                num_decodes=1,
                sampled=np.array([0, 2]),
                sampled_seqs=np.arange(2),
            )
        )

    @torch.inference_mode()
    def make_program(self) -> str:
        """From now on decode steps run as a program, if model and kernel are such. How they run, in words."""
        if self.kernel.name != "cpu":
            return f"through the modules: kernel={self.kernel.name}"
        if any(window is not None for window in self._windows):
            return "through the modules: it attends in windows"
        rows = self.inputs.block_table.shape[0]
        try:
            longest, threads = self.inputs.max_model_len, torch.get_num_threads()
            program = DecodeProgram(self.model, self.k_cache, self.v_cache, rows, longest, threads)
            try_program(program, self.model, self._forward, self.k_cache, self.v_cache, rows, longest)
        except NoProgram as reason:
            return f"through the modules: {reason}"
        self.program = program
        return "as one program"

    @torch.inference_mode()
    def execute(self, plan: Plan) -> Outcome:
        start = self.clock.now()
        self.inputs.apply(plan)
        device = self.k_cache + self.v_cache
        swap_out_s = self._swap(plan.swapped_out, device, self.host_cache) if plan.swapped_out else 0.0
        swap_in_s = self._swap(plan.swapped_in, self.host_cache, device) if plan.swapped_in else 0.0
        copy_s = self._copy(plan.copies) if plan.copies else 0.0
        step = self.inputs.build(plan)
        logits = self._forward(step)
        tokens = [-1] * len(plan.batch)
        finish: list[str | None] = [None] * len(plan.batch)
        choices: dict[int, list[Choice]] = {}
        if len(step.sampled):
            chosen = [plan.batch[i] for i in step.sampled_seqs]
            drawn, offered = choose(logits, chosen, self._eos)
            self.inputs.append(step.sampled_seqs, np.array(drawn, dtype=np.int32))
            for i, seq, token, offer in zip(step.sampled_seqs.tolist(), chosen, drawn, offered, strict=True):
                tokens[i], finish[i] = token, finish_reason(seq, token, self._eos)
                if offer is not None:
                    choices[i] = offer
        seconds = self.clock.now() - start
        return Outcome(tokens, finish, seconds, choices, copy_s, swap_out_s=swap_out_s, swap_in_s=swap_in_s)

    def _copy(self, copies: list[Copy]) -> float:
        """Copy blocks in all layers, before anything is written. Returns the seconds it took."""
        start = self.clock.now()
        pairs = torch.tensor([(copy.source, copy.destination) for copy in copies], device=self.device)
        self.kernel.copy_blocks(self.k_cache, self.v_cache, pairs)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock.now() - start

    def _swap(self, pairs: list[tuple[int, int]], sources: list[torch.Tensor], targets: list[torch.Tensor]) -> float:
        """Copy blocks to the host or back, in all layers. Returns the seconds it took."""
        start = self.clock.now()
        self.kernel.swap_blocks(sources, targets, torch.tensor(pairs))
        return self.clock.now() - start

    def _forward(self, step: StepInputs) -> torch.Tensor:
        """Logits of the sampled tokens: [R, V]."""

        def to(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
            return pinned(torch.from_numpy(array).to(dtype), self.device).to(self.device, non_blocking=True)

        if self.program is not None and step.is_decode:
            return self.program.run(step)
        if self._graphs is not None and step.is_decode:
            return self._graphs.run(step, self.device)
        batch = PagedBatch(
            slot_mapping=to(step.slot_mapping, torch.int64),
            block_tables=to(step.block_tables, torch.int32),
            context_lens=to(step.context_lens, torch.int64),
            query_start=to(step.query_start, torch.int64),
            num_decodes=step.num_decodes,
            starts=step.query_start.tolist(),
            contexts=step.context_lens.tolist(),
        )
        token_ids, positions = to(step.token_ids, torch.int64)[None], to(step.positions, torch.int64)[None]
        return self._logits(Fed(token_ids, positions, to(step.sampled, torch.int64), batch))

    def _logits(self, fed: Fed) -> torch.Tensor:
        keep: dict[str, Any] = {"logits_to_keep": fed.sampled} if self._rows_only else {}
        self._batch = fed.batch
        self._attended.clear()
        try:
            logits: torch.Tensor = self.model(
                input_ids=fed.token_ids, position_ids=fed.positions, use_cache=False, **keep
            ).logits[0]
        finally:
            self._batch = None
        if len(self._attended) != len(self.k_cache):
            raise ModelError(
                f"{type(self.model).__name__} asked for attention in {len(self._attended)} of its "
                f"{len(self.k_cache)} layers, expected all: the others would not see the KV cache"
            )
        return logits if self._rows_only else logits[fed.sampled]

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,  # [1, H, T, D]
        key: torch.Tensor,  # [1, KVH, T, D]
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """The attention of one layer: [1, T, H, D]."""
        batch = self._batch
        if batch is None:
            raise ModelError("the model was called outside its executor")
        unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
        if attention_mask is not None:
            unsupported.append("a mask of its own")
        if unsupported:
            raise ModelError(f"{type(module).__name__} asks for {unsupported[0]}, which no kernel here computes")
        layer: int = module.layer_idx  # type: ignore[assignment]
        if layer in self._attended:
            raise ModelError(
                f"{type(module).__name__} asks for attention twice in a step, the cache holds one KV a layer"
            )
        self._attended.add(layer)
        if sliding_window is None and self._windows[layer] is not None:
            raise ModelError(
                f"{type(module).__name__} asks for a window of {self._windows[layer]} tokens by a mask, which no "
                f"kernel here reads: expected max_model_len of at most {self._windows[layer]}"
            )
        k_cache, v_cache = self.k_cache[layer], self.v_cache[layer]
        if key.shape[1::2] != k_cache.shape[2:] or value.shape[1::2] != v_cache.shape[2:]:
            raise ModelError(
                f"{type(module).__name__} has keys of shape {tuple(key.shape[1::2])} and values of "
                f"{tuple(value.shape[1::2])} (heads, head size), the cache {tuple(k_cache.shape[2:])}"
            )
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
        scale = scaling if scaling is not None else q.shape[-1] ** -0.5
        self.kernel.write_kv(k, v, k_cache, v_cache, batch.slot_mapping, batch.scratch)
        parts = []
        decodes = batch.num_decodes
        if decodes:
            parts.append(self.kernel.decode(q[:decodes], k_cache, v_cache, batch, scale, sliding_window))
        if decodes < len(batch.contexts):
            parts.append(self.kernel.prefill(q[decodes:], k_cache, v_cache, batch, scale, sliding_window))
        out = parts[0] if len(parts) == 1 else torch.cat(parts)
        return out[None], None


def _check_model(model: PreTrainedModel, max_model_len: int) -> None:
    """ModelError where paged keys and values, causal or in a window, are not all that the model's attention needs.

    Such a model would run and generate nonsense: its other state, or its own attention, knows one sequence only.
    """
    name = type(model).__name__
    if not model._can_set_attn_implementation():
        raise ModelError(
            f"{name} computes attention by itself, expected a model with transformers' attention interface"
        )
    config = model.config.get_text_config()
    others = [kind for kind in getattr(config, "layer_types", None) or () if kind not in _LAYER_TYPES]
    if others:
        raise ModelError(f"{name} has layers of the kind {others[0]}, expected {' and '.join(_LAYER_TYPES)} alone")
    if model._is_stateful:
        raise ModelError(f"{name} keeps a recurrent state, expected a model that keeps keys and values alone")
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        # One set of frequencies for the whole batch: a request would depend on its neighbours.
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            short = rope.get("original_max_position_embeddings", 0)
            if max_model_len > short:
                raise ModelError(
                    f"{name}: max_model_len={max_model_len}, expected at most {short}, from where on its longrope "
                    "depends on the longest sequence of a batch"
                )


def _config_windows(model: PreTrainedModel, num_layers: int, max_model_len: int) -> list[int | None]:
    """The window of each layer as the config has it, where it hides anything. Most models say it in their calls."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or window >= max_model_len or not getattr(config, "use_sliding_window", True):
        return [None] * num_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
