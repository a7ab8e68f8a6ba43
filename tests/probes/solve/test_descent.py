"""Batched L-BFGS: coordinates, convergence and stopping; and the design matrices that it uses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit import lazy_rows
from probekit.lazy_rows import LazyRows
from probekit.probes.solve import coordinates
from probekit.probes.solve.coordinates import Coordinates, Factor, Product, centred
from probekit.probes.solve.descent import BEYOND, StoppingRule, descend
from probekit.probes.solve.design import DesignRows, Objectives, moments, shared
from tests.probes.logistic import problem


def objectives_of(n_classes, C=0.1, n_fits=3):
    """Objectives of the same problem for each fit, with different weights."""
    X, codes = problem(n_classes)
    generator = np.random.default_rng(1)
    shares = [generator.uniform(0.1, 2, size=len(X)) for _ in range(n_fits)]
    design = shared(X, shares, np.ones(len(X), dtype=bool))
    total = design.weights.sum(dim=1)
    zeros = torch.zeros(n_fits, dtype=torch.int64)
    own = {"rows": design.rows, "axes": design.axes, "variances": design.variances}
    own |= {"shares": design.weights, "units": design.units, "class_weights": None, "offsets": None}
    own |= {"factor": 1 / total, "penalty": 1 / (C * total * design.largest)}
    own |= {"columns": torch.as_tensor(codes)[None], "share": torch.arange(n_fits)}
    return Objectives(**own, column=zeros, group=zeros)


def random_point(n_classes, n_fits=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = n_fits, 1 if n_classes == 2 else n_classes, 8
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def zero(n_classes, n_fits=3):
    return torch.zeros_like(random_point(n_classes, n_fits))


def ends(objectives, start, *stopping, **others):
    """The end of each fit by its number, in the order in which they end."""
    return dict(descend(objectives, start, StoppingRule(*stopping, **others)))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_steps_and_gradients_keep_their_inner_product_in_the_coordinates_and_if_selected(n_classes):
    """Of four fits, two have exact coordinates."""
    objectives = objectives_of(n_classes, n_fits=4)
    point = centred(3 * random_point(n_classes, 4))
    first, second = torch.tensor([1, 3]), torch.tensor([0, 2])
    exact = Factor.at(objectives.select(first), point[first])
    rest = Product.at(objectives.select(second), point[second])
    found = Coordinates(((first, exact), (second, rest)), Product.at(objectives, point))
    step, gradient = (random_point(n_classes, n_fits=4, seed=seed) for seed in (1, 2))
    inside = (step * found.of_gradient(gradient)).sum(dim=(1, 2))
    outside = (found.to_point(step) * gradient).sum(dim=(1, 2))
    torch.testing.assert_close(inside, outside)
    for fits in map(torch.tensor, ([3], [0, 1], [2, 3], [0, 2])):
        kept = found.select(fits)
        torch.testing.assert_close(kept.to_point(step[fits]), found.to_point(step)[fits])
        torch.testing.assert_close(kept.of_gradient(step[fits]), found.of_gradient(step)[fits])


@pytest.mark.parametrize("n_classes", [2, 4])
def test_fits_end_apart_and_keep_their_numbers(n_classes):
    objectives, near = objectives_of(n_classes), zero(n_classes)
    found = ends(objectives, near, 1e-14, 500)
    start = near.clone()
    start[1] = found[1].point
    order = list(ends(objectives, start, 1e-12, 500))
    assert (order[0], sorted(order)) == (1, [0, 1, 2])
    for number, end in found.items():
        alone = ends(objectives.select(torch.tensor([number])), near[:1], 1e-14, 500)[0]
        torch.testing.assert_close(end.point, alone.point, atol=1e-5, rtol=1e-5)
        assert end.converged
        point = end.point.expand(3, -1, -1)
        assert end.value == pytest.approx(objectives.at(point)[0][number])


def test_a_fit_continues_to_its_aim_and_converges_by_its_tolerance():
    objectives, start = objectives_of(2), random_point(2)
    loose = ends(objectives, start, 1e-2, 500, aim=1e-2)
    aiming = ends(objectives, start, 1e-2, 500, aim=1e-12)
    cut = ends(objectives, start, 1e-2, 6, aim=1e-12)
    never = ends(objectives, start, -1.0, 6, aim=1e-12)
    for number, end in aiming.items():
        assert end.gradient_norm < 1e-3 * loose[number].gradient_norm
        assert loose[number].n_iter < cut[number].n_iter == 6 < end.n_iter
        assert loose[number].converged
        assert cut[number].converged
        assert not never[number].converged


def test_a_fit_does_not_go_on_for_long_to_an_aim_that_it_cannot_reach():
    loose, aiming = (ends(objectives_of(2), zero(2), 1e-4, 2000, aim=aim) for aim in (1e-4, -1.0))
    for number, end in aiming.items():
        assert end.converged
        assert 0 < end.n_iter - loose[number].n_iter <= BEYOND


def test_a_fit_that_was_within_its_tolerance_has_converged_though_rounding_moves_it(monkeypatch):
    own_norms, known = Coordinates.own_norms, []

    def moved(self, gradient):
        known.append(own_norms(self, gradient))
        return known[-1] + 1e3 * (len(known) > 5)

    monkeypatch.setattr(Coordinates, "own_norms", moved)
    (end,) = ends(objectives_of(2, n_fits=1), zero(2, n_fits=1), 1e-4, 2000, aim=-1.0).values()
    assert end.gradient_norm > 999
    assert end.converged


def test_the_principal_axes_spare_steps(monkeypatch):
    # An exact Hessian contains them as well.
    monkeypatch.setattr(coordinates, "MOST_COORDINATES", 0)
    objectives, one = objectives_of(4, C=1e3), torch.ones(7, dtype=torch.float64)
    blind = replace(objectives, axes=one.diag(), variances=one)
    both = (ends(made, zero(4), 1e-10, 5000) for made in (objectives, blind))
    usual, without = (max(end.n_iter for end in found.values()) for found in both)
    assert without > 1.2 * usual


@pytest.mark.parametrize("far", [1e2, 1e5])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_distant_start_converges(far, n_classes):
    objectives = objectives_of(n_classes)
    home = ends(objectives, zero(n_classes), 1e-14, 2000)
    for number, end in ends(objectives, far * random_point(n_classes), 1e-14, 2000).items():
        assert end.value == pytest.approx(home[number].value, rel=1e-9)


def test_what_is_the_same_in_all_classes_is_taken_from_the_start():
    objectives = objectives_of(4)
    shifted = ends(objectives, zero(4) + 7, 1e-14, 500)
    for number, end in ends(objectives, zero(4), 1e-14, 500).items():
        torch.testing.assert_close(shifted[number].point, end.point)
        assert end.point.mean(dim=0).abs().max() < 1e-12


def test_a_row_that_counts_nowhere_has_no_say():
    X, _ = problem(2)
    spoilt, counts = np.vstack([X, X[:1] * 1e9]), np.append(np.ones(len(X)), 0.0)
    typical = np.ones(len(spoilt), dtype=bool)
    one, other = shared(X, [counts[:-1]], typical[:-1]), shared(spoilt, [counts], typical)
    for name in ("mean", "back", "variances"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)


def test_rows_far_from_zero_keep_their_differences():
    # A mean that float32 cannot hold would shift all rows by an amount that folding does not undo.
    X = (1e4 + np.random.default_rng(0).normal(size=(500, 1))).astype(np.float32)
    made = shared(X, [np.ones(500)], np.ones(500, dtype=bool))
    coef, intercept = made.fold(0, np.ones((1, 1)), np.zeros(1))
    scores = coef @ X.T.astype(np.float64) + intercept[:, None]
    rows = torch.cat([block for _, block in made.rows.blocks()]) * made.units[0]
    np.testing.assert_allclose(scores[0], rows[:, 0], atol=1e-6)


def test_sums_over_blocks_are_in_float64(monkeypatch):
    # In float32 the ones would be lost in the partial sum.
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 1)
    X = np.array([[1e8]] + [[1.0]] * 64, dtype=np.float32)
    rows = DesignRows(LazyRows.of(X), np.zeros(1), np.ones(1), torch.float32)
    one, zeros = torch.ones(1, 1), torch.zeros(1, 65, dtype=torch.uint8)
    new = {"columns": zeros, "shares": zeros == 0, "penalty": 0 * one[0], "rows": rows}
    new |= dict.fromkeys(("axes", "units"), one) | dict.fromkeys(("variances", "factor"), one[0])
    made = replace(objectives_of(2, n_fits=1), **new)
    # The slope of the loss in each score is 1/2 for the first of two classes.
    _, gradient = made.at(torch.zeros(1, 1, 2))
    assert gradient.tolist() == [[[np.float32(0.5 * (1e8 + 64)), 32.5]]]


def test_weights_and_typical_rows_decide_the_moments():
    X, weights = np.array([[0.0], [2.0], [50.0]]), np.array([3.0, 1.0, 1.0])
    mean, spread = moments(X, weights, np.array([True, True, False]))
    assert (mean[0], spread[0]) == (0.5, np.sqrt(0.75))
    one_left, _ = moments(X, weights, np.array([True, False, False]))
    np.testing.assert_allclose(one_left, (3 * 0 + 2 + 50) / 5)
