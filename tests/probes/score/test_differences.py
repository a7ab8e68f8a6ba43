"""Intervals and p-values of differences, on the same rows and on different ones."""

import numpy as np
import pytest

from probekit.errors import DataError, UnknownNameError
from probekit.probes.score.differences import (
    Difference,
    adjusted,
    all_differences,
    paired_difference,
    unpaired_difference,
)
from probekit.probes.score.metrics import (
    ClassPredictions,
    Resamples,
    accuracy,
    balanced_accuracy,
    macro_f1,
)
from probekit.probes.score.permutation import holm
from probekit.probes.score.regression import NumberPredictions, r2


def two_probes(generator, n_groups, rates, each=4):
    """Predictions of two probes with the given accuracies, which are wrong on the same groups."""
    n_rows = n_groups * each
    ease = np.repeat(generator.uniform(-0.15, 0.15, size=n_groups), each)
    draw = generator.random(n_rows)  # the same for both, so that they mostly err together
    truth = np.ones(n_rows, dtype=int)
    return [ClassPredictions(truth, (draw < rate + ease).astype(int), 2) for rate in rates]


def test_the_paired_interval_has_its_nominal_coverage():
    covered = rejected = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        resamples = Resamples.draw(np.arange(320) // 4, 300, seed)
        found = paired_difference(accuracy, *two_probes(generator, 80, (0.75, 0.70)), resamples)
        covered += found.ci_low <= 0.05 <= found.ci_high
        rejected += found.p < 0.05
    assert 0.90 <= covered / 300 <= 0.985
    assert rejected / 300 > 0.8


def test_two_equal_probes_rarely_differ_significantly():
    rejected = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        truth = np.ones(320, dtype=int)
        rate = np.repeat(generator.uniform(0.5, 0.9, size=80), 4)
        answers = [
            ClassPredictions(truth, (generator.random(320) < rate).astype(int), 2) for _ in "ab"
        ]
        resamples = Resamples.draw(np.arange(320) // 4, 300, seed)
        rejected += paired_difference(accuracy, *answers, resamples).p < 0.05
    assert 0.01 <= rejected / 300 <= 0.10


def test_pairing_takes_out_what_is_hard_for_both():
    answers = two_probes(np.random.default_rng(0), 100, (0.75, 0.70))
    resamples = Resamples.draw(np.arange(400) // 4, 1000, 0)
    paired = paired_difference(accuracy, *answers, resamples)
    apart = unpaired_difference(accuracy, answers[0], resamples, answers[1], resamples)
    assert paired.value == apart.value
    assert apart.ci_high - apart.ci_low > 2 * (paired.ci_high - paired.ci_low)


def test_different_rows_are_drawn_apart_even_from_one_seed():
    truth = np.ones(400, dtype=int)
    guess = (np.random.default_rng(0).random(400) < 0.7).astype(int)
    one = ClassPredictions(truth, guess, 2)
    first, same = (Resamples.draw(np.arange(400), 2000, seed) for seed in (0, 0))
    found = unpaired_difference(accuracy, one, first, one, same)
    # Two independent accuracies: the spread of one, times the root of two.
    expected = 2 * 1.96 * np.sqrt(2 * 0.7 * 0.3 / 400)
    assert found.ci_high - found.ci_low == pytest.approx(expected, rel=0.1)
    with pytest.raises(DataError, match="2000 draws and the other 10"):
        unpaired_difference(accuracy, one, first, one, Resamples.draw(np.arange(400), 10, 0))


def test_a_difference_turns_its_sign_with_its_sides():
    a, b = two_probes(np.random.default_rng(0), 30, (0.8, 0.7))
    resamples = Resamples.draw(np.arange(120) // 4, 500, 0)
    for metric in (balanced_accuracy, macro_f1, accuracy):
        there, back = (paired_difference(metric, *pair, resamples) for pair in ((a, b), (b, a)))
        assert (there.a, there.b, there.value) == (back.b, back.a, -back.value)
        assert (there.ci_low, there.ci_high) == pytest.approx((-back.ci_high, -back.ci_low))
        assert there.p == back.p


def test_a_p_value_is_never_nothing_and_equal_answers_have_one_of_one():
    truth = np.ones(50, dtype=int)
    resamples = Resamples.draw(np.arange(50), 199, 0)
    right, wrong = ClassPredictions(truth, truth, 2), ClassPredictions(truth, 0 * truth, 2)
    assert paired_difference(accuracy, right, wrong, resamples).p == 2 / 200
    same = paired_difference(accuracy, right, right, resamples)
    assert (same.value, same.ci_low, same.ci_high, same.p) == (0, 0, 0, 1)


def test_every_layer_is_compared_with_the_reference_on_the_same_draws():
    answers = dict(
        zip("abc", two_probes(np.random.default_rng(0), 60, (0.8, 0.7, 0.69)), strict=True)
    )
    resamples = Resamples.draw(np.arange(240) // 4, 500, 0)
    found = all_differences(accuracy, answers, "b", resamples)
    assert list(found) == ["a", "c"]
    for name, one in found.items():
        alone = paired_difference(accuracy, answers[name], answers["b"], resamples)
        assert (one.value, one.ci_low, one.p) == (alone.value, alone.ci_low, alone.p)
    raw = np.array([one.p for one in found.values()])
    assert [one.holm_p for one in found.values()] == holm(raw).tolist()
    with pytest.raises(UnknownNameError, match="no predictions of 'd'"):
        all_differences(accuracy, answers, "d", resamples)


def test_numbers_are_compared_too_and_what_is_undefined_is_left_out():
    truth = np.arange(40.0)
    near, far = NumberPredictions(truth, truth + 1), NumberPredictions(truth, truth[::-1])
    resamples = Resamples.draw(np.arange(40), 199, 0)
    assert paired_difference(r2, near, far, resamples).p == 0.01
    none = NumberPredictions(np.ones(40), truth)
    undefined = paired_difference(r2, none, none, resamples)
    assert np.isnan([undefined.value, undefined.ci_low, undefined.p]).all()
    some = Difference(1, 0, 1, 0, 2, 0.03, 0.03)
    assert adjusted({"x": undefined, "y": some})["y"].holm_p == 0.03
