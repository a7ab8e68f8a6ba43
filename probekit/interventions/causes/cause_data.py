"""Data, settings and results of the causal test of a direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.interventions.causes.verdicts import CausalVerdict, Evidence
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.names import Along
from probekit.model.passes.inputs import TokenBatch
from probekit.probes.solve.design import Codes, Floats


@dataclass(frozen=True, eq=False)
class RowSplit:
    """Rows of one fold, as row numbers.

    Attributes:
        train: rows that directions are fitted on.
        test: rows that they act on.
        development: rows that the range of doses is chosen on; None means the training rows.
    """

    train: Codes
    test: Codes
    development: Codes | None = None


@dataclass(frozen=True, eq=False)
class CauseData:
    """Texts with a label of two classes, and the measure of the network's answers.

    Attributes:
        batch: the texts.
        codes: labels 0 and 1, (n_rows,).
        groups: group of each row, (n_rows,).
        splits: the folds; a single one for a split into train and test.
        measure: measure of all rows: the answer is right for the label of the row, the wrong answer
            for the other label.
        at: position of each text that is edited, [n_rows]; None edits all.
        measured: position of each text that is measured; None means the last token.
        read: position of each text that directions are fitted at; None means `at`, or else
            `measured`.
        sources: counterfactual of each text, for exchange along the direction; None without.
        other: texts whose loss is measured under steering; None without.
    """

    batch: TokenBatch
    codes: Codes
    groups: NDArray[np.generic]
    splits: Sequence[RowSplit]
    measure: AnswerMeasure
    at: Tensor | None = None
    measured: Tensor | None = None
    read: Tensor | None = None
    sources: TokenBatch | None = None
    other: TokenBatch | None = None

    def __post_init__(self) -> None:
        n = len(self.batch)
        if not len(self.codes) == len(self.groups) == len(self.measure) == n:
            raise DataError(
                f"There are {n} texts, {len(self.codes)} labels, {len(self.groups)} groups and "
                f"answers for {len(self.measure)} texts. Give one of each for every text."
            )
        if not self.measure.is_signed:
            raise ConfigError(
                f"Verdicts require a measure with a direction, but {self.measure.name} has none. "
                "Use logit_difference, or probability with a wrong answer."
            )
        tested = np.concatenate([split.test for split in self.splits])
        if len(np.unique(tested)) < len(tested):
            raise DataError("A row is a test row of two folds. Give each row to one fold.")

    @property
    def test(self) -> Codes:
        """The test rows of all folds, in the order of the folds."""
        return np.concatenate([split.test for split in self.splits])


@dataclass(frozen=True)
class CauseSettings:
    """Settings of the test.

    Attributes:
        along: method of the directions: probe, mean_difference or leace.
        draws: number of permutations of the labels.
        matched: number of random directions with the covariance of the features.
        by: candidate doses, in standard deviations of the projection.
        C: inverse regularisation strength of probes.
        seed: random seed of permutations and random directions.
    """

    along: Along = "probe"
    draws: int = 999
    matched: int = 99
    by: tuple[float, ...] = (-4, -2, 2, 4)
    C: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not any(self.by):
            raise ConfigError(f"by is {list(self.by)}. Give a dose other than 0.")


@dataclass(frozen=True)
class Dose:
    """Mean change of the measure towards class 1 at one dose.

    Attributes:
        by: dose, in standard deviations of the projection.
        effect: mean change over test rows, with the limits `low` and `high` of its interval.
        null_low: 2.5 % quantile of the directions on permuted labels.
        null_high: 97.5 % quantile of them.
        matched_low: 2.5 % quantile of random directions with the features' covariance.
        matched_high: 97.5 % quantile of them.
    """

    by: float
    effect: float
    low: float
    high: float
    null_low: float
    null_high: float
    matched_low: float
    matched_high: float


@dataclass(frozen=True, eq=False)
class CauseResult:
    """Everything that a page shows of one direction at one site.

    Attributes:
        site: the site, with its head or neuron.
        along: method of the direction.
        verdicts: detects, steers and silences, with p-values adjusted for those tested.
        swap: exchange along the direction with counterfactuals, a recovery, which also shows
            steering; None without counterfactuals.
        doses: the dose-response curve, within the range of doses.
        dose_limit: largest dose within the range of the data; larger ones are left out, unless
            there is no smaller one.
        wrong_way: share of the test rows whose measure moves against the direction.
        other_loss: change of the loss on other texts, in nats per token, at the largest dose of
            each sign, with its interval; empty without other texts.
        kernel_share: largest share of the direction in the kernel of the output matrix, over the
            folds; NaN where the site is the residual stream itself.
        null: effect of each direction on permuted labels, (draws,), by question, and of `swap`.
        matched: effect of random directions with the features' covariance, by question.
        measure: name of the measure.
        unit: unit of the measure.
        n: number of test rows.
        groups: number of their groups.
        folds: number of folds.
        draws: number of permutations.
    """

    site: str
    along: str
    verdicts: tuple[CausalVerdict, ...]
    swap: Evidence | None
    doses: tuple[Dose, ...]
    dose_limit: float
    wrong_way: float
    other_loss: dict[float, tuple[float, float, float]]
    kernel_share: float
    null: dict[str, Floats]
    matched: dict[str, Floats]
    measure: str
    unit: str
    n: int
    groups: int
    folds: int
    draws: int

    def verdict(self, question: str) -> CausalVerdict:
        """Return the verdict on one question."""
        return next(one for one in self.verdicts if one.question == question)

    def evidence(self, question: str) -> Evidence:
        """Return the evidence of a question, or of `swap`."""
        if question == "swap" and self.swap is not None:
            return self.swap
        return self.verdict(question).evidence
