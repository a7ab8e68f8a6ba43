import ast
from pathlib import Path

import pytest
import torch

import probekit
from probekit.model.families.gpt2 import COMPONENTS, GPT2, GPT2Config
from tests.model.gpt2_sites import site_names

PACKAGE = Path(probekit.__file__).parent
TINY = GPT2Config(n_layer=4, n_head=3, n_embd=21, n_inner=11, vocab_size=97, n_positions=16)
# The modules of GPT-2, and the methods that return one by its name.
PARTS = {part for component in COMPONENTS for part in component.module.split(".")} - {"{l}"}
PRIVATE = PARTS | {"get_parameter", "get_submodule"}


def parts_reached(source):
    """Lines of a module's source that access a part of a network."""
    nodes = ast.walk(ast.parse(source))
    return [
        node.lineno for node in nodes if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]


def test_no_module_outside_model_reaches_into_a_network():
    outside = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "model" not in path.parents]
    reached = {path: parts_reached(path.read_text()) for path in outside}
    assert {path: lines for path, lines in reached.items() if lines} == {}


@pytest.mark.parametrize(
    "line", ["model.wte.weight.device", "model.h[0]", "model.get_parameter('ln_f.bias')"]
)
def test_reaching_into_a_network_is_noticed(line):
    assert parts_reached(line) == [1]


def test_gpt2_describes_its_sites_and_axes():
    model = GPT2(TINY)
    assert tuple(model.sites) == site_names(4, on_request=True)
    assert model.axis_sizes == TINY.axis_sizes
    assert model.code_modules == ("probekit.model.families.gpt2",)


def test_device_and_dtype_are_those_of_the_weights():
    model = GPT2(TINY).to(torch.float64)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
    assert GPT2(TINY, seed=None).device == torch.device("meta")


@pytest.mark.parametrize("bias", [True, False])
def test_members_are_the_weights_by_their_names_in_checkpoints(bias):
    model = GPT2(GPT2Config(**(TINY.to_json() | {"bias": bias})))
    weights = model.state_dict()
    matrix, head_bias = model.head_output(2)
    assert torch.equal(matrix, weights["h.2.attn.c_proj.weight"])
    assert torch.equal(model.position_embedding, weights["wpe.weight"])
    assert torch.equal(model.final_norm_gain, weights["ln_f.weight"])
    if bias:
        assert torch.equal(head_bias, weights["h.2.attn.c_proj.bias"])
        assert torch.equal(model.final_norm_bias, weights["ln_f.bias"])
    else:
        assert head_bias is None
        assert model.final_norm_bias is None


def test_final_norm_and_unembedding_make_the_logits_of_the_last_residuals():
    model = GPT2(TINY).requires_grad_(False)
    logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), [("resid_post", 3)])
    normed = model.final_norm(cache["resid_post", 3])
    torch.testing.assert_close(normed @ model.unembedding.T, logits)
