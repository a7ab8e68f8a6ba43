"""The key-value cache gives the same results as a pass over the whole text."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import DataError
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.context import KeyValueCache
from tests.model.reference import TINY, pad, ragged


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=1).double().requires_grad_(False)


def look(site, value):
    return value


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    side=st.sampled_from(["left", "right"]),
    cuts=st.lists(st.integers(1, 8), max_size=3),
    explicit=st.booleans(),
)
def test_consecutive_passes_give_the_logits_of_one_pass(lengths, side, cuts, explicit):
    model = GPT2(TINY, seed=1).double().requires_grad_(False)
    tokens, mask = pad(ragged(TINY, lengths, seed=3), side, filler=5)
    width = tokens.shape[1]
    edges = [0]
    for cut in sorted({cut for cut in cuts if cut < width}):
        parts_of_rows = mask[:, edges[-1] : cut], mask[:, cut:]
        if all(bool(part.any(-1).all()) for part in parts_of_rows):  # others no pass reads
            edges.append(cut)
    past, parts = KeyValueCache(), []
    watch = {"tap": look, "sites": ["blocks.*.attn.hook_pattern"]} if explicit else {}
    for start, end in pairwise([*edges, width]):
        parts.append(model(tokens[:, start:end], mask[:, start:end], past=past, **watch))
    whole = model(tokens, mask)
    torch.testing.assert_close(torch.cat(parts, 1)[mask], whole[mask], rtol=1e-9, atol=1e-12)
    assert past.length == width


def test_only_the_requested_new_positions_are_computed(model):
    tokens = torch.stack(ragged(TINY, [9, 9]))
    past, whole = KeyValueCache(), model(tokens)
    model(tokens[:, :4], past=past)
    at = torch.tensor([[4], [2]])
    asked = model(tokens[:, 4:], at=at, past=past)
    torch.testing.assert_close(asked[:, 0], whole[torch.arange(2), 4 + at[:, 0]])


def test_keys_and_values_changed_by_a_tap_are_cached(model):
    tokens = torch.stack(ragged(TINY, [8]))

    def change(site, value):
        return value * 0.5 + 0.1

    sites = ["blocks.1.attn.hook_k", "blocks.2.attn.hook_v"]
    whole = model(tokens, tap=change, sites=sites)
    past = KeyValueCache()
    model(tokens[:, :5], tap=change, sites=sites, past=past)
    rest = model(tokens[:, 5:], tap=change, sites=sites, past=past)
    torch.testing.assert_close(rest, whole[:, 5:])
    plain = KeyValueCache()
    model(tokens[:, :5], past=plain)
    assert not torch.allclose(model(tokens[:, 5:], tap=change, sites=sites, past=plain), rest)


@pytest.mark.parametrize("stops_early", [True, False])
def test_an_incomplete_pass_leaves_the_cache_unchanged(model, stops_early):
    tokens = torch.stack(ragged(TINY, [9, 9]))
    past = KeyValueCache()
    first = model(tokens[:, :6], past=past)

    def fail(site, value):
        if stops_early:
            return value
        raise KeyboardInterrupt

    if stops_early:
        model(tokens[:, :3], tap=fail, sites=[("resid_post", 2)], logits=False, past=past)
    else:
        with pytest.raises(KeyboardInterrupt):
            model(tokens[:, :3], tap=fail, sites=[("resid_post", 2)], past=past)
    assert past.length == 6
    rest = model(tokens[:, 6:], past=past)
    torch.testing.assert_close(torch.cat([first, rest], 1), model(tokens))


def test_mismatched_inputs_are_refused(model):
    past = KeyValueCache()
    model(torch.ones(2, 20, dtype=torch.int64), past=past)
    with pytest.raises(DataError, match="holds 2 rows, the tokens have 3"):
        model(torch.ones(3, 1, dtype=torch.int64), past=past)
    with pytest.raises(DataError, match="24 tokens are more than the context of 23"):
        model(torch.ones(2, 4, dtype=torch.int64), past=past)
    assert past.length == 20


@pytest.mark.parametrize("change", [{}, {"n_layer": 2}, {"n_layer": 6}, {"n_head": 7}], ids=str)
def test_the_cache_of_another_model_is_refused(model, change):
    past, other = KeyValueCache(), GPT2(replace(TINY, **change), seed=2).double()
    model(torch.ones(1, 3, dtype=torch.int64), past=past)
    with pytest.raises(DataError, match="filled by another model"):
        other(torch.ones(1, 1, dtype=torch.int64), past=past)
    assert past.length == 3


def test_in_float32_one_token_at_a_time_is_within_1e_4_of_one_pass():
    model = GPT2.from_pretrained("mini")
    tokens = torch.randint(8192, (3, 40), generator=torch.Generator().manual_seed(2))
    past, whole = KeyValueCache(), model(tokens)
    steps = [model(tokens[:, n : n + 1], past=past) for n in range(40)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-4)
