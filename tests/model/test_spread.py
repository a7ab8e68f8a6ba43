"""Networks spread over several devices: the bits of the same network on one."""

import pytest
import torch

from probekit.model.families.table import load_model, random_network
from probekit.model.generation import generate
from tests.fake_gpus import FakeGpus
from tests.test_golden import NETWORKS, TOKENS, network

TOKENS = torch.from_numpy(TOKENS)
DEVICES = ("cuda:0", "cuda:1")


@pytest.fixture(autouse=True)
def gpus():
    with FakeGpus():
        yield


@pytest.fixture(params=NETWORKS)
def folder(request, tmp_path):
    """A checkpoint of each architecture."""
    network(request.param).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_is_that_of_the_network_on_one_device(folder, dtype):
    whole, spread = load_model(folder, dtype, "cuda:0"), load_model(folder, dtype, DEVICES)
    assert [str(device) for device in spread.devices] == list(DEVICES)
    mask = torch.ones_like(TOKENS, dtype=torch.bool)
    mask[0, -3:] = False
    sites = ["*", "blocks.*.attn.hook_result"]
    for given in (mask, None):
        logits, expected = whole.run_with_cache(TOKENS, sites, given)
        found, cache = spread.run_with_cache(TOKENS, sites, given)
        assert torch.equal(found.to("cpu"), logits.to("cpu"))
        assert all(torch.equal(cache[site].to("cpu"), expected[site].to("cpu")) for site in cache)
    assert str(cache["hook_embed"].device) == "cuda:0"
    assert str(cache["ln_final.hook_normalized"].device) == "cuda:1"
