"""Every edit changes the named part of a site, at the named positions, and nothing else."""

from functools import partial

import numpy as np
import pytest
import torch

from probekit.interventions import edits
from probekit.interventions.edits import add, project_out, replace, run_edited, zero
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.taps import remember
from tests.model.reference import TINY

POST = "blocks.1.hook_resid_post"
Z = "blocks.1.attn.hook_z"
TOKENS = torch.arange(10).reshape(2, 5)


@pytest.fixture
def value():
    return torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0))


def directions(n, width=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width))


@pytest.mark.parametrize("at", [torch.tensor([4, 1]), torch.tensor([[4], [1]]), "mask"])
@pytest.mark.parametrize("name", ["zero", "mean", "replace", "add", "add to each row"])
def test_only_the_positions_change(value, name, at):
    """Every edit has the value of its formula there."""
    other, rows = torch.randn(2, 5, 7), torch.randn(11, 7)
    edit, expected = {
        "zero": (zero, 0 * value),
        "mean": (partial(edits.mean, rows), rows.mean(0).expand(2, 5, 7)),
        "replace": (partial(replace, other), other),
        "add": (partial(add, rows[0]), value + rows[0]),
        "add to each row": (partial(add, rows[:2]), value + rows[:2, None]),
    }[name]
    changed = torch.zeros(2, 5, dtype=torch.bool)
    changed[0, 4] = changed[1, 1] = True
    before = value.clone()
    found = edit(changed if isinstance(at, str) else at)(POST, value)
    torch.testing.assert_close(found[changed], expected[changed])
    assert torch.equal(found[~changed], value[~changed])
    assert torch.equal(value, before)


def test_projection_leaves_the_component_of_the_mean(value):
    rows, centre = directions(2), torch.randn(7)
    found = project_out(rows, mean=centre)(POST, value)
    span = torch.from_numpy(rows).float()
    torch.testing.assert_close(found @ span.T, (centre @ span.T).expand(2, 5, 2))
    away = project_out(rows)(POST, value)
    torch.testing.assert_close(away @ span.T, torch.zeros(2, 5, 2), atol=1e-5, rtol=0)
    # Dependent rows count once.
    torch.testing.assert_close(project_out(np.vstack([rows, -rows.sum(0)]))(POST, value), away)
    # Nothing outside the subspace changes.
    torch.testing.assert_close(project_out(rows)(POST, value - away), torch.zeros(2, 5, 7))


def test_swap_exchanges_the_subspace_only(value):
    other, rows = torch.randn(2, 5, 7), directions(1)
    found = edits.swap(rows, other)(POST, value)
    unit = torch.from_numpy(rows / np.linalg.norm(rows)).float()
    torch.testing.assert_close(found @ unit.T, other @ unit.T)
    rest = torch.eye(7) - unit.T @ unit
    torch.testing.assert_close(found @ rest, value @ rest)


def test_heads_are_features_of_their_position(model):
    z = torch.randn(2, 5, TINY.n_head, 7)
    rows = directions(1, width=TINY.n_head * 7)
    found = project_out(rows)(Z, z)
    torch.testing.assert_close(found.flatten(2), project_out(rows)(POST, z.flatten(2)))
    assert found.shape == z.shape


NEURONS = "blocks.0.mlp.hook_post"


@pytest.mark.parametrize(
    ("part", "at", "place"),
    [
        (f"{Z}[head=1]", "mask", (0, slice(None), 1)),
        (f"{Z}[head=1]", "mask", (1, 3, 1)),
        (f"{Z}[head=1]", torch.tensor([4, 2]), ([0, 1], [4, 2], 1)),
        (f"{NEURONS}[neuron=3]", "mask", (slice(None), 2, slice(3, 4))),
        (f"{NEURONS}[neuron=3]", None, (slice(None), slice(None), slice(3, 4))),
    ],
)
def test_an_edit_of_a_part_keeps_the_others(model, part, at, place):
    site, seen = part.partition("[")[0], {}
    _, cache = model.run_with_cache(TOKENS, [site])
    expected, mask = cache[site].clone(), torch.zeros(2, 5, dtype=torch.bool)
    mask[place[:2]] = True
    before, edit = model(TOKENS), zero(mask if isinstance(at, str) else at)
    run_edited(model, TOKENS, [(part, edit), (site, remember(seen))])
    expected[place] = 0
    assert torch.equal(seen[site], expected)
    assert torch.equal(model(TOKENS), before)  # nothing stays in the model


def test_positions_of_patterns_are_queries(model):
    site, seen = "blocks.2.attn.hook_pattern", {}
    run_edited(model, TOKENS, [(site, zero(torch.tensor([4, 4]))), (site, remember(seen))])
    assert (seen[site][:, :, 4] == 0).all()
    assert (seen[site][:, :, 3].sum(-1) - 1).abs().max() < 1e-5


def test_edits_apply_in_order(model):
    one, two = (number * torch.ones(TINY.n_embd) for number in (1, 2))
    site, seen = "blocks.0.hook_resid_pre", {}
    for taps, value in (([add(one), replace(two)], 2), ([replace(two), add(one)], 3)):
        run_edited(model, TOKENS, [*((site, tap) for tap in taps), (site, remember(seen))])
        assert (seen[site] == value).all()


def test_gradients_flow_through_edits_of_heads():
    model = GPT2(TINY, seed=3).requires_grad_(False)
    vector = torch.zeros(7, requires_grad=True)
    run_edited(model, TOKENS, [(f"{Z}[head=1]", add(vector))])[:, -1, 3].sum().backward()
    assert vector.grad.abs().max() > 0


def unreached(model):
    tap = edits.compose(model, [("blocks.3.hook_resid_post", zero())])
    model(TOKENS, tap=tap, sites=["blocks.0.hook_resid_pre"])
    tap.check_reached()


@pytest.mark.parametrize(
    "call",
    [
        "project_out(np.ones((1, 5)))(POST, value)",
        "replace(torch.ones(2, 4, 7))(POST, value)",
        "replace(torch.ones(1, 5, 7))(POST, value)",
        "add(torch.ones(5))(POST, value)",
        "zero(torch.tensor([0, 5]))(POST, value)",
        "zero(torch.tensor([0]))(POST, value)",
        "zero(torch.ones(2, 4, dtype=torch.bool))(POST, value)",
        "project_out(np.ones(5))",
        "project_out(np.full((1, 5), np.nan))",
        "project_out(np.zeros((1, 5)))",
        "add('x')",
        "add(torch.tensor([1.0, float('nan')]))",
        "edits.mean(torch.zeros(0, 3))",
        "edits.swap(np.ones((1, 7)), torch.full((7,), torch.nan))",
        "edits.swap(np.ones((1, 7)), torch.full((7,), torch.inf))",
        "replace(None)",
        "run_edited(model, TOKENS, [(f'{Z}[head=1]', project_out(np.ones((1, 5))))])",
        "unreached(model)",
    ],
)
def test_values_that_do_not_fit_are_refused(model, value, call, refused):
    refused(eval, call, globals() | {"model": model, "value": value})


def test_lists_and_arrays_are_numbers():
    value = torch.zeros(1, 2, 3)
    expected = add(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1]))("hook_embed", value)
    for vector in ([1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0])):
        assert torch.equal(add(vector, [1])("hook_embed", value), expected)
