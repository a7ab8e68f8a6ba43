"""A pass over some blocks, or over some positions, equals the whole pass."""

import pytest
import torch

from probekit.model.families.gpt2 import GPT2
from tests.model.gpt2_sites import site_names
from tests.model.reference import TINY, pad, ragged

LENGTHS = [5, 3, 8]


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=3).requires_grad_(False)


def test_the_start_after_the_last_block_returns_the_positions(model):
    resid = torch.randn(2, 5, TINY.n_embd)
    found = model.resume(resid, 4, at=torch.tensor([[1], [3]]))
    assert torch.equal(found[:, 0], resid[torch.arange(2), torch.tensor([1, 3])])


def test_taps_work_after_the_start(model):
    resid, seen = torch.randn(2, 5, TINY.n_embd), {}
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


def test_late_additions_are_not_lost_to_rounding():
    """bfloat16 has 8 bits of precision: adding 0.5 to 300 would be lost."""
    model = GPT2(TINY, seed=3).requires_grad_(False)
    model.wpe.weight.fill_(300.0)
    model.h[0].attn.c_proj.bias.fill_(0.5)
    _, cache = model.to(torch.bfloat16).run_with_cache(torch.tensor([[3, 1]]))
    added = cache["resid_mid", 0] - cache["resid_pre", 0]
    torch.testing.assert_close(added, cache["attn_out", 0].float(), rtol=0, atol=1e-4)
    assert added.mean() > 0.4
