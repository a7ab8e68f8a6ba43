"""Metrics and their resamples compared with scikit-learn, detection, and calibration."""

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, spearmanr
from sklearn import metrics as sklearn_metrics
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score import metrics, scored
from probekit.probes.score.intervals import jackknife_interval, jackknife_variance
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples, r2
from probekit.probes.score.scored import FitFacts, joined, measure, metrics_of
from probekit.probes.settings import ProbeSettings
from probekit.results.site_results import pack, unpack
from tests.stored import each_line

OF_CLASSES = metric_functions("class", frozenset({"scores"}))
OF_NUMBERS = metric_functions("number")


def answers(n_classes, n_rows=400):
    """Scores on a coarse grid, so that many of them tie; the last class is rare."""
    generator = np.random.default_rng(0)
    share = np.append(np.full(n_classes - 1, 0.97 / (n_classes - 1)), 0.03)
    truth = generator.choice(n_classes, size=n_rows, p=share)
    scores = generator.integers(0, 4, size=(n_rows, n_classes)).astype(float)
    scores[np.arange(n_rows), truth] += 1
    if n_classes == 2:
        scores[:, 0] = -scores[:, 1]
    return ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores)


def some(n=400, share=0.1, digits=1, seed=0, positive=1):
    """Predictions of two classes with tied scores."""
    generator = np.random.default_rng(seed)
    truth = (generator.random(n) < share).astype(np.int64)
    margin = (generator.normal(size=n) + truth).round(digits)
    scores = np.column_stack([np.zeros(n), margin])
    return ClassPredictions(truth, scores.argmax(axis=1), 2, scores, positive=positive)


def numbers(digits):
    generator = np.random.default_rng(0)
    truth = 1e4 + generator.normal(size=400)  # far from 0, where squares would cancel
    guess = truth + generator.normal(size=400)
    return NumberPredictions(truth.round(digits), guess.round(digits))


def by_scikit_learn(name, given, rows):
    """The metric on the resampled rows, by scikit-learn."""
    truth, guess = given.truth[rows], given.guess[rows]
    if name == "spearman":
        return spearmanr(truth, guess).statistic
    with warnings.catch_warnings():
        # It warns of guesses of a class that was not drawn, and then does what we do.
        warnings.simplefilter("ignore", UserWarning)
        if name == "macro_f1":
            if len(np.unique(truth)) < len(np.unique(given.truth)):
                return np.nan  # a class is in the group left out alone
            return sklearn_metrics.f1_score(truth, guess, average="macro")
        if name not in ("auroc", "auprc"):
            return getattr(sklearn_metrics, f"{name}_score")(truth, guess)
    scores = given.scores[rows]
    if given.positive is not None:
        margin = scores[:, given.positive] - scores[:, 1 - given.positive]
        return average_precision_score(truth == given.positive, margin)
    # Both classes have the same area under the ROC curve, but not the same average precision.
    classes = [1] if given.n_classes == 2 and name == "auroc" else range(given.n_classes)
    area = {"auroc": roc_auc_score, "auprc": average_precision_score}[name]
    is_there = [0 < np.sum(truth == code) < len(truth) for code in range(given.n_classes)]
    areas = [area(truth == code, scores[:, code]) for code in classes if is_there[code]]
    return np.mean(areas) if areas else np.nan


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, answers(n_classes)) for name in OF_CLASSES for n_classes in (2, 5)),
        *(("auprc", some(positive=positive)) for positive in (0, 1)),
        *((name, numbers(digits)) for name in OF_NUMBERS for digits in (0, 15)),
    ],
)
def test_each_resample_equals_scikit_learn_on_the_rows_of_the_other_groups(name, given):
    """There are more groups than one block of resamples holds; one has all of a rare class."""
    groups = np.random.default_rng(1).integers(metrics.BLOCK + 20, size=400)
    if isinstance(given, ClassPredictions) and given.positive is None:
        groups[given.truth == given.n_classes - 1] = 7
    names = np.unique(groups)
    kept = [np.arange(400), *(np.flatnonzero(groups != left_out) for left_out in names)]
    edges = [metrics.BLOCK - 1, metrics.BLOCK, metrics.BLOCK + 1]
    columns = [0, 1, *edges, len(names), 1 + np.searchsorted(names, 7)]
    columns = columns if name in ("auroc", "macro_f1") else range(1 + len(names))
    expected = [by_scikit_learn(name, given, kept[column]) for column in columns]
    values = metrics_of(given)[name](given, Resamples.leave_one_out(groups))
    assert len(values) == 1 + len(names) > metrics.BLOCK + 1
    rtol = 1e-9 if isinstance(given, NumberPredictions) else 1e-12
    np.testing.assert_allclose(values[columns], expected, rtol=rtol)


ONES, ZEROS, CODES = np.ones(6, int), np.zeros(6, int), np.array([0, 1, 2, 0, 1, 2])
MARGINS = np.array([34.0, 38.0, 45.0, 60.0])
LOGS = np.stack([-np.logaddexp(0, MARGINS), -np.logaddexp(0, -MARGINS)], axis=1)


@pytest.mark.parametrize(
    ("metric", "given", "value"),
    [
        (metrics.auroc, ClassPredictions(CODES, CODES, 3, np.zeros((6, 3))), 0.5),
        (metrics.auroc, ClassPredictions(CODES, CODES, 3, np.full((6, 3), -np.inf)), 0.5),
        (metrics.auroc, ClassPredictions(ZEROS, ZEROS, 2, np.zeros((6, 2))), np.nan),
        # Probabilities round to one, margins do not.
        (metrics.auroc, ClassPredictions(np.array([0, 0, 1, 1]), ONES[:4], 2, LOGS), 1.0),
        (metrics.auprc, replace(some(), scores=np.zeros((400, 2))), some().truth.mean()),
        (metrics.auprc, replace(some(), truth=np.zeros(400, dtype=np.int64)), np.nan),
        (metrics.spearman, NumberPredictions(np.arange(5.0), np.zeros(5)), np.nan),
        (r2, NumberPredictions(np.arange(5.0), np.zeros(5)), -2.0),
    ],
)
def test_scores_without_order_or_with_one_class(metric, given, value):
    found = metric(given, Resamples.whole(len(given.truth)))
    assert found.tolist() == pytest.approx([value], nan_ok=True)


def test_several_classes_are_averaged_unless_one_is_positive():
    generator = np.random.default_rng(0)
    scores, truth = generator.normal(size=(60, 3)), np.arange(60) % 3
    given = ClassPredictions(truth, truth, 3, scores, positive=2)
    expected = average_precision_score(truth == 2, scores[:, 2])
    assert metrics.auprc(given, Resamples.whole(60))[0] == pytest.approx(expected)


@each_line("call")
def test_metrics_of_unfit_predictions_are_refused(call, refused):
    refused(eval, call, globals())


def test_a_thousand_classes_need_no_table_of_a_million():
    truth, guess = np.random.default_rng(0).integers(1000, size=(2, 3000))
    resamples = Resamples.leave_one_out(np.arange(3000) // 3, most=200)
    tracemalloc.start()
    for name in ("accuracy", "balanced_accuracy", "macro_f1"):
        OF_CLASSES[name](ClassPredictions(truth, guess, 1000), resamples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6  # the table would have 1.6 GB


def test_many_groups_are_left_out_in_units_of_about_equal_numbers():
    groups = np.repeat(np.arange(95), 2)
    units = Resamples.leave_one_out(groups, most=20).unit_of_group
    assert set(np.bincount(units, minlength=20).tolist()) == {4, 5}
    assert np.array_equal(units, Resamples.leave_one_out(groups, most=20).unit_of_group)


def test_units_of_many_groups_leave_the_variance_unbiased():
    """Whether the groups are in an order, such as by topic, does not matter."""
    generator, ratios = np.random.default_rng(0), []
    for _ in range(30):
        right = np.sort(generator.random(600) < 0.7).astype(int)
        given = ClassPredictions(np.ones(600, int), right, 2)
        both = (Resamples.leave_one_out(np.arange(600), most) for most in (60, 600))
        in_units, single = (OF_CLASSES["accuracy"](given, one) for one in both)
        ratios.append(jackknife_variance(in_units) / jackknife_variance(single))
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_the_effective_number_of_units_counts_their_rows():
    assert Resamples.leave_one_out(np.arange(60) // 4).n_effective == pytest.approx(15)
    # One group with 90 % of the rows, and ten with 1 % each: 1 / (0.81 + 10 * 0.0001).
    groups = np.repeat(np.arange(11), [90] + [1] * 10)
    assert Resamples.leave_one_out(groups).n_effective == pytest.approx(1 / 0.811)


@pytest.mark.parametrize(
    ("n", "undefined"),
    [(199, [True, True]), (200, [True, False]), (999, [True, False]), (1000, [False, False])],
)
def test_a_threshold_needs_ten_expected_false_alarms(n, undefined):
    assert np.isnan(metrics.thresholds(np.zeros(n))).tolist() == undefined


@pytest.mark.parametrize("n", [1000, 1450])
def test_the_false_positive_rate_is_at_most_the_one_allowed(n):
    """Mean rate on new negatives over 2,000 draws: at most the rate, and not far below."""
    generator = np.random.default_rng(n)
    achieved = norm.sf([metrics.thresholds(generator.normal(size=n)) for _ in range(2000)])
    error = achieved.std(axis=0) / np.sqrt(2000)
    assert (achieved.mean(axis=0) <= np.array(metrics.RATES) + 3 * error).all()
    assert (achieved.mean(axis=0) >= 0.9 * np.array(metrics.RATES)).all()


def test_rates_are_those_of_the_alarms():
    held_out, new = some(3000, seed=1, digits=9), some(500, seed=2, digits=9)
    limits, resamples = metrics.fixed_thresholds(held_out), Resamples.whole(500)
    predictions = metrics.with_alarms(new, limits)
    above = new.scores[:, 1] > limits[1]
    for metric, code in ((metrics.tpr_at_fpr_5, 1), (metrics.achieved_fpr_5, 0)):
        expected = above[new.truth == code].mean()
        assert metric(predictions, resamples)[0] == pytest.approx(expected)
    without = metrics.with_alarms(new, np.array([np.nan, 0.0]))
    assert np.isnan(metrics.achieved_fpr_1(without, resamples)).all()
    name = scored.Predictor("logistic", "task")
    again = unpack(pack({name: predictions}), lambda _: new.truth, 2)[name]
    assert np.array_equal(again.alarms, predictions.alarms)


def detected(n, **settings):
    generator = np.random.default_rng(0)
    positive, row = generator.random(n) < 0.05, np.arange(n)
    X = generator.normal(size=(n, 6)) + 1.5 * positive[:, None]
    y, names = np.where(positive, "rare", "usual"), row.astype(str)
    data = ProbeData(y, names, names, row[: n // 2], row[n // 2 :])
    defaults = {"folds": 3, "control_draws": 0, "description": False}
    result = Prober(data, ProbeSettings(C=(0.1,), **(defaults | settings))).site(X)
    return {(m.metric, m.split): m for m in result.measurements}


def test_a_probe_is_measured_at_a_threshold_of_its_training_rows():
    found = detected(4000)
    for rate, name in zip(metrics.RATES, ("1", "5"), strict=True):
        reached, tpr = found[f"achieved_fpr_{name}", "test"], found[f"tpr_at_fpr_{name}", "test"]
        assert reached.value == pytest.approx(rate, abs=4 * np.sqrt(rate / 950))
        assert tpr.value > 10 * rate
        assert [tpr.chance, reached.chance] == pytest.approx([rate, rate])
    assert found["auprc", "test"].chance == pytest.approx(0.05, abs=0.01)


def test_sites_are_selected_by_detection_at_thresholds_of_enough_rows():
    found = detected(700, metric="tpr_at_fpr_5")
    assert found["tpr_at_fpr_5", "validation"].value > 0.5
    assert {("tpr_at_fpr_5", "test"), ("auprc", "test")} <= set(found)
    assert not {"tpr_at_fpr_1", "achieved_fpr_1"} & {metric for metric, _ in found}


@pytest.mark.parametrize(
    ("metric", "undefined"),
    [(r2, [False, False, False, True]), (metrics.spearman, [False, True, False, True])],
)
def test_resamples_of_one_number_alone_are_undefined_and_so_are_the_limits(metric, undefined):
    # Without group 2 all true numbers are the same, and without group 0 all predicted ones.
    given = NumberPredictions(np.array([0.1, 0.1, 0.2]), np.array([0.1, 0.25, 0.25]))
    resamples = Resamples.leave_one_out(np.arange(3))
    values = metric(given, resamples)
    assert np.isnan(values).tolist() == undefined
    interval = jackknife_interval(values, resamples)
    assert interval.value == values[0]
    assert np.isnan([interval.low, interval.high]).all()


SIZES = (60, 90)  # rows of the two folds


def of_fold(n_rows, offset, seed):
    """Noisy scores of one fit, all shifted by an offset that is unrelated to the labels."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(2, size=n_rows)
    score = truth + generator.normal(size=n_rows) + offset
    scores = np.column_stack([np.zeros(n_rows), score])
    return ClassPredictions(truth, scores.argmax(axis=1), 2, scores)


FOLDS = [of_fold(60, 0, seed=0), of_fold(90, 9, seed=1)]
POOLED = joined(FOLDS)
GROUPS = np.arange(sum(SIZES)) // 3


def value(predictions, metric):
    return metrics_of(predictions)[metric](predictions, Resamples.whole(len(predictions.truth)))[0]


def area(predictions):
    return roc_auc_score(predictions.truth, predictions.scores[:, 1])


def test_the_spearman_correlation_of_two_fits_is_the_mean_over_their_rows():
    generator = np.random.default_rng(0)
    truth = [generator.normal(size=n) for n in SIZES]
    shifted = [one + generator.normal(size=len(one)) for one in truth]
    shifted[1] -= 9
    parts = [NumberPredictions(*one) for one in zip(truth, shifted, strict=True)]
    correlations = [spearmanr(one.truth, one.guess)[0] for one in parts]
    expected = np.average(correlations, weights=SIZES)
    assert value(joined(parts), "spearman") == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "macro_f1"])
def test_other_metrics_are_those_of_all_rows(metric):
    plain = ClassPredictions(POOLED.truth, POOLED.guess, 2)
    assert value(POOLED, metric) == value(plain, metric)


def test_every_resample_weighs_the_rows_that_it_holds():
    units = np.repeat([0, 1, 2], [10, 30, GROUPS.max() - 39])  # half of the first fold, and others
    resamples = Resamples(Resamples.leave_one_out(GROUPS).group_of_row, units, n_units=3)
    found = metrics_of(POOLED)["auroc"](POOLED, resamples)
    assert area(POOLED) < found[0] - 0.05  # ranks across fits see the offset
    for left_out, one in zip((-1, 0, 1, 2), found, strict=True):
        drawn = metrics.take(POOLED, resamples.unit_of_row != left_out)
        parts = [metrics.take(drawn, drawn.folds == fold) for fold in (0, 1)]
        sizes = [len(part.truth) for part in parts]
        assert one == pytest.approx(np.average([area(p) for p in parts], weights=sizes))


def test_a_fold_with_a_single_class_is_left_out():
    single = ClassPredictions(np.ones(30, int), np.ones(30, int), 2, np.zeros((30, 2)))
    assert value(joined([FOLDS[0], single]), "auroc") == pytest.approx(area(FOLDS[0]))
    assert np.isnan(value(joined([single, single]), "auroc"))


def test_precision_over_folds_ranks_all_rows_on_the_scale_of_the_training_rows():
    given = of_fold(150, 0, seed=2)
    first, score = np.arange(150) < 60, given.scores[:, 1]
    # A second fit has the same scores on another scale.
    moved = np.column_stack([np.zeros(150), np.where(first, score, 9 + 3 * score)])
    folds = np.where(first, 0, 1)
    moved = replace(given, scores=moved, positive=1)
    parts = [metrics.take(moved, folds == fold) for fold in (0, 1)]
    training = [replace(given, scores=np.column_stack([0 * score, 9 * k + (1 + 2 * k) * score]))
                for k in (0, 1)]  # fmt: skip
    both = joined([part.scaled_by(own) for part, own in zip(parts, training, strict=True)])
    expected = average_precision_score(both.truth, np.r_[score[first], score[~first]])
    assert value(both, "auprc") == pytest.approx(expected)
    assert value(joined(parts), "auprc") != pytest.approx(expected, abs=1e-3)  # a mean over folds
    name = scored.Predictor("logistic", "task")
    (stored,) = unpack(pack({name: both}), lambda _: both.truth, 2).values()
    assert value(stored, "auprc") == pytest.approx(expected)
    chance = scored.uninformed(both.truth, both)
    assert value(chance, "auprc") == pytest.approx(both.truth.mean())


def test_constant_scores_of_several_folds_are_not_ranked_by_rounding():
    truth = np.random.default_rng(0).integers(2, size=300)
    parts = []
    for level in (-1.1, -0.9, -0.7):  # means of 100 equal numbers differ from these by rounding
        scores = np.tile([0.0, level], (100, 1))
        one = ClassPredictions(truth[:100], np.zeros(100, int), 2, scores, positive=1)
        parts.append(one.scaled_by(one))
    both = replace(joined(parts), truth=truth)
    assert value(both, "auprc") == pytest.approx(truth.mean())


@pytest.mark.parametrize(("groups", "has_interval"), [([0, 0], False), ([0, 1], True)])
def test_macro_f1_with_a_class_in_a_single_group_has_no_interval(groups, has_interval):
    truth = np.r_[np.tile([0, 1], 20), 2, 2]
    guess = np.where(np.arange(42) % 5, truth, 0)
    resamples = Resamples.leave_one_out(np.r_[np.arange(40) // 2, groups])
    found = jackknife_interval(metrics.macro_f1(ClassPredictions(truth, guess, 3), resamples),
                               resamples, (0, 1))  # fmt: skip
    assert np.isfinite(found.value)
    assert np.isfinite([found.low, found.high]).tolist() == [has_interval] * 2


def test_folds_of_folds_stay_apart():
    both = joined([POOLED, POOLED])
    assert np.unique(both.folds).tolist() == [0, 1, 2, 3]
    assert np.unique(joined([both, FOLDS[0]]).folds).tolist() == [0, 1, 2, 3, 4]


def forecasts(n_classes, n_rows=150, seed=0, sharpness=1.0):
    """Probabilities, and labels drawn from them: calibrated where the sharpness is 1."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(n_classes), size=n_rows)
    truth = np.array([generator.choice(n_classes, p=row) for row in p])
    p = p**sharpness / (p**sharpness).sum(axis=1, keepdims=True)
    return ClassPredictions(truth, p.argmax(axis=1), n_classes, np.log(p), True)


def differences_by_bin(given):
    """Right minus confidence of the rows in each bin, and their row numbers."""
    confidence, right = np.exp(given.scores).max(axis=1), given.truth == given.guess
    for low in range(metrics.BINS):
        inside = (confidence > low / metrics.BINS) & (confidence <= (low + 1) / metrics.BINS)
        rows = np.flatnonzero(inside)
        yield right[rows] - confidence[rows], rows


@pytest.mark.parametrize("n_classes", [2, 5])
def test_each_resample_equals_a_plain_loop_over_the_rows_of_the_other_groups(n_classes):
    given, labels = forecasts(n_classes), range(n_classes)
    groups = np.random.default_rng(1).integers(15, size=150)
    kept = [np.arange(150), *(np.flatnonzero(groups != left_out) for left_out in range(15))]
    expected = [
        brier_score_loss(given.truth[rows], np.exp(given.scores[rows]), labels=labels,
                         scale_by_half=False)
        for rows in kept
    ]  # fmt: skip
    values = metrics.brier(given, Resamples.leave_one_out(groups))
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_sign_of_a_calibration_error_is_that_of_the_other_groups(n_classes):
    given, groups, expected = forecasts(n_classes), np.arange(150) % 15, 0.0
    for apart, rows in differences_by_bin(given):
        for group in range(15):
            own = groups[rows] == group
            expected += np.sign(apart[~own].sum()) * apart[own].sum() / 150
    resamples = Resamples.leave_one_out(groups)
    value, *others = metrics.ece(given, resamples)
    assert value == pytest.approx(expected)
    assert np.isnan(others).all()
    assert metrics.ece(given, resamples.undrawn).tolist() == [value]


def measured(predictions, groups):
    facts = FitFacts(probe="logistic", target="task", n_train=9, seed=0)
    given = scored.Scored((predictions,), (predictions,), groups, facts, metric="ece")
    (found,) = measure(given, Resamples.leave_one_out(groups))
    return found


def test_the_interval_of_a_calibration_error_contains_it_and_a_difference_has_none():
    groups = np.arange(150) // 5
    for seed in range(60):
        one, other = (forecasts(2, seed=seed, sharpness=sharp) for sharp in (1.0, 1.5))
        found = measured(one, groups)
        assert found.ci_low <= found.value < found.ci_high
        resamples = Resamples.leave_one_out(groups)
        (apart,) = scored.differences_of("ece", [([one], [other])], resamples)
        assert apart.value == pytest.approx(found.value - measured(other, groups).value)
        assert np.isnan([apart.ci_low, apart.ci_high, apart.p, apart.adjusted_low]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("sharpness", [1.0, 1.5, 2.5])
def test_the_interval_of_a_calibration_error_covers(sharpness):
    big = forecasts(2, n_rows=200_000, sharpness=sharpness)
    true = metrics.ece(big, Resamples.whole(200_000))[0]
    draws = [measured(forecasts(2, seed=1 + n, sharpness=sharpness), np.arange(150) // 5)
             for n in range(200)]  # fmt: skip
    assert np.mean([one.ci_low <= true <= one.ci_high for one in draws]) > 0.94


def test_a_probability_of_nothing_and_a_class_never_seen_are_scored():
    scores = np.tile([0.0, np.log(1e-300), -np.inf], (4, 1))
    given = ClassPredictions(np.array([0, 2, 2, 0]), np.zeros(4, int), 3, scores, True)
    assert metrics.brier(given, Resamples.whole(4))[0] == pytest.approx(1.0)  # 0 and 1 + 1
    assert metrics.ece(given, Resamples.whole(4))[0] == pytest.approx(0.5)


def test_calibrated_predictions_have_an_error_of_0_on_average():
    """With its own signs the mean would be 0.11: rows in a bin differ by chance."""
    errors = []
    for seed in range(400):
        generator = np.random.default_rng(seed)
        p = generator.uniform(0.5, 1, size=80)
        guess = generator.integers(2, size=80)
        truth = np.where(generator.random(80) < p, guess, 1 - guess)
        both = np.where(np.eye(2)[guess] > 0, p[:, None], 1 - p[:, None])
        given = ClassPredictions(truth, guess, 2, np.log(both), True)
        errors.append(metrics.ece(given, Resamples.whole(80))[0])
    standard_error = np.std(errors) / np.sqrt(len(errors))
    assert standard_error < 0.005
    assert abs(np.mean(errors)) < 3 * standard_error
    assert min(errors) < 0 < max(errors)  # they are not clipped


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    for at in range(1, metrics.BINS + 1):
        scores = np.log([[at / metrics.BINS, max(1 - at / metrics.BINS, 1e-300)]])
        given = ClassPredictions(np.array([0]), np.array([0]), 2, scores, True)
        (found,) = scored.reliability_bins(given, Resamples.leave_one_out(np.arange(1)))
        assert (found.low, found.high) == ((at - 1) / metrics.BINS, at / metrics.BINS)


def test_a_bin_with_rows_of_one_group_has_no_interval():
    scores = np.log([[0.9, 0.1]] * 3 + [[0.6, 0.4]] * 2)
    given = ClassPredictions(np.array([0, 0, 1, 0, 1]), np.zeros(5, int), 2, scores, True)
    low, high = scored.reliability_bins(given, Resamples.leave_one_out(np.array([0, 1, 2, 0, 0])))
    assert low.accuracy == 0.5
    assert np.isnan([low.ci_low, low.ci_high]).all()
    assert high.accuracy == pytest.approx(2 / 3)
    assert high.ci_low < high.accuracy < high.ci_high


def test_the_bins_hold_all_rows_and_give_the_error_again():
    given = forecasts(3, n_rows=400, sharpness=2.0)
    bins = scored.reliability_bins(given, Resamples.leave_one_out(np.arange(400)))
    assert sum(part.n_rows for part in bins) == 400
    for part, (apart, _) in zip(bins, (one for one in differences_by_bin(given) if len(one[0])),
                                strict=True):  # fmt: skip
        assert part.n_rows * (part.accuracy - part.confidence) == pytest.approx(apart.sum())
        assert part.low < part.confidence <= part.high
        is_single = np.isnan([part.ci_low, part.ci_high]).all()
        assert is_single == (part.n_rows == 1)
        assert is_single or part.ci_low <= part.accuracy <= part.ci_high
