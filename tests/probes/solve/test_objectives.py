"""Value, gradient and curvature of the batched objectives."""

import numpy as np
import pytest
import torch

from tests.probes.logistic import objective, standardised
from tests.probes.objectives import objectives_of, random_point, values


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_value_is_that_of_the_definition(n_classes):
    objectives, X, codes, shares = objectives_of(n_classes)
    point = random_point(n_classes)
    for fit, counts in enumerate(shares):
        coef, intercept = point[fit, :, :-1].numpy(), point[fit, :, -1].numpy()
        # Rows are centred on all shares together; the intercept would make up for it.
        Z = standardised(X, counts)
        shift = (Z - rows_of(objectives, fit))[0]
        np.testing.assert_allclose(Z - rows_of(objectives, fit), shift[None].repeat(len(X), 0))
        value = objective(Z, codes, counts, 0.1, coef, intercept - coef @ shift) / counts.sum()
        assert values(objectives, point)[fit].item() == pytest.approx(value, rel=1e-10)


def rows_of(objectives, fit):
    blocks = [block for _, block in objectives.rows.blocks()]
    return (torch.cat(blocks) * objectives.units[fit]).numpy()


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_gradient_is_the_slope_of_the_value(n_classes):
    objectives, *_ = objectives_of(n_classes)
    point, way = random_point(n_classes), random_point(n_classes, seed=1)
    _, slopes = objectives.losses(objectives.scores(point))
    found = (objectives.gradient(slopes, point) * way).sum(dim=(1, 2))
    ahead, behind = values(objectives, point + 1e-5 * way), values(objectives, point - 1e-5 * way)
    torch.testing.assert_close(found, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_curvature_is_how_fast_each_slope_changes_with_its_own_score(n_classes):
    objectives, *_ = objectives_of(n_classes)
    scores = objectives.scores(random_point(n_classes))
    found = objectives.curvature(scores)
    for score in range(scores.shape[1]):
        move = torch.zeros_like(scores)
        move[:, score] = 1e-5
        ahead, behind = (objectives.losses(scores + way * move)[1] for way in (1, -1))
        torch.testing.assert_close(found[:, score], ((ahead - behind) / 2e-5)[:, score])
