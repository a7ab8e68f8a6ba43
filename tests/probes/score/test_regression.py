"""R2 and Spearman compared with scikit-learn and SciPy on explicitly resampled rows."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import r2_score

from probekit.errors import DataError
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import BLOCK, Resamples, percentile_interval
from probekit.probes.score.regression import NumberPredictions, r2, spearman

METRICS = metric_functions("number")
PLAIN = {
    "r2": r2_score,
    "spearman": lambda truth, guess: spearmanr(truth, guess).statistic,
}


def numbers(tied, n_rows=120):
    generator = np.random.default_rng(0)
    truth = 1e4 + generator.normal(size=n_rows)  # far from 0, where squares would cancel
    guess = truth + generator.normal(size=n_rows)
    return (
        NumberPredictions(truth.round(), guess.round()) if tied else NumberPredictions(truth, guess)
    )


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("tied", [False, True])
def test_every_draw_equals_a_plain_loop_over_groups(name, tied):
    given = numbers(tied)
    groups = np.random.default_rng(1).integers(15, size=120)
    resamples = Resamples.draw(groups, draws=BLOCK + 20, seed=0)
    expected = []
    for counts in resamples.counts.T.astype(int):
        drawn = np.repeat(np.unique(groups), counts)
        rows = np.concatenate([np.flatnonzero(groups == group) for group in drawn])
        expected.append(PLAIN[name](given.truth[rows], given.guess[rows]))
    np.testing.assert_allclose(METRICS[name](given, resamples), expected, rtol=1e-9)


def test_draws_of_one_number_alone_are_undefined_and_leave_the_interval():
    # With three groups, one draw in nine holds a single group, thus a single number.
    given = NumberPredictions(np.array([0.1, 0.2, 0.3]), np.array([0.1, 0.2, 0.25]))
    resamples = Resamples.draw(np.arange(3), 300, 0)
    alone = (resamples.counts == 3).any(axis=0)
    assert alone.any()
    for metric in (r2, spearman):
        values = metric(given, resamples)
        assert np.array_equal(np.isnan(values), alone)
        interval = percentile_interval(values)
        assert interval.low <= interval.value <= interval.high


def test_a_constant_guess_has_no_rank_correlation_and_an_r2_below_nothing():
    given = NumberPredictions(np.arange(5.0), np.zeros(5))
    resamples = Resamples.draw(np.arange(5), 3, 0)
    assert np.isnan(spearman(given, resamples)[0])
    assert r2(given, resamples)[0] == -2.0


def test_intervals_without_a_defined_draw_have_no_ends():
    given = NumberPredictions(np.ones(4), np.arange(4.0))
    interval = percentile_interval(r2(given, Resamples.draw(np.arange(4), 20, 0)))
    assert np.isnan([interval.value, interval.low, interval.high]).all()


def test_numbers_that_are_none_are_refused_with_their_row():
    with pytest.raises(DataError, match="guess is nan in row 1"):
        NumberPredictions(np.zeros(3), np.array([0, np.nan, 0]))
    with pytest.raises(DataError, match="truth has 3 rows, but guess has 2"):
        NumberPredictions(np.zeros(3), np.zeros(2))
