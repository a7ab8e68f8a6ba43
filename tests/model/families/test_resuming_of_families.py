"""A pass that starts at any block equals the whole pass, in the networks of every family."""

import pytest
import torch

from probekit.errors import ConfigError
from probekit.model.families.table import from_transformers
from tests.model.families.configurations import CONFIGURATIONS

IDS = torch.randint(1, 97, (2, 9), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(2, 9, dtype=torch.bool)
MASK[1, :3] = False  # padded left
START = 4


@pytest.fixture(scope="module", params=CONFIGURATIONS, ids=lambda row: row.name)
def model(request):
    return from_transformers(request.param.reference(torch.float64))


@pytest.fixture(scope="module")
def change():
    return torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def edited(model, site, change):
    """The streams, keys and values of a whole pass in which a change is added at a site."""
    values = {}

    def tap(name, value):
        value = value + change if name == site else value
        values[name] = value
        return value

    model(IDS, MASK, tap)
    return values


def test_a_resumed_pass_equals_the_whole_with_an_edit_at_every_layer(model, change):
    n_layers = model.config.n_layers
    plain = edited(model, None, change)
    streams = [name for name in ("resid_pre", "resid_mid") if f"blocks.0.hook_{name}" in plain]
    for layer in range(n_layers):
        for stream in streams:
            site = f"blocks.{layer}.hook_{stream}"
            expected = edited(model, site, change)[f"blocks.{n_layers - 1}.hook_resid_post"]
            after = stream == "resid_mid"
            found = model.resume(plain[site] + change, layer, after_attention=after, mask=MASK)
            torch.testing.assert_close(found[MASK], expected[MASK], atol=1e-10, rtol=1e-10)


def test_later_positions_use_the_keys_of_earlier_ones(model, change):
    n_layers = model.config.n_layers
    change = change * (torch.arange(9) >= START)[:, None]
    plain = edited(model, None, change)
    keys = "rot_k" if "blocks.0.attn.hook_rot_k" in plain else "k"
    before = [
        tuple(plain[f"blocks.{layer}.attn.hook_{name}"][:, :START] for name in (keys, "v"))
        for layer in range(n_layers)
    ]
    at = torch.tensor([[4, 1], [0, 3]])
    for layer in range(n_layers):
        site = f"blocks.{layer}.hook_resid_pre"
        whole = edited(model, site, change)[f"blocks.{n_layers - 1}.hook_resid_post"]
        resid = (plain[site] + change)[:, START:]
        found = model.resume(resid, layer, mask=MASK, before=before, at=at)
        expected = whole[:, START:].take_along_dim(at[..., None], 1)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


def test_the_output_matrix_of_the_mlp(model):
    seen = {}
    model.blocks[1].mlp.register_forward_hook(lambda *given: seen.update(out=given[-1]))
    _, cache = model.run_with_cache(IDS, [("post", 1)])
    product = cache["post", 1] @ model.mlp_output(1).T
    bias = seen["out"] - product
    torch.testing.assert_close(bias, bias[:1, :1].expand_as(bias), atol=1e-10, rtol=1e-10)


def test_parallel_blocks_have_no_start_after_attention(model):
    if "blocks.0.hook_resid_mid" not in model.sites:
        with pytest.raises(ConfigError, match="parallel: they have no residual stream after"):
            model.resume(torch.zeros(1, 2, 24), 0, after_attention=True)
