"""A pass over some blocks, over some positions or with a key-value cache equals the whole pass."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.model.families.gpt2 import GPT2
from probekit.model.generation import KeyValueCache
from tests.model.gpt2_sites import site_names
from tests.model.reference import TINY, pad, ragged


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=1).double().requires_grad_(False)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    side=st.sampled_from(["left", "right"]),
    cuts=st.lists(st.integers(1, 8), max_size=3),
    explicit=st.booleans(),
)
def test_consecutive_passes_give_the_logits_of_one_pass(model, lengths, side, cuts, explicit):
    tokens, mask = pad(ragged(TINY, lengths, seed=3), side, filler=5)
    width = tokens.shape[1]
    edges = [0]
    for cut in sorted({cut for cut in cuts if cut < width}):
        parts_of_rows = mask[:, edges[-1] : cut], mask[:, cut:]
        if all(bool(part.any(-1).all()) for part in parts_of_rows):  # others no pass reads
            edges.append(cut)
    past, parts = KeyValueCache(), []
    sites = ["blocks.*.attn.hook_pattern"]
    watch = {"tap": lambda site, value: value, "sites": sites} if explicit else {}
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
        raise KeyboardInterrupt

    watch = {"sites": [("resid_post", 2)], "past": past}
    if stops_early:
        model(tokens[:, :3], tap=lambda _, value: value, logits=False, **watch)
    else:
        with pytest.raises(KeyboardInterrupt):
            model(tokens[:, :3], tap=fail, **watch)
    assert past.length == 6
    rest = model(tokens[:, 6:], past=past)
    torch.testing.assert_close(torch.cat([first, rest], 1), model(tokens))


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (None, (3, 1)),
        (None, (2, 4)),
        *((change, (2, 1)) for change in ({}, {"n_layer": 2}, {"n_layer": 6}, {"n_head": 7})),
    ],
    ids=str,
)
def test_other_rows_more_tokens_and_another_model_are_refused(model, refused, change, shape):
    past = KeyValueCache()
    model(torch.ones(2, 20, dtype=torch.int64), past=past)
    if change is not None:
        model = GPT2(replace(TINY, **change), seed=2).double()
    refused(model, torch.ones(shape, dtype=torch.int64), past=past)
    assert past.length == 20


LENGTHS = [5, 3, 8]


def test_the_start_after_the_last_block_returns_the_positions(model):
    resid = torch.randn(2, 5, TINY.n_embd).double()
    found = model.resume(resid, 4, at=torch.tensor([[1], [3]]))
    assert torch.equal(found[:, 0], resid[torch.arange(2), torch.tensor([1, 3])])


def test_taps_work_after_the_start(model):
    resid, seen = torch.randn(2, 5, TINY.n_embd).double(), {}
    model.resume(resid, 2, tap=seen.setdefault, sites=["blocks.2.hook_resid_pre"])
    assert torch.equal(seen["blocks.2.hook_resid_pre"], resid)


AT = torch.tensor([[4, 0], [1, 2], [7, 7]])
WIDTH = max(LENGTHS)


def places(side):
    """AT, counted from the padded left."""
    shift = [[WIDTH - n] if side == "left" else [0] for n in LENGTHS]
    return AT + torch.tensor(shift)


def pick(value, site, at):
    """A full value at the places of each row."""
    if "attn_scores" in site or "pattern" in site:
        return torch.stack([v[:, p] for v, p in zip(value, at, strict=True)])
    return torch.stack([v[p] for v, p in zip(value, at, strict=True)])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("explicit", [True, False])
def test_requested_positions_equal_those_of_the_full_block(model, side, explicit):
    ids, mask = pad(ragged(TINY, LENGTHS), side, filler=7)
    at = places(side)
    names, skipped = site_names(TINY.n_layer, on_request=True), ("attn_scores", "pattern")
    sites = [name for name in names if explicit or not name.endswith(skipped)]
    seen, expected = {}, {}
    logits = model(ids, mask, seen.setdefault, sites, at=at)
    whole = model(ids, mask, expected.setdefault, sites)
    first = sites.index(f"blocks.{TINY.n_layer - 1}.attn.hook_v") + 1
    for site in sites[:first]:
        assert torch.equal(seen[site], expected[site]), site
    for site in sites[first:]:
        torch.testing.assert_close(seen[site], pick(expected[site], site, at), msg=site)
    torch.testing.assert_close(logits, pick(whole, "logits", at))


def test_late_additions_are_not_lost_to_rounding():
    """bfloat16 has 8 bits of precision: adding 0.5 to 300 would be lost."""
    model = GPT2(TINY, seed=3).requires_grad_(False)
    model.wpe.weight.fill_(300.0)
    model.h[0].attn.c_proj.bias.fill_(0.5)
    _, cache = model.to(torch.bfloat16).run_with_cache(torch.tensor([[3, 1]]))
    added = cache["resid_mid", 0] - cache["resid_pre", 0]
    torch.testing.assert_close(added, cache["attn_out", 0].float(), rtol=0, atol=1e-4)
    assert added.mean() > 0.4
