"""The nested choice: test predictions of each outer fold at the site that the fold chose itself.

Each outer fold of a nested cross-validation chooses site, kind and position by the validation
scores of its own training rows. Pooled over the folds, the test predictions of these choices give
the score of the run. One choice for all folds would be selected with the labels of the test rows,
because every test row is a validation row of the other folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from probekit.disk import as_store_error
from probekit.pipeline.experiment.prepare import Prepared
from probekit.pipeline.measure.chosen import find_site
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.saving import probe_path
from probekit.probes.curve import Prober
from probekit.probes.saved.files import probe_files
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.probes.score.measurement import (
    Measurement,
    PredictionPair,
    Score,
    joined,
)
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.pooling import take
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.site_result import Predictor, SiteResult, control_draw
from probekit.probes.targets import BASELINES, NESTED, NESTED_PROBE
from probekit.provenance import digest
from probekit.results.columns import RESULTS, make_table
from probekit.results.saved_probes import FINAL
from probekit.results.selection import chosen_row, fold_choices, fold_ranks, is_nested, selection
from probekit.results.site_results import NESTED_SITE, SavedSiteResults, site_stem
from probekit.results.table import EMBED_DEPTH, only

Place = tuple[str | None, str]  # the site, with its head or neuron, and the position
_OF_SITE = ("site", "layer", "component", "head", "view")


@dataclass(frozen=True)
class _Pick:
    """Predictions that one outer fold contributes.

    Attributes:
        fold: the number of the outer fold.
        result: the results of the place.
        predictor: the kind of probe and the target.
        prober: the prober of the position.
        C: the penalty; None if it is unknown.
    """

    fold: int
    result: SiteResult
    predictor: Predictor
    prober: Prober
    C: float | None = None

    def pair(self, draw: int | None = None) -> PredictionPair | None:
        """Return the predictions on the test rows of the fold, and the chance level predictions.

        Args:
            draw: the draw of the control task to return instead; None for none.
        """
        probe, target = self.predictor
        name = target if draw is None else control_draw(draw)
        pooled = self.result.predictions.get(Predictor(probe, name))
        if not isinstance(pooled, ClassPredictions | NumberPredictions) or pooled.folds is None:
            return None
        assert pooled.folds is not None
        own = replace(take(pooled, pooled.folds == self.fold), folds=None)
        return own, self.prober.chance(own, self.fold, draw)

    @property
    def measured(self) -> Measurement:
        """The first score on the test rows, with the facts of the fits of all folds."""
        probe, target = self.predictor
        return next(
            one
            for one in self.result.of_kind(probe)
            if (one.target, one.split, one.fold) == (target, "test", None)
        )


@dataclass(frozen=True, eq=False)
class _Chooser:
    """Results of all places of a nested cross-validation.

    Attributes:
        places: the results by site and position; baselines have no site.
        table: the rows of the results.
        probers: the prober of each position.
    """

    places: Mapping[Place, SiteResult]
    table: pd.DataFrame
    probers: Mapping[str, Prober]

    @cached_property
    def ranks_of_task(self) -> list[pd.DataFrame]:
        """The validation rows of the task that each outer fold chooses from, best first."""
        return fold_ranks(self.table)

    @cached_property
    def of_task(self) -> list[pd.Series]:
        """The validation row of the task that each outer fold chose."""
        return fold_choices(self.table)

    def task(self) -> list[_Pick]:
        """Return the choice of each outer fold for the task."""
        return [self._pick(row, row["site"], "task") for row in self.of_task]

    def random_weights(self) -> list[_Pick]:
        """Return the choice of each outer fold by the validation scores of random weights."""
        rows = fold_choices(self.table, "random_weights")
        return [self._pick(row, row["site"], "random_weights") for row in rows]

    def at_embedding(self) -> list[_Pick]:
        """Return the kind and position that each fold chose, at the embedding of the same line.

        Empty if a fold has no embedding to compare with, or all folds chose the embedding itself.
        """
        choices = self.of_task
        rows = [
            only(
                ranked,
                depth=EMBED_DEPTH,
                **{name: row[name] for name in ("line", "probe", "position")},
            )
            for row, ranked in zip(choices, self.ranks_of_task, strict=True)
        ]
        sites = [own["site"] for own in rows]
        is_same = all(row["depth"] == EMBED_DEPTH for row in choices)
        if is_same or any(own.empty for own in sites):
            return []
        pairs = zip(choices, sites, strict=True)
        return [replace(self._pick(row, own.iloc[0], "task"), C=None) for row, own in pairs]

    def baseline(self, target: str) -> list[_Pick]:
        """Return a baseline at the position that each fold chose, for a sweep of positions.

        Without a sweep the baseline itself is on the same rows; then the list is empty.
        """
        if len(self.probers) == 1:
            return []
        return [
            _Pick(
                int(row["fold"]),
                self.places[None, row["position"]],
                Predictor("none", target),
                self.probers[row["position"]],
            )
            for row in self.of_task
        ]

    def _pick(self, row: pd.Series, site: str, target: str) -> _Pick:
        position, C = row["position"], row["C"]
        return _Pick(
            fold=int(row["fold"]),
            result=self.places[selection(site, row["head"]), position],
            predictor=Predictor(row["probe"], target),
            prober=self.probers[position],
            C=None if pd.isna(C) else float(C),
        )


def nested_choice(
    results: Sequence[SiteResult], probers: Mapping[str, Prober]
) -> SiteResult | None:
    """Return measurements and predictions of the nested choice; None for a single split.

    Besides the task they are those of the control task at the same sites, of random weights, where
    each fold chooses by the validation scores of random weights, and of the embedding.

    Args:
        results: the results of all sites and of the baselines, at every position.
        probers: the prober of each position.
    """
    table = make_table([row for result in results for row in result.rows], RESULTS)
    places = {_place(result.place): result for result in results}
    chooser = _Chooser(places, table, probers)
    task = chooser.task()
    if not task:
        return None
    nested = SiteResult(place=_place_of_all(results[0].place, probers))
    controls = _controls(task)
    _add(nested, NESTED["task"], task, against=controls)
    if controls:
        at_control = [replace(pick, predictor=_control(pick)) for pick in task]
        score = replace(_score(NESTED["control"], at_control), pairs=controls, C=None)
        nested.measurements.extend(task[0].prober.measure(score))
    _add(nested, NESTED["random_weights"], chooser.random_weights())
    _add(nested, NESTED["embedding"], chooser.at_embedding())
    for target in BASELINES:
        _add(nested, target, chooser.baseline(target), probe="none")
    return nested


def save_nested(nested: SiteResult, folder: RunFolder, prober: Prober) -> SiteResult:
    """Write the nested choice into the folder of a run, where comparisons of runs find it.

    Raises:
        StoreError: A file cannot be written.
    """
    origin = {
        "run": folder.path.name,
        "position": nested.place["position"],
        "site": NESTED_SITE,
    }
    saved = SavedSiteResults(folder.path, prober.truth_of, len(prober.data.classes))
    written = saved.write(site_stem(NESTED_SITE), origin, nested)
    folder.note(written.files)
    return written


def save_final(folder: RunFolder, table: pd.DataFrame, prepared: Prepared) -> None:
    """Write the selected probe of a nested cross-validation as `probes/final`; it has no test rows.

    Its site, kind and position have the best validation score over all folds. Nothing is written
    for a single split, or for a kind of probe that is not saved.

    Raises:
        DataError: A file of the probe is damaged.
        StoreError: A file cannot be written.
    """
    row = chosen_row(table) if is_nested(table) else None
    if row is None:
        return
    number, site = find_site(prepared, row)
    position = prepared.positions[number].position
    path = probe_path(folder.path, position.offset, site.text, str(row["probe"]))
    if not probe_files(path)[0].exists():
        return
    SavedProbe.load(path).save(folder.path / FINAL)
    for file in probe_files(Path(FINAL)):
        with as_store_error("read", folder.path / file):
            folder.note({file.as_posix(): digest([(folder.path / file).read_bytes()])})


def _place(place: Mapping[str, Any]) -> Place:
    site = place["site"]
    return (None if site is None else selection(site, place["head"])), place["position"]


def _place_of_all(place: Mapping[str, Any], probers: Mapping[str, Prober]) -> dict[str, Any]:
    """Return the columns that identify run and position, without a site.

    The position of a sweep is empty, because folds may choose different ones.
    """
    position = next(iter(probers)) if len(probers) == 1 else ""
    return {**place, **dict.fromkeys(_OF_SITE), "position": position}


def _control(pick: _Pick) -> Predictor:
    return Predictor(pick.predictor.probe, "control")


def _add(
    nested: SiteResult,
    target: str,
    picks: Sequence[_Pick],
    *,
    against: tuple[PredictionPair, ...] = (),
    probe: str = NESTED_PROBE,
) -> None:
    """Add the pooled predictions of all folds and their measurements; nothing without picks."""
    pair = _pooled(picks)
    if pair is None:
        return
    prober = picks[0].prober
    score = replace(_score(target, picks), probe=probe, pairs=(pair,))
    nested.measurements.extend(prober.measure(score))
    if against:
        selectivity = replace(score, metric=prober.main_metric, against=against)
        nested.measurements.extend(prober.measure(selectivity))
    nested.predictions[Predictor(probe, target)] = pair[0]


def _pooled(picks: Sequence[_Pick], draw: int | None = None) -> PredictionPair | None:
    """Return the pooled predictions and chance level predictions; None if a fold has none."""
    pairs = [pick.pair(draw) for pick in picks]
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None
    return joined([own for own, _ in known]), joined([chance for _, chance in known])


def _controls(picks: Sequence[_Pick]) -> tuple[PredictionPair, ...]:
    """Return the pooled predictions of each draw of the control task."""
    draws = range(picks[0].prober.settings.control_draws)
    return tuple(pair for draw in draws if (pair := _pooled(picks, draw)) is not None)


def _score(target: str, picks: Sequence[_Pick]) -> Score:
    """Return a score on the test rows of all folds, still without predictions.

    Iterations and convergence are those of the least converged fit at the chosen sites.
    """
    measured, prober = [pick.measured for pick in picks], picks[0].prober
    converged = [one.converged for one in measured if one.converged is not None]
    penalties = {pick.C for pick in picks}
    return Score(
        NESTED_PROBE,
        target,
        prober.settings.seed,
        n_train=min(one.n_train for one in measured),
        groups=prober.data.groups[prober.test_rows],
        C=penalties.pop() if len(penalties) == 1 else None,
        n_iter=max((n for one in measured if (n := one.n_iter) is not None), default=None),
        converged=all(converged) if converged else None,
        gradient_norm=max(
            (norm for one in measured if (norm := one.gradient_norm) is not None), default=None
        ),
    )
