"""The causal test of a direction: three verdicts with their controls.

Each fold's directions are fitted on its training rows and act on its test rows. Controls:

    tested        directions of the same method on permuted labels
    shown only    directions with the covariance of the features; the whole vector; the part of the
                  direction in the kernel of the output matrix
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from probekit.interventions.causes.cause_data import CauseData, CauseResult, CauseSettings, Dose
from probekit.interventions.causes.directions import (
    DirectionSet,
    allowed_doses,
    directions_of,
    dose_limit,
    label_sets,
    matched_directions,
    mean_differences,
)
from probekit.interventions.causes.other_texts import loss_under_steering
from probekit.interventions.causes.responses import Responder
from probekit.interventions.causes.verdicts import (
    Evidence,
    class_gap,
    class_gap_of_many,
    detection,
    mean_effect,
    ratio_effect,
    silence,
    slopes,
    verdicts,
)
from probekit.interventions.names import Question
from probekit.interventions.patching.recovery import mean_interval, resamples_of
from probekit.interventions.stream import linear_entry
from probekit.interventions.subspaces import kernel_share
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, Resamples
from probekit.probes.solve.design import Codes, Floats


def causes_of(
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
        DataError: there are not exactly two classes.
    """
    linear_entry(model, selection)
    settings = settings or CauseSettings()
    folds = _folds(model, data, selection, settings, directions)
    return _Test(data, settings, selection, folds).result()


@dataclass(frozen=True, eq=False)
class _Fold:
    """Test rows of one fold with the directions that act on them.

    `codes`, `signs` (1 for class 1, else -1) and `X` (n_test, n_features) are those of the test
    rows; `difference` (n_features,) is that of the class means of the training rows.
    """

    responder: Responder
    directions: DirectionSet
    matched: DirectionSet
    sources: TokenBatch | None
    codes: Codes
    signs: Floats
    difference: Floats
    X: Floats
    development: Floats


def _folds(
    model: Network,
    data: CauseData,
    selection: SiteSelection,
    settings: CauseSettings,
    directions: Sequence[DirectionSet] | None,
) -> list[_Fold]:
    def responder(rows: Codes) -> Responder:
        own = torch.from_numpy(rows)
        at, measured, read = (
            None if x is None else x[own] for x in (data.at, data.measured, data.read)
        )
        return Responder(model, data.batch[own], selection, at, data.measure[own], measured, read)

    X = responder(np.arange(len(data.batch))).features()
    single = len(data.splits) == 1
    exchanging = data.splits[0].train if single else None
    labels = label_sets(data.codes, data.groups, settings.draws, settings.seed, exchanging)
    folds = []
    for number, split in enumerate(data.splits):
        train, own = X[split.train], labels[:, split.train]
        fitted = (
            directions_of(settings.along, train, own, C=settings.C)
            if directions is None
            else directions[number]
        )
        folds.append(
            _Fold(
                responder(split.test),
                fitted,
                matched_directions(train, settings.matched, settings.seed + number),
                None if data.sources is None else data.sources[torch.from_numpy(split.test)],
                data.codes[split.test],
                np.where(data.codes[split.test] == 1, 1.0, -1.0),
                mean_differences(train, own[:1])[0],
                X[split.test],
                X[split.train if split.development is None else split.development],
            )
        )
    return folds


@dataclass(frozen=True, eq=False)
class _Test:
    """The steps of the test, over all folds."""

    data: CauseData
    settings: CauseSettings
    selection: SiteSelection
    folds: Sequence[_Fold]

    def result(self) -> CauseResult:
        """Return the result."""
        steers, null, matched, doses, wrong_way = self._steering()
        silences, null["silences"], matched["silences"] = self._silencing()
        swap = None
        if self.data.sources is not None:
            swap, null["swap"], matched["swap"] = self._swapping()
        evidence: dict[Question, Evidence] = {
            "detects": self._detection(),
            "steers": steers,
            "silences": silences,
        }
        return CauseResult(
            site=self.selection.text,
            along=self.settings.along,
            verdicts=verdicts(evidence),
            swap=swap,
            doses=doses,
            dose_limit=self.dose_limit,
            wrong_way=wrong_way,
            other_loss=self._other_loss(),
            kernel_share=self._kernel_share(),
            null=null,
            matched=matched,
            measure=self.data.measure.name,
            unit=self.data.measure.unit,
            n=len(self.codes),
            groups=self.resamples.n_groups,
            folds=len(self.folds),
            draws=len(self.folds[0].directions) - 1,
        )

    @cached_property
    def codes(self) -> Codes:
        return np.concatenate([fold.codes for fold in self.folds])

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
        """Largest measure, by which rounding errors are recognised."""
        return float(np.abs(self.base).max())

    @cached_property
    def dose_limit(self) -> float:
        """The largest dose within the range of the data."""
        own = [fold.directions for fold in self.folds]
        return dose_limit(own, [fold.development for fold in self.folds])

    @cached_property
    def by(self) -> tuple[float, ...]:
        """The doses within the range."""
        return allowed_doses(self.dose_limit, self.settings.by)

    def _signed(self, scores: Callable[[_Fold], Floats]) -> Floats:
        """Return scores (n_test, ...) towards class 1, over all folds."""
        parts = []
        for fold in self.folds:
            own = scores(fold)
            parts.append(own * fold.signs.reshape(-1, *[1] * (own.ndim - 1)))
        return np.concatenate(parts)

    def _detection(self) -> Evidence:
        projected = [(fold.X - fold.directions.mean) @ fold.directions.reading[0]
                     for fold in self.folds]  # fmt: skip
        fold_of_row = np.repeat(np.arange(len(self.folds)), [len(p) for p in projected])
        groups = self.data.groups[self.data.test]
        return detection(
            np.concatenate(projected), self.codes, groups, fold_of_row,
            draws=max(self.settings.draws, 999), seed=self.settings.seed,
            widening=self.resamples.widening,
        )  # fmt: skip

    def _steering(
        self,
    ) -> tuple[Evidence, dict[str, Floats], dict[str, Floats], tuple[Dose, ...], float]:
        base = self.base[:, None, None]
        changes = self._signed(lambda fold: fold.responder.steered(fold.directions, self.by)) - base
        beside = self._signed(lambda fold: fold.responder.steered(fold.matched, self.by)) - base
        found, null, matched = (slopes(x, self.by) for x in (changes, changes[:, 1:], beside))
        own = found[:, 0]
        evidence = mean_effect(
            own, null.mean(axis=0), self._whole_slope(), self.resamples,
            f"{self.data.measure.unit} per standard deviation", self.size,
        )  # fmt: skip
        doses = tuple(self._dose(k, changes[..., n], beside[..., n]) for n, k in enumerate(self.by))
        wrong_way = float(np.mean(own < 0))
        nulls, others = {"steers": null.mean(axis=0)}, {"steers": matched.mean(axis=0)}
        return evidence, nulls, others, doses, wrong_way

    def _whole_slope(self) -> Floats:
        """Return the whole vector's effect per standard deviation, (1 + n_units,).

        It is the difference between the classes that the site carries, which is lost when the whole
        vector is replaced by its mean, divided by the distance of the class means along the
        direction. It does not depend on the direction otherwise.
        """
        carried = class_gap(self.base - self.without, self.codes, self.resamples)
        distances = [
            float(fold.difference @ fold.directions.unit[0]) / fold.directions.spread[0]
            if fold.directions.spread[0]
            else 0.0
            for fold in self.folds
        ]
        distance = np.average(distances, weights=[len(fold.codes) for fold in self.folds])
        return carried / distance if distance else np.zeros_like(carried)

    def _dose(self, by: float, changes: Floats, beside: Floats) -> Dose:
        """Return one dose; arrays (n_test, n_directions), `changes` with the observed one first."""
        own = mean_interval(changes[:, 0], self.resamples)
        bands = [_band(x.mean(axis=0)) for x in (changes[:, 1:], beside)]
        return Dose(by, own.value, own.low, own.high, *bands[0], *bands[1])

    def _silencing(self) -> tuple[Evidence, Floats, Floats]:
        erased = self._signed(lambda fold: fold.responder.erased(fold.directions))
        beside = self._signed(lambda fold: fold.responder.erased(fold.matched))
        evidence = silence(
            self.base, erased[:, 0], erased[:, 1:], self.without, self.codes, self.resamples
        )
        before = class_gap_of_many(self.base[:, None], self.codes)
        with np.errstate(divide="ignore", invalid="ignore"):
            null, matched = (
                1 - class_gap_of_many(x, self.codes) / before for x in (erased[:, 1:], beside)
            )
        return evidence, null, matched

    def _swapping(self) -> tuple[Evidence, Floats, Floats]:
        """Return the recovery by exchange along the direction, for the answer of the base text."""

        def all_folds(scores: Callable[[_Fold, TokenBatch], Floats]) -> Floats:
            parts = [scores(fold, fold.sources) for fold in self.folds if fold.sources is not None]
            return np.concatenate(parts)

        base = np.concatenate([fold.responder.base() for fold in self.folds])
        source = all_folds(lambda fold, other: fold.responder.of_sources(other)) - base
        own = all_folds(lambda fold, other: fold.responder.swapped(fold.directions, other))
        beside = all_folds(lambda fold, other: fold.responder.swapped(fold.matched, other))
        whole = all_folds(lambda fold, other: fold.responder.exchanged(other)) - base
        own, beside = own - base[:, None], beside - base[:, None]
        evidence = ratio_effect(own[:, 0], own[:, 1:], whole, source, self.resamples, self.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            null, matched = own[:, 1:].sum(0) / source.sum(), beside.sum(0) / source.sum()
        return evidence, null, matched

    def _other_loss(self) -> dict[float, tuple[float, float, float]]:
        if self.data.other is None:
            return {}
        fold = self.folds[0]
        vector = fold.directions.unit[0] * fold.directions.spread[0]
        model, other = fold.responder.model, self.data.other
        found = {}
        for by in (min(self.by), max(self.by)):
            loss = loss_under_steering(model, other, self.selection, by * vector)
            found[by] = (loss.value, loss.low, loss.high)
        return found

    def _kernel_share(self) -> float:
        matrix = self.folds[0].responder.entry.matrix
        if matrix is None:
            return float("nan")
        weight = matrix.detach().double().cpu().numpy()
        shares = [kernel_share(fold.directions.unit[0], weight) for fold in self.folds
                  if fold.directions.unit[0].any()]  # fmt: skip
        return max(shares, default=float("nan"))


def _band(effects: Floats) -> tuple[float, float]:
    if not len(effects):
        return float("nan"), float("nan")
    low, high = np.quantile(effects, [0.025, 0.975])
    return float(low), float(high)
