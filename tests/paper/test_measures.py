"""What is counted as in the paper, on runs small enough to count by hand."""

import pytest

from pagedlab.paper.bench import Bench, _requests
from pagedlab.paper.chats import Chats
from pagedlab.paper.measures import memory_shares, normalized_latency_s
from pagedlab.paper.points import mean_of
from tests.config.composed import initialize_config_module


@pytest.fixture(scope="module")
def bench():
    with initialize_config_module("pagedlab.conf", version_base="1.3"):
        yield Bench(120.0, (0,))


@pytest.mark.parametrize("system", ["orca_max", "orca_pow2", "orca_oracle", "vllm"])
def test_the_shares_are_the_whole_pool_in_every_system(bench, system):
    shares = memory_shares(bench.serve(bench.settings(system, "sharegpt"), 6.0, 0))
    assert sum(shares.values()) == pytest.approx(100)
    assert all(share > -1e-9 for share in shares.values())


def test_seven_of_the_longest_requests_fit_and_the_rest_of_the_pool_is_external(bench):
    """floor(15,728 / 2,048) = 7: an identity of the paper's setup."""
    shares = memory_shares(bench.serve(bench.settings("orca_max", "sharegpt"), 2.0, 0))
    assert shares["external"] == pytest.approx(100 * (15_728 - 7 * 2_048) / 15_728)


def test_an_oracle_reserves_nothing_that_is_never_used(bench):
    # But for the step that feeds a prompt, in which the rounding of its run is not told apart.
    assert memory_shares(bench.serve(bench.settings("orca_oracle", "sharegpt"), 2.0, 0))["internal"] < 0.5


def test_what_nobody_waits_for_is_not_wasted(bench):
    shares = memory_shares(bench.serve(bench.settings("vllm", "sharegpt"), 0.1, 0))
    assert set(shares.values()) == {None}


def test_the_interval_is_students():
    assert mean_of([1.0]) == {"value": 1.0}
    assert mean_of([None]) == {"value": None}
    # The mean 2 of 1, 2, 3: deviation 1, t = 4.303 of two degrees of freedom.
    found = mean_of([1.0, 2.0, 3.0])
    assert found["ci_high"] - found["value"] == pytest.approx(4.303 / 3**0.5)


def test_a_static_batch_is_answered_when_its_longest_request_has_ended(bench):
    """A request alone, then all others behind a long one: by hand, from the times of the tokens."""
    served = bench.serve(bench.settings("fastertransformer", "sharegpt"), 0.15, 0)
    seqs = sorted(served.recorder.sequences, key=lambda seq: seq.token_s[0])
    expected, i = [], 0
    while i < len(seqs):
        batch, end = [seqs[i]], seqs[i].token_s[-1]
        while i + len(batch) < len(seqs) and seqs[i + len(batch)].token_s[0] <= end:
            batch.append(seqs[i + len(batch)])
            end = max(end, batch[-1].token_s[-1])
        expected += [(end - seq.request.arrival_s) / len(seq.token_s) for seq in batch]
        i += len(batch)
    assert max(len(seqs) - 1, 1) > 1
    assert normalized_latency_s(served) == pytest.approx(sum(expected) / len(expected))


def test_the_larger_models_have_their_own_servers(bench):
    large = bench.settings("vllm", "sharegpt", model="opt_175b")
    assert large.kv_num_blocks == 60_100 // 16
    assert large.hardware.tensor_parallel == 8
    assert large.hardware.host_step_us == bench.settings("vllm", "sharegpt").hardware.host_step_us


def test_a_chat_is_told_what_was_said_before_and_no_more_than_its_limit():
    drafts = Chats(1024, 512, 1000)(400, 3)
    assert max(len(draft.prompt) for draft in drafts) == 1024
    assert max(draft.output_tokens for draft in drafts) == 512
    prompts = [draft.prompt.tobytes() for draft in drafts]
    continued = sum(any(later.startswith(prompt) for later in prompts[i + 1 :]) for i, prompt in enumerate(prompts))
    assert continued > 100  # of 400: all but the last turn of each conversation, as long as it is not cut
    again = Chats(1024, 512, 1000)(400, 3)
    assert [draft.prompt.tobytes() for draft in again] == prompts


def test_requests_that_are_drawn_once_are_those_of_every_rate(bench):
    settings = bench.settings("orca_max", "alpaca")

    def asked(bench, rate):
        requests = bench.serve(settings, rate, 0).lab.requests
        return [(one.id, one.prompt.tobytes(), one.max_tokens, one.sampling, one.arrival_s) for one in requests]

    asked(bench, 4.0)
    for rate in (2.0, 6.0):
        assert asked(bench, rate) == asked(Bench(120.0, (0,)), rate)
    other = bench.settings("orca_max", "sharegpt")
    asked_other = [one.prompt_tokens for one in bench.serve(other, 1.0, 0).lab.requests]
    assert asked_other != [one.prompt_tokens for one in bench.serve(settings, 1.0, 0).lab.requests]


def test_lengths_are_what_the_benchmark_keeps(bench):
    """At least four tokens each, and no more together than the model holds: then nobody is refused or cut short."""
    served = bench.serve(bench.settings("vllm", "sharegpt"), 16.0, 0)
    requests = served.lab.requests
    assert len(requests) == 16 * 120
    assert [one.id for one in requests] == list(range(len(requests)))
    assert min(min(one.prompt_tokens, one.max_tokens) for one in requests) >= 4
    assert 1800 < max(one.prompt_tokens + one.max_tokens for one in requests) <= 2048
    assert max(one.prompt_tokens for one in requests) > 1024


def test_lengths_keep_the_means_that_the_paper_prints(bench):
    for workload, prompt, output in (("sharegpt", 161.31, 337.99), ("alpaca", 19.31, 58.45)):
        requests = _requests(bench.settings("vllm", workload), 20_000, 0, None)
        assert sum(one.prompt_tokens for one in requests) / len(requests) == pytest.approx(prompt, rel=0.03)
        assert sum(one.max_tokens for one in requests) / len(requests) == pytest.approx(output, rel=0.03)
