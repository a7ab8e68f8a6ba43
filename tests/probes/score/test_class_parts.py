"""Contributions of rows by class: sums, variances, and metrics that they agree with."""

import numpy as np
import pytest

from probekit.probes.score.class_parts import (
    class_spread,
    difference_of_parts,
    has_rare_class,
    mean_parts,
    parts_of_achieved_fpr_5,
    parts_of_auroc,
    parts_of_balanced_accuracy,
    parts_of_tpr_at_fpr_5,
)
from probekit.probes.score.detection import with_alarms
from probekit.probes.score.measurement import metrics_of
from probekit.probes.score.metric_table import METRICS, class_parts
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.pooling import within_folds


def drawn(n_classes=3, n=240, seed=0, folds=None):
    generator = np.random.default_rng(seed)
    truth = generator.integers(n_classes, size=n)
    scores = generator.normal(size=(n, n_classes)).round(1)  # with ties
    scores[np.arange(n), truth] += 0.7
    predictions = ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores, folds=folds)
    if n_classes == 2:
        object.__setattr__(predictions, "positive", 1)
        predictions = with_alarms(predictions, np.array([2.0, 1.0]))
    return predictions


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].parts])
def test_the_parts_add_up_to_the_metric_and_to_the_change_of_one_class(metric, n_classes):
    if "fpr" in metric and n_classes > 2:
        return
    predictions = drawn(n_classes)
    function = metrics_of(predictions)[metric]
    value = float(function(predictions, Resamples.whole(240))[0])
    parts = class_parts(metric)(predictions)
    if parts.are_shares:
        assert parts.rows.sum() == pytest.approx(value)
        assert parts.weights @ parts.shares == pytest.approx(value)
    # One row drawn twice changes the score by its contribution minus the mean of its class.
    row = 7
    twice = np.append(np.arange(240), row)
    groups = np.arange(241)
    more = ClassPredictions(
        predictions.truth[twice],
        predictions.guess[twice],
        n_classes,
        predictions.scores[twice],
        positive=predictions.positive,
        alarms=None if predictions.alarms is None else predictions.alarms[twice],
    )
    change = float(function(more, Resamples.leave_one_out(groups))[0]) - value
    own = predictions.truth == predictions.truth[row]
    in_parts = np.isin(parts.truth[row], parts.classes)
    expected = parts.rows[row] - parts.rows[own].mean() if in_parts else 0.0
    assert change == pytest.approx(expected, abs=2e-4)


def test_areas_of_folds_are_averaged():
    folds = np.arange(240) % 3
    predictions = drawn(2, folds=folds)
    parts = parts_of_auroc(predictions)
    value = within_folds(metrics_of(predictions)["auroc"].__wrapped__)(
        predictions, Resamples.whole(240)
    )
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
        assert has_rare_class(parts, resamples) == (n_positive < 12)


def test_a_class_in_one_group_has_no_variance():
    truth = np.repeat([1, 0], [5, 20])
    parts = parts_of_balanced_accuracy(ClassPredictions(truth, truth, 2))
    spread = class_spread(parts, Resamples.leave_one_out(np.arange(25) // 5))
    assert np.isnan(spread.variances).tolist() == [False, True]


def test_alarms_have_the_part_of_their_rows_only():
    predictions = drawn(2)
    for parts, positive in (
        (parts_of_tpr_at_fpr_5(predictions), 1),
        (parts_of_achieved_fpr_5(predictions), 0),
    ):
        assert set(np.flatnonzero(parts.rows)) <= set(np.flatnonzero(predictions.truth == positive))
        assert parts.classes.tolist() == [1]


def test_parts_of_other_labels_are_not_combined():
    a, b = parts_of_balanced_accuracy(drawn(seed=0)), parts_of_balanced_accuracy(drawn(seed=1))
    assert difference_of_parts(a, b) is None
    assert difference_of_parts(a, None) is None
    assert mean_parts([a, b]) is None
    assert not difference_of_parts(a, a).rows.any()
    np.testing.assert_allclose(mean_parts([a, a]).shares, a.shares)
