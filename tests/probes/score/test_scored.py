"""Predictions of several kinds of probe, pooled over folds or averaged over networks."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.probes.score.description_length import OnlineCode, codelength
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import FitFacts, Scored, joined, measure, metrics_of
from probekit.probes.solve.layers import AffineLayer, FittedLayers

GROUPS = (np.arange(200) // 2).astype(str)
FACTS = FitFacts(probe="logistic", target="task", seed=0, n_train=10)


def reading(share_right: float, seed: int = 0, scores: np.ndarray | None = None) -> Scored:
    generator = np.random.default_rng(seed)
    truth = generator.integers(2, size=200)
    guess = np.where(generator.random(200) < share_right, truth, 1 - truth)
    own, chance = (ClassPredictions(truth, one, 2, scores) for one in (guess, 0 * truth))
    return Scored((own,), (chance,), GROUPS, FACTS)


def numbers(scored: Scored, **changes):
    return measure(replace(scored, **changes), Resamples.leave_one_out(scored.groups))


def fit(n_iter: int, converged: bool, gradient_norm: float | None) -> FittedLayers:
    layer = AffineLayer(np.zeros((1, 3)), np.zeros(1))
    return FittedLayers(np.arange(2), (layer,), n_iter, converged, gradient_norm)


def test_selectivity_is_the_difference_to_the_mean_of_the_controls():
    task, controls = reading(0.9), Scored.of_draws([reading(0.6, 1), reading(0.4, 2)])
    (selectivity,) = numbers(task, metric="accuracy", against=controls.predictions)
    assert (selectivity.metric, selectivity.chance) == ("selectivity", 0)
    own, of_controls = (numbers(one)[0].value for one in (task, controls))
    assert selectivity.value == pytest.approx(own - of_controls)
    assert selectivity.ci_low < selectivity.value < selectivity.ci_high


def test_several_fits_are_summarised_by_the_worst():
    found = FACTS.of_fits([fit(5, True, 1e-7), fit(9, False, 1e-3)], C=0.1)
    assert (found.C, found.n_iter, found.converged, found.gradient_norm) == (0.1, 9, False, 1e-3)
    assert FACTS.of_fits([fit(5, True, None)]).gradient_norm is None
    one, two = (replace(FACTS, C=C, n_train=n) for C, n in ((0.1, 7), (1.0, 9)))
    both = FitFacts.joined([one, two])
    assert (both.C, both.n_train, both.converged) == (None, 7, None)
    assert FitFacts.joined([one, one]).C == 0.1


def test_metrics_that_are_not_defined_are_left_out():
    names = [m.metric for m in numbers(reading(0.7))]
    assert names == ["accuracy", "balanced_accuracy", "macro_f1"]
    scored = reading(0.7, scores=np.zeros((200, 2)))
    assert [m.metric for m in numbers(scored)][-2:] == ["auroc", "auprc"]
    one = ClassPredictions(np.zeros(200, int), np.zeros(200, int), 2, np.zeros((200, 2)))
    alone = replace(scored, predictions=(one,), chance=(one,))
    assert [m.metric for m in numbers(alone)] == names


def test_scores_of_several_splits_are_one_over_all_their_rows():
    first, second = (
        one.with_facts(n_train=n, C=C, n_iter=n, converged=n < 8)
        for n, C, one in ((7, 0.1, reading(1.0)), (9, 1.0, reading(0.0, 1)))
    )
    accuracy = numbers(Scored.of_splits([first, second]))[0]
    assert (accuracy.n_train, accuracy.C) == (7, None)
    assert (accuracy.n_iter, accuracy.converged) == (9, False)
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
    both = (LOGISTIC, RIDGE)
    found = {one.metric for one in numbers(Scored(both, both, groups, FACTS))}
    assert {"accuracy", "auroc"} <= found
    assert "brier" not in found
