"""Generation: greedy against the reference, ragged prompts, seeds, refusals."""

import pytest
import torch

from probekit.errors import ConfigError, DataError
from probekit.model.generate import generate
from probekit.model.gpt2 import GPT2
from tests.model.reference import TINY, our_model, pad, ragged, reference_model


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=2).double()


def test_greedy_tokens_equal_the_reference():
    reference = reference_model(TINY, torch.float64)
    prompt = ragged(TINY, [4])[0][None]
    expected = reference.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=15, do_sample=False,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    ours = generate(our_model(reference, TINY), prompt, 15)
    assert ours.tolist() == expected[:, 4:].tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_prompts_equal_one_at_a_time(model, side):
    prompts = ragged(TINY, [6, 2, 4])
    tokens, mask = pad(prompts, side, filler=5)
    together = generate(model, tokens, 8, mask=mask)
    for row, prompt in enumerate(prompts):
        assert together[row].tolist() == generate(model, prompt[None], 8)[0].tolist()


def test_draws_are_seeded_and_top_k_one_is_greedy(model):
    prompt = ragged(TINY, [4])[0][None]
    draw = [generate(model, prompt, 12, temperature=1.0, seed=s).tolist() for s in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
    greedy = generate(model, prompt, 12)
    assert torch.equal(generate(model, prompt, 12, temperature=2.0, top_k=1), greedy)


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"temperature": -1}, ConfigError, "temperature"),
        ({"temperature": float("nan")}, ConfigError, "temperature"),
        ({"top_k": 0}, ConfigError, "top_k"),
        ({"max_new_tokens": 0}, ConfigError, "max_new_tokens"),
        ({"max_new_tokens": 21}, DataError, "context of 23"),
    ],
)
def test_bad_options_are_refused_by_name(model, options, error, name):
    with pytest.raises(error, match=name):
        generate(model, torch.ones(1, 4, dtype=torch.int64), **{"max_new_tokens": 2} | options)


def test_a_mask_of_another_shape_is_refused_and_not_cut_to_fit(model):
    tokens = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    for shape in ((2, 3), (1, 4), (2, 5)):
        with pytest.raises(DataError, match="mask has shape"):
            generate(model, tokens, 2, mask=torch.ones(shape))
