"""Average precision, and detection at a threshold that is fixed before the test rows are seen."""

import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    r2_score,
    roc_auc_score,
)

from probekit.errors import ConfigError, DataError
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.intervals import jackknife_interval, jackknife_variance
from probekit.probes.score.metric_table import METRICS, metric_functions
from probekit.probes.score.metrics import (
    BLOCK,
    RATES,
    ClassPredictions,
    NumberPredictions,
    Resamples,
    accuracy,
    achieved_fpr_1,
    achieved_fpr_5,
    auprc,
    auroc,
    fixed_thresholds,
    r2,
    spearman,
    take,
    thresholds,
    tpr_at_fpr_5,
    with_alarms,
)
from probekit.probes.score.scored import Predictor, joined, metrics_of
from probekit.probes.settings import ProbeSettings
from probekit.results.site_results import pack, unpack

OF_CLASSES = metric_functions("class", frozenset({"scores"}))


def answers(n_classes: int, n_rows: int = 120, seed: int = 0) -> ClassPredictions:
    """Scores on a coarse grid, so that many of them tie; the last class is rare."""
    generator = np.random.default_rng(seed)
    share = np.append(np.full(n_classes - 1, 0.97 / (n_classes - 1)), 0.03)
    truth = generator.choice(n_classes, size=n_rows, p=share)
    scores = generator.integers(0, 4, size=(n_rows, n_classes)).astype(float)
    scores[np.arange(n_rows), truth] += 1
    if n_classes == 2:
        scores[:, 0] = -scores[:, 1]
    return ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores)


def by_scikit_learn(name: str, given: ClassPredictions, rows: np.ndarray) -> float:
    """The metric on the resampled rows, by scikit-learn."""
    truth, guess, scores = given.truth[rows], given.guess[rows], given.scores[rows]
    with warnings.catch_warnings():
        # It warns of guesses of a class that was not drawn, and then does what we do.
        warnings.simplefilter("ignore", UserWarning)
        if name == "accuracy":
            return accuracy_score(truth, guess)
        if name == "balanced_accuracy":
            return balanced_accuracy_score(truth, guess)
        if name == "macro_f1":
            return f1_score(truth, guess, average="macro")
    # Both classes have the same area under the ROC curve, but not the same average precision.
    classes = [1] if given.n_classes == 2 and name == "auroc" else range(given.n_classes)
    area = {"auroc": roc_auc_score, "auprc": average_precision_score}[name]
    areas = [
        area(truth == code, scores[:, code])
        for code in classes
        if 0 < np.sum(truth == code) < len(truth)
    ]
    return np.mean(areas) if areas else np.nan


def groups_of(given: ClassPredictions) -> np.ndarray:
    """More groups than one block of resamples holds; all rows of the rare class are in one."""
    groups = np.random.default_rng(1).integers(BLOCK + 20, size=len(given.truth))
    groups[given.truth == given.n_classes - 1] = 7
    return np.char.add("g", groups.astype(str))


@pytest.mark.parametrize("name", OF_CLASSES)
@pytest.mark.parametrize("n_classes", [2, 5])
def test_each_resample_equals_scikit_learn_on_the_rows_of_the_other_groups(name, n_classes):
    given = answers(n_classes, n_rows=400)
    groups = groups_of(given)
    names = np.unique(groups)
    columns = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, len(names), 1 + names.tolist().index("g7")]
    kept = [np.flatnonzero(groups != names[n - 1]) if n else np.arange(400) for n in columns]
    assert n_classes - 1 not in given.truth[kept[-1]]
    expected = [by_scikit_learn(name, given, rows) for rows in kept]
    values = OF_CLASSES[name](given, Resamples.leave_one_out(groups))
    assert len(values) == 1 + len(names) > BLOCK + 1
    np.testing.assert_allclose(values[columns], expected, rtol=1e-12)


def test_binary_auroc_ranks_margins_whose_probabilities_round_to_one():
    margins = np.array([34.0, 38.0, 45.0, 60.0])
    scores = np.stack([-np.logaddexp(0, margins), -np.logaddexp(0, -margins)], axis=1)
    given = ClassPredictions(np.array([0, 0, 1, 1]), np.ones(4, dtype=int), 2, scores)
    assert auroc(given, Resamples.whole(4)).tolist() == [1.0]


def test_a_thousand_classes_need_no_table_of_a_million():
    generator = np.random.default_rng(0)
    truth, guess = generator.integers(1000, size=(2, 3000))
    resamples = Resamples.leave_one_out(np.arange(3000) // 3, most=200)
    tracemalloc.start()
    for name in ("accuracy", "balanced_accuracy", "macro_f1"):
        OF_CLASSES[name](ClassPredictions(truth, guess, 1000), resamples)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6  # the table would have 1.6 GB


def test_constant_scores_have_an_area_of_one_half_and_minus_infinity_is_a_score():
    truth = np.array([0, 1, 2, 0, 1, 2])
    resamples = Resamples.whole(6)
    for constant in (0.0, -np.inf):
        scores = np.full((6, 3), constant)
        assert auroc(ClassPredictions(truth, truth, 3, scores), resamples)[0] == 0.5


def test_area_is_undefined_where_one_class_is_alone():
    given = ClassPredictions(np.zeros(4, int), np.zeros(4, int), 2, np.zeros((4, 2)))
    assert np.isnan(auroc(given, Resamples.leave_one_out(np.arange(4)))).all()


def test_area_needs_scores():
    with pytest.raises(ValueError, match="needs scores"):
        auroc(ClassPredictions(np.array([0, 1]), np.array([0, 1]), 2), Resamples.whole(2))


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter():
    given = answers(5)
    groups = np.random.default_rng(1).integers(15, size=120)
    order = np.random.default_rng(2).permutation(120)
    shuffled = ClassPredictions(given.truth[order], given.guess[order], 5, given.scores[order])
    for name, metric in OF_CLASSES.items():
        values = metric(given, Resamples.leave_one_out(groups))
        again = metric(shuffled, Resamples.leave_one_out(groups[order] + 100))
        np.testing.assert_allclose(again, values, rtol=1e-12, err_msg=name)


def test_each_group_is_left_out_once():
    counts = Resamples.leave_one_out(np.arange(30) // 2).counts
    assert np.all(counts[:, 0] == 1)
    assert np.array_equal(counts[:, 1:], 1 - np.eye(15))
    assert Resamples.whole(30).counts.tolist() == [[1]] * 30


def test_many_groups_are_left_out_in_units_of_about_equal_numbers():
    groups = np.repeat(np.arange(95), 2)
    counts = Resamples.leave_one_out(groups, most=20).counts
    assert counts.shape == (95, 21)
    assert np.all((counts[:, 1:] == 0).sum(axis=1) == 1)  # each group belongs to one unit
    n_groups = (counts[:, 1:] == 0).sum(axis=0)
    assert set(n_groups.tolist()) == {4, 5}
    assert np.array_equal(counts, Resamples.leave_one_out(groups, most=20).counts)


def test_units_of_many_groups_leave_the_variance_unbiased():
    """Whether the groups are in an order, such as by topic, does not matter."""
    generator, ratios = np.random.default_rng(0), []
    for _ in range(30):
        right = np.sort(generator.random(600) < 0.7).astype(int)
        given = ClassPredictions(np.ones(600, int), right, 2)
        joined, single = (
            jackknife_variance(accuracy(given, Resamples.leave_one_out(np.arange(600), most)))
            for most in (60, 600)
        )
        ratios.append(joined / single)
    assert np.mean(ratios) == pytest.approx(1, abs=0.1)


def test_the_effective_number_of_units_counts_their_rows():
    assert Resamples.leave_one_out(np.arange(60) // 4).n_effective == pytest.approx(15)
    # One group with 90 % of the rows, and ten with 1 % each: 1 / (0.81 + 10 * 0.0001).
    groups = np.repeat(np.arange(11), [90] + [1] * 10)
    assert Resamples.leave_one_out(groups).n_effective == pytest.approx(1 / 0.811)


def some(n=200, share=0.1, digits=1, seed=0, positive=1):
    """Predictions of two classes with tied scores."""
    generator = np.random.default_rng(seed)
    truth = (generator.random(n) < share).astype(np.int64)
    margin = (generator.normal(size=n) + truth).round(digits)
    scores = np.column_stack([np.zeros(n), margin])
    return ClassPredictions(truth, scores.argmax(axis=1), 2, scores, positive=positive)


@pytest.mark.parametrize("positive", [0, 1])
def test_with_ties_it_is_that_of_scikit_learn_in_every_resample(positive):
    predictions, groups = some(positive=positive), np.arange(200) // 4
    values = auprc(predictions, Resamples.leave_one_out(groups))
    margin = predictions.scores[:, positive] - predictions.scores[:, 1 - positive]
    for column in range(51):
        rows = np.flatnonzero(groups != column - 1)  # the first column is of all rows
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


OF_NUMBERS = metric_functions("number")
PLAIN = {"r2": r2_score, "spearman": lambda truth, guess: spearmanr(truth, guess).statistic}


def numbers(tied, n_rows=120):
    generator = np.random.default_rng(0)
    truth = 1e4 + generator.normal(size=n_rows)  # far from 0, where squares would cancel
    guess = truth + generator.normal(size=n_rows)
    return (
        NumberPredictions(truth.round(), guess.round()) if tied else NumberPredictions(truth, guess)
    )


@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("tied", [False, True])
def test_each_resample_of_numbers_equals_scikit_learn_on_the_rows_of_the_other_groups(name, tied):
    given = numbers(tied, n_rows=400)
    groups = np.random.default_rng(1).integers(BLOCK + 20, size=400)
    names = np.unique(groups)
    assert len(names) > BLOCK
    kept = [np.arange(400), *(np.flatnonzero(groups != left_out) for left_out in names)]
    expected = [PLAIN[name](given.truth[rows], given.guess[rows]) for rows in kept]
    values = OF_NUMBERS[name](given, Resamples.leave_one_out(groups))
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_resamples_of_one_number_alone_are_undefined_and_so_are_the_limits():
    # Without group 2 all true numbers are the same, and without group 0 all predicted ones.
    given = NumberPredictions(np.array([0.1, 0.1, 0.2]), np.array([0.1, 0.25, 0.25]))
    resamples = Resamples.leave_one_out(np.arange(3))
    for metric, undefined in (
        (r2, [False, False, False, True]),
        (spearman, [False, True, False, True]),
    ):
        values = metric(given, resamples)
        assert np.isnan(values).tolist() == undefined
        interval = jackknife_interval(values, resamples)
        assert interval.value == values[0]
        assert np.isnan([interval.low, interval.high]).all()


def test_a_constant_guess_has_no_rank_correlation_and_an_r2_below_nothing():
    given = NumberPredictions(np.arange(5.0), np.zeros(5))
    resamples = Resamples.whole(5)
    assert np.isnan(spearman(given, resamples)[0])
    assert r2(given, resamples)[0] == -2.0


def test_numbers_that_are_none_are_refused_with_their_row():
    with pytest.raises(DataError, match="guess is nan in row 1"):
        NumberPredictions(np.zeros(3), np.array([0, np.nan, 0]))
    with pytest.raises(DataError, match="truth has 3 rows, but guess has 2"):
        NumberPredictions(np.zeros(3), np.zeros(2))


SIZES = (60, 90)  # rows of the two folds


def of_fold(n_rows: int, offset: float, seed: int) -> ClassPredictions:
    """Noisy scores of one fit, all shifted by an offset that is unrelated to the labels."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(2, size=n_rows)
    score = truth + generator.normal(size=n_rows) + offset
    scores = np.column_stack([np.zeros(n_rows), score])
    return ClassPredictions(truth, scores.argmax(axis=1), 2, scores)


FOLDS = [of_fold(n, offset, seed) for seed, n, offset in zip((0, 1), SIZES, (0, 9), strict=True)]
POOLED = joined(FOLDS)
GROUPS = np.arange(sum(SIZES)) // 3


def value(predictions, metric, groups=GROUPS):
    resamples = Resamples.leave_one_out(groups[: len(predictions.truth)])
    return metrics_of(predictions)[metric](predictions, resamples)[0]


def area(predictions):
    return roc_auc_score(predictions.truth, predictions.scores[:, 1])


def test_the_spearman_correlation_of_two_fits_is_the_mean_over_their_rows():
    generator = np.random.default_rng(0)
    truth = [generator.normal(size=n) for n in SIZES]
    guess = [
        one + generator.normal(size=len(one)) + shift
        for one, shift in zip(truth, (0, -9), strict=True)
    ]
    parts = [NumberPredictions(t, g) for t, g in zip(truth, guess, strict=True)]
    expected = np.average(
        [spearmanr(t, g)[0] for t, g in zip(truth, guess, strict=True)], weights=SIZES
    )
    assert value(joined(parts), "spearman") == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "macro_f1"])
def test_other_metrics_are_those_of_all_rows(metric):
    plain = ClassPredictions(POOLED.truth, POOLED.guess, 2)
    assert value(POOLED, metric) == value(plain, metric)


def test_every_column_of_the_resamples_weighs_the_rows_that_it_holds():
    """Leaving out a group, as the jackknife does, and drawing it twice, as the bootstrap does."""
    resamples = Resamples.leave_one_out(GROUPS)
    counts = np.ones((resamples.n_groups, 3), dtype=np.float32)
    counts[:10, 1] = 0  # half of the first fold
    counts[25:40, 2] = 2
    repeats = counts[GROUPS].astype(int)
    found = metrics_of(POOLED)["auroc"](POOLED, Resamples(resamples.group_of_row, counts))
    assert area(POOLED) < found[0] - 0.05  # ranks across fits see the offset
    for column in range(3):
        rows = np.repeat(np.arange(len(GROUPS)), repeats[:, column])
        drawn = take(POOLED, rows)
        parts = [take(drawn, drawn.folds == fold) for fold in (0, 1)]
        sizes = [len(part.truth) for part in parts]
        assert found[column] == pytest.approx(np.average([area(p) for p in parts], weights=sizes))


def test_a_fold_with_a_single_class_is_left_out():
    single = ClassPredictions(np.ones(30, int), np.ones(30, int), 2, np.zeros((30, 2)))
    assert value(joined([FOLDS[0], single]), "auroc") == pytest.approx(area(FOLDS[0]))
    assert np.isnan(value(joined([single, single]), "auroc"))


def test_folds_of_folds_stay_apart():
    both = joined([POOLED, POOLED])
    assert np.unique(both.folds).tolist() == [0, 1, 2, 3]
    assert np.unique(joined([both, FOLDS[0]]).folds).tolist() == [0, 1, 2, 3, 4]


def test_the_metrics_of_ranks_are_those_that_a_monotone_change_of_all_scores_leaves():
    ranks = {name for name, metric in METRICS.items() if metric.is_rank}
    assert ranks == {"auroc", "auprc", "spearman"}
