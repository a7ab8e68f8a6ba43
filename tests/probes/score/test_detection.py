"""Average precision, and detection at a threshold that is fixed before the test rows are seen."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import average_precision_score

from probekit.errors import ConfigError
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.detection import (
    RATES,
    achieved_fpr_1,
    achieved_fpr_5,
    auprc,
    fixed_thresholds,
    thresholds,
    tpr_at_fpr_5,
    with_alarms,
)
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.settings import ProbeSettings
from probekit.results.site_results import Predictor, pack, unpack


def some(n=200, share=0.1, digits=1, seed=0, positive=1):
    """Predictions of two classes with tied scores."""
    generator = np.random.default_rng(seed)
    truth = (generator.random(n) < share).astype(np.int64)
    margin = (generator.normal(size=n) + truth).round(digits)
    scores = np.column_stack([np.zeros(n), margin])
    return ClassPredictions(truth, scores.argmax(axis=1), 2, scores, positive=positive)


@pytest.mark.parametrize("digits", [0, 1, 9], ids=["many ties", "ties", "no ties"])
@pytest.mark.parametrize("positive", [0, 1])
def test_it_is_that_of_scikit_learn_in_every_resample(digits, positive):
    predictions = some(digits=digits, positive=positive)
    groups = np.arange(200) // 4
    resamples = Resamples.leave_one_out(groups)
    values = auprc(predictions, resamples)
    margin = predictions.scores[:, positive] - predictions.scores[:, 1 - positive]
    for column in range(51):
        times = resamples.counts[resamples.group_of_row, column].astype(int)
        rows = np.repeat(np.arange(200), times)
        expected = average_precision_score(predictions.truth[rows] == positive, margin[rows])
        assert values[column] == pytest.approx(expected, abs=1e-12)


def test_uninformed_scores_reach_the_prevalence():
    predictions = some()
    constant = replace(predictions, scores=np.zeros((200, 2)))
    resamples = Resamples.whole(200)
    assert auprc(constant, resamples)[0] == pytest.approx(predictions.truth.mean())


def test_several_classes_are_averaged_unless_one_is_positive():
    generator = np.random.default_rng(0)
    scores, truth = generator.normal(size=(60, 3)), np.arange(60) % 3
    resamples = Resamples.whole(60)
    each = [average_precision_score(truth == code, scores[:, code]) for code in range(3)]
    predictions = ClassPredictions(truth, truth, 3, scores)
    assert auprc(predictions, resamples)[0] == pytest.approx(np.mean(each))
    assert auprc(replace(predictions, positive=2), resamples)[0] == pytest.approx(each[2])


def test_without_positive_rows_it_is_undefined():
    predictions = replace(some(), truth=np.zeros(200, dtype=np.int64))
    assert np.isnan(auprc(predictions, Resamples.whole(200))[0])


def test_a_threshold_needs_ten_expected_false_alarms():
    assert np.isnan(thresholds(np.zeros(199))).all()
    assert np.isnan(thresholds(np.zeros(200))).tolist() == [True, False]
    assert np.isnan(thresholds(np.zeros(999))).tolist() == [True, False]
    assert not np.isnan(thresholds(np.zeros(1000))).any()


@pytest.mark.parametrize("n", [1000, 1450])
def test_the_false_positive_rate_is_at_most_the_one_allowed(n):
    """Mean rate on new negatives over 2,000 draws: at most the rate, and not far below."""
    generator = np.random.default_rng(n)
    limits = np.stack([thresholds(generator.normal(size=n)) for _ in range(2000)])
    achieved = norm.sf(limits)
    error = achieved.std(axis=0) / np.sqrt(2000)
    assert (achieved.mean(axis=0) <= np.array(RATES) + 3 * error).all()
    assert (achieved.mean(axis=0) >= 0.9 * np.array(RATES)).all()


def test_rates_are_those_of_the_alarms():
    held_out, new = some(3000, seed=1, digits=9), some(500, seed=2, digits=9)
    limits = fixed_thresholds(held_out)
    predictions = with_alarms(new, limits)
    resamples = Resamples.leave_one_out(np.arange(500))
    above = new.scores[:, 1] > limits[1]
    assert tpr_at_fpr_5(predictions, resamples)[0] == pytest.approx(above[new.truth == 1].mean())
    assert achieved_fpr_5(predictions, resamples)[0] == pytest.approx(above[new.truth == 0].mean())
    assert np.isnan(achieved_fpr_1(with_alarms(new, np.array([np.nan, 0.0])), resamples)).all()
    name = Predictor("logistic", "task")
    again = unpack(pack({name: predictions}), lambda _: new.truth, 2)[name]
    assert np.array_equal(again.alarms, predictions.alarms)


def detected(n, **settings):
    generator = np.random.default_rng(0)
    positive = generator.random(n) < 0.05
    X = generator.normal(size=(n, 6)) + 1.5 * positive[:, None]
    row = np.arange(n).astype(str)
    y = np.where(positive, "rare", "usual")
    data = ProbeData(y, row, row, np.arange(n // 2), np.arange(n // 2, n))
    defaults = {"folds": 3, "control_draws": 0, "description": False}
    result = Prober(data, ProbeSettings(C=(0.1,), **(defaults | settings))).site(X)
    return {(m.metric, m.split): m for m in result.measurements}


def test_a_probe_is_measured_at_a_threshold_of_its_training_rows():
    found = detected(4000)
    for rate, name in zip(RATES, ("1", "5"), strict=True):
        reached, tpr = found[f"achieved_fpr_{name}", "test"], found[f"tpr_at_fpr_{name}", "test"]
        assert reached.value == pytest.approx(rate, abs=4 * np.sqrt(rate / 950))
        assert tpr.value > 10 * rate
        assert [tpr.chance, reached.chance] == pytest.approx([rate, rate])
    assert found["auprc", "test"].chance == pytest.approx(0.05, abs=0.01)


def test_thresholds_of_too_few_rows_are_left_out():
    names = {metric for metric, _ in detected(700)}
    assert "tpr_at_fpr_5" in names
    assert "auprc" in names
    assert not names & {"tpr_at_fpr_1", "achieved_fpr_1"}


def test_sites_are_selected_by_detection_if_there_are_enough_rows():
    found = detected(700, metric="tpr_at_fpr_5")
    assert found["tpr_at_fpr_5", "validation"].value > 0.5
    with pytest.raises(ConfigError, match=r"needs at least 1,000 .* but there are 3\d\d\. Choose"):
        detected(700, metric="tpr_at_fpr_1")
    with pytest.raises(ConfigError, match=r"achieved_fpr_5.*no score of logistic"):
        detected(700, metric="achieved_fpr_5")
