"""Ablated passes equal whole passes with the same edit."""

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError, DataError
from probekit.interventions.edits import replace, run_edited, zero
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching import ablated_values
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from tests.model.reference import TINY

HEAD = SiteSelection("blocks.1.attn.hook_z", head=1)
ANSWER, WRONG = torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7, 8])
MEASURE = AnswerMeasure(ANSWER, WRONG)
AT = torch.tensor([2, 1, 3, 0])


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=3).requires_grad_(False)


def batch(n_tokens=5):
    ids = torch.randint(
        0, TINY.vocab_size, (4, n_tokens), generator=torch.Generator().manual_seed(1)
    )
    return TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(4, n_tokens, 2))


def differences(logits):
    rows = torch.arange(4)
    return (logits[rows, -1, ANSWER] - logits[rows, -1, WRONG]).double().detach().numpy()


def ablated(model, replacement, **options):
    [found] = ablated_values(model, batch(), [MEASURE], [HEAD], replacement, **options)
    np.testing.assert_allclose(found.base, differences(model(batch())), atol=1e-5)
    ((_, values),) = found.patched.items()
    return values


@pytest.mark.parametrize("at", [None, AT])
def test_zero(model, at):
    expected = differences(run_edited(model, batch(), [(HEAD, zero(at))]))
    found = ablated(model, "zero", at="all" if at is None else at)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("at", [None, AT])
def test_the_mean_of_other_texts(model, at):
    others = batch(7)
    _, cache = model.run_with_cache(others, [HEAD.text])
    values = cache[HEAD.text]
    own = values if at is None else values[torch.arange(4), at]
    mean = own.reshape(-1, own.shape[-1]).mean(0)
    expected = differences(run_edited(model, batch(), [(HEAD, replace(mean, at))]))
    found = ablated(model, "mean", at="all" if at is None else at, averaged=(others, at))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("at", [None, AT])
def test_the_activations_of_another_text(model, at):
    """Each row has the value of a whole pass with the activations of some other row."""
    found = ablated(model, "resample", at="all" if at is None else at, seed=5)
    _, cache = model.run_with_cache(batch(), [HEAD.text])
    for row in range(4):
        options = []
        for donor in set(range(4)) - {row}:
            given = cache[HEAD.text].clone()
            if at is None:
                given[row] = given[donor]
            else:
                given[row, at[row]] = given[donor, at[donor]]
            options.append(
                differences(run_edited(model, batch(), [(HEAD, replace(given, at))]))[row]
            )
        assert np.abs(np.array(options) - found[row]).min() < 1e-5


def test_texts_without_another_of_their_length_are_an_error(model):
    ids = batch().ids
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, -1] = False
    texts = TokenBatch(ids, mask, torch.zeros(4, 5, 2))
    with pytest.raises(DataError, match=r"1 text of 4 have no other.*row 0 with 4 tokens"):
        ablated_values(model, texts, [MEASURE], [HEAD], "resample")


def test_a_mean_is_of_a_part_of_the_residual_stream(model):
    pattern = SiteSelection("blocks.1.attn.hook_pattern")
    with pytest.raises(ConfigError, match="not a part of the residual stream"):
        ablated_values(model, batch(), [MEASURE], [pattern], "mean")
