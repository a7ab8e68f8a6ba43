"""Linear maps and cross-entropy: read without a trace, edited, differentiated, in chunks."""

import pytest
import torch
import torch.nn.functional as F

from probekit import GPT2
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.families.llama import Llama, LlamaConfig
from probekit.model.layers.cross_entropy import CHUNK, cross_entropy

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


def test_an_edit_has_its_effect(model, tokens):
    def zero_all_but_one(site, value):
        value[..., 1:] = 0  # in place
        return value

    sites = ["blocks.1.mlp.hook_pre"]
    edited = model(tokens, tap=zero_all_but_one, sites=sites)
    assert not torch.allclose(edited, model(tokens))
    copied = model(tokens, tap=lambda site, x: zero_all_but_one(site, x.clone()), sites=sites)
    assert torch.equal(edited, copied)


def draw(n_tokens, dtype):
    generator = torch.Generator().manual_seed(n_tokens)
    x = torch.randn(n_tokens, 21, generator=generator, dtype=dtype)
    unembedding = torch.randn(97, 21, generator=generator, dtype=dtype)
    targets = torch.randint(97, (n_tokens,), generator=generator)
    targets[::3] = -100
    return x.requires_grad_(), unembedding.requires_grad_(), targets


@pytest.mark.parametrize("n_tokens", [2, CHUNK, 2 * CHUNK + 5])
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_loss_and_gradients_are_those_of_torch(n_tokens, dtype, within):
    x, unembedding, targets = draw(n_tokens, dtype)
    ours = cross_entropy(x, unembedding, targets)
    theirs = F.cross_entropy(x @ unembedding.T, targets, ignore_index=-100)
    assert abs((ours - theirs).item()) < within
    # Scaled, for a part of a batch counts by its share.
    gradients = torch.autograd.grad(ours * 0.3, (x, unembedding))
    expected = torch.autograd.grad(theirs * 0.3, (x, unembedding))
    for one, other in zip(gradients, expected, strict=True):
        assert (one - other).abs().max() < within


def test_inputs_are_unchanged_and_unneeded_gradients_are_not_computed():
    x, unembedding, targets = draw(300, torch.float32)
    before = [tensor.detach().clone() for tensor in (x, unembedding, targets)]
    with torch.no_grad():
        assert not cross_entropy(x, unembedding, targets).requires_grad
    assert all(torch.equal(a, b) for a, b in zip(before, (x, unembedding, targets), strict=True))


def test_autocast_loss_is_close_and_gradients_keep_their_dtype():
    x, unembedding, targets = draw(300, torch.float32)
    exact = cross_entropy(x, unembedding, targets)
    with torch.autocast("cpu", torch.bfloat16):
        near = cross_entropy(x, unembedding, targets)
    assert 0 < abs((near - exact).item()) < 0.05
    for one, other in zip(
        torch.autograd.grad(near, (x, unembedding)),
        torch.autograd.grad(exact, (x, unembedding)),
        strict=True,
    ):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()
