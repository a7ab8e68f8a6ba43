"""Nested cross-validation: what each outer fold chooses, and what is fitted on all rows."""

from dataclasses import replace

import numpy as np

from probekit.probes.prober import Prober
from probekit.probes.score.metrics import WIDER_OVER_FOLDS
from probekit.probes.settings import ProbeSpec
from tests.probes.made_rows import SETTINGS, make_data, nested, pick, signal, site


def of_fold(result, fold):
    (found,) = [m for m in result.measurements if (m.split, m.fold) == ("validation", fold)]
    return found


def test_each_outer_fold_has_the_validation_score_and_the_c_of_its_own_split():
    data = make_data()
    X, prober = signal(data, 0.5), nested(data)
    result = prober.site(X)
    for fold in range(3):
        test = np.flatnonzero(np.arange(450) // 150 == fold)
        train = np.setdiff1d(np.arange(450), test)
        alone = Prober(replace(data, train=train, test=test), prober.settings)
        # The limits are wider over outer folds.
        without_limits = {"ci_low": None, "ci_high": None, "fold": None}
        own, same = of_fold(result, fold), pick(site(alone, X), split="validation")
        assert replace(own, **without_limits) == replace(same, **without_limits)
        assert own.ci_low < same.ci_low < same.ci_high < own.ci_high


def test_standard_errors_are_wider_over_outer_folds():
    data = make_data()
    assert Prober(data, SETTINGS).resamples_of("logistic").widening == 1
    assert nested(data).resamples_of("logistic").widening == WIDER_OVER_FOLDS


def test_test_labels_of_an_outer_fold_choose_nothing_in_it():
    data = make_data()
    X, y = signal(data, 0.3), data.y.copy()
    y[150:300] = np.random.default_rng(5).permutation(y[150:300])  # the test rows of fold 1
    first, second = (nested(replace(data, y=labels)).site(X) for labels in (data.y, y))
    assert of_fold(first, 1) == of_fold(second, 1)
    assert of_fold(first, 0) != of_fold(second, 0)


def test_folds_keep_a_fit_on_all_rows_with_a_c_of_its_own():
    data = make_data()
    X, prober = signal(data, 0.5), nested(data)
    result = prober.site(X)
    assert np.array_equal(prober.saved_rows.rows, np.arange(450))
    # A split of all rows except two groups that no class depends on.
    rest = np.arange(444)
    whole = Prober(replace(data, train=rest, test=np.arange(444, 450)), prober.settings).site(X)
    scores = [one.fits["logistic"].class_scores(X, 2) for one in (result, whole)]
    assert np.corrcoef(scores[0][:, 1], scores[1][:, 1])[0, 1] > 0.999
    assert result.penalties["logistic"] in SETTINGS.C
    assert prober.random_site([X], n_networks=1).fits == {}


def test_folds_report_their_progress_to_the_end():
    data, seen = make_data(), []
    nested(data).site(signal(data, 1), on_fit=lambda *count: seen.append(count))
    assert seen[-1] == (28, 28)  # 4 x (3 folds x 2 C + 1)
    assert [done for done, _ in seen] == list(range(1, 29))


def test_numbers_are_refitted_on_all_rows_too():
    data = make_data()
    numbers = replace(data, y=np.random.default_rng(0).normal(size=450).round(3).astype(str))
    kinds = (ProbeSpec("ridge_regression"),)
    result = nested(numbers, kinds=kinds, baselines=()).site(signal(data, 1))
    assert result.fits["ridge_regression"].layers
    assert {m.fold for m in result.measurements if m.split == "validation"} == {None, 0, 1, 2}
    assert (
        result.predictions["ridge_regression", "task"].folds.tolist()
        == [0] * 150 + [1] * 150 + [2] * 150
    )
