"""Directions on permuted labels; batches of directions equal one whole pass for each."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.interventions import directions as module
from probekit.interventions import edits
from probekit.interventions.directions import DirectionSet, Responder, directions_of, label_sets
from probekit.interventions.edits import run_edited
from probekit.interventions.erasure import leace
from probekit.model.sites.sites import SiteSelection
from probekit.probes.kinds.logistic import LinearProbe
from tests.interventions.tiny import differences, measure_of, pairs
from tests.model.reference import TINY


def sample(n=200, seed=0):
    generator = np.random.default_rng(seed)
    codes = generator.integers(2, size=n)
    mixing = generator.normal(size=(6, 6))
    return generator.normal(size=(n, 6)) @ mixing + 2 * codes[:, None] * np.eye(6)[2], codes


def test_the_probe_direction_is_that_of_a_single_fit():
    X, codes = sample()
    labels = label_sets(codes, np.arange(200), draws=4, seed=0)
    found = directions_of("probe", X, labels, C=0.1)
    for own, unit in zip(labels, found.unit, strict=True):
        weights = LinearProbe(C=0.1).fit(X, own).coef_[0]
        np.testing.assert_allclose(unit, weights / np.linalg.norm(weights), atol=1e-4)
    np.testing.assert_allclose(found.spread, (X @ found.unit.T).std(axis=0))


def test_leace_of_one_direction_erases_like_the_eraser():
    X, codes = sample()
    found = directions_of("leace", X, codes[None])
    erased = X - np.outer((X - found.mean) @ found.reading[0], found.unit[0])
    np.testing.assert_allclose(erased, leace(X, codes)(X), atol=1e-8)


def test_whole_groups_and_only_the_given_rows_exchange_labels():
    codes, rows = np.arange(40) % 2, np.arange(40)
    sets = label_sets(codes, rows, draws=20, seed=0, rows=rows[:20])
    assert (sets[:, 20:] == codes[20:]).all()
    assert (sets[0] == codes).all()
    assert (sets[1:, :20] != codes[:20]).any(axis=1).all()
    groups = np.repeat(np.arange(10), 4)
    by_group = label_sets(groups % 2, groups, draws=20, seed=0).reshape(21, 10, 4)
    assert (by_group == by_group[:, :, :1]).all()


def test_matched_directions_have_the_covariance_of_the_features():
    X = np.random.default_rng(0).normal(size=(2000, 3)) * [10, 3, 0.1]
    found = module.matched_directions(X, draws=4000, seed=1)
    np.testing.assert_allclose(np.linalg.norm(found.unit, axis=1), 1)
    ratio = np.abs(found.unit[:, 1] / found.unit[:, 0])
    assert np.median(ratio) == pytest.approx(0.3, rel=0.1)


def test_doses_depend_on_all_directions_alike():
    X, codes = sample()
    found = directions_of("probe", X, label_sets(codes, np.arange(200), 9, 0))
    turned = DirectionSet(found.unit[::-1], found.reading[::-1], found.spread[::-1], found.mean)

    def doses(directions, X):
        return module.allowed_doses(module.dose_limit([directions], [X]), (-4, -2, -1, 1, 2, 4))

    assert doses(found, X) == doses(turned, X)
    assert doses(found, 0 * X + found.mean) == (-1, 1)


def test_a_class_that_is_missing_has_no_direction():
    X, codes = sample(20)
    labels = np.stack([codes, np.ones(20, dtype=int)])
    for along in ("probe", "mean_difference", "leace"):
        found = directions_of(along, X, labels)
        assert found.unit[0].any()
        assert not found.unit[1].any()


@pytest.mark.parametrize(("along", "codes"), [("leece", [0, 1]), ("probe", [0, 2])])
def test_arguments_that_do_not_fit_are_refused(along, codes, refused):
    refused(directions_of, along, sample(20)[0], np.tile(codes, (1, 10)))


AT = torch.tensor([7, 6, 2, 5])
SITES = [
    SiteSelection("blocks.1.hook_resid_post"),
    SiteSelection("blocks.3.hook_resid_mid"),
    SiteSelection("blocks.2.attn.hook_z", head=1),
    SiteSelection("blocks.0.mlp.hook_post"),
]


BATCH, SOURCES = pairs(lengths=[5, 3, 8, 4])


def responder_of(model, site, at):
    return Responder(model, BATCH, site, at, measure_of(n=4))


def directions_at(width, n=3):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(50, width)) + 1
    found = directions_of("leace", X, label_sets(np.arange(50) % 2, np.arange(50), n - 1, 0))
    assert not np.allclose(found.unit, found.reading)
    return found


def whole_pass(responder, tap):
    logits = run_edited(responder.model, responder.batch, [(responder.selection, tap)])
    return differences(logits, responder.batch, responder.measure)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at", [AT, None])
@pytest.mark.parametrize("site", SITES, ids=lambda site: site.text)
def test_every_direction_equals_a_whole_pass(model, site, at, monkeypatch):
    monkeypatch.setattr(module, "_CHANGE_BYTES", 4000)  # several blocks
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 3)
    responder = responder_of(model, site, at)
    directions = directions_at(responder.features().shape[1])
    steered, erased = responder.steered(directions, (-2, 1)), responder.erased(directions)
    swapped = responder.swapped(directions, SOURCES)
    _, cache = model.run_with_cache(SOURCES, [site.site])
    other = cache[site.site]
    other = (other if site.head is None else other[:, :, site.head]).double()
    mean = torch.from_numpy(directions.mean)
    for n in range(3):
        unit, reading = (torch.from_numpy(x[n]) for x in (directions.unit, directions.reading))
        for place, dose in enumerate((-2, 1)):
            tap = edits.add(dose * directions.spread[n] * unit, at)
            close(steered[:, n, place], whole_pass(responder, tap))

        def moved(x, given, r=reading, u=unit):
            return x + ((given - x) @ r.to(x))[..., None] * u.to(x)

        for found, values in ((erased, mean), (swapped, other)):
            close(found[:, n], whole_pass(responder, edits.Edit(moved, values, at)))
    close(responder.without(directions.mean), whole_pass(responder, edits.replace(mean, at)))
    close(responder.exchanged(SOURCES), whole_pass(responder, edits.replace(other, at)))


def test_base_and_sources_are_plain_passes(model):
    responder = responder_of(model, SITES[0], AT)
    for found, batch in ((responder.base(), BATCH), (responder.of_sources(SOURCES), SOURCES)):
        close(found, differences(model(batch), batch, responder.measure))


def test_a_direction_of_zeros_has_no_effect(model):
    responder = responder_of(model, SITES[0], AT)
    zero = DirectionSet.of_weights(np.zeros((1, TINY.n_embd)), np.ones((2, TINY.n_embd)))
    close(responder.erased(zero)[:, 0], responder.base())
    close(responder.steered(zero, (4,))[:, 0, 0], responder.base())


def test_features_are_those_of_the_positions(model):
    _, cache = model.run_with_cache(BATCH, [SITES[0].site])
    expected = cache[SITES[0].site]
    close(responder_of(model, SITES[0], AT).features(), expected[torch.arange(4), AT].numpy())
    close(responder_of(model, SITES[0], None).features(), expected[:, -1].numpy())


def test_features_can_be_those_of_another_position_than_the_edit(model):
    read = torch.tensor([6, 7, 1, 4])
    without, there = (responder_of(model, SITES[0], at) for at in (None, read))
    everywhere = replace(without, read=read)
    np.testing.assert_array_equal(everywhere.features(), there.features())
    directions = directions_at(TINY.n_embd)
    np.testing.assert_array_equal(everywhere.erased(directions), without.erased(directions))
