"""The presets of later systems: what each admits into a given pool, whom it takes memory from, what a step holds."""

import pytest

from tests.paper.test_systems import served

# 64 blocks of 16, 32 of 32, 16 of 64: 1024 slots. 100 tokens are asked for, 100 to come: 199 slots, 101 at first.
SLOTS, PROMPT, OUTPUT = 1024, 100, 100
LATER = ("vllm_v1", "sglang", "tgi", "tensorrt_llm_no_evict", "tensorrt_llm_max_utilization", "lmdeploy")
ARRIVING = ("workload.arrival.process=poisson", "workload.arrival.rate=20")


# Blocks of 16: 7 hold the prompt, 13 all. Blocks of 32: 4 and 7. Of 64: 2 and 4.
@pytest.mark.parametrize(
    ("system", "at_once"),
    [
        ("vllm_v1", 64 // 7),  # what is needed now, to the last block
        ("tgi", 64 // 13),  # prompt and all that may be generated
        ("tensorrt_llm_no_evict", 32 // 7),
        ("tensorrt_llm_max_utilization", 32 // 4),
        ("lmdeploy", 16 // 2),
    ],
)
def test_how_many_requests_the_first_step_admits(system, at_once):
    assert served(system, SLOTS, PROMPT, OUTPUT, 20).steps[0].running == at_once


def test_sglang_admits_by_a_share_of_what_may_still_be_generated():
    """0.7 x 100 tokens are expected: at the peak each request holds 170 slots and the tail of a block, 15, of 1024."""
    assert served("sglang", SLOTS, PROMPT, OUTPUT, 20).steps[0].running == 1024 // 185


def test_hf_continuous_lets_nobody_new_in_below_its_safety_margin():
    """20 blocks of 256 tokens, a request in each; 15 % of them, 3, are left free."""
    assert served("hf_continuous", 20 * 256, PROMPT, OUTPUT, 40).steps[0].running == 17


@pytest.mark.parametrize("system", ["tgi", "tensorrt_llm_no_evict"])
def test_who_reserves_the_output_preempts_nobody(system):
    assert served(system, SLOTS, PROMPT, OUTPUT, 20).preemptions == []


@pytest.mark.parametrize("system", ["vllm_v1", "tensorrt_llm_max_utilization", "lmdeploy"])
def test_who_admits_on_demand_preempts_the_latest(system):
    recorder = served(system, SLOTS, PROMPT, OUTPUT, 20)
    time, _, first = recorder.preemptions[0]
    begun = [seq.id for seq in recorder.sequences if len(seq.token_s) and seq.token_s[0] < time]
    assert first.kind == "recompute"
    assert first.victim == max(begun)


def test_sglang_retracts_the_shortest_output():
    changes = ("scheduler.estimated_peak={initial: 0.1, minimum: 0.05, decay_steps: 600, retract_steps: 20}",)
    recorder = served("sglang", SLOTS, PROMPT, OUTPUT, 20, *changes)
    time, _, first = recorder.preemptions[0]
    running = [s for s in recorder.sequences if len(s.token_s) and s.token_s[0] < time and s.token_s[-1] >= time]
    got = {seq.id: sum(t < time for t in seq.token_s) for seq in running}
    assert got[first.victim] == min(got.values())


@pytest.mark.parametrize("system", ["sglang", "tgi", "lmdeploy"])
def test_prompts_have_steps_of_their_own(system):
    steps = served(system, SLOTS * 8, PROMPT, OUTPUT, 30, *ARRIVING).steps
    assert all(step.prefill_tokens in (0, step.tokens) for step in steps)


@pytest.mark.parametrize("system", ["vllm_v1", "tensorrt_llm_no_evict", "hf_continuous"])
def test_prompts_are_fed_beside_decodes(system):
    steps = served(system, SLOTS * 8, PROMPT, OUTPUT, 30, *ARRIVING).steps
    assert any(0 < step.prefill_tokens < step.tokens for step in steps)


@pytest.mark.parametrize(("system", "hits"), [(name, name != "tgi") for name in LATER])
def test_a_prefix_is_computed_once_where_there_is_a_cache(system, hits):
    shared = ("workload.shared_prefix_tokens=256", "workload.arrival.process=constant", "workload.arrival.rate=1")
    recorder = served(system, SLOTS * 8, PROMPT, 20, 4, *shared)
    fed = sum(step.prefill_tokens for step in recorder.steps)
    assert fed == 4 * 356 - (3 * 256 if hits else 0)


def test_fastertransformer_lets_nobody_in_before_the_whole_batch_has_ended():
    """Two of 2048 slots fit 4096; outputs of one length, so that batches of two follow each other."""
    recorder = served("fastertransformer", 4096, 100, 25, 6)
    firsts = sorted(seq.token_s[0] for seq in recorder.sequences)
    lasts = sorted(seq.token_s[-1] for seq in recorder.sequences)
    assert max(step.running for step in recorder.steps) == 2
    assert all(firsts[i] > lasts[i - 1] for i in (2, 4))
