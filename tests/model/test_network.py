"""Members of a network, and gradients at every site, compared with finite differences."""

import ast
import copy
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import probekit
from probekit.model.families.gpt2 import COMPONENTS, GPT2
from probekit.model.transformer_lens import GUIDE, OURS
from tests.model.gpt2_sites import expand, site_names
from tests.model.reference import TINY

PACKAGE = Path(probekit.__file__).parent
# The modules of GPT-2, and the methods that return one by its name.
PARTS = {part for component in COMPONENTS for part in component.module.split(".")} - {"{l}"}
PRIVATE = PARTS | {"get_parameter", "get_submodule"}


def parts_reached(source):
    """Lines of a module's source that access a part of a network."""
    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if getattr(node, "attr", None) in PRIVATE]


def test_no_module_outside_model_reaches_into_a_network():
    outside = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "model" not in path.parents]
    reached = {path: parts_reached(path.read_text()) for path in outside}
    assert {path: lines for path, lines in reached.items() if lines} == {}


def test_names_of_transformer_lens_are_refused_with_ours():
    model = GPT2(TINY, seed=0).requires_grad_(False)
    _, cache = model.run_with_cache(torch.tensor([[5, 6, 7]]))
    of_class = {"model": model, "cache": cache, "tokenizer": probekit.Tokenizer}
    for name, ours in OURS.items():
        for value in (model, cache):
            assert not hasattr(value, name)
            with pytest.raises(AttributeError, match=re.escape(f"Use {ours}; see {GUIDE}")):
                getattr(value, name)
        for owner, member in re.findall(r"\b(model|cache|tokenizer)\.(\w+)", ours):
            assert hasattr(of_class[owner], member), ours
    assert (PACKAGE.parent / GUIDE).is_file()
    with pytest.raises(AttributeError, match=r"no attribute 'unknown'$"):
        _ = model.unknown
    for value in (model, cache):
        for same in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):  # noqa: S301
            assert type(same) is type(value)


@pytest.mark.parametrize(
    "line", ["model.wte.weight.device", "model.h[0]", "model.get_parameter('ln_f.bias')"]
)
def test_reaching_into_a_network_is_noticed(line):
    assert parts_reached(line) == [1]


def test_device_and_dtype_are_those_of_the_weights():
    model = GPT2(TINY).to(torch.float64)
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
    assert GPT2(TINY, seed=None).device == torch.device("meta")


@pytest.mark.parametrize("bias", [True, False])
def test_members_are_the_weights_by_their_names_in_checkpoints(bias):
    model = GPT2(replace(TINY, bias=bias))
    weights = model.state_dict()
    matrix, head_bias = model.head_output(2)
    members = {"h.2.attn.c_proj.weight": matrix, "h.2.attn.c_proj.bias": head_bias}
    members |= {"ln_f.weight": model.last_norm.gain, "ln_f.bias": model.last_norm.bias}
    for name, member in {**members, "wpe.weight": model.position_embedding}.items():
        if bias or name.endswith("weight"):
            assert torch.equal(member, weights[name])
        else:
            assert member is None


CONFIG = replace(TINY, n_layer=2)
SITES = site_names(CONFIG.n_layer, on_request=True)
EXPLICIT = ("blocks.*.attn.hook_attn_scores", "blocks.*.attn.hook_pattern")
TOKENS = torch.tensor([[3, 14, 15, 92, 6]])
MASK = torch.tensor([[False, True, True, True, True]])
STEP = 1e-5
TOLERANCE = 1e-6  # relative to the largest entry of the gradient


@pytest.fixture(scope="module", params=[False, True], ids=["frozen", "trainable"])
def model(request):
    model = GPT2(CONFIG, seed=1).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms, too
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.requires_grad_(request.param)


@pytest.fixture(scope="module")
def clean(model):
    """The values of an undisturbed run."""
    with torch.no_grad():
        return dict(model.run_with_cache(TOKENS, SITES, MASK)[1])


# Other taps at the same time: patterns of sites, and a function applied there.
COMPANIONS = {
    "nothing": ((), None),
    "explicit attention": (EXPLICIT, lambda value, constant: value),
    "every site": (SITES, lambda value, constant: value),
    "scales held": (("*.hook_scale",), lambda value, constant: constant.expand_as(value)),
    "scales changed": (("*.hook_scale",), lambda value, constant: 1.1 * value + 0.1),
    "results halved": (("blocks.*.attn.hook_result",), lambda value, constant: value / 2),
}


def outputs(model, clean, companion, site, delta, add=torch.add):
    """One number for each row of delta, shape [batch], which is added at the site."""
    patterns, change = COMPANIONS[companion]
    changed = expand(patterns, CONFIG.n_layer) if patterns else ()

    def tap(name, value):
        if name in changed:
            value = change(value, clean[name])
        return add(value, delta) if name == site else value

    rows = TOKENS.expand(len(delta), -1), MASK.expand(len(delta), -1)
    logits = model(*rows, tap=tap, sites=list({*changed, site}))
    return measure(logits)


def measure(logits):
    weights = torch.randn(logits.shape[1:], generator=torch.Generator().manual_seed(2))
    return (logits.tanh() * weights * MASK[0, :, None]).sum((1, 2))


def gradient(model, clean, companion, site, add=torch.add):
    delta = torch.zeros_like(clean[site], requires_grad=True)
    (found,) = torch.autograd.grad(outputs(model, clean, companion, site, delta, add), delta)
    return found


@torch.no_grad()
def finite_differences(model, clean, companion, site):
    """Central differences for every entry at once, a row of the batch for each."""
    shape = clean[site].shape[1:]
    steps = STEP * torch.eye(shape.numel(), dtype=torch.float64).view(-1, *shape)
    up, down = (outputs(model, clean, companion, site, sign * steps) for sign in (1, -1))
    return ((up - down) / (2 * STEP)).view(1, *shape)


@pytest.mark.parametrize("site", SITES)
def test_the_gradient_of_an_addition_is_that_of_finite_differences(model, clean, site):
    for companion in COMPANIONS:
        expected = finite_differences(model, clean, companion, site)
        found = gradient(model, clean, companion, site)
        assert expected.abs().max() > 1e-3, companion
        assert (found - expected).abs().max() <= TOLERANCE * expected.abs().max(), companion


@pytest.mark.parametrize("companion", ["nothing", "explicit attention"])
def test_an_addition_in_place_has_the_same_gradient(model, clean, companion):
    for site in SITES:
        expected = gradient(model, clean, companion, site)
        found = gradient(model, clean, companion, site, torch.Tensor.add_)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sites", ["one by one", "all together"])
def test_cached_values_stay_on_the_graph(model, clean, sites):
    for some in [[site] for site in SITES] if sites == "one by one" else [list(SITES)]:
        logits, cache = model.run_with_cache(TOKENS, some, MASK, grad=True)
        found = torch.autograd.grad(measure(logits), [cache[site] for site in some])
        companion = "nothing" if sites == "one by one" else "explicit attention"
        for site, value in zip(some, found, strict=True):
            torch.testing.assert_close(cache[site], clean[site], rtol=1e-10, atol=1e-12)
            expected = gradient(model, clean, companion, site)
            torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-10)


def test_grad_changes_no_value(model):
    with torch.no_grad():
        logits, plain = model.run_with_cache(TOKENS, SITES, MASK)
        with_grad, cache = model.run_with_cache(TOKENS, SITES, MASK, grad=True)
    assert torch.equal(logits, with_grad)
    for site in SITES:
        assert torch.equal(plain[site], cache[site]), site
        assert cache[site].requires_grad
    assert not logits.requires_grad


def test_without_grad_a_frozen_model_makes_no_graph(model):
    logits, cache = model.run_with_cache(TOKENS, SITES)
    trains = next(model.parameters()).requires_grad
    assert {value.requires_grad for value in (logits, *cache.values())} == {trains}


def test_cached_values_change_no_gradient_of_a_parameter():
    model = GPT2(CONFIG, seed=1).double()
    parameters = list(model.parameters())
    plain = torch.autograd.grad(measure(model(TOKENS, MASK)).sum(), parameters)
    seen, _ = model.run_with_cache(TOKENS, SITES, MASK)
    for one, other in zip(plain, torch.autograd.grad(measure(seen).sum(), parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
