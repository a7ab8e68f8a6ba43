"""L-BFGS over many objectives: gradients, coordinates, and how it ends."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.probes.descent import Coordinates, Objectives, descend
from probekit.probes.design import shared
from tests.probes.logistic import objective, problem, standardised


def objectives_of(n_classes, C=0.1, n_fits=3):
    """The same problem for each fit, on weights of its own."""
    X, codes = problem(n_classes)
    generator = np.random.default_rng(1)
    shares = [generator.uniform(0.1, 2, size=len(X)) for _ in range(n_fits)]
    design = shared(X, shares, np.ones(len(X), dtype=bool))
    total = design.weights.sum(dim=1)
    labels = torch.as_tensor(np.stack([codes] * n_fits))
    made = Objectives(
        rows=design.rows,
        axes=design.axes,
        variances=design.variances,
        codes=labels.double() if n_classes == 2 else labels,
        weights=design.weights / total[:, None],
        units=design.units,
        penalty=1 / (C * total),
    )
    return made, X, codes, shares


def random_point(n_classes, n_fits=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = n_fits, 1 if n_classes == 2 else n_classes, 8
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def values(objectives, point):
    losses, _ = objectives.losses(objectives.scores(point))
    return losses + 0.5 * objectives.penalties(point, point)


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
def test_steps_and_gradients_keep_their_inner_product_in_the_coordinates(n_classes):
    objectives, *_ = objectives_of(n_classes)
    scores = objectives.scores(random_point(n_classes))
    coordinates = Coordinates.at(objectives, scores)
    step, gradient = random_point(n_classes, seed=1), random_point(n_classes, seed=2)
    inside = (step * coordinates.of_gradient(gradient)).sum(dim=(1, 2))
    outside = (coordinates.to_point(step) * gradient).sum(dim=(1, 2))
    torch.testing.assert_close(inside, outside)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_hessian_is_about_the_identity_in_the_coordinates(n_classes):
    objectives, *_ = objectives_of(n_classes, n_fits=1)
    point = torch.zeros_like(random_point(n_classes, n_fits=1))
    coordinates = Coordinates.at(objectives, objectives.scores(point))

    def gradient(step):
        moved = point + coordinates.to_point(step.view(point.shape))
        _, slopes = objectives.losses(objectives.scores(moved))
        return coordinates.of_gradient(objectives.gradient(slopes, moved)).flatten()

    steps = 1e-5 * torch.eye(point.numel(), dtype=torch.float64)
    hessian = torch.stack([(gradient(step) - gradient(-step)) / 2e-5 for step in steps])
    sizes = torch.linalg.eigvalsh(hessian)
    # Among four classes one direction of the intercepts changes nothing.
    assert (sizes < 1e-9).sum() == (n_classes > 2)
    assert sizes[sizes > 1e-9].min() > 0.7
    assert sizes.max() < 1.4


@pytest.mark.parametrize("n_classes", [2, 4])
def test_fits_end_apart_and_keep_their_numbers(n_classes):
    objectives, *_ = objectives_of(n_classes)
    near = torch.zeros_like(random_point(n_classes))
    ends = dict(descend(objectives, near, 1e-14, 500))
    start = near.clone()
    start[1] = ends[1].point
    order = [number for number, _ in descend(objectives, start, 1e-12, 500)]
    assert (order[0], sorted(order)) == (1, [0, 1, 2])
    for number, end in ends.items():
        alone = dict(descend(objectives.keep(torch.tensor([number])), near[:1], 1e-14, 500))[0]
        torch.testing.assert_close(end.point, alone.point, atol=1e-5, rtol=1e-5)
        assert end.converged
        assert end.value == pytest.approx(values(objectives, end.point.expand(3, -1, -1))[number])


def test_no_steps_at_all_are_told():
    objectives, *_ = objectives_of(2)
    ends = dict(descend(objectives, random_point(2), 1e-8, 0))
    assert [(end.n_iter, end.converged) for end in ends.values()] == [(0, False)] * 3
    torch.testing.assert_close(ends[1].point, random_point(2)[1])


def test_a_stall_is_told_before_the_last_step():
    objectives, *_ = objectives_of(2)
    ends = dict(descend(objectives, random_point(2), -1.0, 100_000))
    assert all(not end.converged and end.n_iter < 1000 for end in ends.values())


def test_the_principal_axes_spare_steps():
    objectives, *_ = objectives_of(4, C=1e3)
    plain = torch.eye(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    blind = replace(objectives, axes=plain[0], variances=plain[1])
    start = torch.zeros_like(random_point(4))
    usual, without = (
        max(end.n_iter for _, end in descend(made, start, 1e-10, 5000))
        for made in (objectives, blind)
    )
    assert without > 1.2 * usual


@pytest.mark.parametrize("far", [1e2, 1e5])
def test_a_start_far_off_comes_home(far):
    for n_classes in (2, 4):
        objectives, *_ = objectives_of(n_classes)
        zero = torch.zeros_like(random_point(n_classes))
        home = dict(descend(objectives, zero, 1e-14, 2000))
        ends = dict(descend(objectives, far * random_point(n_classes), 1e-14, 2000))
        for number, end in ends.items():
            assert end.value == pytest.approx(home[number].value, rel=1e-9)
