"""Generation: against the reference, ragged prompts, samples, taps, the context's end, refusals."""

from dataclasses import replace

import pytest
import torch

from probekit.errors import ConfigError, DataError
from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import ENDED, Decoding, generate, new_tokens
from probekit.model.passes.cache import Recording
from tests.model.reference import TINY, our_model, pad, ragged, reference_model


@pytest.fixture(scope="module")
def model():
    """A float64 model of random weights so wide that its greedy texts vary."""
    return our_model(reference_model(TINY, torch.float64), TINY)


LONG = replace(TINY, n_positions=260)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_tokens_equal_the_reference_over_200_steps(batch):
    reference = reference_model(LONG, torch.float64)
    prompts = torch.stack(ragged(TINY, [40] * batch))
    expected = reference.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=200,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    ours = generate(our_model(reference, LONG), prompts, 200)
    assert torch.equal(ours, expected[:, 40:])
    assert len(ours[0].unique()) > 5, "a text of one token would equal many a wrong one"


def test_greedy_tokens_are_those_of_full_passes(model):
    tokens = ragged(TINY, [4])[0][None]
    for _ in range(19):
        tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(generate(model, tokens[:, :4], 19), tokens[:, 4:])


@pytest.mark.parametrize("side", ["left", "right"])
def test_ragged_prompts_equal_one_at_a_time(model, side):
    prompts = ragged(TINY, [6, 2, 4])
    tokens, mask = pad(prompts, side, filler=5)
    together = generate(model, tokens, 8, mask=mask)
    for row, prompt in enumerate(prompts):
        assert together[row].tolist() == generate(model, prompt[None], 8)[0].tolist()


@pytest.mark.parametrize("slide", [False, True])
def test_samples_in_a_batch_equal_those_of_single_prompts(model, slide):
    prompts = ragged(TINY, [6, 2, 4])
    tokens, mask = pad(prompts, "right", filler=5)
    options = {"temperature": 1.0, "num_samples": 3, "seed": 4, "slide": slide}
    n = 30 if slide else 8
    together = generate(model, tokens, n, mask=mask, **options)
    assert together.shape == (9, n)
    for row, prompt in enumerate(prompts):
        assert torch.equal(
            together[3 * row : 3 * row + 3], generate(model, prompt[None], n, **options)
        )
    assert len({tuple(row) for row in together.tolist()}) == 9
    first = generate(model, prompts[0][None], n, **options | {"num_samples": 1})
    assert torch.equal(first, together[:1])


def test_sliding_drops_the_earliest_tokens(model):
    tokens = ragged(TINY, [10])[0][None]
    slid = generate(model, tokens, 30, slide=True)
    for _ in range(30):
        window = tokens[:, -TINY.n_positions :]
        tokens = torch.cat([tokens, model(window)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(slid, tokens[:, 10:])
    long = torch.stack(ragged(TINY, [40]))
    assert torch.equal(
        generate(model, long, 3, slide=True), generate(model, long[:, -23:], 3, slide=True)
    )


def test_a_row_that_has_ended_has_no_more_tokens_and_the_others_go_on(model):
    prompts = torch.stack(ragged(TINY, [4, 4, 4]))
    whole = generate(model, prompts, 12, temperature=1.0)
    ends = [3, 9, 6]
    last = [whole[row, : end + 1].tolist() for row, end in enumerate(ends)]
    stopped = generate(model, prompts, 12, temperature=1.0, stop=lambda ids: list(ids) in last)
    assert stopped.shape == (3, 10)
    for row, end in enumerate(ends):
        assert torch.equal(stopped[row, : end + 1], whole[row, : end + 1])
        assert (stopped[row, end + 1 :] == ENDED).all()


@pytest.mark.parametrize("site", ["blocks.1.hook_resid_post", "blocks.2.attn.hook_pattern"])
def test_a_steering_vector_is_added_at_every_step(model, site):
    def steer(name, value):
        return value + torch.linspace(-2, 3, 21) if "resid" in name else value * 0.3

    prompts = torch.stack(ragged(TINY, [4, 4]))
    steered, tokens = generate(model, prompts, 12, tap=steer, sites=[site]), prompts
    for _ in range(12):
        logits = model(tokens, tap=steer, sites=[site])
        tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(steered, tokens[:, 4:])
    assert not torch.equal(steered, generate(model, prompts, 12))


def test_a_recording_equals_the_activations_of_one_pass(model):
    prompts = ragged(TINY, [5, 2])
    tokens, mask = pad(prompts, "left", filler=1)
    record = Recording()
    new = generate(model, tokens, 9, mask=mask, tap=record, sites=["*", "blocks.*.hook_result"])
    cache = record.cache(TINY.sites)
    whole = torch.cat([tokens, new], dim=1)[:, :-1]
    whole_mask = torch.cat([mask, torch.ones(2, 8, dtype=torch.bool)], dim=1)
    _, expected = model.run_with_cache(whole, ["*", "blocks.*.hook_result"], whole_mask)
    assert list(cache) == list(expected)
    for site, value in expected.items():
        torch.testing.assert_close(cache[site], value, rtol=1e-9, atol=1e-12, msg=site)


def test_a_recording_does_not_slide(model):
    with pytest.raises(DataError, match="Recording joins consecutive passes"):
        generate(model, torch.stack(ragged(TINY, [5])), 30, tap=Recording(), slide=True)


def test_a_tap_that_returns_nan_is_named_as_the_likely_cause(model):
    with pytest.raises(DataError, match=r"prompt 1, sample 1 are not finite.*a tap"):
        generate(
            model,
            torch.stack(ragged(TINY, [5, 5])),
            3,
            temperature=1.0,
            tap=lambda site, value: value * torch.nan,
            sites=["blocks.1.hook_resid_mid"],
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_memory_does_not_grow_with_max_new_tokens(model, temperature):
    prompt = torch.stack(ragged(TINY, [5]))
    short = generate(model, prompt, 3, temperature=temperature, slide=True)
    how = Decoding(10**12, temperature=temperature, slide=True)
    for expected, step in zip(short.T, new_tokens(model, prompt, how), strict=False):
        assert torch.equal(step, expected)


def test_an_iterator_of_sites_is_used_at_every_step(model):
    record = Recording()
    prompt = torch.stack(ragged(TINY, [3]))
    generate(model, prompt, 4, tap=record, sites=iter(["hook_embed"]))
    assert record.cache(TINY.sites)["hook_embed"].shape == (1, 6, 21)


def test_a_model_in_training_does_not_generate():
    with pytest.raises(ConfigError, match=r"training mode.*model\.eval\(\)"):
        generate(GPT2(TINY).train(), torch.ones(1, 2, dtype=torch.int64), 3)


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
        ({"top_p": 1.5}, ConfigError, "top_p"),
        ({"num_samples": 0}, ConfigError, "num_samples"),
        ({"seed": -3}, ConfigError, "seed"),
        ({"max_new_tokens": 21}, DataError, "context of 23: request at most 20 new ones"),
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


def test_padding_does_not_count_for_the_context(model):
    tokens, mask = pad(ragged(TINY, [3, 1]), "left", filler=0)
    wide = torch.cat([torch.zeros(2, 30, dtype=torch.int64), tokens], dim=1)
    wide_mask = torch.cat([torch.zeros(2, 30, dtype=torch.bool), mask], dim=1)
    expected = generate(model, tokens, 15, mask=mask)
    assert torch.equal(generate(model, wide, 15, mask=wide_mask), expected)


def test_an_empty_batch_is_refused(model):
    with pytest.raises(DataError, match="at least one prompt"):
        generate(model, torch.ones(0, 3, dtype=torch.int64), 2)
