"""R2 and Spearman compared with scikit-learn and SciPy on the rows of each resample."""

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import r2_score

from probekit.errors import DataError
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import BLOCK, Resamples
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
def test_each_resample_equals_scikit_learn_on_the_rows_of_the_other_groups(name, tied):
    given = numbers(tied, n_rows=400)
    groups = np.random.default_rng(1).integers(BLOCK + 20, size=400)
    names = np.unique(groups)
    assert len(names) > BLOCK
    kept = [np.arange(400), *(np.flatnonzero(groups != left_out) for left_out in names)]
    expected = [PLAIN[name](given.truth[rows], given.guess[rows]) for rows in kept]
    values = METRICS[name](given, Resamples.leave_one_out(groups))
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


def test_an_undefined_value_has_undefined_limits():
    given = NumberPredictions(np.ones(4), np.arange(4.0))
    resamples = Resamples.leave_one_out(np.arange(4))
    interval = jackknife_interval(r2(given, resamples), resamples)
    assert np.isnan([interval.value, interval.low, interval.high]).all()


def test_numbers_that_are_none_are_refused_with_their_row():
    with pytest.raises(DataError, match="guess is nan in row 1"):
        NumberPredictions(np.zeros(3), np.array([0, np.nan, 0]))
    with pytest.raises(DataError, match="truth has 3 rows, but guess has 2"):
        NumberPredictions(np.zeros(3), np.zeros(2))
