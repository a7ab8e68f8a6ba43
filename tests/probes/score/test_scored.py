"""Predictions of several kinds of probe, pooled over folds or averaged over networks."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.probes.score.description_length import OnlineCode, codelength
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import (
    PredictionPair,
    Resampler,
    Score,
    joined,
    measure,
    metrics_of,
)
from probekit.probes.solve.fits import TunedProbeFit
from probekit.probes.solve.layers import AffineLayer, FittedLayers

RESAMPLER = Resampler()
GROUPS = (np.arange(200) // 2).astype(str)
PLAIN = Score("logistic", "task", seed=0, n_train=10, groups=GROUPS)


def reading(share_right: float, seed: int = 0, scores: np.ndarray | None = None) -> PredictionPair:
    generator = np.random.default_rng(seed)
    truth = generator.integers(2, size=200)
    guess = np.where(generator.random(200) < share_right, truth, 1 - truth)
    return (
        ClassPredictions(truth, guess, 2, scores),
        ClassPredictions(truth, 0 * truth, 2, scores),
    )


def numbers(*pairs: PredictionPair, **score):
    return measure(replace(PLAIN, pairs=pairs, **score), RESAMPLER)


def fits(score):
    return score.C, score.n_iter, score.converged, score.gradient_norm


def column(C: float, n_iter: int, converged: bool, gradient_norm: float | None) -> TunedProbeFit:
    layer = AffineLayer(np.zeros((1, 3)), np.zeros(1))
    fit = FittedLayers(np.arange(2), (layer,), n_iter, converged, gradient_norm)
    return TunedProbeFit(C, fit, held_out=np.zeros(10, int), search=(fit,))


def test_the_interval_of_a_difference_is_paired():
    task = reading(0.7)
    (same,) = numbers(task, metric="accuracy", against=(task, task))
    assert (same.value, same.ci_low, same.ci_high) == (0, 0, 0)


def test_selectivity_is_the_difference_to_the_mean_of_the_controls():
    task, controls = reading(0.9), (reading(0.6, 1), reading(0.4, 2))
    (selectivity,) = numbers(task, metric="accuracy", against=controls)
    assert (selectivity.metric, selectivity.chance) == ("selectivity", 0)
    parts = [numbers(one)[0].value for one in (task, *controls)]
    assert np.isclose(selectivity.value, parts[0] - (parts[1] + parts[2]) / 2)
    assert selectivity.ci_low < selectivity.value < selectivity.ci_high


def test_several_fits_are_summarised_by_the_worst():
    one, two = column(0.1, 5, True, 1e-7), column(1.0, 9, False, 1e-3)
    control = Score("svm", "control", 0, 10)
    assert fits(control.of_columns([one, two])) == (None, 9, False, 1e-3)
    assert fits(control.of_columns([one, one])) == (0.1, 5, True, 1e-7)
    assert control.of_columns([column(0.1, 5, True, None)]).gradient_norm is None


def test_held_out_predictions_are_summarised_by_the_worst_fit_of_a_fold():
    good, bad = column(0.1, 5, True, 1e-7), column(0.1, 2000, False, 1e-2)
    tuned = TunedProbeFit(0.1, good.solution, good.held_out, search=(good.solution, bad.solution))
    score = PLAIN.of_columns([tuned])
    assert (score.converged, score.n_iter) == (True, 5)
    searched = score.of_search([tuned], n_train=7)
    assert (searched.split, searched.n_train) == ("validation", 7)
    assert (searched.converged, searched.n_iter, searched.gradient_norm) == (False, 2000, 1e-2)


def test_metrics_that_are_not_defined_are_left_out():
    names = [m.metric for m in numbers(reading(0.7))]
    assert names == ["accuracy", "balanced_accuracy", "macro_f1"]
    scored = reading(0.7, scores=np.zeros((200, 2)))
    assert [m.metric for m in numbers(scored)][-2:] == ["auroc", "auprc"]
    alone = ClassPredictions(np.zeros(200, int), np.zeros(200, int), 2, np.zeros((200, 2)))
    assert [m.metric for m in numbers((alone, alone))] == names


def test_calibration_needs_probabilities():
    truth, scores = np.array([0, 1]), np.zeros((2, 2))
    assert "ece" not in metrics_of(ClassPredictions(truth, truth, 2, scores))
    assert "ece" in metrics_of(ClassPredictions(truth, truth, 2, scores, True))


def test_a_measurement_counts_its_rows_and_groups():
    (measured,) = numbers(reading(0.7), split="validation", metric="accuracy")
    assert (measured.split, measured.n_train, measured.n_test) == ("validation", 10, 200)
    assert (measured.n_groups, measured.C, measured.converged) == (100, None, None)


def test_scores_of_several_splits_are_one_over_all_their_rows():
    first, second = (
        replace(PLAIN, n_train=n, C=C, n_iter=n, converged=n < 8, pairs=(one,))
        for n, C, one in ((7, 0.1, reading(1.0)), (9, 1.0, reading(0.0, 1)))
    )
    both = Score.of_all([first, second])
    assert (both.n_train, both.C) == (7, None)
    assert (both.n_iter, both.converged) == (9, False)
    accuracy = measure(both, RESAMPLER)[0]
    assert accuracy.value == pytest.approx(0.5)
    assert accuracy.n_test == 400


def test_a_codelength_of_several_splits_is_that_of_one():
    code = OnlineCode(np.array([1.0, 0.5, 0.25]), reference_bits=np.ones(3))
    both = joined([code, code])
    groups = np.array(["a", "b", "c"])
    once = codelength(code, Resamples.leave_one_out(groups))[0]
    assert codelength(both, Resamples.leave_one_out(np.tile(groups, 2)))[0] == pytest.approx(once)


TRUTH = np.array([0, 1, 0, 1])
LOGS = np.log([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
LOGISTIC = ClassPredictions(TRUTH, TRUTH, 2, LOGS, True)
RIDGE = ClassPredictions(TRUTH, TRUTH, 2, LOGS + 3.0, False)
GUESSES = ClassPredictions(TRUTH, TRUTH, 2)


def test_pooled_scores_are_probabilities_only_if_all_are():
    assert "brier" in metrics_of(joined([LOGISTIC, LOGISTIC]))
    for parts in ([LOGISTIC, RIDGE], [RIDGE, LOGISTIC]):
        pooled = joined(parts)
        assert "brier" not in metrics_of(pooled)
        assert "auroc" in metrics_of(pooled)
        assert pooled.folds.tolist() == [0] * 4 + [1] * 4


def test_scores_that_one_part_lacks_are_left_out():
    assert joined([LOGISTIC, GUESSES]).scores is None
    assert joined([GUESSES, LOGISTIC]).scores is None


def test_a_mean_over_networks_has_the_metrics_of_all():
    groups = np.array(["a", "b", "c", "d"])
    pairs = tuple((one, one) for one in (LOGISTIC, RIDGE))
    score = Score("chosen", "chosen_random_weights", 0, 9, pairs=pairs, groups=groups)
    found = {one.metric for one in measure(score, Resampler())}
    assert {"accuracy", "auroc"} <= found
    assert "brier" not in found
