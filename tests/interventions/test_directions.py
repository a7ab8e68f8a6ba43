"""Directions of a method, with those on permuted labels."""

import numpy as np
import pytest

from probekit.errors import DataError, UnknownNameError
from probekit.interventions.directions import (
    DirectionSet,
    allowed_doses,
    directions_of,
    dose_limit,
    label_sets,
    matched_directions,
)
from probekit.interventions.erasure import leace
from probekit.probes.kinds.logistic import LinearProbe


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


def test_only_the_given_rows_exchange_labels():
    codes = np.arange(40) % 2
    sets = label_sets(codes, np.arange(40), draws=20, seed=0, rows=np.arange(20))
    assert (sets[:, 20:] == codes[20:]).all()
    assert (sets[0] == codes).all()
    assert (sets[1:, :20] != codes[:20]).any(axis=1).all()


def test_whole_groups_exchange_labels():
    groups = np.repeat(np.arange(10), 4)
    sets = label_sets(groups % 2, groups, draws=20, seed=0)
    assert (sets.reshape(21, 10, 4) == sets.reshape(21, 10, 4)[:, :, :1]).all()


def test_matched_directions_have_the_covariance_of_the_features():
    X = np.random.default_rng(0).normal(size=(2000, 3)) * [10, 3, 0.1]
    found = matched_directions(X, draws=4000, seed=1)
    np.testing.assert_allclose(np.linalg.norm(found.unit, axis=1), 1)
    ratio = np.abs(found.unit[:, 1] / found.unit[:, 0])
    assert np.median(ratio) == pytest.approx(0.3, rel=0.1)


def test_doses_depend_on_all_directions_alike():
    X, codes = sample()
    found = directions_of("probe", X, label_sets(codes, np.arange(200), 9, 0))
    turned = DirectionSet(found.unit[::-1], found.reading[::-1], found.spread[::-1], found.mean)
    by = (-4, -2, -1, 1, 2, 4)
    assert allowed_doses(dose_limit([found], [X]), by) == allowed_doses(
        dose_limit([turned], [X]), by
    )
    assert allowed_doses(dose_limit([found], [0 * X + found.mean]), by) == (-1, 1)


def test_a_class_that_is_missing_has_no_direction():
    X, codes = sample(20)
    labels = np.stack([codes, np.ones(20, dtype=int)])
    for along in ("probe", "mean_difference", "leace"):
        found = directions_of(along, X, labels)
        assert found.unit[0].any()
        assert not found.unit[1].any()


def test_arguments_that_do_not_fit_are_refused():
    X, codes = sample(20)
    with pytest.raises(UnknownNameError, match="Nearest: leace"):
        directions_of("leece", X, codes[None])
    with pytest.raises(DataError, match=r"codes \[0, 2\]"):
        directions_of("probe", X, 2 * codes[None])
