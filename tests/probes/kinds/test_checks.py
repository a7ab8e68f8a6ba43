"""Every kind is a scikit-learn estimator and rejects invalid input in the same way."""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax
from sklearn.base import clone, is_classifier
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import probekit
from probekit.errors import ConfigError, DataError
from probekit.probes.kinds import base, registry
from probekit.probes.kinds.aggregated import AggregatedProbe
from probekit.probes.kinds.attention_pooled import AttentionPooledProbe
from probekit.probes.kinds.class_means import LdaProbe, MassMeanProbe, NearestMeanProbe
from probekit.probes.kinds.k_sparse import KSparseProbe
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.kinds.mlp import MlpProbe
from probekit.probes.kinds.registry import KINDS
from probekit.probes.kinds.ridge import RidgeProbe, RidgeRegressionProbe
from probekit.probes.kinds.structural import DepthProbe, DistanceProbe
from probekit.probes.kinds.svm import SvmProbe
from probekit.probes.settings import ProbeSettings, ProbeSpec
from tests.probes.kinds import planted
from tests.stored import each_line


def as_chain(y):
    """The scikit-learn checks pass labels, not heads: the head of each token is the previous."""
    return None if y is None else np.arange(len(np.asarray(y))) - 1


class ChainDistanceProbe(DistanceProbe):
    def fit(self, X, y, groups=None):
        return super().fit(X, as_chain(y), groups)


class ChainDepthProbe(DepthProbe):
    def fit(self, X, y, groups=None):
        return super().fit(X, as_chain(y), groups)


# What is slow or has the parts of others: at night scikit-learn's checks run on it.
AT_NIGHT = [
    LinearProbe(C=0.1, class_weight="balanced"),
    LinearProbe(folds=2),
    MassMeanProbe(covariance=True),
    RidgeProbe(folds=2),
    SvmProbe(folds=2),
    KSparseProbe(k=2, folds=2),
    AttentionPooledProbe(folds=2),
    AggregatedProbe(folds=2, aggregate=("multimax", "attention")),
]
BY_DAY = [
    LinearProbe(C=0.1),
    MassMeanProbe(),
    NearestMeanProbe(),
    LdaProbe(),
    RidgeProbe(alpha=1.0),
    SvmProbe(C=0.1),
    KSparseProbe(k=2, C=0.1),
    MlpProbe(hidden=16, alpha=1.0),
    AttentionPooledProbe(C=0.1),
    AggregatedProbe(C=0.1, folds=2),
]
CLASSIFIERS = [*BY_DAY, *AT_NIGHT]
TUNED_MLP = MlpProbe(hidden=16, alpha=(0.1, 1.0), folds=2)
REGRESSORS = [RidgeRegressionProbe(alpha=1.0), RidgeRegressionProbe(folds=2)]
STRUCTURAL = [ChainDistanceProbe(rank=2, max_iter=2), ChainDepthProbe(rank=2, max_iter=2)]
ROWWISE = [*CLASSIFIERS, *REGRESSORS]


def expected_failures(estimator):
    if not isinstance(estimator, LinearProbe) or isinstance(estimator.C, float):
        return {}
    reason = "folds are drawn over rows, and a row repeated is not the row weighted"
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@parametrize_with_checks([*BY_DAY, REGRESSORS[0], *STRUCTURAL])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.nightly
@parametrize_with_checks(
    [*AT_NIGHT, TUNED_MLP, REGRESSORS[1]], expected_failed_checks=expected_failures
)
def test_scikit_learns_own_checks_at_night(estimator, check):
    check(estimator)


def test_every_kind_of_the_registry_is_checked():
    by_day = [*BY_DAY, *REGRESSORS, *STRUCTURAL]
    checked = {type(estimator).__mro__[i] for estimator in by_day for i in (0, 1)}
    assert {kind.estimator for kind in KINDS.values()} <= checked


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, TUNED_MLP], ids=str)
class TestClassifiers:
    def test_a_planted_direction_is_found(self, estimator):
        X, y, _ = planted.direction(gap=5.0)
        k = {"k": 20} if isinstance(estimator, KSparseProbe) else {}
        probe = clone(estimator).set_params(**k).fit(X[:1500], y[:1500])
        assert probe.score(X[1500:], y[1500:]) > 0.97

    def test_one_class_is_refused(self, estimator):
        with pytest.raises(DataError, match="one class, a"):
            clone(estimator).fit(np.eye(4), list("aaaa"))

    @pytest.mark.parametrize("y", [[1, "1", 2, 2], ["a", None, "a", "b"], [["a"], 1, 2, 3]])
    def test_labels_of_mixed_types_are_refused(self, estimator, y):
        for labels in (y, np.array(y, dtype=object)):
            with pytest.raises(DataError, match=r"The labels have several types: \w+, \w+"):
                clone(estimator).fit(np.eye(4), labels)

    def test_a_class_with_one_member_is_fitted(self, estimator):
        X, y, _ = planted.direction(n_samples=40, n_features=4)
        y[:] = np.arange(40) % 2
        y[0] = 2
        assert np.isfinite(clone(estimator).fit(X, y).decision_function(X)).all()
        two = np.append(np.zeros(39, int), 1)
        assert np.isfinite(clone(estimator).fit(X, two).decision_function(X)).all()

    def test_more_features_than_rows_are_fitted(self, estimator):
        y = np.arange(20) % 2
        X = np.random.default_rng(0).normal(size=(20, 100)) + 3 * y[:, None]
        assert clone(estimator).fit(X, y).score(X, y) > 0.9

    def test_duplicate_rows_with_contradicting_labels_are_fitted(self, estimator):
        X = np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 2, axis=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            probe = clone(estimator).fit(X, np.arange(20) % 2)
        scores = probe.decision_function(X)
        assert np.isfinite(scores).all()
        # The only warning is that all weights are 0.
        assert [str(one.message)[:17] for one in caught] == ["All weights are 0"] * bool(caught)
        assert bool(caught) == (np.ptp(scores) == 0)

    def test_rows_that_are_all_the_same_are_fitted(self, estimator):
        with pytest.warns(UserWarning, match="All weights are 0"):
            probe = clone(estimator).fit(np.full((20, 3), 7.3), np.arange(20) % 3)
        assert np.isfinite(probe.decision_function(np.full((2, 3), 7.3))).all()


@pytest.mark.parametrize("estimator", [*ROWWISE, TUNED_MLP], ids=str)
class TestAllOnRows:
    def test_constant_columns_change_nothing(self, estimator):
        X, y, _ = planted.direction(n_samples=200, n_features=4)
        wide = np.column_stack([X, np.full(200, 1e4), np.zeros(200)]).astype(np.float32)
        # The spread that batches of different sizes leave in a constant is rounding too.
        wide[::2, 4] = np.nextafter(np.float32(1e4), np.float32(2e4))
        narrow, broad = clone(estimator), clone(estimator)
        guesses = narrow.fit(wide[:, :4], y).predict(wide[:, :4]), broad.fit(wide, y).predict(wide)
        if is_classifier(estimator):
            # The MLP draws other initial weights for another width.
            same = 0.9 if isinstance(estimator, MlpProbe) else 0.97
            assert np.mean(guesses[0] == guesses[1]) > same
        else:
            np.testing.assert_allclose(*guesses, atol=1e-6)

    def test_convergence_is_recorded_without_a_warning(self, estimator):
        X, y, _ = planted.direction(n_samples=400, n_features=8)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            probe = clone(estimator).fit(X, y)
        assert probe.converged_ is True
        assert isinstance(probe.n_iter_, int)
        assert probe.n_iter_ >= 1
        if "max_iter" in probe.get_params():
            assert not probe.set_params(max_iter=1).fit(X, y).converged_

    def test_groups_that_do_not_fit_the_rows_are_refused(self, estimator):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            clone(estimator).fit(np.eye(4), [0, 1, 0, 1], groups=[0, 1])


SVC = LinearSVC(C=0.1, intercept_scaling=100, tol=1e-8, max_iter=100_000)
LOGISTIC = LogisticRegression(C=0.1, tol=1e-9, max_iter=10_000)
BALANCED = clone(LOGISTIC).set_params(class_weight="balanced")
REFERENCES = [
    (LinearProbe(C=0.1), LOGISTIC, {"atol": 1e-4}),
    (KSparseProbe(k=6, C=0.1), LOGISTIC, {"atol": 1e-4}),
    (KSparseProbe(k=6, C=0.1, balanced=True), BALANCED, {"atol": 1e-4}),
    (AttentionPooledProbe(C=0.1), LOGISTIC, {"atol": 0.01}),
    (SvmProbe(C=0.1), SVC, {"atol": 1e-3}),
    *((RidgeProbe(a), RidgeClassifier(a), {"atol": 1e-9}) for a in (1e-3, 1.0, 50.0, 1e4)),
    (RidgeProbe(9.0, balanced=True), RidgeClassifier(9.0, class_weight="balanced"), {"atol": 1e-8}),
    *(
        (LdaProbe(s), LinearDiscriminantAnalysis("lsqr", shrinkage=s), {"atol": 1e-8, "rtol": r})
        for s, r in ((0.0, 1e-4), (0.1, 1e-7), (1.0, 1e-7))
    ),
]


@pytest.mark.parametrize("classes", ["ab", "abc"])
@pytest.mark.parametrize(("probe", "model", "tolerance"), REFERENCES, ids=str)
def test_scores_of_raw_rows_are_those_of_scikit_learn_on_scaled_ones(
    probe, model, tolerance, classes
):
    X, y = planted.three_classes(classes=classes)
    reference = make_pipeline(StandardScaler(), model).fit(X, y)
    fitted = clone(probe).fit(X, y)
    scores, expected = (one.decision_function(X) for one in (fitted, reference))
    if hasattr(reference, "predict_proba") and classes == "abc":  # all scores may be shifted
        scores, expected = log_softmax(scores, axis=1), reference.predict_log_proba(X)
        tolerance = {"rtol": 1e-4} | tolerance
    np.testing.assert_allclose(scores, expected, **tolerance)
    assert np.array_equal(fitted.predict(X), reference.predict(X))


@pytest.mark.parametrize("classes", ["ab", "abc"])
@pytest.mark.parametrize("scalers", [[], [StandardScaler()]])
def test_the_nearest_mean_is_that_of_scikit_learn(scalers, classes):
    X, y = planted.three_classes(classes=classes)
    expected = make_pipeline(*scalers, NearestCentroid()).fit(X, y).predict(X)
    probe = NearestMeanProbe() if scalers else MassMeanProbe()
    assert np.array_equal(probe.fit(X, y).predict(X), expected)


PENALISED = [LinearProbe, RidgeProbe, RidgeRegressionProbe, SvmProbe, KSparseProbe, MlpProbe]


@pytest.mark.parametrize(
    "values",
    [
        *(0, -1.0, [0.1, 0.0], [], np.inf, np.nan, [0.1, 0.1], "abc", [0.1, "abc"], None, True),
        *([[1.0], [2.0, 3.0]], [[1.0, 2.0]], [[1.0], [2.0]], [1, None], "0.1"),
    ],
    ids=str,
)
def test_penalties_that_are_not_distinct_positive_numbers_are_refused(values, refused):
    refused(registry.positive_grid, "C", values)


Y, EYE, POINTS = [0, 1, 0, 1], np.eye(4), np.zeros((3, 1))
NAMES = ["pos", "neg", "pos", "neg"]


@each_line("call")
def test_mistakes_are_refused(call, refused):
    refused(eval, call, globals())


SEEDED = [*PENALISED, AttentionPooledProbe, DistanceProbe, DepthProbe]
COUNTS = [
    *((kind, "folds") for kind in [*PENALISED, AttentionPooledProbe]),
    *((kind, "max_iter") for kind in SEEDED if hasattr(kind, "max_iter")),
    *((kind, "rank") for kind in (DistanceProbe, DepthProbe)),
    (MlpProbe, "hidden"),
    (KSparseProbe, "k"),
]


@pytest.mark.parametrize(
    ("estimator", "parameter", "value"),
    [
        *((*count, value) for count in COUNTS for value in (0, 2.5, "5")),
        *((kind, "random_state", -1) for kind in SEEDED),
    ],
)
def test_counts_that_are_too_small_or_no_counts_are_refused(estimator, parameter, value):
    message = f"{parameter} is {value!r}, but must be an integer of at least [012]"
    with pytest.raises(ConfigError, match=message):
        estimator(**{parameter: value}).fit(np.eye(4), [-1, 0, 0, 0])


@pytest.mark.parametrize(
    ("estimator", "name", "weak", "strong"),
    [
        (RidgeProbe(), "alpha", 1e-3, 1e3),
        (RidgeRegressionProbe(), "alpha", 1e-3, 1e3),
        (MlpProbe(hidden=4, max_iter=50), "alpha", 1e-3, 30),
        pytest.param(MlpProbe(hidden=4), "alpha", 1e-3, 30, marks=pytest.mark.nightly),
        (LinearProbe(), "C", 1e3, 1e-3),
        (SvmProbe(), "C", 1e3, 1e-4),
        (KSparseProbe(k=20), "C", 1e3, 1e-3),
        pytest.param(KSparseProbe(k=100), "C", 1e3, 1e-3, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_groups_stay_whole_when_a_penalty_is_chosen(estimator, name, weak, strong):
    # Each row occurs ten times: without groups the fit that memorises rows scores best.
    generator = np.random.default_rng(1)
    X = generator.normal(size=(120, 100))
    y = (X[:, 0] + generator.normal(size=120) > 0).astype(int)
    copies = np.repeat(np.arange(120), 10)
    probe = estimator.set_params(**{name: (weak, strong)})
    assert getattr(probe.fit(X[copies], y[copies]), f"{name}_") == weak
    assert getattr(probe.fit(X[copies], y[copies], groups=copies), f"{name}_") == strong


def test_labels_of_one_type_pass():
    for labels in (["a", "b"], [1, 2.5, True, np.int64(3)], (False, True), ["a", np.str_("b")], []):
        base.refuse_mixed_types(labels)
    for labels in (np.array(["a", "b"], dtype=object), pd.Series(["a", "b"]), np.array([1.5, 2.0])):
        base.refuse_mixed_types(labels)


@pytest.mark.parametrize("build", [LinearProbe, RidgeProbe, RidgeRegressionProbe], ids=str)
def test_features_lost_to_rounding_give_a_warning(build):
    X, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    X[:, 0] += 3 * y
    probe = build(folds=2)
    with pytest.warns(UserWarning, match="vary less than the rounding error of their mean"):
        probe.fit((X + 1e7).astype(np.float32), y)
    assert probe.fit(X.astype(np.float32), y).coef_.any()


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_defaults_are_those_of_the_estimators_and_what_is_chosen_reaches_them(kind):
    own = kind.estimator().get_params()
    grid = dict([kind.grid]) if kind.grid else {}
    defaults = {name: value for name, value in kind.options.items() if name != "k"} | grid
    assert {name: own[name] for name in defaults} == defaults
    other = {n: not v if isinstance(v, bool) else v + 3 for n, v in kind.options.items()}
    values = kind.build(other, random_state=7, max_iter=11, folds=3).get_params()
    expected = {"random_state": 7, "max_iter": 11, "folds": 3} | other | grid
    assert values == {name: expected.get(name, value) for name, value in values.items()}
    assert set(other) <= set(values)


def test_the_penalties_are_those_of_the_settings_or_of_the_grid():
    settings = ProbeSettings(C=(0.5,))
    assert ProbeSpec(kind="svm").build(settings).C == (0.5,)
    assert ProbeSpec(kind="ridge").build(settings).alpha == KINDS["ridge"].grid[1]


def test_options_are_part_of_the_text_and_keys_of_the_experiment_file():
    assert [KINDS[name].text({}) for name in ("logistic", "mass_mean")] == ["logistic", "mass_mean"]
    assert KINDS["k_sparse"].text({}) == "k_sparse:16"
    assert KINDS["structural_depth"].text({"rank": 8}) == "structural_depth:8"
    keys = set(ProbeSpec.model_fields) - {"kind"}
    assert {option for kind in KINDS.values() for option in kind.options} == keys


ROW = """
    ProbeKind("guess", "A guess.", "probekit.probes.kinds.guess:Guess"),"""
CODE = """
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.kinds.registry import KINDS
print(ProbeSpec(kind="guess").text, KINDS["guess"].estimator.__name__)
assert "guess" in str(ProbeSettings.model_json_schema())
"""


@pytest.mark.nightly
def test_a_kind_is_added_by_its_file_and_its_row(tmp_path):
    package = tmp_path / "probekit"
    ignored = shutil.ignore_patterns("mini", "__pycache__", "assets")
    shutil.copytree(Path(probekit.__file__).parent, package, ignore=ignored)
    table = package / "probes" / "kinds" / "registry.py"
    head, rows, tail = table.read_text().partition("_ROWS = (")
    table.write_text(head + rows + ROW + tail)
    table.with_name("guess.py").write_text("class Guess:\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "guess Guess\n", done.stderr
