"""Networks spread over several devices: the bits of the same network on one."""

from dataclasses import replace

import pytest
import torch

from probekit import AnswerMeasure, TokenBatch, patch
from probekit.analysis.heads import score_heads
from probekit.analysis.logits import logit_attribution, logit_lens
from probekit.errors import ConfigError
from probekit.interventions.patching import estimated_effects
from probekit.model.families.table import load_model, random_network
from probekit.model.generation import generate
from tests.fake_gpus import fake_gpus
from tests.test_golden import NETWORKS, TOKENS, network

TOKENS = torch.from_numpy(TOKENS)
DEVICES = ["cuda:0", "cuda:1"]


@pytest.fixture(autouse=True)
def gpus():
    with fake_gpus(7):
        yield


def saved(name, folder):
    """Save a network of an architecture; return the folder."""
    network(name).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_every_number_is_that_of_the_network_on_one_device(tmp_path, name):
    folder = saved(name, tmp_path)
    whole, spread = load_model(folder, device="cuda:0"), load_model(folder, device=DEVICES)
    assert spread.devices == "cuda:0,cuda:1"
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
    # With seven devices, the last block is on another one than the last norm.
    for model in (spread, load_model(folder, device=[f"cuda:{index}" for index in range(7)])):
        assert torch.equal(model(TOKENS).to("cpu"), whole(TOKENS).to("cpu"))
        assert torch.equal(model.loss(TOKENS).to("cpu"), whole.loss(TOKENS).to("cpu"))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_gradients_and_later_blocks_are_those_of_the_network_on_one_device(tmp_path, name):
    folder = saved(name, tmp_path)
    last, found = load_model(folder).config.n_layers - 1, []
    for model in (load_model(folder, device="cuda:0"), load_model(folder, device=DEVICES)):
        sites = [("resid_post", 0), ("resid_mid", 0)]
        logits, cache = model.run_with_cache(TOKENS, sites, grad=True)
        stream = cache["resid_post", 0]
        (gradient,) = torch.autograd.grad(logits[0, -1, 5], [stream])
        resumed = model.resume(stream, last, after_attention=True)
        after = gradient, resumed, model.resume(stream, 1)
        found.append([one.detach().to("cpu") for one in after])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert found[0][0].any()


def test_interventions_and_logit_analyses_refuse_several_devices():
    model = random_network(network("gpt2").config, 5, device=DEVICES)
    batch = TokenBatch(TOKENS, torch.ones_like(TOKENS, dtype=torch.bool), TOKENS[..., None])
    answer = TOKENS[:, 0]
    measure, site = AnswerMeasure(answer, answer + 1), "blocks.1.hook_resid_post"
    for refused in (
        lambda: patch(model, batch, batch[[1, 0]], measure, site),
        lambda: estimated_effects(model, batch, batch[[1, 0]], measure, site),
        lambda: logit_attribution(model, TOKENS[0], 5),
        lambda: logit_lens(model, TOKENS[0]),
    ):
        with pytest.raises(ConfigError, match="cuda:0,cuda:1: this needs a single device"):
            refused()
    one = random_network(network("gpt2").config, 5, device="cuda:1")
    assert score_heads(model, [TOKENS[0]]).equals(score_heads(one, [TOKENS[0]]))


@pytest.mark.parametrize("name", ["gpt2", "olmo2"])
def test_it_generates_the_same_tokens(tmp_path, name):
    folder = saved(name, tmp_path)
    whole, spread = load_model(folder), load_model(folder, device="cuda:0,cuda:1")
    found = generate(spread, TOKENS[:, :4], 5)
    assert torch.equal(found.to("cpu"), generate(whole, TOKENS[:, :4], 5))


@pytest.mark.parametrize("n_devices", [1, 2, 3, 7])
def test_blocks_are_consecutive_and_in_equal_shares(n_devices):
    config = replace(network("llama").config, num_hidden_layers=12)
    model = random_network(config, 3, torch.bfloat16)
    places = model.places([f"cuda:{index}" for index in range(n_devices)])
    names = config.WEIGHTS
    on = [place.index for name, place in places.items() if name != names.unembedding]
    assert on == sorted(on)
    assert (places[names.embedding].index, places[names.unembedding].index) == (0, n_devices - 1)
    sizes = torch.zeros(n_devices)
    for name, parameter in model.named_parameters():
        sizes[places[name].index] += parameter.numel()
    block = sum(weight.numel() for weight in model.blocks[0].parameters())
    assert sizes.max() - sizes.min() <= 2 * block + len(model.unembedding.flatten())
    for layer, block in enumerate(model.blocks):
        of_block = {places[f"{names.layers}{layer}.{name}"] for name, _ in block.named_parameters()}
        assert len(of_block) == 1


def test_random_weights_do_not_depend_on_the_devices():
    config = network("gpt2").config
    whole, spread = random_network(config, 5), random_network(config, 5, device=DEVICES)
    for name, weight in spread.state_dict().items():
        assert torch.equal(weight.to("cpu"), whole.state_dict()[name])


def test_a_gpu_with_too_little_memory_has_one_block_at_a_time(tmp_path):
    folder = saved("gemma3_text", tmp_path)
    whole = load_model(folder, "bfloat16", "cuda:1")
    read = load_model(folder, "bfloat16", "cuda:1", in_memory=False)
    assert torch.equal(read(TOKENS).to("cpu"), whole(TOKENS).to("cpu"))
    assert str(read.device) == "cuda:1"
