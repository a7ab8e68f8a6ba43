"""The rule of the verdicts, their statistics on arrays, and the reason of undecided ones."""

import numpy as np
import pytest

from probekit.interventions.effects import resamples_of
from probekit.interventions.verdicts import (
    CausalVerdict,
    answer_of,
    best_p_values,
    detection,
    direction_effect,
    silence,
    slopes,
    two_sided_p,
    verdicts,
    why_undecided,
)
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, mean_of_rows


def evidence(effect=1.0, low=0.5, high=1.5, p=0.01, whole=2.0):
    return CausalVerdict(effect, low, high, p, whole, False, "logits", rounding=1e-6)


@pytest.mark.parametrize(
    ("change", "p", "answer"),
    [
        ({}, 0.049, "yes"),
        ({}, 0.05, "undecided"),
        ({"low": -0.1}, 0.01, "undecided"),
        ({"effect": -1.0, "low": -1.5, "high": -0.5}, 0.01, "undecided"),
        ({"effect": 0.0, "low": -0.09, "high": 0.1}, 0.4, "no"),
        ({"effect": 0.0, "low": -0.09, "high": 0.11}, 0.4, "undecided"),
        ({"effect": 5e-7, "low": 4e-7, "high": 6e-7, "whole": 0.0}, 0.01, "no"),
        ({"effect": np.nan}, 0.01, "undecided"),
        ({"low": np.nan, "high": np.nan}, 0.01, "undecided"),
        ({}, np.nan, "undecided"),
    ],
)
def test_the_rule(change, p, answer):
    assert answer_of(evidence(**change), p) == answer


def test_p_values_are_adjusted_for_the_three_questions():
    found = verdicts({"detects": evidence(p=0.01), "steers": evidence(p=0.02),
                      "silences": evidence(p=0.04)})  # fmt: skip
    assert [one.p_holm for one in found] == pytest.approx([0.03, 0.04, 0.04])


def test_questions_without_a_test_do_not_count_in_the_adjustment():
    found = verdicts({"detects": evidence(p=0.03), "steers": evidence(p=np.nan),
                      "silences": evidence(p=0.02)})  # fmt: skip
    assert [one.p_holm for one in found] == pytest.approx([0.04, np.nan, 0.04], nan_ok=True)
    assert [one.answer for one in found] == ["yes", "undecided", "yes"]
    (only, _) = verdicts({"detects": evidence(p=0.04), "steers": evidence(p=np.nan)})
    assert only.p_holm == pytest.approx(0.04)
    (none,) = verdicts({"detects": evidence(p=np.nan)})
    assert np.isnan(none.p_holm)


def test_the_observed_direction_counts_as_a_draw():
    assert two_sided_p(3.0, np.array([1.0, -2.0, 2.9])) == 0.25
    assert two_sided_p(1.0, np.full(99, -1.0)) == 1.0


def test_undefined_effects_have_no_small_p_value():
    assert np.isnan(two_sided_p(np.nan, np.zeros(999)))
    assert two_sided_p(1.0, np.full(999, np.nan)) == 1.0


def test_the_best_site_is_compared_with_the_best_of_each_draw():
    p = best_p_values(np.array([-3.0, 1.0]), np.array([[2.0, 4.0, 0.1], [0.5, 0.5, -3.5]]))
    np.testing.assert_allclose(p, [3 / 4, 1.0])


def test_slopes_are_least_squares():
    changes = np.random.default_rng(0).normal(size=(5, 3))
    by = (-2, 1, 4)
    points = np.column_stack([np.zeros(5), changes])  # dose 0 changes nothing
    expected = np.polyfit((0, *by), points.T, 1)[0]
    np.testing.assert_allclose(slopes(changes, by), expected)
    np.testing.assert_allclose(slopes(changes[:, :1], (2,)), changes[:, 0] / 2)


def test_silence_is_the_share_of_the_gap_that_erasure_removes():
    codes, groups = np.tile([0, 1], 20), np.repeat(np.arange(20), 2)
    base = np.where(codes == 1, 3.0, -1.0) + np.random.default_rng(0).normal(size=40) * 0.1
    found = silence(base, 0.25 * base, 0.9 * base[:, None], 0 * base, codes, resamples_of(groups))
    assert found.effect == pytest.approx(0.75)
    assert found.whole == pytest.approx(1.0)
    assert found.p == 0.5
    assert not found.exceeds_whole


def test_silence_needs_a_gap():
    base = np.random.default_rng(0).normal(size=40)
    found = silence(
        base, base, base[:, None], base, np.tile([0, 1], 20), resamples_of(np.arange(40))
    )
    assert np.isnan(found.effect)
    assert "does not differ" in found.reason


def test_a_direction_that_moves_more_than_its_whole_is_flagged():
    rows, resamples = np.random.default_rng(0).normal(2, 0.1, 30), resamples_of(np.arange(30))
    whole = mean_of_rows(rows, resamples)
    more = direction_effect(whole, np.zeros(9), 0.5 * whole, resamples, "logits", 1.0)
    same = direction_effect(whole, np.zeros(9), whole, resamples, "logits", 1.0)
    assert more.exceeds_whole
    assert not same.exceeds_whole


def test_detection_is_the_auroc_of_the_projection():
    generator = np.random.default_rng(0)
    codes = np.arange(60) % 2
    projections = codes + generator.normal(size=60)
    folds = np.zeros(60, dtype=int)
    found = detection(projections, codes, np.arange(60), folds, draws=999, seed=0)
    pairs = projections[codes == 1][:, None] > projections[codes == 0]
    assert found.effect == pytest.approx(pairs.mean() - 0.5)
    assert found.p < 0.01
    none = detection(projections, codes, codes, folds, draws=999, seed=0)
    assert np.isnan(none.p)
    assert "too few groups" in none.reason


def test_over_folds_the_interval_of_detection_is_wider_by_the_factor():
    generator = np.random.default_rng(0)
    codes, folds = np.arange(400) % 2, np.arange(400) // 200
    projections = 0.3 * codes + generator.normal(size=400)
    once, wider = (
        detection(projections, codes, np.arange(400), folds, draws=1, seed=0, widening=widening)
        for widening in (1.0, WIDER_OVER_FOLDS)
    )
    assert once.effect == wider.effect
    assert (wider.high - wider.low) / (once.high - once.low) == pytest.approx(2**0.5, rel=0.02)


def test_perfect_detection_has_an_interval_within_the_range():
    codes = np.arange(20) % 2
    found = detection(1.0 * codes, codes, np.arange(20), 0 * codes, draws=99, seed=0)
    assert found.effect == found.high == 0.5
    assert 0 < found.low < 0.5


def test_folds_are_ranked_separately():
    codes, folds = np.tile([0, 1], 20), np.repeat([0, 1], 20)
    projections = codes + 100.0 * folds
    found = detection(projections, codes, np.arange(40), folds, draws=99, seed=0)
    assert found.effect == pytest.approx(0.5)


NAN = float("nan")


def verdict(answer="undecided", p=0.01, *, low=0.5, high=1.5, reason=""):
    return CausalVerdict(1.0, low, high, p, 2.0, False, "logits", 1e-6, reason, "steers", answer, p)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (verdict(reason="too few groups for a test"), "too few groups for a test"),
        (verdict(low=NAN), "there is no interval"),
        (verdict(low=-1.5, high=-0.5), "the interval is below 0"),
        (
            verdict(low=-0.5),
            "the interval contains 0 and exceeds 5 % of the effect of the whole vector",
        ),
        (verdict(p=NAN), "there is no p-value"),
        (verdict(p=0.075), "the p-value, adjusted for the questions, is not below 0.05"),
        (verdict(), "the effect is within rounding errors"),
        (verdict("yes"), ""),
        (verdict("no", low=-0.01, high=0.01), ""),
    ],
)
def test_every_undecided_verdict_has_a_reason(given, reason):
    assert why_undecided(given) == reason
