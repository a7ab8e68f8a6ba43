"""The input of an activation can be read without a trace, edited and differentiated."""

import pytest
import torch

from probekit import GPT2
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.families.llama import Llama, LlamaConfig

SIZES = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 2}
NETWORKS = {
    "gpt2": lambda: GPT2(GPT2Config(vocab_size=97, n_embd=24, n_layer=2, n_head=4), seed=0),
    "llama": lambda: Llama(LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=4)),
}


@pytest.fixture(params=NETWORKS)
def model(request):
    model = NETWORKS[request.param]().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(5)  # activations far from the linear part of the function
    return model


@pytest.fixture
def tokens():
    return torch.randint(97, (3, 19), generator=torch.Generator().manual_seed(0))


def test_reading_does_not_change_a_bit(model, tokens):
    without = model.run_with_cache(tokens, ["blocks.*.mlp.hook_post"])
    for sites in (["blocks.*.mlp.*"], ["blocks.0.mlp.hook_pre", "blocks.*.mlp.hook_post"]):
        logits, cache = model.run_with_cache(tokens, sites)
        assert torch.equal(logits, without[0])
        assert torch.equal(cache["post", 1], without[1]["post", 1])


def test_an_edit_has_its_effect(model, tokens):
    def zero_all_but_one(site, value):
        value[..., 1:] = 0  # in place
        return value

    sites = ["blocks.1.mlp.hook_pre"]
    edited = model(tokens, tap=zero_all_but_one, sites=sites)
    assert not torch.allclose(edited, model(tokens))
    copied = model(tokens, tap=lambda site, x: zero_all_but_one(site, x.clone()), sites=sites)
    assert torch.equal(edited, copied)


def test_it_has_a_gradient(model, tokens):
    logits, cache = model.run_with_cache(tokens, ["blocks.0.mlp.hook_pre"], grad=True)
    [gradient] = torch.autograd.grad(logits.logsumexp(-1).sum(), [cache["pre", 0]])
    assert (gradient != 0).float().mean() > 0.9
