"""The choice of a token: against transformers' own filters, and by counting draws."""

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import TopKLogitsWarper, TopPLogitsWarper

from probekit.errors import ConfigError, DataError
from probekit.model.generation import Decoding, keep_top_k, keep_top_p


def logits(rows=5, size=97, seed=0):
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize("k", [1, 3, 97, 500])
def test_top_k_equals_the_reference(k):
    assert torch.equal(keep_top_k(logits(), k), TopKLogitsWarper(k)(None, logits()))


@pytest.mark.parametrize("p", [0.01, 0.3, 0.9, 0.999])
def test_top_p_equals_the_reference(p):
    assert torch.equal(keep_top_p(logits(), p), TopPLogitsWarper(p)(None, logits()))


def test_the_nucleus_is_the_fewest_that_sum_to_p():
    kept = keep_top_p(logits(), 0.7).softmax(-1) > 0
    probabilities = logits().softmax(-1)
    for row, keep in zip(probabilities, kept, strict=True):
        assert row[keep].sum() >= 0.7
        assert row[keep].sum() - row[keep].min() < 0.7
        assert row[keep].min() > row[~keep].max()
    assert torch.equal(keep_top_p(logits(), 1.0), logits())


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.6},
        {"temperature": 1.3, "top_k": 4},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 2.0, "top_k": 6, "top_p": 0.7},
    ],
    ids=str,
)
def test_tokens_are_sampled_with_their_probabilities(options):
    row = logits(rows=1, size=9) / 3
    expected = row / options["temperature"]
    if "top_k" in options:
        expected = TopKLogitsWarper(options["top_k"])(None, expected)
    if "top_p" in options:
        expected = TopPLogitsWarper(options["top_p"])(None, expected)
    n = 20_000
    draws = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    counts = Decoding(1, **options).choose(row.expand(n, -1), draws).bincount(minlength=9)
    probabilities = expected.softmax(-1)[0]
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    assert possible.sum() > 1
    assert stats.chisquare(counts[possible], n * probabilities[possible]).pvalue > 1e-3


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
def test_the_extreme_draws_take_a_token_that_is_possible(draw):
    row = torch.tensor([[-torch.inf, 2.0, 1.0, -torch.inf]])
    expected = 1 if draw == 0 else 2
    for options in ({}, {"top_k": 2}, {"top_p": 0.99}):
        how = Decoding(1, temperature=1.0, **options)
        assert how.choose(row, torch.tensor([draw], dtype=torch.float64)).item() == expected


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e300])
def test_an_extreme_temperature_makes_no_nan(temperature):
    draws = torch.linspace(0, 0.999, 5).double()
    chosen = Decoding(1, temperature=temperature).choose(logits(), draws)
    assert ((chosen >= 0) & (chosen < 97)).all()
    if temperature < 1:
        assert torch.equal(chosen, logits().argmax(-1))


def test_samples_depend_only_on_seed_prompt_and_index():
    alone = draws(4, [[5, 6]], num_samples=2, seed=3)
    beside = draws(9, [[7], [5, 6], [5]], num_samples=3, seed=3)
    assert np.array_equal(alone, beside[3:5, :4])
    assert len(np.unique(beside)) == 9 * 9
    assert not np.array_equal(alone, draws(4, [[5, 6]], num_samples=2, seed=4))


def draws(n, prompts, **options):
    generators = Decoding(1, temperature=1.0, **options).generators(prompts)
    return np.stack([generator.random(n) for generator in generators])


def test_prompts_seeds_and_samples_have_independent_generators():
    prompts = [[5], [5, 0], [0, 5], [0, 0, 5], [7], [0, 7], [1, 7]]
    first = np.stack([draws(1, prompts, num_samples=3, seed=s) for s in (0, 1, 2**32 - 1)])
    assert len(np.unique(first)) == 3 * 3 * len(prompts)


def test_greedy_decoding_needs_no_random_numbers():
    assert Decoding(1).generators([[5, 6]]) == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_are_no_token(number, temperature):
    bad = logits()
    bad[3, slice(None) if number == -torch.inf else slice(96, 97)] = number
    how = Decoding(1, temperature=temperature, num_samples=2)
    with pytest.raises(DataError, match=r"prompt 2, sample 2 are not finite.*tap.*float16"):
        how.choose(bad, torch.full((5,), 0.5))
    bad[3] = torch.tensor([0.0] + [-torch.inf] * 96)
    assert how.choose(bad, torch.full((5,), 0.5))[3] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 0}, "top_k must be an integer of at least 1, not 0"),
        ({"top_k": 2.5}, "top_k"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1, not 1.01"),
        ({"num_samples": 0}, "num_samples"),
        ({"seed": -1}, "seed must be an integer from 0 to 4294967295, not -1"),
        ({"seed": 2**32}, "seed must be an integer from 0 to 4294967295"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": True}, "max_new_tokens"),
    ],
)
def test_out_of_range_parameters_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        Decoding(**{"max_new_tokens": 3} | options)
