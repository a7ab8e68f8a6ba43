"""Rare labels: the main metric selects, class weights balance, and the rarer label is positive."""

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from probekit.experiment.document import validated as validated_settings
from probekit.experiment.loader import load_experiment
from probekit.probes.data import ProbeData
from probekit.probes.kinds.svm import solve_hinge
from probekit.probes.prober import Prober
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import Tuning, fit_columns
from probekit.results.site_results import pack, unpack
from probekit.section import KeyLocation
from tests.stored import each_row

N = 1000
POSITIVE = np.arange(N) % 33 == 0
Y = np.where(POSITIVE, "rare", "usual")


def data_of(y, train=None, types=None, positive=None):
    """Rows of their own; the first 70 % are for training."""
    row = np.arange(len(y))
    inside, names = row < 0.7 * len(y) if train is None else train, row.astype(str)
    types = names if types is None else types.astype(str)
    return ProbeData(y, names, types, row[inside], row[~inside], positive=positive)


def prober(data, kind="logistic", options=None, **settings):
    defaults = {"folds": 4, "control_draws": 0, "description": False, "C": (1.0,)}
    kinds = (ProbeSpec(kind=kind, **(options or {})),)
    return Prober(data, ProbeSettings(kinds=kinds, **(defaults | settings)))


def validated(result):
    (row,) = [m for m in result.measurements if (m.split, m.target) == ("validation", "task")]
    return row


@pytest.mark.parametrize(
    ("metric", "site"),
    [(None, 0), ("accuracy", 0), ("balanced_accuracy", 1), ("auroc", 1), ("auprc", 1)],
)
def test_with_rare_labels_accuracy_selects_another_site_than_other_metrics(metric, site):
    """One site marks half of the rare rows and no other, one marks most, and others."""
    generator = np.random.default_rng(0)
    careful = POSITIVE & (generator.random(N) < 0.5)
    eager = np.where(POSITIVE, generator.random(N) < 0.9, generator.random(N) < 0.02)
    noise = 0.01 * generator.normal(size=(2, N, 1))
    one = prober(data_of(Y), metric=metric)
    both = (X[:, None] + e for X, e in zip((careful, eager), noise, strict=True))
    rows = [validated(one.site(X)) for X in both]
    assert {row.metric for row in rows} == {one.main_metric} == {metric or "accuracy"}
    assert int(np.argmax([row.value for row in rows])) == site


GRID = (1e-4, 1e-2, 1.0)


@pytest.mark.parametrize("kind", ["logistic", "ridge", "k_sparse"])
def test_the_penalty_is_the_one_with_the_best_held_out_score(kind):
    """The same as that of scores one value at a time."""
    X = np.random.default_rng(0).normal(size=(N, 40))
    X[:, :8] += 0.35 * POSITIVE[:, None]
    options, chosen = {"k": (8,)} if kind == "k_sparse" else {}, {}

    def result(metric, C=GRID):
        return prober(data_of(Y), kind, options, metric=metric, C=C).site(X)

    for metric in ("accuracy", "auroc", *(["brier"] if kind == "logistic" else [])):
        both = result(metric)
        chosen[metric] = both.measurements[0].C
        if kind == "logistic":
            alone = [validated(result(metric, (C,))).value for C in GRID]
            if metric == "accuracy":  # of those within a row, the one of least loss; see test_fits
                assert validated(both).value >= max(alone) - 1 / N
                continue
            best = np.argmin(alone) if METRICS[metric].lower_is_better else np.argmax(alone)
            assert GRID[best] == chosen[metric]
            assert validated(both).value == alone[best]
    # With strong regularisation all rows are taken for usual, which is right for 97 in 100.
    strong, weak = sorted([chosen["accuracy"], chosen["auroc"]], reverse=kind == "ridge")
    assert strong != weak == chosen["auroc"]


def test_selectivity_is_positive_if_the_task_scores_better():
    X = 3.0 * POSITIVE[:, None] + np.random.default_rng(0).normal(size=(N, 3))
    data = data_of(Y, types=np.arange(N) % 60)
    result = prober(data, metric="brier", folds=3, control_draws=2).site(X)
    (selectivity,) = [m.value for m in result.measurements if m.metric == "selectivity"]
    rows = [m for m in result.measurements if (m.metric, m.split) == ("brier", "test")]
    brier = {m.target: m.value for m in rows}
    assert selectivity == pytest.approx(brier["control"] - brier["task"])
    assert selectivity > 0


def test_trees_have_the_default_of_each_kind():
    depth, distance = ProbeSpec(kind="structural_depth"), ProbeSpec(kind="structural_distance")
    assert ProbeSettings(kinds=(depth,)).main_metric == "root_accuracy"
    assert ProbeSettings(kinds=(depth, distance)).main_metrics == ("uuas", "root_accuracy")
    assert ProbeSettings(kinds=(depth, distance), metric="spearman").main_metrics == ("spearman",)


@each_row("kinds, settings")
def test_settings_that_do_not_fit_the_kinds_are_refused(kinds, settings, refused):
    values = {"kinds": [{"kind": kind} for kind in kinds], **settings}
    refused(validated_settings, ProbeSettings, values, KeyLocation())


@each_row("sets")
def test_the_experiment_file_names_the_key(sets, refused, repository):
    refused(load_experiment, repository / "experiments" / "quickstart.yaml", sets)


def rare_rows(n, width, n_classes):
    """Rows whose classes become rarer: a quarter of the rows for each further class."""
    generator = np.random.default_rng(0)
    shares = 0.25 ** np.arange(n_classes)
    codes = generator.choice(n_classes, size=n, p=shares / shares.sum())
    X = generator.normal(size=(n, width)) * generator.uniform(0.5, 3, width) + 2
    X[:, :n_classes] += np.eye(n_classes)[codes]
    return X, codes


def balanced_reference(X, codes, C):
    """scikit-learn's coefficients on standardised features, for raw features."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    model = LogisticRegression(C=C, class_weight="balanced", tol=1e-10, max_iter=10_000)
    model.fit((X - mean) / scale, codes)
    coef = model.coef_ / scale
    return coef, model.intercept_ - coef @ mean


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("n", "width"), [(240, 12), (60, 90)], ids=["tall", "wide"])
def test_fits_with_class_weights_are_those_of_scikit_learn(n, width, n_classes):
    """The final fit on all rows, and that of each fold with the class weights of its own rows."""
    X, codes = rare_rows(n, width, n_classes)
    folds = np.arange(n) % 3
    tuning = Tuning(StoppingRule(1e-19), balanced=True)
    (tuned,) = fit_columns(X, [codes], folds, (0.1,), tuning=tuning)
    coef, intercept = balanced_reference(X, codes, 0.1)
    shift, scale = intercept.mean() if n_classes > 2 else 0.0, np.abs(coef).max()
    np.testing.assert_allclose(tuned.solution.coef, coef, atol=1e-4 * scale)
    ours = tuned.solution.intercept
    np.testing.assert_allclose(ours, intercept - shift, atol=1e-4 * max(1, scale))
    for fold, fit in enumerate(tuned.search):
        # The search stops earlier, so its coefficients are compared less closely.
        coef, _ = balanced_reference(X[folds != fold], codes[folds != fold], 0.1)
        np.testing.assert_allclose(fit.coef, coef, atol=0.02 * np.abs(coef).max())


def test_weights_of_the_svm_are_repeated_rows():
    X, codes = rare_rows(100, 4, 2)
    X -= X.mean(axis=0)
    truth, counts = np.where(codes == 1, 1.0, -1.0)[None], np.where(codes == 1, 3, 1)
    again, start = np.repeat(np.arange(100), counts), np.zeros((1, 5))
    weighted, *_ = solve_hinge(X, truth, counts[None] * 1.0, 0.5, 1000, start)
    ones = np.ones((1, len(again)))
    repeated, *_ = solve_hinge(X[again], truth[:, again], ones, 0.5, 1000, start)
    np.testing.assert_allclose(weighted, repeated, atol=1e-4)


def scores(class_weight, kind="logistic", metric=None):
    """The scores of rows with a rare label whose probabilities are known, and the result."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(4000, 5))
    y = np.where(generator.random(4000) < expit(X[:, 0] + X[:, 1] - 3), "rare", "usual")
    data = data_of(y, train=np.arange(4000) < 2000)
    settings = {"folds": 3, "description": True, "metric": metric}
    result = prober(data, kind, class_weight=class_weight, **settings).site(X)
    return {(m.metric, m.split): m.value for m in result.measurements}, result, data


def test_probabilities_are_corrected_and_guesses_are_not():
    plain, *_ = scores(None)
    balanced, result, data = scores("balanced", metric="brier")
    for metric in ("brier", "ece"):
        assert balanced[metric, "test"] == pytest.approx(plain[metric, "test"], abs=0.01)
    assert balanced["brier", "validation"] == pytest.approx(balanced["brier", "test"], abs=0.02)
    code = plain["compression", "online"]
    assert balanced["compression", "online"] == pytest.approx(code, rel=0.05)
    assert balanced["balanced_accuracy", "test"] > plain["balanced_accuracy", "test"] + 0.1
    predictions = result.predictions["logistic", "task"]
    train = data.y[data.train] == data.classes[:, None]
    uncorrected = predictions.scores - np.log(train.mean(axis=1))
    assert np.array_equal(predictions.guess, uncorrected.argmax(axis=1))
    assert (predictions.guess != predictions.scores.argmax(axis=1)).any()


@pytest.mark.parametrize("kind", ["ridge", "svm"])
def test_scores_that_are_no_logits_are_corrected_for_the_code(kind):
    plain, balanced = (scores(weight, kind)[0] for weight in (None, "balanced"))
    assert balanced["compression", "online"] > 0.95 * plain["compression", "online"]
    assert balanced["balanced_accuracy", "test"] > plain["balanced_accuracy", "test"] + 0.1


def test_the_positive_class_is_the_rarer_label_of_the_training_rows_unless_given(refused):
    y, row = np.array(["a", "b", "b"] * 30), np.arange(90)
    assert data_of(y, row < 60).positive_code == 0
    # Among these training rows "b" is rarer, whatever the test rows.
    assert data_of(y, (y == "a") | (row < 30)).positive_code == 1
    assert data_of(y, positive="b").positive_code == 1
    y = np.array(["a", "b", "c", "b"] * 30)
    assert data_of(y).positive_code is None
    assert data_of(y, positive="c").positive_code == 2
    refused(getattr, data_of(y, positive="d"), "positive_code")


def test_all_splits_of_a_cross_validation_have_the_same_positive_class():
    y, row = np.array(["a", "b"] * 30 + ["b"] * 6 + ["a"] * 6), np.arange(72)
    splits = [data_of(y, row < 66), data_of(y, (row < 40) | (row >= 66))]
    assert [split.positive_code for split in splits] == [0, 1]
    one = Prober(splits, ProbeSettings(folds=2, control_draws=0))
    assert one.positive == "a"
    result = one.site(np.random.default_rng(0).normal(size=(len(y), 3)))
    predictions = [*result.predictions.values(), *one.baselines().predictions.values()]
    assert {one.positive for one in predictions} == {0}


@pytest.mark.parametrize("positive", [0, None])
def test_the_positive_class_is_saved_with_the_predictions(positive):
    given = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, positive=positive)
    name = Predictor("logistic", "task")
    assert unpack(pack({name: given}), lambda _: given.truth, 2)[name].positive == positive
