"""Estimates are first derivatives of patches, and the largest are verified."""

import numpy as np
import pytest
import torch

from probekit.interventions.attribution_patching import estimated_effects, patch_top
from probekit.interventions.edits import add, run_edited
from probekit.interventions.patching import patch
from tests.interventions.tiny import measure_of, pairs

SITES = ["blocks.1.hook_resid_post", "blocks.2.attn.hook_z[head=1]", "blocks.2.attn.hook_pattern",
         "blocks.0.mlp.hook_post[neuron=4]", "blocks.1.ln2.hook_scale"]  # fmt: skip


@pytest.fixture(scope="module")
def model(model):
    return model.double()


def test_an_estimate_is_the_derivative_of_the_patch(model):
    (clean, corrupt), measure = pairs(), measure_of()
    site = "blocks.1.hook_resid_post"
    found = estimated_effects(model, clean, corrupt, measure, site, at="each")
    base, source = (model.run_with_cache(batch, [site])[1][site] for batch in (clean, corrupt))
    rows, step = torch.arange(3), 1e-4
    for patch_, values in found.items():
        have = torch.tensor([5, 3, 8]) > patch_.position
        at = (clean.mask.int().argmax(1) + patch_.position).clamp(max=7)
        change = (source - base)[rows, at] * have[:, None]
        scores = []
        for sign in (-1, 1):
            logits = run_edited(model, clean, [(site, add(sign * step * change, at))])[:, -1]
            scores.append(logits[rows, measure.answer] - logits[rows, measure.wrong])
        slope = ((scores[1] - scores[0]) / (2 * step)).numpy()
        np.testing.assert_allclose(values[have], slope[have], rtol=1e-4, atol=1e-8)
        assert np.isnan(values[~have.numpy()]).all()


@pytest.mark.parametrize("site", SITES)
def test_small_patches_equal_their_estimates(model, site):
    """With sources that differ little, the estimate is exact to first order."""
    (clean, corrupt), measure = pairs(), measure_of()
    weights = model.wte.weight.clone()
    model.wte.weight.copy_(weights.mean(0) + 1e-4 * (weights - weights.mean(0)))
    try:
        estimates = estimated_effects(model, clean, corrupt, measure, site)
        (row,) = patch(model, clean, corrupt, measure, site)
    finally:
        model.wte.weight.copy_(weights)
    ((_, values),) = estimates.items()
    assert row.effect == pytest.approx(values.mean(), rel=0.02)
    assert row.effect != 0


def test_averaged_gradients_are_nearer_to_the_patch(model):
    (clean, corrupt), measure = pairs(lengths=[6] * 12), measure_of(n=12)
    sites = ["hook_embed"]
    exact = np.array([r.patched - r.base for r in patch(model, clean, corrupt, measure, sites)])
    errors = []
    for steps in (1, 8):
        found = estimated_effects(model, clean, corrupt, measure, sites, steps=steps)
        errors.append(abs(next(iter(found.values())).mean() - exact[0]))
    assert errors[1] < 0.2 * errors[0]


def test_the_largest_estimates_are_verified(model):
    (clean, corrupt), measure = pairs(lengths=[6] * 8), measure_of(n=8)
    sites = "blocks.*.attn.hook_z[head=*]"
    estimates = estimated_effects(model, clean, corrupt, measure, sites, at="each")
    found = patch_top(model, clean, corrupt, measure, estimates, top=5, at="each")
    rows = patch(model, clean, corrupt, measure, sites, at="each")
    exact = {(row.site, row.position): row for row in rows}
    assert len(found) == len(exact) == 4 * 3 * 6
    verified = [one for one in found if one.verified]
    assert len(verified) == 5
    least = min(abs(one.estimate) for one in verified)
    assert all(abs(one.estimate) <= least for one in found if not one.verified)
    for one in verified:
        other = exact[one.patch.selection.text, one.patch.position]
        assert one.verified.effect == pytest.approx(other.effect, rel=1e-6)
        assert one.verified.p_best == pytest.approx(min(1, 72 * other.p))
    assert max(found, key=lambda one: abs(one.estimate)).verified


def test_a_position_of_each_text(model):
    (clean, corrupt), measure = pairs(), measure_of()
    at = torch.tensor([7, 6, 2])
    site = "blocks.1.hook_resid_post"
    ((key, values),) = estimated_effects(model, clean, corrupt, measure, site, at=at).items()
    each = estimated_effects(model, clean, corrupt, measure, site, at="each")
    by_position = {one.position: own for one, own in each.items()}
    assert key.position == "chosen"
    np.testing.assert_allclose(values, [by_position[4][0], by_position[1][1], by_position[2][2]])


@pytest.mark.parametrize("name", ["accuracy", "kl"])
def test_measures_without_a_gradient_are_refused(model, name, refused):
    refused(estimated_effects, model, *pairs(), measure_of(name), "hook_embed")
