"""Class weights: the fits of scikit-learn, with probabilities corrected for the weights."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression, RidgeClassifier

from probekit.errors import ConfigError
from probekit.experiment.loader import load_experiment
from probekit.probes.data import ProbeData
from probekit.probes.kinds.k_sparse import KSparseProbe
from probekit.probes.kinds.ridge import RidgeProbe
from probekit.probes.kinds.svm import solve_hinge
from probekit.probes.prober import Prober
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import Tuning, fit_columns


def rare_rows(n, width, n_classes, seed=0):
    """Rows whose classes become rarer: half of the rows for each further class."""
    generator = np.random.default_rng(seed)
    shares = 0.25 ** np.arange(n_classes)
    codes = generator.choice(n_classes, size=n, p=shares / shares.sum())
    X = generator.normal(size=(n, width)) * generator.uniform(0.5, 3, width) + 2
    X[:, :n_classes] += np.eye(n_classes)[codes]
    return X, codes


def reference(X, codes, C):
    """scikit-learn's coefficients on standardised features, for raw features."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    model = LogisticRegression(C=C, class_weight="balanced", tol=1e-10, max_iter=10_000)
    model.fit((X - mean) / scale, codes)
    coef = model.coef_ / scale
    return coef, model.intercept_ - coef @ mean


def assert_same(fit, X, codes, C):
    coef, intercept = reference(X, codes, C)
    shift = intercept.mean() if len(intercept) > 1 else 0.0
    scale = np.abs(coef).max()
    np.testing.assert_allclose(fit.coef, coef, atol=1e-4 * scale)
    np.testing.assert_allclose(fit.intercept, intercept - shift, atol=1e-4 * max(1, scale))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("n", "width"), [(240, 12), (60, 90)], ids=["tall", "wide"])
def test_fits_are_those_of_scikit_learn(n, width, n_classes):
    """The final fit on all rows, and that of each fold with the class weights of its own rows."""
    X, codes = rare_rows(n, width, n_classes)
    folds = np.arange(n) % 3
    tuning = Tuning(StoppingRule(1e-19), balanced=True)
    (tuned,) = fit_columns(X, [codes], folds, (0.1,), tuning=tuning)
    assert_same(tuned.solution, X, codes, 0.1)
    for fold, fit in enumerate(tuned.search):
        inside = folds != fold
        # The search stops earlier, so its coefficients are compared less closely.
        coef, _ = reference(X[inside], codes[inside], 0.1)
        np.testing.assert_allclose(fit.coef, coef, atol=0.02 * np.abs(coef).max())


def test_the_k_sparse_probe_is_the_logistic_probe_on_its_features():
    X, codes = rare_rows(240, 12, 2)
    probe = KSparseProbe(k=3, C=0.1, balanced=True).fit(X, codes)
    coef, intercept = reference(X[:, probe.features_], codes, 0.1)
    np.testing.assert_allclose(probe.coef_[:, probe.features_], coef, atol=1e-4)
    np.testing.assert_allclose(probe.intercept_, intercept, atol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_ridge_probe_is_that_of_scikit_learn(n_classes):
    X, codes = rare_rows(240, 12, n_classes)
    mean, scale = X.mean(axis=0), X.std(axis=0)
    model = RidgeClassifier(alpha=10.0, class_weight="balanced").fit((X - mean) / scale, codes)
    probe = RidgeProbe(alpha=10.0, balanced=True).fit(X, codes)
    np.testing.assert_allclose(probe.coef_, np.atleast_2d(model.coef_ / scale), atol=1e-8)


def test_weights_of_the_svm_are_repeated_rows():
    X, codes = rare_rows(100, 4, 2)
    X -= X.mean(axis=0)
    truth = np.where(codes == 1, 1.0, -1.0)[None]
    weights = np.where(codes == 1, 3.0, 1.0)[None]
    again = np.repeat(np.arange(100), weights[0].astype(int))
    start = np.zeros((1, 5))
    weighted, *_ = solve_hinge(X, truth, weights, 0.5, 1000, start)
    ones = np.ones((1, len(again)))
    repeated, *_ = solve_hinge(X[again], truth[:, again], ones, 0.5, 1000, start)
    np.testing.assert_allclose(weighted, repeated, atol=1e-4)


def calibrated(n=4000, seed=0):
    """Rows of a logistic model, so that its probabilities are known; one class is rare."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 5))
    positive = generator.random(n) < expit(X[:, 0] + X[:, 1] - 3)
    row = np.arange(n).astype(str)
    y = np.where(positive, "rare", "usual")
    return X, ProbeData(y, row, row, np.arange(n // 2), np.arange(n // 2, n))


def scores(class_weight, kind="logistic", **settings):
    X, data = calibrated()
    defaults = {"folds": 3, "control_draws": 0, "C": (1.0,)}
    one = ProbeSettings(
        kinds=(ProbeSpec(kind),), class_weight=class_weight, **(defaults | settings)
    )
    result = Prober(data, one).site(X)
    return {(m.metric, m.split): m.value for m in result.measurements}, result


def test_probabilities_are_corrected_and_guesses_are_not():
    plain, _ = scores(None)
    balanced, result = scores("balanced", metric="brier")
    for metric in ("brier", "ece"):
        assert balanced[metric, "test"] == pytest.approx(plain[metric, "test"], abs=0.01)
    assert balanced["brier", "validation"] == pytest.approx(balanced["brier", "test"], abs=0.02)
    assert balanced["compression", "online"] == pytest.approx(
        plain["compression", "online"], rel=0.05
    )
    assert balanced["balanced_accuracy", "test"] > plain["balanced_accuracy", "test"] + 0.1
    predictions = result.predictions["logistic", "task"]
    _, data = calibrated()
    train = data.y[data.train] == data.classes[:, None]
    uncorrected = predictions.scores - np.log(train.mean(axis=1))
    assert np.array_equal(predictions.guess, uncorrected.argmax(axis=1))
    assert (predictions.guess != predictions.scores.argmax(axis=1)).any()


@pytest.mark.parametrize("kind", ["ridge", "svm"])
def test_scores_that_are_no_logits_are_corrected_for_the_code(kind):
    plain, balanced = (scores(weight, kind)[0] for weight in (None, "balanced"))
    assert balanced["compression", "online"] > 0.95 * plain["compression", "online"]
    assert balanced["balanced_accuracy", "test"] > plain["balanced_accuracy", "test"] + 0.1


@pytest.mark.parametrize("kind", ["mlp", "lda", "mass_mean", "ridge_regression"])
def test_kinds_without_class_weights_are_refused_and_others_named(kind):
    with pytest.raises(ConfigError, match=f"{kind}.* has no class weights.*: logistic, ridge, svm"):
        ProbeSettings(kinds=(ProbeSpec(kind),), class_weight="balanced")


def test_the_experiment_file_names_the_key(repository):
    file = repository / "experiments" / "quickstart.yaml"
    sets = ("probe.class_weight=balanced", "probe.kinds=[{kind: lda}]")
    with pytest.raises(ConfigError, match=r"probe\.class_weight: lda has no class weights"):
        load_experiment(file, sets)
    with pytest.raises(ConfigError, match=r"probe\.class_weight is 'balance'. Nearest: balanced"):
        load_experiment(file, ("probe.class_weight=balance",))
    assert load_experiment(file, sets[:1]).probe.settings().class_weight == "balanced"
