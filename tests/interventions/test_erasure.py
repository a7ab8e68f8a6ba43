"""Before erasure the labels can be predicted, after it they cannot; rare classes included."""

import warnings

import numpy as np
import pytest
import torch

from probekit.interventions import erasure
from probekit.interventions.directions import Responder
from probekit.interventions.edits import project_out
from probekit.interventions.erasure import leace, mean_projection
from probekit.interventions.measures import AnswerMeasure
from probekit.model.sites.sites import SiteSelection
from probekit.probes.solve.solver import Problem, Solver
from tests.interventions.hand_set import LAST, hand_set, texts

N_FEATURES = 9


@pytest.fixture(scope="module")
def reference():
    """A function that erases with the implementation of the extra `test`; it warns of torch.jit."""
    with warnings.catch_warnings(action="ignore"):
        fitter = pytest.importorskip("concept_erasure").LeaceFitter

    def erased(X, labels, **settings):
        labels = torch.from_numpy(labels.astype(float))
        made = fitter(N_FEATURES, labels.shape[1], dtype=torch.float64, shrinkage=False, **settings)
        return made.update(torch.from_numpy(X), labels).eraser(torch.from_numpy(X)).numpy()

    return erased


def sample(n=400, shares=(0.5, 0.3, 0.2), seed=0, gap=1.5):
    """Rows with correlated features, whose class means differ."""
    generator = np.random.default_rng(seed)
    codes = np.repeat(np.arange(len(shares)), np.round(n * np.array(shares)).astype(int))
    means = gap * generator.normal(size=(len(shares), N_FEATURES))
    mixing = generator.normal(size=(N_FEATURES, N_FEATURES))
    return generator.normal(size=(len(codes), N_FEATURES)) @ mixing + means[codes], codes


def accuracy(X, codes):
    (fit,) = Solver(X, [np.ones(len(X))]).solve([Problem(codes, C=10.0)])
    return np.mean(fit.predict(X) == codes)


def gap_of_means(X, codes):
    means = np.array([X[codes == code].mean(0) for code in np.unique(codes)])
    return np.abs(means - X.mean(0)).max()


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.3, 0.2)])
def test_leace_equals_the_reference(reference, shares):
    X, codes = sample(shares=shares)
    expected = reference(X, np.eye(len(shares))[codes], constrain_cov_trace=False, svd_tol=1e-9)
    np.testing.assert_allclose(leace(X, codes)(X), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_after_leace_no_classifier_beats_the_majority(shrinkage):
    X, codes = sample()
    erased = leace(X, codes, shrinkage=shrinkage)(X)
    assert accuracy(X, codes) > 0.7
    assert accuracy(erased, codes) == pytest.approx(0.5, abs=0.005)
    assert gap_of_means(X, codes) > 0.5
    assert gap_of_means(erased, codes) < 1e-9
    np.testing.assert_allclose(erased.mean(0), X.mean(0))


def test_pitfall_52_a_rare_class_is_erased(reference):
    X, codes = sample(n=20_000, shares=(0.999, 0.001), gap=1.0)
    assert gap_of_means(X, codes) > 0.5
    assert gap_of_means(leace(X, codes)(X), codes) < 1e-8
    # The reference keeps it at its absolute tolerance.
    kept = reference(X, codes[:, None])
    assert gap_of_means(kept, codes) == pytest.approx(gap_of_means(X, codes))


@pytest.mark.parametrize("make", [leace, mean_projection])
@pytest.mark.parametrize(
    ("n", "shares"),
    [(400, (0.5, 0.3, 0.2)), (20_000, (0.6, 0.399, 0.001)), (6, (0.5, 0.5))],
    ids=["three classes", "one of them rare", "few rows"],
)
def test_differences_of_means_are_erased_and_erasing_twice_equals_erasing_once(make, n, shares):
    X, codes = sample(n, shares)
    eraser = make(X, codes)
    np.testing.assert_allclose(eraser(eraser(X)), eraser(X), atol=1e-8)
    assert eraser.rank == len(shares) - 1
    assert gap_of_means(eraser(X), codes) < 1e-8
    assert np.allclose(eraser.left, eraser.right.T) == (make is mean_projection)


def test_the_tap_erases_like_the_array():
    X, codes = sample()
    eraser = leace(X, codes)
    value = torch.from_numpy(X[:10]).reshape(2, 5, N_FEATURES)
    found = eraser.tap(torch.tensor([4, 0]))("hook_embed", value)
    expected = value.clone()
    for row, column in ((0, 4), (1, 0)):
        expected[row, column] = torch.from_numpy(eraser(X[5 * row + column][None])[0])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        erasure.probe_projection(eraser.left.T, eraser.mean).tap()("hook_embed", value),
        project_out(eraser.left.T, mean=torch.from_numpy(eraser.mean))("hook_embed", value),
    )


def test_constant_features_receive_no_copy_of_the_label():
    """A copy of 1e-20 would be read perfectly by a probe on standardised features."""
    X, codes = sample(shares=(0.5, 0.5))
    X[:, 3] = 0
    for eraser in (leace(X, codes), mean_projection(X, codes)):
        erased = eraser(X)
        assert not erased[:, 3].any()
        assert accuracy(erased, codes) < 0.6


PRE = SiteSelection("blocks.0.hook_resid_pre")
SITES = ["blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]


def scores(position, labelled, site=PRE):
    model = hand_set()
    batch, codes, groups = texts(200, at=labelled)
    at = torch.full((200,), position)
    zeros = torch.zeros_like(at)
    X = Responder(model, batch, site, at, AnswerMeasure(zeros, zeros + 1)).features()
    train = np.flatnonzero(groups < np.median(groups))
    eraser = leace(X[train], codes[train])
    return erasure.downstream_scores(model, batch, codes, groups, train, (site, eraser), SITES, at)


def test_information_comes_back_where_attention_brings_it():
    first, second, third = scores(LAST, labelled=(1, LAST))
    assert first["before"] > 0.95
    assert first["after"] < 0.65
    assert min(one[name] for one in (second, third) for name in ("before", "after")) > 0.95
    for one in scores(2, labelled=(2,)):  # this is nowhere else
        assert one["before"] > 0.95
        assert one["after"] < 0.65
        assert one["after_low"] <= 0.5 <= one["after_high"]
    assert (first["chance"], first["n"], first["site"]) == (0.5, 100, PRE.text)


@pytest.mark.parametrize(
    "call",
    [
        "leace(np.ones((3, 2)), np.zeros(3, dtype=int))",
        "mean_projection(np.ones((3, 2)), np.array([0, 1]))",
        "leace(np.array([[np.nan, 1], [2, 0], [0, 1]]), np.array([0, 1, 1]))",
        "leace(np.array([[1, 2], [2, 0], [0, np.inf]]), np.array([0, 1, 1]))",
        "erasure.probe_projection(np.ones((1, 2)), np.array([0, np.nan]))",
        "scores(2, (2,), SiteSelection('blocks.1.hook_resid_post'))",
    ],
)
def test_labels_and_sites_that_do_not_fit_are_refused(call, refused):
    refused(eval, call, globals())
