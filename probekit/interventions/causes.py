"""The causal test of a direction: three verdicts with their controls.

Each fold's directions are fitted on its training rows and act on its test rows. Controls:

    tested        directions of the same method on permuted labels
    shown only    directions with the covariance of the features; the whole vector; the part of the
                  direction in the kernel of the output matrix
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.data.splits import Split
from probekit.errors import ConfigError, DataError
from probekit.interventions.directions import (
    DirectionSet,
    Responder,
    allowed_doses,
    directions_of,
    dose_limit,
    kernel_share,
    label_sets,
    matched_directions,
    mean_differences,
)
from probekit.interventions.edits import add, linear_entry, run_edited
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.names import Along
from probekit.interventions.verdicts import (
    CausalVerdict,
    CauseResult,
    band_of_draws,
    class_gap,
    class_gap_of_many,
    detection,
    direction_effect,
    holds_zero,
    resamples_of,
    silence,
    slopes,
    verdicts,
)
from probekit.lazy_rows import Codes, Floats
from probekit.model.network import Network
from probekit.model.passes.inputs import NOT_COUNTED, TokenBatch, next_tokens
from probekit.model.sites.sites import SiteSelection
from probekit.probes.score.intervals import Interval, jackknife_interval
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, Resamples, mean_of_rows


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
    splits: Sequence[Split]
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
    by: tuple[float, ...] = (-4.0, -2.0, 2.0, 4.0)
    C: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not any(self.by):
            raise ConfigError(f"by is {list(self.by)}. Give a dose other than 0.")


def causal_test(
    model: Network,
    data: CauseData,
    selection: SiteSelection,
    settings: CauseSettings | None = None,
    *,
    directions: Sequence[DirectionSet] | None = None,
) -> CauseResult:
    """Return the causal test of a direction at a site, head or neuron.

    Args:
        model: the network.
        data: the texts with labels, groups and folds.
        selection: where the direction is read and edited; a part of the residual stream.
        settings: settings of the test; None means the defaults.
        directions: directions of each fold, such as those of fitted probes: the observed one, then
            those on permuted labels (`label_sets`). None fits them by `settings.along`.

    Raises:
        ConfigError: the site is not a part of the residual stream.
        DataError: directions are fitted, and training rows do not have exactly two classes.
    """
    linear_entry(model, selection)
    settings = settings or CauseSettings()
    texts = Responder(
        model, data.batch, selection, data.at, data.measure, data.measured, data.read, data.sources
    )
    X = texts.features()
    # With a single split only training rows exchange labels; with folds all rows do.
    exchanging = data.splits[0].train if len(data.splits) == 1 else None
    labels = label_sets(data.codes, data.groups, settings.draws, settings.seed, exchanging)
    folds = []
    for number, split in enumerate(data.splits):
        train, train_labels = X[split.train], labels[:, split.train]
        if directions:
            of_fold = directions[number]
        else:
            of_fold = directions_of(settings.along, train, train_labels, C=settings.C)
        responder = texts[torch.from_numpy(split.test)]
        matched = matched_directions(train, settings.matched, settings.seed + number)
        difference = mean_differences(train, train_labels[:1])[0]
        folds.append(_Fold(responder, of_fold, matched, difference, X[split.test], train))
    return _Test(data, settings, selection, folds).result()


@dataclass(frozen=True, eq=False)
class _Fold:
    """Test rows of one fold with the directions that act on them.

    `X` (n_test, n_features) are the test rows, `train` (n_train, n_features) the training rows,
    with the difference of their class means (n_features,).
    """

    responder: Responder
    directions: DirectionSet
    matched: DirectionSet
    difference: Floats
    X: Floats
    train: Floats


@dataclass(frozen=True, eq=False)
class _Test:
    """The steps of the test, over all folds."""

    data: CauseData
    settings: CauseSettings
    selection: SiteSelection
    folds: Sequence[_Fold]

    def result(self) -> CauseResult:
        """Return the verdicts and all that a page shows of the direction."""
        directions = [fold.directions for fold in self.folds]
        limit = dose_limit(directions, [fold.train for fold in self.folds])
        by = allowed_doses(limit, self.settings.by)
        # Shape (n_test, n_directions, n_doses); of `changes` the observed direction is the first.
        base = self.base[:, None, None]
        changes = self._signed(lambda fold: fold.responder.steered(fold.directions, by)) - base
        by_matched = self._signed(lambda fold: fold.responder.steered(fold.matched, by)) - base
        # The whole vector's effect per standard deviation: the difference between the classes that
        # the site carries, over the distance of the class means along the direction; 0 without one.
        carried = class_gap(self.base - self.without, self.codes, self.resamples)
        distances, shares = [], []
        matrix = self.folds[0].responder.entry.matrix
        for fold in self.folds:
            unit, spread = fold.directions.unit[0], fold.directions.spread[0]
            distances.append(float(fold.difference @ unit) / spread if spread else 0.0)
            if matrix is not None and unit.any():
                shares.append(kernel_share(unit, matrix.detach().double().cpu().numpy()))
        distance = np.average(distances, weights=[len(fold.X) for fold in self.folds])
        whole = carried / distance if distance else np.zeros_like(carried)
        slope = slopes(changes, by)
        steers = direction_effect(
            mean_of_rows(slope[:, 0], self.resamples), slope[:, 1:].mean(axis=0), whole,
            self.resamples, f"{self.data.measure.unit} per standard deviation", self.size,
        )  # fmt: skip
        steers = replace(steers, matched=slopes(by_matched, by).mean(axis=0))
        losses = self._losses((min(by), max(by)))
        doses = []
        for number, dose in enumerate(by):
            observed = mean_of_rows(changes[:, 0, number], self.resamples)
            effect = jackknife_interval(observed, self.resamples)
            row = {"by": dose, "effect": effect.value, "low": effect.low, "high": effect.high}
            at_doses = {"null": changes[:, 1:, number], "matched": by_matched[..., number]}
            for name, at_dose in at_doses.items():
                row[f"{name}_low"], row[f"{name}_high"] = band_of_draws(at_dose.mean(axis=0))
            row |= {"n": len(self.codes), "groups": self.resamples.n_groups}
            if dose in losses:
                loss = losses[dose]
                row |= {"other_loss": loss.value, "other_low": loss.low, "other_high": loss.high}
            doses.append(row)
        detects, silences = self._detection(), self._silencing()
        found = verdicts({"detects": detects, "steers": steers, "silences": silences})
        return CauseResult(
            verdicts=found,
            swap=None if self.data.sources is None else self._swapping(),
            doses=tuple(doses),
            dose_limit=limit,
            kernel_share=max(shares, default=np.nan),
            wrong_way=float(np.mean(slope[:, 0] < 0)),
            n=len(self.codes),
            groups=self.resamples.n_groups,
            folds=len(self.folds),
            draws=len(self.folds[0].directions) - 1,
            unit=self.data.measure.unit,
        )

    @property
    def codes(self) -> Codes:
        """Label of each test row, 0 or 1, (n_test,)."""
        return self.data.codes[self.data.test]

    @cached_property
    def resamples(self) -> Resamples:
        """Jackknife resamples of the test rows."""
        widening = WIDER_OVER_FOLDS if len(self.folds) > 1 else 1.0
        return resamples_of(self.data.groups[self.data.test], widening)

    @cached_property
    def base(self) -> Floats:
        """Measure of the test rows towards class 1, (n_test,)."""
        return self._signed(lambda fold: fold.responder.base())

    @cached_property
    def without(self) -> Floats:
        """Measure towards class 1 without the whole vector, replaced by its mean, (n_test,)."""
        return self._signed(lambda fold: fold.responder.without(fold.directions.mean))

    @property
    def size(self) -> float:
        """Largest absolute measure, by which rounding errors are recognised."""
        return float(np.abs(self.base).max())

    def _of_rows(self, scores: Callable[[_Fold], Floats]) -> Floats:
        """Return scores (n_test, ...), over all folds."""
        return np.concatenate([scores(fold) for fold in self.folds])

    def _signed(self, scores: Callable[[_Fold], Floats]) -> Floats:
        """Return scores (n_test, ...) towards class 1; the given ones are towards each label."""
        of_rows: Floats = (self._of_rows(scores).T * np.where(self.codes == 1, 1.0, -1.0)).T
        return of_rows

    def _losses(self, doses: Sequence[float]) -> dict[float, Interval]:
        """Return the change of the loss on other texts at some doses, in nats per token.

        The dose is added at all positions, along the direction of the first fold; intervals are
        those over texts. The result is empty without such texts.
        """
        other, first = self.data.other, self.folds[0]
        if other is None:
            return {}
        model, vector = first.responder.model, first.directions.unit[0] * first.directions.spread[0]
        # Of each dose: the changes summed over the tokens of a text, and the number of tokens.
        changes: dict[float, list[Tensor]] = {dose: [] for dose in doses}
        for rows in torch.split(torch.arange(len(other)), _OTHERS_AT_ONCE):
            batch = other[rows].to(model.device)
            targets = next_tokens(batch.ids, batch.mask)
            counted = targets != NOT_COUNTED
            with torch.no_grad():
                plain = _losses(model(batch), targets)
                for dose, of_dose in changes.items():
                    edit = add(torch.from_numpy(dose * vector))
                    logits = run_edited(model, batch, [(self.selection, edit)])
                    change = torch.where(counted, _losses(logits, targets) - plain, 0.0)
                    of_dose.append(torch.stack([change.sum(1), counted.sum(1).double()], 1))
        resamples, found = resamples_of(np.arange(len(other))), {}
        for dose, of_dose in changes.items():
            sums, n_tokens = torch.cat(of_dose).cpu().numpy().T
            means = mean_of_rows(sums, resamples) / mean_of_rows(n_tokens, resamples)
            found[dose] = jackknife_interval(means, resamples)
        return found

    def _detection(self) -> CausalVerdict:
        """Return how well projections on the direction rank the labels of the test rows."""
        projections = self._of_rows(
            lambda fold: (fold.X - fold.directions.mean) @ fold.directions.reading[0]
        )
        fold_of_row = np.repeat(np.arange(len(self.folds)), [len(fold.X) for fold in self.folds])
        groups = self.data.groups[self.data.test]
        # Draws need no forward passes here, so that there are at least 999 of them.
        return detection(
            projections, self.codes, groups, fold_of_row,
            draws=max(self.settings.draws, 999), seed=self.settings.seed,
            widening=self.resamples.widening,
        )  # fmt: skip

    def _silencing(self) -> CausalVerdict:
        """Return the share of the class difference that erasure of the direction removes."""
        erased = self._signed(lambda fold: fold.responder.erased(fold.directions))
        by_matched = self._signed(lambda fold: fold.responder.erased(fold.matched))
        before = class_gap_of_many(self.base[:, None], self.codes)
        with np.errstate(divide="ignore", invalid="ignore"):
            null = 1 - class_gap_of_many(erased[:, 1:], self.codes) / before
            matched = 1 - class_gap_of_many(by_matched, self.codes) / before
        verdict = silence(self.base, erased[:, 0], null, self.without, self.codes, self.resamples)
        return replace(verdict, matched=matched)

    def _swapping(self) -> CausalVerdict:
        """Return the recovery by exchange along the direction, for the answer of the base text."""
        base = self._of_rows(lambda fold: fold.responder.base())
        # Changes from the base texts, by exchange of everything, of the vector, along directions.
        source = self._of_rows(lambda fold: fold.responder.of_sources()) - base
        whole = self._of_rows(lambda fold: fold.responder.exchanged()) - base
        along = self._of_rows(lambda fold: fold.responder.swapped(fold.directions)) - base[:, None]
        by_matched = self._of_rows(lambda fold: fold.responder.swapped(fold.matched))
        by_matched -= base[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            null, matched = along[:, 1:].sum(0) / source.sum(), by_matched.sum(0) / source.sum()
        differences = mean_of_rows(source, self.resamples)
        if holds_zero(jackknife_interval(differences, self.resamples)):
            reason = "the measure does not differ between the texts and their counterfactuals"
            return CausalVerdict(unit="recovery", reason=reason, null=null, matched=matched)
        # Ratios of sums over the test rows, of the direction and of the whole vector.
        recovery = mean_of_rows(along[:, 0], self.resamples) / differences
        by_whole = mean_of_rows(whole, self.resamples) / differences
        size = self.size / abs(float(differences[0]))
        verdict = direction_effect(recovery, null, by_whole, self.resamples, "recovery", size)
        return replace(verdict, matched=matched)


_OTHERS_AT_ONCE = 16  # texts in one pass


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss [batch pos] of each next token, of logits [batch pos d_vocab].

    It has no meaning at tokens that are not counted.
    """
    ids = targets.clamp(min=0)[..., None]  # NOT_COUNTED is negative, which is no index
    return -logits.double().log_softmax(-1).gather(-1, ids)[..., 0]
