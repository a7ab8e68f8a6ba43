"""Row scores add up to their metric, for the labels as they are and after every exchange."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

from probekit.probes.score import contributions, metrics
from probekit.probes.score.contributions import class_spread, of_auprc, parts_of_balanced_accuracy
from probekit.probes.score.metric_table import METRICS, association, class_parts, metric_functions
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples
from probekit.probes.score.scored import metrics_of

N_ROWS = 60
OFFERS = {"class": frozenset({"scores", "probabilities", "alarms"}), "number": frozenset()}
# Average precision is not linear in the labels; its row scores are those of its projection.
TESTED = [
    (name, family)
    for name, metric in METRICS.items()
    for family in {*metric.families} - {"tree"}
    if metric.has_p and name != "auprc"
]
# The row scores of these add up to the metric itself, those of others to it plus a constant.
EXACT = {"accuracy", "balanced_accuracy", "macro_f1", "spearman", "tpr_at_fpr_1", "tpr_at_fpr_5"}


def classes(n_classes=4, seed=0, n_rows=N_ROWS, folds=None, n_true=2):
    """Predictions with scores on a coarse grid, so that many tie; `n_true` classes occur.

    If two of four occur, class 2 is predicted but never true, and class 3 is neither.
    """
    generator = np.random.default_rng(seed)
    truth = np.append([0, 1], generator.integers(n_true, size=n_rows - 2))
    scores = generator.integers(0, 4, size=(n_rows, n_classes)).astype(float)
    scores[np.arange(n_rows), truth] += 1
    if n_true < n_classes:
        scores[:, 3:] = -1
    alarms = generator.integers(2, size=(n_rows, 2)).astype(float)
    others = {"positive": 1, "alarms": alarms, "folds": folds}
    return ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores, **others)


def numbers(folds=None):
    generator = np.random.default_rng(0)
    truth = generator.normal(5, 2, size=N_ROWS).round(1)
    return NumberPredictions(truth, (truth + generator.normal(size=N_ROWS)).round(1), folds)


def summed(rows, order=slice(None)):
    return float((rows.scores * rows.labels[order]).sum())


ZEROS, ONES = np.zeros((N_ROWS, 2)), np.ones((N_ROWS, 2))
GIVEN = {
    "two classes": (classes(2), "class"),
    "four classes": (classes(4), "class"),
    "numbers": (numbers(), "number"),
    "a constant class": (
        replace(classes(2), guess=np.zeros(N_ROWS, int), scores=ZEROS, alarms=ONES),
        "class",
    ),
    "a constant number": (replace(numbers(), guess=np.full(N_ROWS, 4.0)), "number"),
}


@pytest.mark.parametrize(
    ("name", "given"),
    [(name, one) for name, family in TESTED for one in GIVEN if GIVEN[one][1] == family],
)
def test_row_scores_add_up_to_the_metric_after_every_exchange(name, given):
    predictions, family = GIVEN[given]
    rows, metric = association(name, family)(predictions), metric_functions(family, OFFERS[family])
    assert rows.scores.shape == rows.labels.shape
    generator, constants, sums = np.random.default_rng(1), [], []
    for order in [np.arange(N_ROWS), *(generator.permutation(N_ROWS) for _ in range(10))]:
        exchanged = replace(predictions, truth=predictions.truth[order])
        sums.append(summed(rows, order))
        constants.append(metric[name](exchanged, Resamples.whole(N_ROWS))[0] - sums[-1])
    # A constant prediction has the same score after every exchange.
    assert np.ptp(sums if "constant" in given else constants) < 1e-12
    if name in EXACT and "constant" not in given:
        np.testing.assert_allclose(constants, 0, atol=1e-12)


@pytest.mark.parametrize("n_positive", [3, 5, 7])
def test_scores_of_the_average_precision_are_its_projection(n_positive):
    """The effect of a row being positive on the mean average precision of all arrangements."""
    n, margin = 10, -np.arange(10.0)
    scores = np.column_stack([np.zeros(n), margin])
    chosen = np.array(list(combinations(range(n), n_positive)))
    truths = np.zeros((len(chosen), n), dtype=np.int64)
    np.put_along_axis(truths, chosen, 1, axis=1)
    values = [average_precision_score(truth, margin) for truth in truths]
    by_truth = [np.array(values)[truths[:, row] == 1].mean() for row in range(n)]
    own = of_auprc(ClassPredictions(truths[0], truths[0], 2, scores, positive=1)).scores[:, 1]
    assert np.corrcoef(own, by_truth)[0, 1] > 0.999
    assert np.corrcoef(truths @ own, values)[0, 1] > 0.98


def test_tied_rows_have_the_same_score_for_the_average_precision():
    scores = np.column_stack([np.zeros(5), [2.0, 1.0, 1.0, 1.0, 0.0]])
    truth = np.array([1, 0, 1, 0, 0])
    own = of_auprc(ClassPredictions(truth, truth, 2, scores, positive=1)).scores[:, 1]
    assert own[1] == own[2] == own[3]
    distinct = scores - 0.01 * np.arange(5)[:, None] * [0, 1]
    apart = of_auprc(ClassPredictions(truth, truth, 2, distinct, positive=1)).scores[:, 1]
    assert own[1] == pytest.approx(apart[1:4].mean())
    assert own[[0, 4]] == pytest.approx(apart[[0, 4]])


def test_metrics_of_trees_and_of_calibration_have_no_p_values():
    assert association("uuas", "tree") is None
    assert association("spearman", "tree") is None
    assert association("ece", "class") is None


FOLDS, SIZES = np.repeat([0, 1, 2], [30, 20, 10]), [30, 20, 10]
SHIFTS = np.array([0.0, 50.0, -20.0])[FOLDS]


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("of_metric", [contributions.of_auroc, of_auprc])
def test_ranks_of_several_fits_are_not_compared_with_each_other(of_metric, n_classes):
    together = replace(classes(n_classes, folds=FOLDS), positive=None)
    scores = together.scores + SHIFTS[:, None] * np.eye(n_classes)[1]
    shifted = replace(together, scores=scores)
    np.testing.assert_array_equal(of_metric(shifted).scores, of_metric(together).scores)
    as_one_fit = of_metric(replace(shifted, folds=None)).scores
    assert not np.allclose(as_one_fit, of_metric(replace(together, folds=None)).scores)


def test_an_auroc_of_folds_is_their_mean_by_rows():
    """Up to a constant: an exchange within folds changes both alike."""
    given = replace(classes(2, folds=FOLDS), positive=None)
    margin, generator, constants = np.diff(given.scores)[:, 0], np.random.default_rng(0), []
    for _ in range(10):
        order = np.lexsort((generator.random(N_ROWS), FOLDS))
        truth = given.truth[order]
        areas = [roc_auc_score(truth[n == FOLDS], margin[n == FOLDS]) for n in range(3)]
        rows = contributions.of_auroc(given)
        constants.append(np.average(areas, weights=SIZES) - summed(rows, order))
    assert np.ptp(constants) < 1e-12


def test_a_rank_correlation_of_folds_is_their_mean_by_rows():
    given = numbers(FOLDS)
    rows = contributions.of_spearman(replace(given, guess=given.guess + SHIFTS))
    parts = [spearmanr(given.truth[n == FOLDS], given.guess[n == FOLDS])[0] for n in range(3)]
    assert summed(rows) == pytest.approx(np.average(parts, weights=SIZES))


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].has_parts])
def test_the_parts_add_up_to_the_metric_and_to_the_change_of_one_class(metric, n_classes):
    predictions = classes(n_classes, n_rows=240, n_true=n_classes)
    function = metrics_of(predictions)[metric]
    value = float(function(predictions, Resamples.whole(240))[0])
    parts = class_parts(metric)(predictions)
    if parts.are_shares:
        assert parts.rows.sum() == pytest.approx(value)
        assert parts.weights @ parts.shares == pytest.approx(value)
    # A row drawn in place of another one of its class changes the score by their contributions. It
    # is one of many copies, because a metric that is not linear has a slope only.
    copies = 1 if parts.is_linear else 100
    other, row, *_ = np.flatnonzero(predictions.truth == predictions.truth[7])
    rows = np.tile(np.arange(240), copies)
    rows[other] = row
    changed = function(metrics.take(predictions, rows), Resamples.whole(len(rows)))[0]
    change = copies * (float(changed) - value)
    in_parts = np.isin(parts.truth[row], parts.classes)
    expected = parts.rows[row] - parts.rows[other] if in_parts else 0.0
    assert change == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_areas_of_folds_are_averaged(metric):
    given = replace(classes(2, folds=FOLDS), positive=1)
    parts, plain = class_parts(metric)(given), metrics_of(given)[metric].__wrapped__
    value = metrics.within_folds(plain)(given, Resamples.whole(N_ROWS))
    assert parts.shares == pytest.approx([value[0]] * 2)
    assert parts.rows.sum() == pytest.approx(2 * value[0])


def test_the_variance_of_a_class_comes_from_its_groups():
    groups = np.repeat(np.arange(12), 5)
    truth = np.repeat([1, 0], [20, 40])  # class 1 in 4 groups, class 0 in 8
    guess = np.random.default_rng(0).integers(2, size=60)
    parts = parts_of_balanced_accuracy(ClassPredictions(truth, guess, 2))
    spread = class_spread(parts, Resamples.leave_one_out(groups))
    hits = (truth == guess).reshape(12, 5).mean(axis=1)
    expected = [hits[4:].var(ddof=1) / 8 / 4, hits[:4].var(ddof=1) / 4 / 4]
    np.testing.assert_allclose(spread.variances, expected)
    assert (spread.n_groups.tolist(), spread.n_effective.tolist()) == ([8, 4], [8, 4])
    assert spread.n_rows.tolist() == [40, 20]
    wider = class_spread(parts, Resamples.leave_one_out(groups, widening=2.0))
    np.testing.assert_allclose(wider.variances, 4 * spread.variances)
    assert wider.scale == pytest.approx(spread.scale)


def test_a_class_is_rare_in_fewer_than_half_of_the_groups():
    groups, resamples = np.arange(24), Resamples.leave_one_out(np.arange(24))
    for n_positive in (2, 11, 12):
        truth = (groups < n_positive).astype(int)
        parts = parts_of_balanced_accuracy(ClassPredictions(truth, truth, 2))
        assert contributions.has_rare_class(parts, resamples) == (n_positive < 12)


def test_a_class_in_one_group_has_no_variance():
    truth = np.repeat([1, 0], [5, 20])
    parts = parts_of_balanced_accuracy(ClassPredictions(truth, truth, 2))
    spread = class_spread(parts, Resamples.leave_one_out(np.arange(25) // 5))
    assert np.isnan(spread.variances).tolist() == [False, True]


def test_parts_of_other_labels_are_not_combined():
    a, b = (parts_of_balanced_accuracy(classes(3, seed, n_true=3)) for seed in (0, 1))
    assert contributions.difference_of_parts(a, b) is None
    assert contributions.difference_of_parts(a, None) is None
    assert contributions.mean_parts([a, b]) is None
    assert not contributions.difference_of_parts(a, a).rows.any()
    np.testing.assert_allclose(contributions.mean_parts([a, a]).shares, a.shares)
