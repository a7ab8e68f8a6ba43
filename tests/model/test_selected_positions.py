"""A last block restricted to some positions equals the full block at these positions."""

import pytest
import torch

from probekit.model.families.gpt2 import GPT2
from tests.model.gpt2_sites import site_names
from tests.model.reference import TINY, pad, ragged

AT = torch.tensor([[4, 0], [1, 2], [7, 7]])
LENGTHS = [5, 3, 8]
WIDTH = max(LENGTHS)


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=3).requires_grad_(False)


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
    sites = [
        name
        for name in site_names(TINY.n_layer, on_request=True)
        if explicit or not name.endswith(("attn_scores", "pattern"))
    ]
    seen, expected = {}, {}
    logits = model(ids, mask, seen.setdefault, sites, at=at)
    whole = model(ids, mask, expected.setdefault, sites)
    first = sites.index(f"blocks.{TINY.n_layer - 1}.attn.hook_v") + 1
    for site in sites[:first]:
        assert torch.equal(seen[site], expected[site]), site
    for site in sites[first:]:
        torch.testing.assert_close(seen[site], pick(expected[site], site, at), msg=site)
    torch.testing.assert_close(logits, pick(whole, "logits", at))


def test_without_a_mask_requested_positions_are_causal(model):
    ids = torch.stack(ragged(TINY, [6, 6]))
    at = torch.tensor([[5], [2]])
    torch.testing.assert_close(model(ids, at=at), pick(model(ids), "logits", at))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_keeps_a_float32_stream(dtype):
    model = GPT2(TINY, seed=3).to(dtype).requires_grad_(False)
    _, cache = model.run_with_cache(torch.tensor([[3, 1, 4]]))
    of_stream = {site for site in cache if "resid" in site or "ln" in site}
    assert {cache[site].dtype for site in of_stream} == {torch.float32}
    assert {cache[site].dtype for site in set(cache) - of_stream} == {dtype}


def test_late_additions_are_not_lost_to_rounding():
    """bfloat16 has 8 bits of precision: adding 0.5 to 300 would be lost."""
    model = GPT2(TINY, seed=3).requires_grad_(False)
    model.wpe.weight.fill_(300.0)
    model.h[0].attn.c_proj.bias.fill_(0.5)
    _, cache = model.to(torch.bfloat16).run_with_cache(torch.tensor([[3, 1]]))
    added = cache["resid_mid", 0] - cache["resid_pre", 0]
    torch.testing.assert_close(added, cache["attn_out", 0].float(), rtol=0, atol=1e-4)
    assert added.mean() > 0.4
