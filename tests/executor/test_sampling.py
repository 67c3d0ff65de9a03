"""From logits to tokens: greedy, filters by hand, frequencies, and what a sample may depend on."""

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch

from pagedlab.core.mixing import uniform
from pagedlab.core.request import SamplingParams
from pagedlab.executor.sampling import _draw, _from_head, sample

FOUR = (0.4, 0.3, 0.2, 0.1)


def logits_of(probabilities):
    """Logits whose softmax these are, off by a constant."""
    return torch.tensor(probabilities).log() + 1.7


def draws(logits, n, by="seed", start=0, **params):
    """n samples from one row of logits, for n seeds or for n output positions."""
    keys = range(start, start + n)
    chosen = [SamplingParams(seed=k if by == "seed" else 7, **params) for k in keys]
    indices = [0] * n if by == "seed" else list(keys)
    return sample(logits.expand(n, -1), chosen, indices).tolist()


def chi_square(tokens, expected):
    """Of the counts of tokens against expected probabilities; what is expected never must not come at all."""
    possible = [token for token, p in enumerate(expected) if p > 0]
    assert set(tokens) <= set(possible)
    counts = {token: tokens.count(token) for token in possible}
    return sum((counts[t] - len(tokens) * expected[t]) ** 2 / (len(tokens) * expected[t]) for t in possible)


# ---- the definition ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("vocabulary", [1, 5, 256, 257, 3000])
def test_many_rows_at_once_are_what_each_is_by_its_own_definition(dtype, vocabulary):
    """Flat rows and steep ones, ties, tokens of no probability, any filters: those a head can settle and the others."""
    random, chance = torch.Generator().manual_seed(vocabulary), Random(vocabulary)
    settled = rows = 0
    for scale in (0.0, 0.1, 1.0, 5.0, 30.0):
        logits = (torch.randn(70, vocabulary, generator=random) * scale).to(dtype)
        logits[:, 1:][torch.rand(70, vocabulary - 1, generator=random) < 0.2] = -math.inf
        params = [
            SamplingParams(
                temperature=chance.choice([0.0, 1e-5, 1e-3, 0.3, 0.8, 1.0, 50.0, 1e20]),
                top_p=chance.choice([1.0, 1.0, 0.95, 0.5, 0.25, 1e-6]),
                top_k=chance.choice([0, 0, 1, 2, 50, 256, 257, 1000]),
                seed=chance.randrange(2**63),
            )
            for _ in range(70)
        ]
        tokens = sample(logits, params, list(range(70))).tolist()
        us = [uniform(p.seed, i) for i, p in enumerate(params)]
        settled += int(
            _from_head(logits, [replace(p, temperature=max(p.temperature, 1e-5)) for p in params], us)[1].sum()
        )
        rows += 70
        for row, p, u, token in zip(logits, params, us, tokens, strict=True):
            assert token == int(_draw(row, p, u) if p.temperature >= 1e-5 else row.argmax())
    assert settled > rows / 3, "next to nothing is settled without a sort"


# ---- greedy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_temperature_zero_is_argmax_whatever_the_filters_and_seeds(dtype):
    logits = torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    params = [SamplingParams(0.0, top_p=0.1 + 0.01 * r, top_k=r % 5, seed=r) for r in range(64)]
    tokens = sample(logits, params, list(range(64)))
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [1e-6, 0.3, 1.0, 50.0, 1e9, 1e20])
@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_a_filter_that_leaves_one_token_is_greedy_at_any_temperature(dtype, temperature, filters):
    """Ties included: in half precision the largest logit is often there twice, and greedy takes the first."""
    logits = torch.randn(60, 700, generator=torch.Generator().manual_seed(1)).to(dtype)
    top = logits.topk(2).values
    assert dtype == torch.float32 or (top[:, 0] == top[:, 1]).any()
    params = [SamplingParams(temperature, seed=r, **filters) for r in range(60)]
    assert sample(logits, params, [0] * 60).tolist() == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_top_k_keeps_the_first_of_those_that_tie(top_k):
    logits = torch.tensor([0.0, 2.0, 2.0, 1.0, 2.0, 2.0])
    assert set(draws(logits, 100, temperature=1.0, top_k=top_k)) == {1, 2, 4} - set([1, 2, 4][top_k:])


def test_a_low_temperature_tends_to_greedy():
    assert set(draws(logits_of(FOUR), 200, temperature=0.02)) == {0}


def test_no_rows_no_tokens():
    assert sample(torch.empty(0, 9), [], []).tolist() == []


# ---- which tokens are kept ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.05, {0}),
        (0.39, {0}),
        (0.41, {0, 1}),
        (0.69, {0, 1}),
        (0.71, {0, 1, 2}),
        (0.89, {0, 1, 2}),
        (0.91, {0, 1, 2, 3}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p, kept):
    assert set(draws(logits_of(FOUR), 300, temperature=1.0, top_p=top_p)) == kept


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.2501, 2), (0.5, 2), (0.75, 3), (0.7501, 4)])
def test_top_p_that_is_reached_exactly_adds_no_further_token(top_p, kept):
    """Four equal tokens: quarters are exact in binary, so no rounding excuses one token more or less."""
    assert set(draws(torch.zeros(4), 300, temperature=1.0, top_p=top_p)) == set(range(kept))


@pytest.mark.parametrize(("top_k", "kept"), [(1, {0}), (2, {0, 1}), (3, {0, 1, 2}), (4, None), (9, None), (0, None)])
def test_top_k_keeps_the_k_most_likely(top_k, kept):
    assert set(draws(logits_of(FOUR), 300, temperature=1.0, top_k=top_k)) == (kept or {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (2, 0.55, {0}),  # of 0.4 and 0.3 the first is 4/7 = 0.571
        (2, 0.59, {0, 1}),
        (3, 0.43, {0}),  # 4/9 = 0.444
        (3, 0.76, {0, 1}),  # 7/9 = 0.778
        (3, 0.79, {0, 1, 2}),
    ],
)
def test_top_p_counts_among_what_top_k_has_left(top_k, top_p, kept):
    assert set(draws(logits_of(FOUR), 300, temperature=1.0, top_k=top_k, top_p=top_p)) == kept


def test_temperature_acts_before_top_p():
    """At temperature 1/2 the four become 16, 9, 4 and 1 of 30: the first is 0.533, with the second 0.833."""
    assert set(draws(logits_of(FOUR), 300, temperature=0.5, top_p=0.52)) == {0}
    assert set(draws(logits_of(FOUR), 300, temperature=0.5, top_p=0.82)) == {0, 1}
    assert set(draws(logits_of(FOUR), 300, temperature=0.5, top_p=0.84)) == {0, 1, 2}


def test_the_order_of_the_vocabulary_does_not_matter():
    shuffled = logits_of((0.1, 0.4, 0.2, 0.3))
    assert set(draws(shuffled, 300, temperature=1.0, top_k=2)) == {1, 3}
    assert set(draws(shuffled, 300, temperature=1.0, top_p=0.71)) == {1, 2, 3}


def test_a_token_of_no_probability_is_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert set(draws(logits, 500, temperature=1.0)) == {1, 3}
    assert set(draws(logits, 500, temperature=1.0, top_k=4)) == {1, 3}


# ---- frequencies --------------------------------------------------------------------------------------------------

# With 3 degrees of freedom a true sampler is above 21 once in 10 000 tries; the seeds are fixed, so it is or is not.
BOUND = 21.0


@pytest.mark.parametrize("by", ["seed", "index"])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 1.0}, FOUR),
        ({"temperature": 0.5}, (16 / 30, 9 / 30, 4 / 30, 1 / 30)),
        ({"temperature": 2.0}, tuple(math.sqrt(p) / sum(map(math.sqrt, FOUR)) for p in FOUR)),
        ({"temperature": 1.0, "top_k": 3}, (4 / 9, 3 / 9, 2 / 9, 0)),
        ({"temperature": 1.0, "top_p": 0.6}, (4 / 7, 3 / 7, 0, 0)),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.9}, (16 / 29, 9 / 29, 4 / 29, 0)),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.8}, (16 / 25, 9 / 25, 0, 0)),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_their_probability_says(params, expected, by):
    tokens = draws(logits_of(FOUR), 4000, by, **params)
    assert chi_square(tokens, expected) < BOUND


def test_the_bound_would_notice_another_distribution():
    assert chi_square(draws(logits_of(FOUR), 4000, temperature=1.0), (0.44, 0.3, 0.2, 0.06)) > BOUND
    assert chi_square(draws(logits_of(FOUR), 4000, temperature=1.5), FOUR) > BOUND


@pytest.mark.parametrize("neighbours", ["indices of a seed", "seeds", "first two indices of each seed"])
def test_neighbouring_draws_are_independent(neighbours):
    """Pairs of draws from four equal tokens: 16 equal cells, 15 degrees of freedom (above 45 once in 10 000 tries)."""
    if neighbours == "first two indices of each seed":
        params = [SamplingParams(1.0, seed=s // 2) for s in range(6000)]
        tokens = sample(torch.zeros(6000, 4), params, [0, 1] * 3000).tolist()
    else:
        tokens = draws(torch.zeros(4), 6000, "seed" if neighbours == "seeds" else "index", temperature=1.0)
    pairs = [4 * first + second for first, second in zip(tokens[::2], tokens[1::2], strict=True)]
    assert chi_square(pairs, [1 / 16] * 16) < 45


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_logits_are_sampled_in_double(dtype):
    """20 000 equal tokens: summed up in half precision the cumulative probability would stop growing near 1/2."""
    tokens = draws(torch.zeros(20000, dtype=dtype), 400, temperature=1.0)
    assert chi_square([token // 5000 for token in tokens], [1 / 4] * 4) < BOUND
    assert len(set(tokens)) > 380


# ---- what a sample depends on -------------------------------------------------------------------------------------


def test_the_same_seed_and_index_give_the_same_token_and_others_give_others():
    logits = torch.randn(1000, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(1.0, top_p=0.95, top_k=800, seed=5)
    first = [sample(logits[None], [params], [i]).item() for i in range(20)]
    torch.manual_seed(99)
    torch.rand(7)
    assert [sample(logits[None], [params], [i]).item() for i in reversed(range(20))] == first[::-1]
    assert len(set(first)) > 15
    assert [sample(logits[None], [SamplingParams(1.0, 0.95, 800, 6)], [i]).item() for i in range(20)] != first


def test_sampling_leaves_the_random_state_and_the_logits_alone():
    logits = torch.randn(3, 50)
    before, state = logits.clone(), torch.random.get_rng_state()
    sample(logits, [SamplingParams(1.0, 0.9, 20, seed=s) for s in range(3)], [0, 1, 2])
    assert torch.equal(logits, before)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("others", ["greedy", "sampled", "mixed"])
def test_a_row_does_not_depend_on_the_other_rows(others):
    random = torch.Generator().manual_seed(3)
    own, company = torch.randn(200, generator=random), torch.randn(6, 200, generator=random)
    mine = SamplingParams(0.9, 0.9, 50, seed=11)
    temperatures = {"greedy": [0.0] * 6, "sampled": [1.0] * 6, "mixed": [0.0, 1.0] * 3}[others]
    theirs = [SamplingParams(t, seed=11 if r == 0 else r) for r, t in enumerate(temperatures)]
    for index in range(10):
        alone = sample(own[None], [mine], [index]).item()
        for place in (0, 3, 6):
            logits = torch.cat([company[:place], own[None], company[place:]])
            tokens = sample(logits, [*theirs[:place], mine, *theirs[place:]], [index] * 7)
            assert tokens[place].item() == alone


@pytest.mark.parametrize("seed", [-1, 2**31, 2**63, 2**64 + 5])
def test_any_whole_number_is_a_seed(seed):
    tokens = [sample(logits_of(FOUR)[None], [SamplingParams(1.0, seed=seed)], [i]).item() for i in range(200)]
    assert set(tokens) == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_greedy_token_is_the_first_of_the_likeliest(dtype):
    """bf16 logits often tie; NaN counts as the largest, as torch has it."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 3000))).to(dtype)
    logits[3, [7, 900]] = 100
    logits[4] = 0
    logits[5, 17] = float("nan")
    tokens = sample(logits, [SamplingParams(temperature=0.0)] * 50, [0] * 50)
    largest = logits.amax(dim=-1)
    assert tokens[[3, 4, 5]].tolist() == [7, 0, 17]
    for row in (row for row in range(50) if row != 5):
        assert int(tokens[row]) == int(torch.nonzero(logits[row] == largest[row])[0])
