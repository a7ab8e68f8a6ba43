"""Preconditioned coordinates: Kronecker products and exact factors."""

from dataclasses import replace

import torch

from probekit.probes.solve import coordinates
from probekit.probes.solve.coordinates import Coordinates, Factor, Product, centred
from tests.probes.objectives import objectives_of, random_point

LONG = 1000  # steps, after which a Hessian is worth while


def uneven(n_classes, n_fits=3):
    """Objectives, and scores at which most rows are certain."""
    objectives, *_ = objectives_of(n_classes, n_fits=n_fits)
    return objectives, centred(3 * random_point(n_classes, n_fits))


def test_fits_of_a_group_share_the_hessian_of_their_mean():
    objectives, point = uneven(2)
    scores = objectives.scores(point)
    objectives = replace(objectives, group=torch.tensor([0, 1, 0]))
    (first, shared), (second, own) = Coordinates.at(objectives, scores, LONG).parts
    assert (first.tolist(), second.tolist()) == ([0, 2], [1])
    lowers = [Factor.at(objectives.select(fit), scores[fit]).lower for fit in torch.eye(3).bool()]
    hessians = [lower @ lower.mT for lower in lowers]
    torch.testing.assert_close(own.lower, lowers[1])
    mean = (hessians[0] + hessians[2]) / 2
    torch.testing.assert_close(shared.lower @ shared.lower.mT, mean, rtol=0, atol=0.003)


def test_a_hessian_is_made_where_it_is_worth_while(monkeypatch):
    objectives, point = uneven(2)
    scores = objectives.scores(point)

    def kind(n_steps):
        ((_, part),) = Coordinates.at(objectives, scores, n_steps).parts
        return type(part)

    assert [kind(0), kind(LONG)] == [Product, Factor]
    monkeypatch.setattr(coordinates, "MOST_COORDINATES", 6)
    assert kind(LONG) is Product


def test_the_product_is_used_where_the_factor_fails(monkeypatch):
    objectives, point = uneven(2)
    scores = objectives.scores(point)
    monkeypatch.setattr(coordinates, "_hessians", lambda *_: -torch.eye(8)[None])
    assert Factor.at(objectives, scores) is None
    ((places, part),) = Coordinates.at(objectives, scores, LONG).parts
    assert (places.tolist(), type(part)) == ([0, 1, 2], Product)


def test_the_flattest_rows_are_omitted_and_the_rest_is_thinned_by_stride():
    generator = torch.Generator().manual_seed(0)
    curvature = torch.rand(3, 1000, generator=generator, dtype=torch.float64) ** 8
    counted = coordinates._counted(curvature, torch.tensor(0.5), most=1000)
    left_out = counted == 0
    assert (left_out.sum(dim=1) > 100).all()
    torch.testing.assert_close(counted[~left_out], curvature[~left_out])
    assert ((curvature * left_out).sum(dim=1) <= 0.5).all()
    assert (curvature[left_out].max()) < curvature[~left_out].min() * 2
    few = coordinates._counted(curvature, torch.tensor(0.5), most=100)
    assert ((few > 0).sum(dim=1) < 200).all()
    torch.testing.assert_close(few.sum(dim=1), curvature.sum(dim=1), rtol=0.05, atol=0)
