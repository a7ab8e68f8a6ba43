"""Generation: the choice of a token, the reference, ragged prompts, stop strings, streams."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import TopKLogitsWarper, TopPLogitsWarper

from probekit.errors import DataError
from probekit.model import generation
from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import Decoding, Recording, continue_texts, generate
from probekit.model.text.tokenizer import END_OF_TEXT, Tokenizer
from tests.model.reference import TINY, our_model, pad, ragged, reference_model
from tests.stored import each_line, each_row


def logits(rows=5, size=97, seed=0):
    return 3 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.parametrize(
    ("ours", "reference", "limits"),
    [
        (generation.keep_top_k, TopKLogitsWarper, [1, 3, 97, 500]),
        (generation.keep_top_p, TopPLogitsWarper, [0.01, 0.3, 0.9, 0.999, 1.0]),
    ],
)
def test_top_k_and_top_p_equal_the_reference(ours, reference, limits):
    for limit in limits:
        assert torch.equal(ours(logits(), limit), reference(limit)(None, logits()))


@each_row("options")
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


def test_prompts_seeds_and_samples_have_independent_generators():
    prompts = [[5], [5, 0], [0, 5], [0, 0, 5], [7], [0, 7], [1, 7]]
    of_seeds = [Decoding(1, temperature=1.0, num_samples=3, seed=s) for s in (0, 1, 2**32 - 1)]
    first = [generator.random() for how in of_seeds for generator in how.generators(prompts)]
    assert len(np.unique(first)) == len(first) == 3 * 3 * len(prompts)
    assert Decoding(1).generators(prompts) == []  # greedy decoding needs none


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
    "options",
    [
        *({"temperature": value} for value in (-0.1, float("nan"), float("inf"), "hot")),
        *({"top_k": value} for value in (0, 2.5)),
        *({"top_p": value} for value in (0, 1.01)),
        {"num_samples": 0},
        *({"seed": value} for value in (-1, 2**32)),
        *({"max_new_tokens": value} for value in (0, True)),
    ],
    ids=str,
)
def test_out_of_range_parameters_are_refused_by_name(options, refused):
    refused(Decoding, **{"max_new_tokens": 3} | options)


@pytest.fixture(scope="module")
def model():
    """A float64 model of random weights so wide that its greedy texts vary."""
    return our_model(reference_model(TINY, torch.float64), TINY)


@pytest.mark.parametrize("slide", [False, True])
def test_samples_in_a_batch_equal_those_of_single_prompts(model, slide):
    prompts = ragged(TINY, [6, 2, 4])
    tokens, mask = pad(prompts, "right", filler=5)
    options = {"temperature": 1.0, "num_samples": 3, "seed": 4, "slide": slide}
    n = 30 if slide else 8
    together = generate(model, tokens, n, mask=mask, **options)
    assert together.shape == (9, n)
    alone = [generate(model, prompt[None], n, **options) for prompt in prompts]
    assert torch.equal(together, torch.cat(alone))
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
    whole, last = (generate(model, ids, 3, slide=True) for ids in (long, long[:, -23:]))
    assert torch.equal(whole, last)


def test_a_row_that_has_ended_has_no_more_tokens_and_the_others_go_on(model):
    prompts = torch.stack(ragged(TINY, [4, 4, 4]))
    whole = generate(model, prompts, 12, temperature=1.0)
    ends = [3, 9, 6]
    last = [whole[row, : end + 1].tolist() for row, end in enumerate(ends)]
    stopped = generate(model, prompts, 12, temperature=1.0, stop=lambda ids: list(ids) in last)
    assert stopped.shape == (3, 10)
    for row, end in enumerate(ends):
        assert torch.equal(stopped[row, : end + 1], whole[row, : end + 1])
        assert (stopped[row, end + 1 :] == generation.ENDED).all()


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
    record, sites = Recording(), ["*", "blocks.*.hook_result", "blocks.1.attn.hook_z[head=2]"]
    new = generate(model, tokens, 9, mask=mask, tap=record, sites=sites)
    cache = record.cache(TINY.sites)
    whole = torch.cat([tokens, new], dim=1)[:, :-1]
    whole_mask = torch.cat([mask, torch.ones(2, 8, dtype=torch.bool)], dim=1)
    _, expected = model.run_with_cache(whole, sites, whole_mask)
    assert list(cache) == list(expected)
    for site, value in expected.items():
        torch.testing.assert_close(cache[site], value, rtol=1e-9, atol=1e-12, msg=site)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_memory_does_not_grow_with_max_new_tokens(model, temperature):
    prompt = torch.stack(ragged(TINY, [5]))
    short = generate(model, prompt, 3, temperature=temperature, slide=True)
    how = Decoding(10**12, temperature=temperature, slide=True)
    for expected, step in zip(short.T, generation.new_tokens(model, prompt, how), strict=False):
        assert torch.equal(step, expected)


def test_an_iterator_of_sites_is_used_at_every_step(model):
    record = Recording()
    prompt = torch.stack(ragged(TINY, [3]))
    generate(model, prompt, 4, tap=record, sites=iter(["hook_embed"]))
    assert record.cache(TINY.sites)["hook_embed"].shape == (1, 6, 21)


def ones(*shape):
    return torch.ones(shape, dtype=torch.int64)


@each_line("call")
def test_impossible_prompts_and_stop_strings_are_refused(model, mini, tokenizer, refused, call):
    def continued(prompts, **options):
        continue_texts(mini, tokenizer, prompts, Decoding(60), bos=False, **options)

    refused(eval, call, globals() | {"model": model, "continued": continued})


def test_padding_does_not_count_for_the_context(model):
    tokens, mask = pad(ragged(TINY, [3, 1]), "left", filler=0)
    wide = torch.cat([torch.zeros(2, 30, dtype=torch.int64), tokens], dim=1)
    wide_mask = torch.cat([torch.zeros(2, 30, dtype=torch.bool), mask], dim=1)
    expected = generate(model, tokens, 15, mask=mask)
    assert torch.equal(generate(model, wide, 15, mask=wide_mask), expected)


PROMPTS = ["She said that", "The old man", "In"]
DRAWN = {"temperature": 0.9, "top_p": 0.95, "num_samples": 2, "seed": 1}


@pytest.fixture(scope="module")
def mini():
    return GPT2.from_pretrained("mini")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_pretrained("mini")


@pytest.mark.parametrize("options", [{}, DRAWN], ids=["greedy", "drawn"])
def test_a_text_ends_before_its_stop_string(mini, tokenizer, options):
    how = Decoding(40, **options)
    whole = continue_texts(mini, tokenizer, PROMPTS, how, bos=False)
    stop = whole[1][0].text[7:10]  # three characters within one of them
    stopped = continue_texts(mini, tokenizer, PROMPTS, how, bos=False, stop=["\0", stop])
    assert stopped[1][0].stopped_by == stop
    for before, after in zip(chain(*whole), chain(*stopped), strict=True):
        assert after.text == before.text.partition(stop)[0]
        assert after.stopped_by == (stop if stop in before.text else None)
        assert after.ids == before.ids[: len(after.ids)]
        assert after.text in tokenizer.decode(after.ids)
        assert after.text not in tokenizer.decode(after.ids[:-1]) or not after.text


@pytest.mark.parametrize("stop", [[], [" of"], ["old", "n of his"], [" great deal of "]])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.6, "seed": 2}], ids=["greedy", "drawn"])
def test_a_stream_is_the_text_in_pieces(mini, tokenizer, stop, options):
    how = Decoding(60, **options)
    [[whole]] = continue_texts(mini, tokenizer, PROMPTS[1:2], how, bos=False, stop=stop)
    pieces = list(generation.stream_text(mini, tokenizer, PROMPTS[1], how, bos=False, stop=stop))
    assert "".join(pieces) == whole.text
    assert all(pieces)
    assert len(pieces) > 1


def test_an_incomplete_character_is_held_back(tokenizer, monkeypatch):
    """At a high temperature bytes that are no text come up too; they are shown once."""
    ids = tokenizer.encode("Größe ✓ ✓", bos=False).ids.tolist()
    halves = [n for n in range(len(ids)) if "\ufffd" in tokenizer.decode(ids[: n + 1])]
    assert halves, "the text must be cut within a character"
    pieces = list(_stream_of(tokenizer, ids, monkeypatch, stop=[]))
    assert "".join(pieces) == "Größe ✓ ✓"
    assert not any("\ufffd" in piece for piece in pieces)
    cut_off = list(_stream_of(tokenizer, ids[: halves[0] + 1], monkeypatch, stop=[]))
    assert "".join(cut_off) == tokenizer.decode(ids[: halves[0] + 1])


def test_the_end_of_a_text_in_the_model_s_own_word_ends_it(tokenizer, monkeypatch):
    ids = [*tokenizer.encode("So it ends", bos=False).ids.tolist(), tokenizer.bos_id, 5, 6]
    pieces = list(_stream_of(tokenizer, ids, monkeypatch, stop=[END_OF_TEXT]))
    assert "".join(pieces) == "So it ends"


def _stream_of(tokenizer, ids, monkeypatch, stop):
    """Stream of a model whose chosen tokens are replaced by these."""
    says = iter(ids)
    monkeypatch.setattr(Decoding, "choose", lambda *_: torch.tensor([next(says)]))
    mini = GPT2.from_pretrained("mini")
    return generation.stream_text(mini, tokenizer, "x", Decoding(len(ids)), bos=False, stop=stop)


def test_a_stop_string_is_found_across_tokens_and_bytes(tokenizer):
    stop = generation.StopStrings(tokenizer, ["öß", "end"])
    ids = tokenizer.encode("Größe", bos=False).ids.tolist()
    assert [stop(ids[: n + 1]) for n in range(len(ids))].count(True) >= 1
    assert stop.cut("the bend, Größe") == "the b"
    assert stop.n_final("a be") == 3
    assert stop.n_final("a bend") == 3
    assert not generation.StopStrings(tokenizer, [])(ids)


def test_beginning_of_text_lets_a_prompt_be_empty(mini, tokenizer):
    [[only]] = continue_texts(mini, tokenizer, [""], Decoding(5), bos=True)
    assert len(only.ids) == 5


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_tokens_equal_the_reference_over_200_steps(batch):
    config = replace(TINY, n_positions=260)
    reference = reference_model(config, torch.float64)
    prompts = torch.stack(ragged(TINY, [40] * batch))
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "max_new_tokens": 200}
    mask = torch.ones_like(prompts)
    expected = reference.generate(prompts, attention_mask=mask, **options)[:, 40:]
    ours = generate(our_model(reference, config), prompts, 200)
    assert torch.equal(ours, expected)
    assert len(ours[0].unique()) > 5, "a text of one token would equal many a wrong one"
