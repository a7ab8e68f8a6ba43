"""Cross-entropy in chunks has the loss and the gradients of torch's."""

import pytest
import torch
import torch.nn.functional as F

from probekit.model.layers.modules import CHUNK, cross_entropy


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
    gradients = [torch.autograd.grad(loss, (x, unembedding)) for loss in (near, exact)]
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.02 * other.norm()
