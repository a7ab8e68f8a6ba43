"""What is particular to logistic, ridge, class-mean, k-sparse, MLP and attention probes."""

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.base import clone
from sklearn.covariance import ledoit_wolf
from sklearn.feature_selection import f_classif
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.probes.data import group_folds
from probekit.probes.kinds import attention_pooled, class_means
from probekit.probes.kinds.attention_pooled import AttentionPooledProbe, TokensOfTexts
from probekit.probes.kinds.class_means import LdaProbe, MassMeanProbe, within_covariance
from probekit.probes.kinds.k_sparse import KSparseProbe, best_features
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.kinds.mlp import LEARNING_RATE, MlpProbe
from probekit.probes.kinds.ridge import RidgeProbe, RidgeRegressionProbe, ridge_path
from probekit.probes.kinds.svm import SvmProbe
from tests.probes.kinds import planted


def overlapping(n_samples):
    """Rows of two overlapping classes."""
    X, y, _ = planted.direction(n_samples, n_features=30, gap=4.0)
    return X.astype(np.float32), np.where(y == 1, "pos", "neg")


@pytest.mark.parametrize("C", [0.1, (0.01, 1.0)])
def test_each_column_of_a_table_is_a_probe_of_its_own(C):
    X, y = overlapping(300)
    table = np.column_stack([y == "pos", X[:, 0] > 3, np.ones(300), np.zeros(300)]).astype(int)
    probe = LinearProbe(C=C).fit(X, table)
    answers = probe.predict(X)
    assert np.array_equal(answers[:, 2:], table[:, 2:])
    for column, C_ in zip((0, 1), probe.C_, strict=False):
        alone = LinearProbe(C=C_).fit(X, table[:, column])
        assert np.mean(answers[:, column] == alone.predict(X)) > 0.99
    assert np.isneginf(probe.predict_log_proba(X)[:, 3]).all()


def test_each_column_of_a_table_is_balanced_by_itself():
    X, y = overlapping(300)
    table = np.column_stack([y == "pos", X[:, 0] > 4.5, np.ones(300)]).astype(int)
    probe = LinearProbe(C=0.1, class_weight="balanced").fit(X, table)
    for column in (0, 1):
        alone = LinearProbe(C=0.1, class_weight="balanced").fit(X, table[:, column])
        np.testing.assert_allclose(probe.coef_[column], alone.coef_[0], atol=1e-4)
    usual = LinearProbe(C=0.1).fit(X, table)
    assert probe.predict(X)[:, 1].mean() > 1.5 * usual.predict(X)[:, 1].mean()


def test_a_class_weighs_as_many_rows_as_it_is_given():
    X, y = overlapping(300)
    X = X.astype(np.float64)
    weighed = LinearProbe(C=0.1, class_weight={"pos": 3, "neg": 1}).fit(X, y)
    repeated = np.repeat(np.arange(300), np.where(y == "pos", 3, 1))
    expected = LinearProbe(C=0.1).fit(X[repeated], y[repeated])
    np.testing.assert_allclose(weighed.coef_, expected.coef_, rtol=1e-6)


def test_a_given_penalty_needs_no_folds():
    X, y = np.arange(8.0)[:, None], np.arange(8) % 2
    assert LinearProbe(C=0.1, folds=2).fit(X, y, y).C_ == 0.1


@pytest.mark.parametrize(("C", "weight"), [(1e-46, 1.0), (1.0, 1e-44)])
def test_a_penalty_beyond_float32_leaves_the_shares_of_the_classes(C, weight):
    X, y = overlapping(60)
    y[:10] = "neg"
    with pytest.warns(UserWarning, match="the penalty is too strong"):
        probe = LinearProbe(C=C).fit(X, y, sample_weight=np.full(60, weight))
    np.testing.assert_allclose(probe.coef_, 0, atol=1e-20)
    np.testing.assert_allclose(probe.predict_proba(X)[:, 1], np.mean(y == "pos"), rtol=1e-3)
    assert probe.converged_


ALPHAS = [1e-3, 1.0, 50.0, 1e4]


def regression(n_samples, n_features, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_samples, n_features)) * np.logspace(-1, 1, n_features) + 5
    return X, X @ generator.normal(size=n_features) + generator.normal(size=n_samples)


@pytest.mark.parametrize("n_samples", [20, 300])  # fewer and more rows than features
def test_one_decomposition_gives_scikit_learns_answer_at_every_alpha(n_samples):
    X, y = regression(n_samples, 40)
    targets = np.column_stack([y, -(y**2)])
    for alpha, layer in zip(ALPHAS, ridge_path(X, targets, np.array(ALPHAS)), strict=True):
        expected = make_pipeline(StandardScaler(), Ridge(alpha)).fit(X, targets).predict(X)
        guesses = X @ layer.weight.T + layer.bias
        np.testing.assert_allclose(guesses, expected, rtol=1e-6, atol=1e-6)
        own = RidgeRegressionProbe(alpha).fit(X, y).predict(X)
        np.testing.assert_allclose(own, expected[:, 0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_alpha_chosen_is_that_of_a_plain_search_over_the_same_folds(seed):
    X, y = regression(60, 30, seed)
    y += 20 * np.random.default_rng(seed).normal(size=60)
    folds = group_folds(np.zeros(60), np.arange(60), 5, seed=0)
    cv = [(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)) for fold in range(5)]
    how = {"cv": cv, "scoring": "neg_mean_squared_error"}
    model = make_pipeline(StandardScaler(), Ridge())
    search = GridSearchCV(model, {"ridge__alpha": ALPHAS}, **how).fit(X, y)
    assert RidgeRegressionProbe(ALPHAS).fit(X, y).alpha_ == search.best_params_["ridge__alpha"]


def test_of_equals_the_strongest_penalty_is_taken():
    X, y, _ = planted.direction(n_samples=100, gap=50.0)
    assert RidgeProbe((1e-2, 1.0, 10.0)).fit(X, y).alpha_ == 10.0


def test_a_class_in_one_group_leaves_the_fold_out_that_lacks_it():
    X, _, _ = planted.direction(n_samples=60)
    groups = np.arange(60) // 6
    assert RidgeProbe().fit(X, groups == 0, groups).converged_


def test_the_shrinkage_is_that_of_ledoit_and_wolf_on_residuals():
    generator = np.random.default_rng(0)
    means, codes = 9 * generator.normal(size=(2, 4)), np.arange(30) % 2
    residuals = generator.normal(size=(30, 4))
    expected, _ = ledoit_wolf(residuals, assume_centered=True)
    found = within_covariance(residuals + means[codes], means, codes)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("residuals", [[[1.0, 2.0], [-1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_residuals_on_a_line_or_a_point_leave_an_inverse(residuals):
    covariance = within_covariance(np.array(residuals), np.zeros((1, 2)), np.array([0, 0]))
    assert np.linalg.cond(covariance) < 1e8


def test_the_coefficients_are_the_very_difference_and_the_score_is_zero_half_way():
    X, y, _ = planted.direction()
    X[:, 3] *= 100
    one, two = X[y == 0].mean(axis=0), X[y == 1].mean(axis=0)
    probe = MassMeanProbe().fit(X, y)
    np.testing.assert_allclose(probe.coef_, [two - one])
    scores = probe.decision_function([(one + two) / 2, two])
    np.testing.assert_allclose(scores, [0, np.sum((two - one) ** 2) / 2], atol=1e-6)


def test_the_covariance_is_that_of_residuals_not_of_labels():
    # Two equal blobs far apart along a correlated direction: the total covariance would tilt
    # theta away, that within the classes leaves it.
    X, y, theta = planted.direction(n_samples=5000, gap=30.0)
    coef = MassMeanProbe(covariance=True).fit(X, y).coef_[0]
    means = np.stack([X[y == code].mean(axis=0) for code in (0, 1)])
    exact = np.linalg.solve(np.cov((X - means[y]).T), means[1] - means[0])
    assert np.linalg.norm(coef) == pytest.approx(np.linalg.norm(exact), rel=0.05)
    assert coef @ theta / np.linalg.norm(coef) > 0.99


@pytest.mark.parametrize("is_balanced", [False, True])
def test_the_planted_features_are_found_best_first_and_the_rest_is_left_out(is_balanced):
    generator = np.random.default_rng(0)
    y, X = (generator.random(600) < 0.3).astype(int), generator.normal(size=(600, 50))
    X[:, [31, 7, 20]] += np.outer(y, [3.0, 1.5, 0.8])
    probe = KSparseProbe(k=3, C=0.1, balanced=is_balanced).fit(X, y)
    assert probe.features_.tolist() == [31, 7, 20]
    assert np.flatnonzero(probe.coef_[0]).tolist() == [7, 20, 31]
    alone = clone(probe).fit(X[:, [31, 7, 20]], y).decision_function(X[:, [31, 7, 20]])
    np.testing.assert_allclose(probe.decision_function(X), alone)
    if not is_balanced:
        dense = LinearProbe(C=0.1).fit(X[:, [31, 7, 20]], y).decision_function(X[:, [31, 7, 20]])
        np.testing.assert_allclose(alone, dense)


def test_features_are_ranked_as_by_f():
    X, y = planted.three_classes(n_features=40)
    scores, _ = f_classif(X, y)
    assert best_features(X, y, k=40).tolist() == np.argsort(-scores).tolist()


def test_ties_go_to_the_lower_number_and_constants_come_last():
    generator = np.random.default_rng(0)
    y = np.arange(1000) % 2
    one = generator.normal(size=1000) + y
    copies = np.outer(one, [1, 1, -7, 0.3, 1e5, 1 / 3, -1e-4]) + 0.1
    X = np.column_stack([np.full(1000, 3.1), copies, np.zeros(1000), y])
    assert best_features(X, y, k=10).tolist() == [9, *range(1, 8), 0, 8]


LINEAR = LinearProbe, LdaProbe, MassMeanProbe, class_means.NearestMeanProbe, RidgeProbe, SvmProbe


@pytest.mark.parametrize("probe", [MlpProbe(alpha=0.1), *(kind() for kind in LINEAR)], ids=str)
def test_the_mlp_alone_reads_what_is_not_linear(probe):
    X, y = planted.xor(3000)
    score = probe.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:])
    assert score > 0.95 if isinstance(probe, MlpProbe) else abs(score - 0.5) < 0.06


@pytest.mark.parametrize("classes", ["ab", "abc"])
def test_layers_of_the_mlp_answer_as_scikit_learns_network_on_scaled_rows(classes):
    X, y = planted.three_classes(classes=classes)
    y = np.unique(y, return_inverse=True)[1]
    settings = {"alpha": 0.1, "max_iter": 30, "random_state": 3}
    network = MLPClassifier((8,), learning_rate_init=LEARNING_RATE, **settings)
    rows = StandardScaler().fit_transform(X).astype(np.float32)
    with pytest.warns(match="Maximum iterations"):
        network.fit(rows, y)
    probe = MlpProbe(hidden=8, **settings).fit(X, y)
    assert np.mean(probe.predict(X) == network.predict(rows)) > 0.99
    proba, scores = network.predict_proba(rows), probe.decision_function(X)
    odds = scores if classes == "ab" else scores[:, 1] - scores[:, 0]
    np.testing.assert_allclose(odds, np.log(proba[:, 1] / proba[:, 0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("codes", [[0, 1, 0, 1], [0, 1, 2, 1]])
def test_the_gradient_is_that_of_the_objective(codes):
    generator = np.random.default_rng(0)
    tokens, text = generator.normal(size=(12, 3)), np.repeat(np.arange(4), [1, 5, 2, 4])
    texts = TokensOfTexts(tokens, text)
    objective = attention_pooled.PooledObjective(texts, np.array(codes), C=0.5)
    point = generator.normal(size=len(objective.start(generator)))
    error = check_grad(lambda x: objective(x)[0], lambda x: objective(x)[1], point)
    assert error < 1e-6


def test_selected_texts_are_renumbered():
    texts = TokensOfTexts(np.arange(6.0)[:, None], np.array([0, 0, 1, 2, 2, 2]))
    part = texts.take(np.array([False, True, True]))
    assert part.tokens.ravel().tolist() == [2, 3, 4, 5]
    assert part.text.tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))])
def test_a_token_at_a_random_position_is_found_where_the_mean_fails(seed):
    X, y, texts, marks = planted.marked_texts(600, seed=seed)
    known = texts < 400
    probe = AttentionPooledProbe().fit(X[known], y[known], texts[known])
    right = probe.predict(X[~known], texts[~known]) == y[~known]
    means = X.reshape(600, 12, -1).mean(axis=1)
    of_means = LinearProbe().fit(means[:400], y[::12][:400]).score(means[400:], y[::12][400:])
    assert right.mean() > 0.97
    assert of_means < 0.7
    attention = probe.attention(X, texts)
    np.testing.assert_allclose(np.bincount(texts, attention), 1)
    assert attention[marks].mean() > 0.85


def test_all_tokens_of_a_text_get_one_prediction_in_any_order():
    X, y, texts, _ = planted.marked_texts(50)
    probe = AttentionPooledProbe(C=1.0).fit(X, y, texts)
    scores = probe.decision_function(X, texts)
    assert np.array_equal(scores, np.repeat(scores[::12], 12))
    mixed = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(probe.decision_function(X[mixed], texts[mixed]), scores[mixed])
    attention = probe.attention(X, texts)[mixed]
    np.testing.assert_allclose(probe.attention(X[mixed], texts[mixed]), attention)
    again = AttentionPooledProbe(C=1.0).fit(X[mixed], y[mixed], texts[mixed])
    np.testing.assert_allclose(again.query_, probe.query_, atol=1e-3)
