"""How the executor hangs itself into a transformers model: one cache, one model, and nothing left behind."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

from pagedlab.core.errors import ConfigError, ModelError
from pagedlab.core.request import Request
from pagedlab.executor.base import CachePlan
from pagedlab.executor.torch import TorchExecutor
from pagedlab.settings import KernelSettings, ModelSettings, TorchExecutorSettings
from tests.lab import make_scheduler
from tests.torch_lab import conf_model, load, make_torch_executor, outputs, run_model, small_model, with_answers

SIZES = [(7, 9), (20, 6), (1, 12)]
IDS = torch.arange(5, 12)[None]


@pytest.fixture(scope="module")
def llama():
    return with_answers(*load(conf_model("tiny_llama")), SIZES)


def names() -> set[str]:
    return set(AttentionInterface().valid_keys())


class Engine:
    """An engine that is stepped by hand."""

    def __init__(self, model, shape, requests, num_blocks=30):
        self.scheduler = make_scheduler(num_blocks, max_model_len=100, tokens=16)
        self.executor = make_torch_executor(model, shape, num_blocks, 4)
        self.seqs = [self.scheduler.submit(r) for r in requests]

    def step(self):
        plan = self.scheduler.schedule()
        self.scheduler.commit(plan, self.executor.execute(plan), 0.0)

    @property
    def outputs(self):
        return [seq.output for seq in self.seqs]


# ---- coming and going ---------------------------------------------------------------------------------------------


def test_close_takes_the_name_out_of_transformers_and_gives_the_cache_back(llama):
    before = names()
    executor = make_torch_executor(llama.model, llama.shape, 8, 4)
    assert len(names() - before) == 1
    executor.close()
    assert names() == before
    assert executor.k_cache == executor.v_cache == []
    executor.close()
    assert names() == before


def test_a_model_serves_one_executor_after_the_other(llama):
    for block_size in (1, 4, 16):
        assert outputs(run_model(llama.model, llama.shape, llama.requests, 200, block_size)) == llama.outputs


def test_two_executors_alive_at_once_do_not_mix_their_caches(llama):
    """The same tokens at the same slots of two models: the second's answers come out of the second's cache."""
    other = with_answers(*load(replace(conf_model("tiny_llama"), seed=1)), SIZES)
    assert other.outputs != llama.outputs
    engines = [Engine(s.model, s.shape, s.requests) for s in (llama, other)]
    while any(engine.scheduler.has_work for engine in engines):
        for engine in engines:
            if engine.scheduler.has_work:
                engine.step()
    assert [engine.outputs for engine in engines] == [llama.outputs, other.outputs]
    engines[0].executor.close()
    assert outputs(run_model(other.model, other.shape, other.requests, 30)) == other.outputs
    engines[1].executor.close()


def test_a_model_taken_over_by_a_second_executor_is_refused_to_the_first(llama):
    first, second = (Engine(llama.model, llama.shape, llama.requests) for _ in range(2))
    with pytest.raises(ModelError, match="called outside its executor"):
        first.step()
    while second.scheduler.has_work:
        second.step()
    assert second.outputs == llama.outputs
    first.executor.close()
    second.executor.close()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_model_called_outside_its_executor_is_refused_before_and_between_steps(llama, steps):
    engine = Engine(llama.model, llama.shape, llama.requests)
    for _ in range(steps):
        engine.step()
    caches = [cache.clone() for cache in engine.executor.k_cache + engine.executor.v_cache]
    with pytest.raises(ModelError, match="the model was called outside its executor"):
        llama.model(IDS)
    for cache, before in zip(engine.executor.k_cache + engine.executor.v_cache, caches, strict=True):
        torch.testing.assert_close(cache, before, rtol=0, atol=0, equal_nan=True)
    while engine.scheduler.has_work:
        engine.step()
    assert engine.outputs == llama.outputs
    engine.executor.close()


def test_a_model_called_after_close_is_refused_by_transformers(llama):
    make_torch_executor(llama.model, llama.shape, 8, 4).close()
    with pytest.raises(KeyError, match="not a valid attention implementation"):
        llama.model(IDS)


def test_logits_are_computed_for_sampled_tokens_alone(llama, monkeypatch):
    """A prompt of 20 tokens in a budget of 16: the first chunk samples nothing, the second once."""
    engine = Engine(llama.model, llama.shape, llama.requests[1:2])
    rows = []
    hook = llama.model.lm_head.register_forward_hook(lambda module, args, out: rows.append(out.shape[1]))
    for _ in range(3):
        engine.step()
    hook.remove()
    engine.executor.close()
    assert rows == [0, 1, 1]


def test_the_cache_has_the_shape_and_dtype_that_the_kernels_expect():
    model, shape = load(replace(conf_model("tiny_llama"), dtype="bfloat16"))
    executor = make_torch_executor(model, shape, 9, 4)
    assert len(executor.k_cache) == len(executor.v_cache) == 2
    for cache in executor.k_cache + executor.v_cache:
        assert cache.shape == (9, 4, 2, 16)
        assert cache.dtype == torch.bfloat16
    executor.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_are_served_whatever_the_memory_does(dtype):
    """Not token by token what `generate` says: in half precision sums in another order can choose another token."""
    model, shape = load(replace(conf_model("tiny_llama"), dtype=dtype))
    served = with_answers(model, shape, SIZES)
    recorder = run_model(model, shape, served.requests, 10, tokens=16)
    assert [len(output) for output in outputs(recorder)] == [new for _, new in SIZES]
    assert [output[0] for output in outputs(recorder)] == [output[0] for output in served.outputs]
    assert dtype != "float64" or outputs(recorder) == served.outputs


# ---- made from settings -------------------------------------------------------------------------------------------


def create(device="cpu", kernel="torch", model=None, folder=None):
    model = model or conf_model("tiny_llama")
    settings = SimpleNamespace(
        executor=TorchExecutorSettings("torch", device, None), kernel=KernelSettings(kernel), model=model
    )
    shape = load(conf_model("tiny_llama"))[1]
    return TorchExecutor.create(settings, folder, shape, CachePlan(lambda free: min(12, free), 4, 4, 40))


def test_create_loads_the_model_and_asks_for_the_size_of_its_cache():
    executor = create()
    assert executor.num_blocks == 12
    assert executor.model.dtype == torch.float32
    scheduler = make_scheduler(12, max_model_len=40)
    seq = scheduler.submit(Request(0, np.array([5, 6, 7], dtype=np.int32), 4))
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.commit(plan, executor.execute(plan), 0.0)
    assert len(seq.output) == 4
    executor.close()


def test_what_cannot_work_is_refused_before_the_weights_are_read(tmp_path):
    """The folder is empty: loading it would say so."""
    with pytest.raises(ConfigError, match="kernel=nothing: no such option, expected one of reference, torch"):
        create(kernel="nothing", folder=tmp_path)
    with pytest.raises(ModelError):
        create(model=ModelSettings(name="x", path=str(tmp_path)), folder=tmp_path)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"executor\.device=cuda: this torch sees no CUDA device"):
            create(device="cuda", folder=tmp_path)


# ---- what is not served -------------------------------------------------------------------------------------------


PLAIN = ("intermediate_size", "num_key_value_heads")
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}

MASKED_WINDOW = small_model(
    "qwen2_moe",
    use_sliding_window=True,
    sliding_window=32,
    max_window_layers=1,
    num_experts=4,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=16,
)

REFUSED = {
    "capped scores": (small_model("gemma2", head_dim=16), "Gemma2Attention asks for softcap"),
    "sinks": (small_model("gpt_oss", head_dim=16, num_local_experts=4), "GptOssAttention asks for s_aux"),
    "a mask of its own": (small_model("doge"), "DogeAttention asks for a mask of its own"),
    "a window in the mask alone": (
        MASKED_WINDOW,
        "Qwen2MoeAttention asks for a window of 32 tokens by a mask, .* expected max_model_len of at most 32",
    ),
    "a window in the mask alone, of all layers": (
        small_model("phimoe", sliding_window=32, num_local_experts=2),
        "PhimoeAttention asks for a window of 32 tokens by a mask",
    ),
    "two attentions a layer": (small_model("diffllama"), "DiffLlamaAttention asks for attention twice in a step"),
    "attention of its own": (
        small_model("falcon", without=PLAIN, alibi=False, multi_query=True),
        "FalconForCausalLM computes attention by itself",
    ),
    "chunks that do not see each other": (
        small_model("llama4_text", head_dim=16, attention_chunk_size=8, num_local_experts=2, intermediate_size_mlp=64),
        "Llama4ForCausalLM has layers of the kind chunked_attention",
    ),
    "recurrent layers": (
        small_model("jamba", attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False),
        "JambaForCausalLM has layers of the kind linear_attention, expected full_attention and sliding_attention",
    ),
    "convolutions": (small_model("lfm2", full_attn_idxs=[1]), "Lfm2ForCausalLM has layers of the kind conv"),
    "recurrence beside attention": (small_model("falcon_h1"), "FalconH1ForCausalLM has layers of the kind hybrid"),
    "rotation by the longest of the batch": (
        small_model("phi3", original_max_position_embeddings=32, rope_scaling=LONGROPE),
        "max_model_len=100, expected at most 32, from where on its longrope depends on the longest sequence",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_model_whose_attention_is_more_than_paged_keys_and_values_is_refused_by_name(why, llama):
    """Served as if nothing were amiss, it would say something else than under `generate`, and nobody would notice."""
    settings, message = REFUSED[why]
    before = names()
    with pytest.raises(ModelError, match=message) as caught:
        run_model(*load(settings), llama.requests, 60)
    assert "\n" not in str(caught.value)
    assert names() == before


@pytest.mark.parametrize(
    "settings",
    [small_model("phi3", original_max_position_embeddings=32, rope_scaling=LONGROPE), MASKED_WINDOW],
    ids=["longrope", "a window in the mask alone"],
)
def test_they_are_served_as_long_as_sequences_are_short_enough_not_to_matter(settings):
    served = with_answers(*load(settings), SIZES)
    recorder = run_model(served.model, served.shape, served.requests, 60, max_model_len=32)
    assert outputs(recorder) == served.outputs


def test_a_model_with_a_recurrent_state_is_refused_even_if_its_layers_look_usual(llama, monkeypatch):
    monkeypatch.setattr(type(llama.model), "_is_stateful", True)
    with pytest.raises(ModelError, match="LlamaForCausalLM keeps a recurrent state"):
        make_torch_executor(llama.model, llama.shape, 8, 4)


def test_a_model_that_does_not_attend_in_every_layer_is_refused(llama):
    shape = replace(llama.shape, num_layers=3)
    with pytest.raises(ModelError, match="asked for attention in 2 of its 3 layers"):
        run_model(llama.model, shape, llama.requests, 60)


def test_keys_of_another_shape_than_the_cache_are_refused(llama):
    shape = replace(llama.shape, num_kv_heads=4)
    with pytest.raises(ModelError, match=r"keys of shape \(2, 16\) and values of \(2, 16\) .* the cache \(4, 16\)"):
        run_model(llama.model, shape, llama.requests, 60)
