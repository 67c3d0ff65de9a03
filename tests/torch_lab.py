"""What the tests with real models share: small random models, what transformers' `generate` makes of a prompt, and the
engine over the same model, its cache full of NaN at the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from transformers import GenerationConfig, PreTrainedModel

from pagedlab.core.request import Request, SamplingParams, Status
from pagedlab.engine import serve
from pagedlab.executor.base import CachePlan
from pagedlab.executor.torch import TorchExecutor
from pagedlab.kernels.base import KERNELS
from pagedlab.model.config import read_config
from pagedlab.model.load import load_model
from pagedlab.model.shape import ModelShape, shape_of
from pagedlab.recorder.recorder import Recorder
from pagedlab.settings import ModelSettings
from tests.lab import make_scheduler

ROOT = Path(__file__).parents[1]

# A small model of most architectures. The wide initialisation makes attention count: by default the logits hardly
# depend on what was said before.
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


@dataclass
class Served:
    """A model, and requests with what it answers to each of them alone."""

    model: PreTrainedModel
    shape: ModelShape
    requests: list[Request]
    outputs: list[list[int]]


def conf_model(name: str) -> ModelSettings:
    """The model of conf/model/<name>.yaml."""
    return ModelSettings(**yaml.safe_load((ROOT / "conf" / "model" / f"{name}.yaml").read_text()))


def small_model(model_type: str, without: tuple[str, ...] = (), **config) -> ModelSettings:
    """`SMALL`, without the fields that an architecture does not know, and with those given."""
    known = {name: value for name, value in SMALL.items() if name not in without}
    return ModelSettings(name=model_type, source="random", config={"model_type": model_type} | known | config)


def load(settings: ModelSettings, folder: Path | None = None) -> tuple[PreTrainedModel, ModelShape]:
    return load_model(settings, folder, "cpu"), shape_of(read_config(settings, folder))


def generate(model: PreTrainedModel, prompt: np.ndarray, new: int, eos: list[int] | None = None) -> list[int]:
    """Greedy, one request at a time, with transformers' own cache and attention. Without eos nothing ends it."""
    ids = torch.from_numpy(prompt).long()[None]
    model.set_attn_implementation("eager")
    config = GenerationConfig(
        max_new_tokens=new,
        min_new_tokens=None if eos else new,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=0,
        bos_token_id=1,
    )
    model.generation_config.eos_token_id = eos  # else it would fill in for None
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return out[0, len(prompt) :].tolist()


def with_answers(model: PreTrainedModel, shape: ModelShape, sizes: list[tuple[int, int]]) -> Served:
    """Random prompts of the given (prompt, new) tokens, and what `generate` answers."""
    random = np.random.default_rng(0)
    prompts = [random.integers(5, shape.vocab_size, size=p).astype(np.int32) for p, _ in sizes]
    requests = [Request(i, prompt, g, g) for i, (prompt, (_, g)) in enumerate(zip(prompts, sizes, strict=True))]
    return Served(model, shape, requests, [generate(model, r.prompt, r.max_tokens) for r in requests])


def make_torch_executor(
    model, shape, num_blocks, block_size, kernel="torch", max_num_seqs=16, max_model_len=100, host_blocks=0,
    program=False,
):  # fmt: skip
    """An executor whose cache is NaN throughout: a slot that is read before it was written shows in the tokens.
    program: its decode steps run as one, which has to be possible."""
    plan = CachePlan(lambda free: num_blocks, block_size, max_num_seqs, max_model_len, lambda free: host_blocks)
    executor = TorchExecutor(model, shape, KERNELS[kernel](), plan)
    if program:
        assert executor.make_program() == "as one program"
    for cache in executor.k_cache + executor.v_cache + executor.host_cache:
        cache.fill_(float("nan"))
    return executor


def run_model(
    model, shape, requests, num_blocks, block_size=4, kernel="torch", max_model_len=100, program=False, **choices
) -> Recorder:
    """Serve with every invariant checked after every step, as `tests.lab.run` does over the fingerprint executor."""
    scheduler = make_scheduler(num_blocks, block_size, max_model_len=max_model_len, **choices)
    host = scheduler.allocator.host
    executor = make_torch_executor(
        model,
        shape,
        num_blocks,
        block_size,
        kernel,
        scheduler.max_num_seqs,
        max_model_len,
        host.pool.num_blocks if host else 0,
        program,
    )
    recorder = Recorder()
    try:
        serve(requests, scheduler, executor, recorder, audit_every=1)
    finally:
        executor.close()
    pool = scheduler.allocator.pool
    assert pool.num_free + pool.num_idle == num_blocks, "blocks leaked"
    assert scheduler.allocator.host_blocks == 0, "host blocks leaked"
    assert [seq.refusal for seq in recorder.sequences if seq.status is Status.REFUSED] == []
    return recorder


def outputs(recorder: Recorder) -> list[list[int]]:
    return [seq.output for seq in recorder.sequences]


def sampling(requests: list[Request], **params) -> list[Request]:
    """The same requests, sampled: each with a seed of its own unless one is given."""
    return [
        Request(r.id, r.prompt, r.max_tokens, r.true_output_tokens, sampling=SamplingParams(**{"seed": r.id} | params))
        for r in requests
    ]
