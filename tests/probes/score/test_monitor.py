"""Thresholds of a monitor: their bound holds, by rows and by groups, and is not too high."""

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks.claims.monitors import Negatives, rows
from probekit.chosen.monitor import measure
from probekit.errors import DataError
from probekit.probes.score.intervals import score_interval
from probekit.probes.score.metrics import ClassPredictions, Resamples, with_alarms
from probekit.probes.score.scored import metrics_of, parts_of


def exceeding(design, draws=1000):
    """The shares of draws in which the rate exceeds the bound: by groups, and by rows."""
    return {row["method"]: row["rate"] for row in rows(Negatives(*design), draws)}


def test_the_rate_on_new_rows_exceeds_the_bound_in_five_of_a_hundred_draws():
    assert 0.035 < exceeding((0.05, 3.0, "1", "none"))["groups"] < 0.065


@pytest.mark.parametrize("dependence", ["correlated", "bursts", "large bursts"])
@pytest.mark.parametrize("sizes", ["10", "1:20"])
def test_the_bound_holds_for_new_groups_and_would_not_if_each_row_counted(sizes, dependence):
    shares = exceeding((0.05, 1.02, sizes, dependence), draws=250)
    assert shares["groups"] < 0.09
    if dependence != "large bursts":  # their rows outvote the others
        assert shares["rows"] > 0.15


def test_the_bound_is_that_of_clopper_and_pearson():
    for hits, n in ((0, 59), (3, 400), (20, 1000)):
        assert binom.cdf(hits, n, measure.upper_bound(hits / n, n)) == pytest.approx(0.05)


def test_the_threshold_is_the_lowest_that_the_rate_allows():
    scores = np.random.default_rng(0).normal(size=1000)
    threshold, bound = measure.fixed_threshold(scores, np.arange(1000), 0.02)
    n_above = (scores > threshold).sum()
    here, next_lower = measure.upper_bound(np.array([n_above, n_above + 1]) / 1000, 1000)
    assert bound == pytest.approx(here)
    assert here <= 0.02 < next_lower


def test_a_group_counts_once_whatever_its_rows():
    groups, generator = np.repeat(np.arange(100), 3), np.random.default_rng(1)
    scores = generator.normal(size=100)
    once = measure.fixed_threshold(scores, np.arange(100), 0.1)
    threshold, bound = measure.fixed_threshold(scores[groups], groups, 0.1)
    assert threshold == once[0]
    assert once[1] <= bound <= 0.1  # of three tied rows, some may be above the rank of the bound
    order = generator.permutation(300)
    assert measure.fixed_threshold(scores[groups][order], groups[order], 0.1) == (threshold, bound)
    sizes = 1 + (np.arange(100) % 7)  # groups of unlike sizes, whose rows have equal scores
    unlike = np.repeat(np.arange(100), sizes)
    assert measure.fixed_threshold(scores[unlike], unlike, 0.1)[0] == once[0]


def test_tied_scores_raise_no_alarm():
    threshold, bound = measure.fixed_threshold(np.zeros(100), np.arange(100), 0.05)
    assert (threshold, bound <= 0.05) == (0.0, True)


@pytest.mark.parametrize(("fpr", "needed"), [(0.05, 59), (0.01, 299), (0.001, 2995)])
def test_too_few_groups_are_refused_with_the_number_needed(fpr, needed):
    assert measure.groups_needed(fpr) == needed
    measure.check_groups(np.arange(needed), fpr)
    with pytest.raises(DataError, match=f"at least {needed:,} negatives, but there are") as found:
        measure.check_groups(np.arange(needed - 1), fpr)
    lowest = float(str(found.value).rpartition("at least ")[2].rstrip("."))
    measure.check_groups(np.arange(needed - 1), lowest)
    with pytest.raises(DataError, match=f"{needed:,} groups of negatives.*with 5,000 rows"):
        measure.check_groups(np.arange(5000) % 20, fpr)


def test_rates_on_test_rows_have_the_intervals_of_the_metrics():
    generator = np.random.default_rng(2)
    negatives, tested = generator.normal(size=2000), generator.normal(size=600)
    is_positive, groups = generator.random(600) < 0.3, np.arange(600) // 4
    tested[is_positive] += 2
    resamples = Resamples.leave_one_out(groups)
    first, second = measure.monitor_rows(
        (0.01, 0.05), negatives, np.arange(2000), tested, is_positive, resamples
    )
    assert first["threshold"] > second["threshold"]
    scores = np.stack([np.zeros(600), tested], axis=1)
    predictions = ClassPredictions(is_positive.astype(int), is_positive, 2, scores, positive=1)
    limits = np.array([first["threshold"], second["threshold"]])
    alarmed = with_alarms(predictions, limits)
    for row, percent in ((first, 1), (second, 5)):
        assert row["false_positives"] == (negatives > row["threshold"]).sum() > 0
        named = {"tpr": f"tpr_at_fpr_{percent}", "test_fpr": f"achieved_fpr_{percent}"}
        for name, metric in named.items():
            values = metrics_of(alarmed)[metric](alarmed, resamples)
            found = score_interval(values, resamples, (0, 1), parts_of(metric, [alarmed]))
            assert found.low < found.value < found.high
            assert [row[name], row[f"{name}_low"], row[f"{name}_high"]] == [*vars(found).values()]
