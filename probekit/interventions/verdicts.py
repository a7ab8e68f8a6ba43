"""Verdicts on a direction: does it detect, does it steer, does it silence?

    detects     the projection ranks test rows by their label: AUROC minus 1/2
    steers      adding k standard deviations moves the measure: slope on k
    silences    erasure reduces the difference between the classes: 1 - after / before

The effect, its interval over groups of test rows and a p-value decide. `yes`: p (adjusted for the
questions that have a test) is below 0.05 and the interval is above 0. `no`: the interval is
within 5 % of the effect of the whole vector around 0. Otherwise the verdict is `undecided`, which
includes an effect that is certainly negative: steering against the label, or erasure that enlarges
the difference. It also includes an effect where the whole vector has at most 5 % of it, and
significantly less: the site carries nothing to the answers, and the edit leaves the data.

The p-values of steering and erasure compare a direction with those of the same method on permuted
labels. Their sizes are simulated by `python -m benchmarks.causes`.

Source of the ratio of sums: Cochran (1977), Sampling techniques, section 6 (ratio of means).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import LEVEL, percent
from probekit.interventions.names import Question
from probekit.lazy_rows import Codes, Floats
from probekit.probes.score.contributions import of_auroc
from probekit.probes.score.exchange import ROUNDING, LabelExchange, holm, p_values
from probekit.probes.score.intervals import (
    Interval,
    degrees_of_freedom,
    jackknife_interval,
    jackknife_variance,
    t_quantile,
)
from probekit.probes.score.metrics import ClassPredictions, Resamples, mean_of_rows
from probekit.probes.score.scored import with_interval

Answer = Literal["yes", "no", "undecided"]

NEGLIGIBLE = 0.05  # share of the whole vector's effect
# Rounding errors of float32 passes, relative to the size of the measure.
_PASS_ROUNDING = 1e-5


@dataclass(frozen=True, eq=False)
class CausalVerdict:
    """An effect of a direction with its interval and p-value, and the answer to its question.

    Attributes:
        effect: the effect, positive if the direction ranks class 1 higher, moves the measure
            towards it, or reduces the difference between the classes; NaN if it is undefined.
        low: lower limit of its 95 % interval over groups; NaN without one.
        high: upper limit.
        p: p-value before adjustment; NaN without a test.
        whole: effect of the whole vector at the same site and position, in the same units; for
            `detects` the largest possible effect, 0.5.
        exceeds_whole: whether the direction moves the measure significantly more than its whole
            vector, which shows that the direction is an artefact (Makelov et al. 2023).
        unit: unit of the effect.
        rounding: effects up to this size are rounding errors.
        reason: why the effect, its interval or, for `detects`, the test is undefined; empty
            otherwise.
        null: effect of each direction on permuted labels, (draws,); empty for `detects`.
        matched: the same of random directions with the features' covariance, (matched,).
        question: `detects`, `steers`, `silences`, or `swap`, whose answer is empty.
        answer: `yes`, `no` or `undecided`; empty for `swap`.
        p_holm: the p-value with Holm's adjustment for the questions of one direction that have a
            test; NaN for `swap`.
    """

    effect: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    whole: float = float("nan")
    exceeds_whole: bool = False
    unit: str = ""
    rounding: float = 0.0
    reason: str = ""
    null: Floats = field(default_factory=lambda: np.zeros(0))
    matched: Floats = field(default_factory=lambda: np.zeros(0))
    question: Question | Literal["swap"] = "swap"
    answer: Answer | Literal[""] = ""
    p_holm: float = float("nan")

    @property
    def is_artefact(self) -> bool:
        """Whether the direction moves the measure, but its whole vector carries nothing to it."""
        return bool(self.exceeds_whole) and abs(self.whole) <= NEGLIGIBLE * abs(self.effect)


@dataclass(frozen=True, eq=False)
class CauseResult:
    """Everything that a page shows of one direction at one site.

    Attributes:
        verdicts: detects, steers and silences, with p-values adjusted for those tested.
        swap: exchange along the direction with counterfactuals, a recovery, which also shows
            steering; None without counterfactuals.
        doses: the dose-response curve within the range of doses, a row for each dose with the
            columns of doses.csv: the effect with its interval, 95 % of the directions on permuted
            labels and of random directions with the features' covariance, and, at the smallest and
            the largest dose, the change of the loss on other texts, if there are any.
        dose_limit: largest dose within the range of the data; larger ones are left out, unless
            there is no smaller one.
        wrong_way: share of the test rows whose measure moves against the direction.
        kernel_share: largest share of the direction in the kernel of the output matrix, over the
            folds; NaN where the site has no output matrix, such as the residual stream itself.
        unit: unit of the measure.
        n: number of test rows.
        groups: number of their groups.
        folds: number of folds.
        draws: number of permutations.
    """

    verdicts: tuple[CausalVerdict, ...]
    swap: CausalVerdict | None
    doses: tuple[dict[str, float], ...]
    dose_limit: float
    wrong_way: float
    kernel_share: float
    unit: str
    n: int
    groups: int
    folds: int
    draws: int

    def verdict(self, question: str) -> CausalVerdict:
        """Return the verdict on one question."""
        return next(one for one in self.verdicts if one.question == question)


def resamples_of(groups: NDArray[np.generic], widening: float = 1.0) -> Resamples:
    """Return the jackknife resamples of rows with these groups (n_rows,).

    `widening` is a factor on standard errors; see `Resamples`.

    A single group has no resamples, so that its intervals are NaN.

    >>> resamples_of(np.array(["a", "a"])).n_units
    0
    """
    if len(np.unique(groups)) < 2:
        return Resamples(np.zeros(len(groups), dtype=np.int64), np.zeros(1, dtype=np.int64), 0)
    return Resamples.leave_one_out(groups, widening=widening)


def skewed_interval(values: Floats, resamples: Resamples) -> Interval:
    """Return a statistic with its 95 % interval, which allows for skewed contributions of groups.

    It reaches from the lower to the upper limit of two intervals: that of the jackknife, which
    assumes symmetric contributions, and that of Hall's transformed t statistic. The limits are NaN
    where the jackknife has none.

    `values` (1 + n_units,) are the statistic of all groups, then without each unit.

    >>> resamples = Resamples.leave_one_out(np.arange(8))
    >>> skewed = mean_of_rows(np.array([0, 0, 0, 0, 0, 0, 1.0, 5.0]), resamples)
    >>> found = skewed_interval(skewed, resamples)
    >>> round(found.low, 2), round(found.high, 2)
    (-0.72, 5.61)

    Source: Hall (1992), On the removal of skewness by transformation.
    """
    symmetric = jackknife_interval(values, resamples)
    value = symmetric.value
    if np.isnan(symmetric.low) or symmetric.low == symmetric.high:
        return symmetric
    # For a unit with share w of the rows and mean m, a mean without it differs by
    # values[0] - values[1:] = w (m - mean) / (1 - w), so that these are w (m - mean).
    deviations = (1 - resamples.weights) * (values[0] - values[1:])
    deviations -= deviations.mean()
    a = float((deviations**3).sum() / np.square(deviations).sum() ** 1.5)
    if abs(a) < 1e-6:  # division by it is inexact, and the limits tend to those of t
        return symmetric
    error = resamples.widening * np.sqrt(jackknife_variance(values))
    quantile = t_quantile(degrees_of_freedom(resamples))
    # The transformed t equals q if (1 + a t / 3)^3 = 1 + a (q - a / 6), which is solved for t.
    low, high = (
        value - error * 3 / a * (np.cbrt(1 + a * (q - a / 6)) - 1) for q in (quantile, -quantile)
    )
    return Interval(value, float(min(low, symmetric.low)), float(max(high, symmetric.high)))


def holds_zero(interval: Interval) -> bool:
    """Return whether 0 is in an interval; without limits, whether its value is 0.

    >>> holds_zero(Interval(1.0, -0.5, 2.5)), holds_zero(Interval(1.0, 0.5, 1.5))
    (True, False)
    """
    return interval.value == 0 if np.isnan(interval.low) else interval.low <= 0 <= interval.high


def ratio_of_sums(numerators: Floats, denominators: Floats, resamples: Resamples) -> Interval:
    """Return sum(numerators) / sum(denominators) with its 95 % interval.

    All are NaN if 0 is in the interval of the denominator, or the denominator of a resample is 0.

    >>> groups = np.repeat(np.arange(8), 2)
    >>> whole = np.tile([1.0, 3.0], 8)
    >>> half = ratio_of_sums(whole / 2, whole, resamples_of(groups))
    >>> half.value, float(half.low), float(half.high)
    (0.5, 0.5, 0.5)
    """
    numerator, denominator = (mean_of_rows(sums, resamples) for sums in (numerators, denominators))
    if holds_zero(jackknife_interval(denominator, resamples)) or not denominator.all():
        return Interval(np.nan, np.nan, np.nan)
    return skewed_interval(numerator / denominator, resamples)


def verdicts(found: dict[Question, CausalVerdict]) -> tuple[CausalVerdict, ...]:
    """Return the answer to each question, with p-values adjusted for those that have a test.

    >>> strong = CausalVerdict(2.0, 1.5, 2.5, 0.001, 2.2, False, "logits")
    >>> weak = CausalVerdict(0.01, -0.02, 0.04, 0.6, 2.2, False, "logits")
    >>> [one.answer for one in verdicts({"detects": strong, "steers": weak})]
    ['yes', 'no']
    """
    adjusted = np.array([one.p for one in found.values()])
    is_tested = ~np.isnan(adjusted)
    adjusted[is_tested] = holm(adjusted[is_tested])
    return tuple(
        replace(one, question=question, answer=answer_of(one, p), p_holm=p)
        for (question, one), p in zip(found.items(), adjusted.tolist(), strict=True)
    )


def answer_of(found: CausalVerdict, p: float) -> Answer:
    """Return the answer to a question from an effect and its adjusted p-value.

    Comparisons with NaN are false: without a p-value the answer is never `yes`, and without an
    effect of the whole vector never `no`.
    """
    if np.isnan([found.effect, found.low, found.high]).any():
        return "undecided"
    if p < LEVEL and found.low > 0 and found.effect > found.rounding:
        return "undecided" if found.is_artefact else "yes"
    margin = max(NEGLIGIBLE * abs(found.whole), found.rounding)
    return "no" if max(abs(found.low), abs(found.high)) <= margin else "undecided"


def detection(
    projections: Floats,
    codes: Codes,
    groups: NDArray[np.generic],
    fold_of_row: Codes,
    *,
    draws: int,
    seed: int,
    widening: float = 1.0,
) -> CausalVerdict:
    """Return how well projections (n_rows,) of test rows rank their labels (0 and 1).

    The effect is the AUROC minus 1/2. The AUROC is averaged over the folds, because projections of
    different folds have different scales. The p-value is that of `LabelExchange`; it is NaN if
    there are too few groups. `widening` is the factor on standard errors; see `Resamples`.
    """
    scores = np.stack([-projections, projections], axis=1)  # of class 0 and of class 1
    predictions = ClassPredictions(codes, scores.argmax(axis=1), 2, scores, folds=fold_of_row)
    resamples = resamples_of(groups, widening)
    area = with_interval("auroc", [predictions], resamples)
    row_scores = of_auroc(predictions)
    exchange = LabelExchange(row_scores.labels, groups, fold_of_row, draws, seed)
    p, reason = np.nan, "too few groups for a test"
    if exchange.is_enough:
        p, reason = float(exchange.null([row_scores]).p.single[0]), ""
    effect, low, high = area.value - 0.5, area.low - 0.5, area.high - 0.5
    return CausalVerdict(effect, low, high, p, whole=0.5, unit="AUROC - 0.5", reason=reason)


def slopes(changes: Floats, by: Sequence[float]) -> Floats:
    """Return the least-squares slopes (...) of changes (..., n_doses) on the doses `by`.

    Dose 0, which changes nothing, is one of the points.

    >>> float(slopes(np.array([-1.0, 1.0]), (-1, 1))), float(slopes(np.array([6.0]), (2,)))
    (1.0, 3.0)
    """
    doses = np.array([0.0, *by])
    centred = doses - doses.mean()
    slope: Floats = changes @ centred[1:] / np.square(centred).sum()
    return slope


def direction_effect(
    observed: Floats, null: Floats, whole: Floats, resamples: Resamples, unit: str, size: float
) -> CausalVerdict:
    """Return the effect of a direction, compared with directions on permuted labels.

    Args:
        observed: the effect of all groups, then without each jackknife unit, (1 + n_units,).
        null: effect of each direction on permuted labels, (draws,).
        whole: effect of the whole vector, (1 + n_units,).
        resamples: jackknife resamples of the rows.
        unit: unit of measurement of the effect.
        size: size of the measure in this unit, by which rounding errors are recognised.
    """
    effect, rounding = jackknife_interval(observed, resamples), _PASS_ROUNDING * size
    p = two_sided_p(effect.value, null) if len(null) else np.nan
    reason = "too few groups for an interval" if np.isnan(effect.low) else ""
    lead = jackknife_interval(np.abs(observed) - np.abs(whole), resamples)
    exceeds_whole = lead.low > 0 and lead.value > rounding  # false without an interval
    numbers = (effect.value, effect.low, effect.high, p, float(whole[0]))
    return CausalVerdict(*numbers, exceeds_whole, unit, rounding, reason, null)


def silence(
    base: Floats, erased: Floats, null: Floats, whole: Floats, codes: Codes, resamples: Resamples
) -> CausalVerdict:
    """Return the share of the class difference that erasure removes, 1 - after / before.

    It is undefined if 0 is in the interval of the difference before, or a class has no test row.

    Args:
        base: measure of each test row towards class 1, (n_rows,).
        erased: the same after erasure, (n_rows,).
        null: share that erasure of each direction on permuted labels removes, (draws,).
        whole: measure after the whole vector is replaced by its mean, (n_rows,).
        codes: labels 0 and 1, (n_rows,).
        resamples: jackknife resamples of the rows.
    """
    before = class_gap(base, codes, resamples)
    if holds_zero(jackknife_interval(before, resamples)) or np.isnan(before[0]):
        reason = "the measure does not differ between the classes before erasure"
        return CausalVerdict(unit="share", reason=reason, null=null)
    removed = 1 - class_gap(erased, codes, resamples) / before
    by_whole = 1 - class_gap(whole, codes, resamples) / before
    size = float(np.abs(base).max() / abs(before[0]))
    return direction_effect(removed, null, by_whole, resamples, "share", size)


def class_gap(values: Floats, codes: Codes, resamples: Resamples) -> Floats:
    """Return mean of class 1 minus mean of class 0, (1 + n_units,) for all resamples.

    >>> class_gap(np.array([1.0, 4.0]), np.array([0, 1]), Resamples.whole(2)).tolist()
    [3.0]
    """
    classes = (codes == 0, codes == 1)
    first, second = (mean_of_rows(values[rows], resamples.of_rows(rows)) for rows in classes)
    return second - first


def class_gap_of_many(values: Floats, codes: Codes) -> Floats:
    """Return mean of class 1 minus mean of class 0 of each column of values (n_rows, n)."""
    found: Floats = values[codes == 1].mean(axis=0) - values[codes == 0].mean(axis=0)
    return found


def two_sided_p(observed: float, null: Floats) -> float:
    """Return (1 + draws at least as extreme) / (1 + draws), by absolute value.

    An undefined draw counts as extreme; the p-value of an undefined effect is NaN.

    >>> two_sided_p(2.0, np.array([-3.0, 1.0, 0.5]))
    0.5
    """
    if np.isnan(observed):
        return float("nan")
    # The comparison is false for NaN.
    return float((1 + (~(np.abs(null) < abs(observed) - ROUNDING)).sum()) / (1 + len(null)))


def best_p_values(observed: Floats, null: Floats) -> Floats:
    """Return p-values (n_sites,) adjusted for the choice of the best site, position or head.

    Args:
        observed: effects at each site, (n_sites,), in the same unit.
        null: effects of directions on permuted labels, (n_sites, draws), with the same permutations
            at every site.

    >>> best_p_values(np.array([3.0, 1.0]), np.array([[2.0, 0.1], [0.5, -1.5]])).round(3).tolist()
    [0.333, 1.0]
    """
    return p_values(np.abs(observed), np.abs(null)).maximum


def band_of_draws(effects: Floats) -> tuple[float, float]:
    """Return the 2.5 % and 97.5 % quantiles of the defined effects; NaN without any."""
    known = effects[np.isfinite(effects)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return float(low), float(high)


# The answers to detects, steers and silences, and their meaning.
_USED = {
    ("yes", "yes", "yes"): "The label can be decoded here, and the direction changes the answers.",
    ("yes", "no", "no"): "The label can be decoded here, but the network does not use this "
    "direction: decodable is not used.",
    ("yes", "yes", "no"): "The label can be decoded here and the direction steers the network, but "
    "the network does not need it: the information is also elsewhere.",
    ("yes", "no", "yes"): "The label can be decoded here and the network needs the direction, but "
    "moving along it has no effect.",
    ("no", "no", "no"): "The label cannot be decoded along this direction, and the network does "
    "not use it.",
}


def summary(result: CauseResult) -> str:
    """Return the verdicts as sentences, followed by their numbers."""
    detects, steers, silences = result.verdicts
    undecided = [one for one in result.verdicts if one.answer == "undecided"]
    if undecided:
        questions = " and ".join(one.question for one in undecided)
        why = "; ".join(dict.fromkeys(map(why_undecided, undecided)))
        first = f"The data do not decide whether this direction {questions}, because {why}."
    else:
        listed = ", ".join(f"{one.question} {one.answer}" for one in result.verdicts)
        first = _USED.get(
            (detects.answer, steers.answer, silences.answer),
            f"The verdicts do not agree: {listed}.",
        )
    sentences = [first]
    if any(one.answer == "yes" and one.exceeds_whole for one in result.verdicts):
        sentences.append(
            "It moves the answers more than its whole vector does, which indicates an artefact."
        )
    if result.kernel_share > 0.5:
        sentences.append(
            f"{percent(result.kernel_share)} of the direction is in the kernel of the output "
            "matrix and cannot reach the residual stream."
        )
    return " ".join([*sentences, f"Verdicts: {verdict_numbers(result.verdicts)}."])


def verdict_numbers(verdicts: tuple[CausalVerdict, ...]) -> str:
    """Return each verdict with effect, interval and adjusted p-value.

    >>> strong = CausalVerdict(0.42, 0.4, 0.44, 0.001, 0.5, False, "AUROC - 0.5")
    >>> none = CausalVerdict(0.01, -0.02, 0.04, 0.6, 2.0, False, "logits per standard deviation")
    >>> print(verdict_numbers(verdicts({"detects": strong, "steers": none})))
    detects: yes (0.42 [0.40, 0.44] AUROC - 0.5, p = 0.002); steers: no (0.01 [-0.02, 0.04] logits
    per standard deviation, p = 0.6)
    """
    named = []
    for one in verdicts:
        numbers = f"{one.effect:.2f} [{one.low:.2f}, {one.high:.2f}] {one.unit}"
        basis = one.reason if np.isnan(one.effect) else numbers
        p = "" if np.isnan(one.p_holm) else f", p = {one.p_holm:.2g}"
        named.append(f"{one.question}: {one.answer} ({basis}{p})")
    return "; ".join(named)


def why_undecided(verdict: CausalVerdict) -> str:
    """Return why a verdict is undecided or lacks a test; "" for a tested yes or no.

    >>> wide = CausalVerdict(0.2, -0.2, 0.6, 0.6, 2.0, False, "logits")
    >>> why_undecided(verdicts({"steers": wide})[0])
    'the interval contains 0 and exceeds 5 % of the effect of the whole vector'
    """
    if verdict.reason or verdict.answer != "undecided":
        return verdict.reason
    cases = (
        (np.isnan([verdict.low, verdict.high]).any(), "there is no interval"),
        (verdict.high < 0, "the interval is below 0"),
        (
            verdict.low <= 0,
            f"the interval contains 0 and exceeds {percent(NEGLIGIBLE)} of the effect of the "
            "whole vector",
        ),
        (np.isnan(verdict.p_holm), "there is no p-value"),
        (verdict.p_holm >= LEVEL, f"the p-value, adjusted for the questions, is not below {LEVEL}"),
        (verdict.is_artefact, "the whole vector has no such effect, which indicates an artefact"),
        (True, "the effect is within rounding errors"),
    )
    return next(reason for holds, reason in cases if holds)
