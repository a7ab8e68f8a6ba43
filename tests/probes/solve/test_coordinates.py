"""Preconditioned coordinates: Kronecker products and exact factors."""

import pytest
import torch

from probekit.probes.solve.coordinates import Coordinates, Factor, Product, centred
from tests.probes.objectives import objectives_of, random_point


@pytest.mark.parametrize("n_classes", [2, 4])
def test_steps_and_gradients_keep_their_inner_product_in_the_coordinates_and_if_selected(n_classes):
    """Of four fits, two have exact coordinates."""
    objectives, *_ = objectives_of(n_classes, n_fits=4)
    scores = objectives.scores(centred(3 * random_point(n_classes, 4)))
    first, second = torch.tensor([1, 3]), torch.tensor([0, 2])
    exact = Factor.at(objectives.select(first), scores[first])
    rest = Product.at(objectives.select(second), scores[second])
    found = Coordinates(((first, exact), (second, rest)), Product.at(objectives, scores))
    step, gradient = (random_point(n_classes, n_fits=4, seed=seed) for seed in (1, 2))
    inside = (step * found.of_gradient(gradient)).sum(dim=(1, 2))
    outside = (found.to_point(step) * gradient).sum(dim=(1, 2))
    torch.testing.assert_close(inside, outside)
    for fits in map(torch.tensor, ([3], [0, 1], [2, 3], [0, 2])):
        kept = found.select(fits)
        torch.testing.assert_close(kept.to_point(step[fits]), found.to_point(step)[fits])
        torch.testing.assert_close(kept.of_gradient(step[fits]), found.of_gradient(step)[fits])
