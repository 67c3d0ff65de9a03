"""The presets of systems: what each admits into a pool, and whom it takes memory from."""

import pytest
from omegaconf import OmegaConf

from pagedlab.config import load_settings
from pagedlab.engine import serve
from pagedlab.interrupts import Interrupts
from pagedlab.recorder.recorder import Recorder
from pagedlab.run import build
from tests.config.composed import composed

BASE = ("executor=simulated", "model=opt_13b", "hardware=a100_40gb", "workload=synthetic")


def served(system, slots, prompt, output, count, *changes):
    lengths = (
        f"workload.prompt={{distribution: fixed, mean: {prompt}, sigma: null, low: null, high: null}}",
        f"workload.output={{distribution: fixed, mean: {output}, sigma: null, low: null, high: null}}",
    )
    config = composed(f"system={system}", *lengths, f"workload.num_requests={count}", *changes, base=BASE)
    size = config.block_size
    OmegaConf.update(config, "kv_num_blocks", slots // size)
    lab, recorder = build(load_settings(config), Interrupts()), Recorder()
    serve(lab.requests, lab.scheduler, lab.executor, recorder, audit_every=1)
    return recorder


# A pool of 4096 slots, requests of 100 + 25 tokens that fill 124: the longest is 2048; the output 25 rounds up to 32,
# 131 slots in a run of 256; 124 in a run of 128. Blocks: ceil(101 / 16) = 7 are wanted at admission, of 256 less a
# watermark of 2.
@pytest.mark.parametrize(("system", "at_once"), [("orca_max", 2), ("orca_pow2", 16), ("orca_oracle", 32), ("vllm", 25)])
def test_how_many_requests_the_first_step_admits(system, at_once):
    recorder = served(system, 4096, 100, 25, 40)
    # Prompts are bounded by 2560 tokens a step as well: 25 of 100.
    assert recorder.steps[0].running == min(at_once, 25)


@pytest.mark.parametrize(("system", "most"), [("orca_max", 2), ("orca_pow2", 16), ("orca_oracle", 32), ("vllm", 36)])
def test_how_many_fit_the_pool_at_all(system, most):
    assert max(step.running for step in served(system, 4096, 100, 25, 80).steps) == most


@pytest.mark.parametrize("system", ["orca_max", "orca_pow2", "orca_oracle"])
def test_orca_never_takes_memory_back_and_feeds_prompts_in_steps_of_their_own(system):
    recorder = served(system, 4096, 100, 25, 80, "workload.arrival.process=poisson", "workload.arrival.rate=20")
    assert recorder.preemptions == []
    assert all(step.prefill_tokens in (0, step.tokens) for step in recorder.steps)


def test_vllm_feeds_prompts_in_steps_of_their_own_and_preempts_the_latest():
    recorder = served("vllm", 16 * 40, 100, 100, 8)
    assert all(step.prefill_tokens in (0, step.tokens) for step in recorder.steps)
    assert recorder.preemptions
    first = recorder.preemptions[0][2]
    assert first.kind == "recompute"
    admitted_before = [
        seq.id for seq in recorder.sequences if len(seq.token_s) and seq.token_s[0] < recorder.preemptions[0][0]
    ]
    assert first.victim == max(admitted_before)


def test_nobody_new_is_admitted_by_vllm_while_a_preempted_request_waits():
    recorder = served("vllm", 16 * 40, 100, 100, 8)
    began = {seq.id: seq.token_s[0] for seq in recorder.sequences}
    for time, _, record in recorder.preemptions:
        # Those that have not begun by then begin after the victim has gone on, which ends before they do.
        victim = recorder.sequences[record.victim]
        later = [seq for seq in recorder.sequences if began[seq.id] > time]
        goes_on = min(t for t in victim.token_s if t > time)
        assert all(began[seq.id] >= goes_on for seq in later)


def test_vllm_swaps_where_asked_to():
    recorder = served("vllm", 16 * 40, 100, 100, 8, "preemption=swap", "preemption.swap_space=4GiB")
    assert {record.kind for _, _, record in recorder.preemptions} == {"swap"}
