"""Statistics of weights: against the plain formulas, and on the real tensors of GPT-2 small."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from probekit.analysis.heads import (
    circuits,
    head_norms,
    output,
    product_spectra,
    query_key_value,
    summarise,
)
from probekit.errors import DataError
from probekit.model.families.gpt2 import GPT2

D, HEADS = 21, 3


@pytest.fixture
def attention():
    generator = np.random.default_rng(0)
    return (
        generator.normal(size=(D, 3 * D)).astype(np.float32),
        generator.normal(size=(D, D)).astype(np.float32),
    )


@pytest.fixture(scope="module")
def real(shared):
    return load_file(shared / "weights/gpt2_small_part/part.safetensors")


def test_rows_equal_the_statistics_of_torch():
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) + 3
    row = summarise([("a", tensor), ("b", tensor.half())]).iloc[0]
    assert row["shape"] == (5, 7)
    assert row["dtype"] == "float32"
    wide = tensor.double()
    expected = {
        "mean": wide.mean(),
        "std": wide.std(correction=0),
        "norm": wide.norm(),
        "least": wide.min(),
        "most": wide.max(),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value.item(), rel=1e-9), name


def test_parts_are_those_the_model_computes_with():
    model = GPT2.from_pretrained("mini")
    block = model.h[2].attn
    _, cache = model.run_with_cache(torch.tensor([[5, 6, 7]]))
    parts = query_key_value(block.c_attn.weight.T.numpy(), 4)
    x = cache["blocks.2.ln1.hook_normalized"] * model.h[2].ln_1.weight + model.h[2].ln_1.bias
    bias = block.c_attn.bias.view(3, 4, -1)
    for part, site, b in zip(parts.values(), "qkv", bias, strict=True):
        got = torch.einsum("bpd,hde->bphe", x, torch.tensor(part)) + b
        torch.testing.assert_close(got, cache[f"blocks.2.attn.hook_{site}"], rtol=1e-4, atol=1e-4)
    w_o = torch.tensor(output(block.c_proj.weight.T.numpy(), 4))
    moved = torch.einsum("bphe,hed->bpd", cache["blocks.2.attn.hook_z"], w_o) + block.c_proj.bias
    torch.testing.assert_close(moved, cache["blocks.2.hook_attn_out"], rtol=1e-4, atol=1e-4)


def test_spectra_are_those_of_the_whole_products(attention):
    c_attn, c_proj = attention
    parts, w_o = query_key_value(c_attn, HEADS), output(c_proj, HEADS)
    found = circuits(parts, w_o)
    d = D // HEADS
    for head in range(HEADS):
        columns = slice(head * d, head * d + d)
        q, k, v = (c_attn.astype(float)[:, part * D :][:, columns] for part in range(3))
        products = {"QK": q @ k.T, "OV": v @ c_proj.astype(float)[columns]}
        for name, product in products.items():
            expected = np.linalg.svd(product, compute_uv=False)
            assert np.allclose(found[name][head], expected[:d], rtol=1e-10)
            assert np.allclose(expected[d:], 0, atol=1e-10)


def test_squares_of_norms_add_up(attention):
    c_attn, _ = attention
    norms = head_norms(query_key_value(c_attn, HEADS))
    assert norms.shape == (3, HEADS)
    assert np.sum(norms**2) == pytest.approx(np.sum(c_attn.astype(float) ** 2))


def test_a_known_spectrum():
    a = np.diag([3.0, 1.0, 0.0])[None, :, :2].astype(np.float32)
    assert product_spectra(a, a).tolist() == pytest.approx(np.array([[9.0, 1.0]]))


@pytest.mark.parametrize(("shape", "n_head"), [((21, 62), 3), ((21, 63), 4), ((63, 21), 3)])
def test_other_shapes_are_refused(shape, n_head):
    with pytest.raises(DataError, match="number of heads"):
        query_key_value(np.zeros(shape, np.float32), n_head)


def test_real_heads_have_full_rank_but_no_more(real):
    parts = query_key_value(real["h.4.attn.c_attn.weight"], 12)
    found = circuits(parts, output(real["h.4.attn.c_proj.weight"], 12))
    assert {name: values.shape for name, values in found.items()} == {
        "QK": (12, 64),
        "OV": (12, 64),
    }
    assert all(
        (values[:, 0] > 1).all() and (np.diff(values) <= 0).all() for values in found.values()
    )
