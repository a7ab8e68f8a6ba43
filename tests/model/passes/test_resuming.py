"""A pass that starts at a block equals the whole pass."""

import pytest
import torch

from probekit.errors import ConfigError
from probekit.model.families.gpt2 import GPT2
from tests.model.reference import TINY, pad, ragged

LENGTHS = [5, 3, 8]
KEYS = ["blocks.*.attn.hook_k", "blocks.*.attn.hook_v"]


@pytest.fixture(scope="module")
def model():
    return GPT2(TINY, seed=3).requires_grad_(False)


def passed(model, side):
    ids, mask = pad(ragged(TINY, LENGTHS), side, filler=7)
    sites = ["blocks.*.hook_resid_pre", "blocks.*.hook_resid_mid", "blocks.*.hook_resid_post"]
    _, cache = model.run_with_cache(ids, [*sites, *KEYS], mask)
    return mask, cache


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize("after_attention", [False, True])
def test_a_resumed_pass_equals_the_whole(model, side, layer, after_attention):
    mask, cache = passed(model, side)
    start = cache["resid_mid" if after_attention else "resid_pre", layer]
    found = model.resume(start, layer, after_attention=after_attention, mask=mask)
    torch.testing.assert_close(found[mask], cache["resid_post", 3][mask])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("after_attention", [False, True])
def test_later_positions_use_the_keys_of_earlier_ones(model, side, after_attention):
    mask, cache = passed(model, side)
    before = [(cache["k", layer][:, :2], cache["v", layer][:, :2]) for layer in range(4)]
    start = cache["resid_mid" if after_attention else "resid_pre", 1][:, 2:]
    found = model.resume(
        start, 1, after_attention=after_attention, mask=mask, before=before,
        at=torch.tensor([[2], [0], [5]]),
    )  # fmt: skip
    expected = cache["resid_post", 3][torch.arange(3), torch.tensor([4, 2, 7])]
    real = mask[torch.arange(3), torch.tensor([4, 2, 7])]
    assert real.sum() >= 2
    torch.testing.assert_close(found[real, 0], expected[real])


def test_the_start_after_the_last_block_returns_the_positions(model):
    resid = torch.randn(2, 5, TINY.n_embd)
    found = model.resume(resid, 4, at=torch.tensor([[1], [3]]))
    assert torch.equal(found[:, 0], resid[torch.arange(2), torch.tensor([1, 3])])


def test_taps_work_after_the_start_only(model):
    resid, seen = torch.randn(2, 5, TINY.n_embd), {}

    def tap(site, value):
        seen[site] = value
        return value

    model.resume(resid, 2, tap=tap, sites=["blocks.2.hook_resid_pre"])
    assert torch.equal(seen["blocks.2.hook_resid_pre"], resid)
    with pytest.raises(ConfigError, match=r"does not reach blocks\.1\.hook_resid_post"):
        model.resume(resid, 2, tap=tap, sites=["blocks.1.hook_resid_post"])
