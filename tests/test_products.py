"""Products: exact within rounding, with a gradient where one is asked."""

import pytest
import torch
import torch.nn.functional as F

from probekit import products
from probekit.model.linear import Linear
from probekit.products import linear


@pytest.mark.parametrize("n_rows", [0, 1, 16, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_is_the_product_of_torch(n_rows, dtype):
    generator = torch.Generator().manual_seed(n_rows)
    x = torch.randn(n_rows, 2, 37, generator=generator).to(dtype)
    weight, bias = torch.randn(19, 37, generator=generator).to(dtype), torch.arange(19).to(dtype)
    for given in (bias, None):
        found, expected = linear(x, weight, given), F.linear(x, weight, given)
        assert found.shape == (n_rows, 2, 19)
        torch.testing.assert_close(found, expected)


def test_views_are_read_as_what_they_show():
    x = torch.randn(5, 7, 3).transpose(1, 2)[::2]
    weight = torch.randn(7, 4).T
    torch.testing.assert_close(linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("trained", ["input", "weight"])
def test_what_is_trained_has_its_gradient(trained):
    layer = Linear(3, 2).requires_grad_(trained == "weight")
    x = torch.ones(4, 3, requires_grad=trained == "input")
    layer(x).sum().backward()
    expected = layer.weight.sum(0).expand(4, 3) if trained == "input" else torch.full((2, 3), 4.0)
    torch.testing.assert_close(x.grad if trained == "input" else layer.weight.grad, expected)


def test_without_onednn_it_is_torch_s_own(monkeypatch):
    x, weight = torch.ones(2, 3), torch.ones(4, 3)
    monkeypatch.setattr(products, "_ONEDNN", None)
    assert torch.equal(linear(x, weight), F.linear(x, weight))
