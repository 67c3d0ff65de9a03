"""executor=simulated: what a real engine would do and when, without a forward."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.core.errors import PagedlabError
from pagedlab.core.request import Request, Status
from pagedlab.engine import serve
from pagedlab.executor.simulated import SimulatedExecutor
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.metrics import summarize
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import build
from tests.config.composed import settings_of
from tests.hardware.devices import cost_model
from tests.lab import make_executor, make_scheduler, request

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = ("executor=simulated", "workload=synthetic", "workload.num_requests=6")


class LinearCost:
    """The fingerprint executor's own price of a step."""

    block_size = 4

    def step_s(self, work, overlap):
        return 0.01 + 0.001 * work.tokens

    def copy_s(self, blocks):
        return 0.0

    swap_out_s = swap_in_s = copy_s


def recorded(executor, requests, **choices):
    scheduler = make_scheduler(24, **choices)
    if executor == "simulated":
        made = SimulatedExecutor(LinearCost(), 24, 50)
        scheduler = make_scheduler(24, foretold=made.foretold, **choices)
    else:
        made = make_executor(scheduler, token_s=0.001)
    recorder = Recorder()
    serve(requests, scheduler, made, recorder)
    told = [
        (s.id, s.status, len(s.output), s.token_s, s.finish_s, s.preemptions, s.recomputed_tokens)
        for s in recorder.sequences
    ]
    return told, recorder.steps, recorder.preemptions, recorder.stays, summarize(recorder, 24, 4, "completed")


@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=12),
    allocator=st.sampled_from(["paged", "reserve_max", "oracle"]),
    batching=st.sampled_from(["chunked", "prefill_first"]),
    tokens=st.sampled_from([5, 64]),
)
@settings(max_examples=60, deadline=None)
def test_counts_times_and_memory_are_those_of_the_fingerprint_executor(rows, allocator, batching, tokens):
    requests = [request(p, n, id=i, arrival=0.05 * a * i, true=n) for i, (p, n, a) in enumerate(rows)]
    requests.sort(key=lambda r: r.arrival_s)
    choices = {"allocator": allocator, "batching": batching, "tokens": tokens}
    *simulated, counted = recorded("simulated", requests, **choices)
    *real, summary = recorded("fingerprint", requests, **choices)
    assert simulated == real
    # Gaps that are the same are counted, and so summed in another order.
    itl, real_itl = counted.pop("itl_s"), summary.pop("itl_s")
    assert counted == summary
    assert itl == real_itl or itl == pytest.approx(real_itl, rel=1e-12)


def test_tokens_are_made_up_and_repeatable():
    executor = SimulatedExecutor(cost_model(), 10, 100)
    one, other = request(3, 500, id=1, seed=7), request(3, 500, id=2, seed=8)
    whole = executor.output_tokens(one, 0, 500)
    assert len(whole) == 500
    assert set(whole) == set(range(100))
    assert executor.output_tokens(one, 120, 340) == whole[120:340]
    assert executor.output_tokens(other, 0, 500) != whole


def test_a_simulated_step_costs_what_the_cost_model_says():
    lab = build(
        settings_of("kv_num_blocks=null", groups=("hardware=a100_40gb", "model=opt_13b"), base=SIMULATED), Interrupts()
    )
    cost = lab.executor.cost
    one = Request(0, lab.requests[0].prompt[:100], 3, 3)
    recorder = Recorder()
    serve([one], lab.scheduler, lab.executor, recorder)
    prefill = cost.dense_s(100) + cost.prefill_attention_s([(100, 0)]) + cost.head_s(1) + cost.host_s(1, 1, 7)
    decode = [cost.dense_s(1) + cost.decode_attention_s(1, 112) + cost.head_s(1) + cost.host_s(1, 0, 0)] * 2
    ends = [step.end_s for step in recorder.steps]
    assert ends == pytest.approx([prefill, prefill + decode[0], prefill + sum(decode)])
    # The last token takes no slot; 102 tokens lie in 7 blocks of 16.
    assert recorder.steps[-1].usage.tokens == 102


@pytest.mark.parametrize("allocator", ["paged", "reserve_max"])
def test_without_arrivals_in_between_memory_is_the_same_on_every_device(allocator):
    """The device decides how long a step takes, and nothing else."""
    seen = []
    for name in ("a100_40gb", "h200", "l4"):
        groups = (f"hardware={name}", "model=smollm2_135m", f"allocator={allocator}")
        lab = built("kv_num_blocks=120", "workload.num_requests=30", "max_model_len=1600", groups=groups)
        recorder = Recorder()
        serve(lab.requests, lab.scheduler, lab.executor, recorder)
        steps = [(s.running, s.waiting, s.batch, s.tokens, s.usage, s.memory_blocked) for s in recorder.steps]
        seen.append((steps, [record for _, _, record in recorder.preemptions], recorder.steps[-1].end_s))
    (first, preempted, _), *others = seen
    assert any(step[5] for step in first)
    for steps, preemptions, _ in others:
        assert steps == first
        assert preemptions == preempted
    assert len({end for _, _, end in seen}) == 3


# ---- models, devices, memory ----------------------------------------------------------------------------------------


def built(*values, groups=()):
    return build(settings_of(*values, groups=groups, base=SIMULATED), Interrupts())


def refusal(*values, groups=()):
    with pytest.raises(PagedlabError) as caught:
        built(*values, groups=groups)
    return str(caught.value)


def test_the_kv_budget_is_what_the_device_has_left_unless_it_is_given():
    groups = ("hardware=a100_40gb", "model=opt_13b")
    lab = built(groups=groups)
    cost = lab.executor.cost
    assert lab.scheduler.allocator.pool.num_blocks == cost.free_bytes(512, 256) // (16 * 819_200)
    assert "a100_40gb" in lab.kv_budget
    # More than there is may be asked for: what would that do?
    lab = built("kv_num_blocks=5000", groups=groups)
    assert lab.scheduler.allocator.pool.num_blocks == 5000
    assert lab.kv_budget == "kv_num_blocks=5000"
    assert built("kv_bytes=1GiB", groups=groups).scheduler.allocator.pool.num_blocks == 2**30 // (16 * 819_200)


def test_weights_that_do_not_fit_are_refused_with_the_numbers():
    line = refusal(groups=("hardware=l4", "model=opt_66b"))
    assert line.startswith("hardware=l4, tensor_parallel=1: weights and activations leave -")
    assert line.endswith("bytes: less than one block of 16 slots, which takes 37748736 bytes")


@pytest.mark.parametrize("name", ["deepseek_v2_lite", "mixtral_8x7b", "qwen2_5_7b", "smollm2_135m", "tiny_opt"])
def test_sizes_alone_serve(name):
    lab = built("kv_num_blocks=2000", groups=(f"model={name}", "hardware=h100"))
    recorder = Recorder()
    assert serve(lab.requests, lab.scheduler, lab.executor, recorder)
    assert all(seq.status is Status.FINISHED for seq in recorder.sequences)


def test_any_config_json_by_path(tmp_path):
    config = {
        "model_type": "qwen2",
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 700,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        lab = built(f"model.path={path}", "max_model_len=null")
        assert lab.max_model_len == 700
        assert lab.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2


def test_a_model_of_sizes_alone_has_no_weights_and_no_text(tmp_path):
    line = refusal(groups=("executor=torch", "model=opt_13b"))
    assert line.startswith("model=opt_13b: its sizes are known and nothing else")
    with pytest.raises(PagedlabError) as caught:
        build(settings_of(base=("executor=simulated", "model=opt_13b")), Interrupts())
    assert str(caught.value).startswith("workload=sharegpt holds text, and of model=opt_13b the sizes alone are known")


def test_what_a_simulation_cannot_do_is_refused():
    assert refusal("sampling.ignore_eos=false").startswith("sampling.ignore_eos=false: executor=simulated has no end")
    assert refusal("model.dtype=float64").startswith("model.dtype=float64: executor=simulated prices 16 and 32 bits")
    line = refusal(groups=("executor=fingerprint", "hardware=h100"))
    assert line == "hardware=h100: executor=fingerprint has no use for it, expected local"


# ---- the command ----------------------------------------------------------------------------------------------------


def test_a_simulated_run_loads_no_torch_no_transformers_no_tokenizer(tmp_path):
    words = ["executor=simulated", "hardware=h100", "model=llama3_70b", "hardware.tensor_parallel=4"]
    words += ["workload=synthetic", "workload.num_requests=4", f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.serve", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "KV memory by what h100 has left" in done.stdout
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "hydra" in imported  # the list is real
    assert not imported & {"torch", "transformers", "tokenizers", "huggingface_hub", "numba", "triton", "wandb"}
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["hardware"] == "h100"
    assert summary["clock"] == "virtual"
    assert summary["completed"] == 4
