"""Metrics of ranks compare only rows of the same fit; all others are those of the pooled rows."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from probekit.probes.score.measurement import joined, metrics_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.pooling import take
from probekit.probes.score.regression import NumberPredictions

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


def test_the_auroc_of_two_fits_is_the_mean_over_their_rows():
    expected = np.average([area(one) for one in FOLDS], weights=SIZES)
    assert value(POOLED, "auroc") == pytest.approx(expected)
    assert area(POOLED) < expected - 0.05  # ranks across fits see the offset


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


def test_a_single_fit_is_ranked_as_a_whole():
    assert FOLDS[0].folds is None
    assert value(FOLDS[0], "auroc") == pytest.approx(area(FOLDS[0]))


def test_folds_of_folds_stay_apart():
    both = joined([POOLED, POOLED])
    assert np.unique(both.folds).tolist() == [0, 1, 2, 3]
    assert np.unique(joined([both, FOLDS[0]]).folds).tolist() == [0, 1, 2, 3, 4]


def test_the_metrics_of_ranks_are_those_that_a_monotone_change_of_all_scores_leaves():
    ranks = {name for name, metric in METRICS.items() if metric.is_rank}
    assert ranks == {"auroc", "auprc", "spearman"}
