"""Batched L-BFGS: convergence and stopping."""

from dataclasses import replace

import pytest
import torch

from probekit.probes.solve import coordinates
from probekit.probes.solve.coordinates import Coordinates
from probekit.probes.solve.descent import BEYOND, StoppingRule, descend
from tests.probes.objectives import objectives_of, random_point, values


@pytest.mark.parametrize("n_classes", [2, 4])
def test_fits_end_apart_and_keep_their_numbers(n_classes):
    objectives, *_ = objectives_of(n_classes)
    near = torch.zeros_like(random_point(n_classes))
    tight = StoppingRule(1e-14, 500)
    ends = dict(descend(objectives, near, tight))
    start = near.clone()
    start[1] = ends[1].point
    order = [number for number, _ in descend(objectives, start, StoppingRule(1e-12, 500))]
    assert (order[0], sorted(order)) == (1, [0, 1, 2])
    for number, end in ends.items():
        alone = dict(descend(objectives.select(torch.tensor([number])), near[:1], tight))[0]
        torch.testing.assert_close(end.point, alone.point, atol=1e-5, rtol=1e-5)
        assert end.converged
        assert end.value == pytest.approx(values(objectives, end.point.expand(3, -1, -1))[number])


def test_a_fit_continues_to_its_aim_and_converges_by_its_tolerance():
    objectives, *_ = objectives_of(2)
    loose, aiming, cut, never = (
        dict(descend(objectives, random_point(2), stopping))
        for stopping in (
            StoppingRule(1e-2, 500, aim=1e-2),
            StoppingRule(1e-2, 500, aim=1e-12),
            StoppingRule(1e-2, 6, aim=1e-12),
            StoppingRule(-1.0, 6, aim=1e-12),
        )
    )
    for number, end in aiming.items():
        assert end.gradient_norm < 1e-3 * loose[number].gradient_norm
        assert loose[number].n_iter < cut[number].n_iter == 6 < end.n_iter
        assert loose[number].converged
        assert cut[number].converged
        assert not never[number].converged


def test_a_fit_does_not_go_on_for_long_to_an_aim_that_it_cannot_reach():
    objectives, *_ = objectives_of(2)
    start = torch.zeros_like(random_point(2))
    loose, aiming = (
        dict(descend(objectives, start, StoppingRule(1e-4, 2000, aim=aim))) for aim in (1e-4, -1.0)
    )
    for number, end in aiming.items():
        assert end.converged
        assert 0 < end.n_iter - loose[number].n_iter <= BEYOND


def test_a_fit_that_was_within_its_tolerance_has_converged_though_rounding_moves_it(monkeypatch):
    own_norms, known = Coordinates.own_norms, []

    def moved(self, gradient):
        known.append(own_norms(self, gradient))
        return known[-1] + 1e3 * (len(known) > 5)

    monkeypatch.setattr(Coordinates, "own_norms", moved)
    objectives, *_ = objectives_of(2, n_fits=1)
    start = torch.zeros_like(random_point(2, n_fits=1))
    ((_, end),) = descend(objectives, start, StoppingRule(1e-4, 2000, aim=-1.0))
    assert end.gradient_norm > 999
    assert end.converged


def test_the_principal_axes_spare_steps(monkeypatch):
    monkeypatch.setattr(
        coordinates, "MOST_COORDINATES", 0
    )  # an exact Hessian contains them as well
    objectives, *_ = objectives_of(4, C=1e3)
    plain = torch.eye(7, dtype=torch.float64), torch.ones(7, dtype=torch.float64)
    blind = replace(objectives, axes=plain[0], variances=plain[1])
    start = torch.zeros_like(random_point(4))
    usual, without = (
        max(end.n_iter for _, end in descend(made, start, StoppingRule(1e-10, 5000)))
        for made in (objectives, blind)
    )
    assert without > 1.2 * usual


@pytest.mark.parametrize("far", [1e2, 1e5])
def test_a_distant_start_converges(far):
    for n_classes in (2, 4):
        objectives, *_ = objectives_of(n_classes)
        zero = torch.zeros_like(random_point(n_classes))
        home = dict(descend(objectives, zero, StoppingRule(1e-14, 2000)))
        ends = dict(descend(objectives, far * random_point(n_classes), StoppingRule(1e-14, 2000)))
        for number, end in ends.items():
            assert end.value == pytest.approx(home[number].value, rel=1e-9)


def test_what_is_the_same_in_all_classes_is_taken_from_the_start():
    objectives, *_ = objectives_of(4)
    start = torch.zeros_like(random_point(4))
    ends = dict(descend(objectives, start + 7, StoppingRule(1e-14, 500)))
    for number, end in dict(descend(objectives, start, StoppingRule(1e-14, 500))).items():
        torch.testing.assert_close(ends[number].point, end.point)
        assert end.point.mean(dim=0).abs().max() < 1e-12
