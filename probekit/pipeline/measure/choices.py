"""Scores at chosen sites: of a nested cross-validation, and of networks with random weights.

Each outer fold of a nested cross-validation chooses site, kind and position by the validation
scores of its own training rows. The test predictions of these choices, pooled over the folds, give
the score of the run. A single choice for all folds would use the labels of test rows, because every
test row is a validation row of the other folds.

Each network with random weights also chooses its own site, even for a single split. The mean score
of these networks shows what the architecture reaches without training. Their score at the site of
the trained network would be too weak a rival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from probekit.probes.prober import Prober
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, take
from probekit.probes.score.scored import FitFacts, Predictor, Scored, SiteResult, control_draw
from probekit.probes.targets import BASELINES, NESTED, NESTED_PROBE, NETWORKS, TARGETS
from probekit.results.selection import fold_choices, fold_ranks, ranked_rows, site_with_head
from probekit.results.table import EMBED_DEPTH, RESULTS, make_table, only

Place = tuple[str | None, str]  # the site, with its head or neuron, and the position


@dataclass(frozen=True)
class _Pick:
    """Choice of one outer fold: a site, a position and a kind of probe.

    Attributes:
        fold: the number of the outer fold; 0 for a single split.
        result: the results at the chosen site and position.
        predictor: the chosen kind of probe, and the target that it predicts.
        prober: the prober of the chosen position.
        C: the penalty of the chosen probe; None if it is unknown.
    """

    fold: int
    result: SiteResult
    predictor: Predictor
    prober: Prober
    C: float | None = None

    def scored(self, draw: int | None = None) -> Scored | None:
        """Return the predictions on the test rows of the fold, with chance level and facts.

        None if there are no predictions for these rows. The facts are those of a test score of the
        chosen probe; for a network with random weights, those of all such networks.

        Args:
            draw: number of a draw of the control task, to return its predictions; None for the
                predictions of the target.
        """
        probe, target = self.predictor
        name = target if draw is None else control_draw(draw)
        own = self.result.predictions.get(Predictor(probe, name))
        if not isinstance(own, ClassPredictions | NumberPredictions):
            return None
        prober, is_test = self.prober, slice(None)
        if prober.is_nested:
            if own.folds is None:
                return None
            is_test = own.folds == self.fold
            own = replace(take(own, is_test), folds=None)
        chance = prober.chance(own, self.fold, draw)
        groups = prober.data.groups[prober.rows_of(probe)]
        if draw is not None:  # the control task is scored on comparable rows only
            groups = groups[prober.comparable()]
        return Scored((own,), (chance,), groups[is_test], self._facts(draw is not None))

    def _facts(self, is_control: bool) -> FitFacts:
        probe, target = self.predictor
        if is_control:
            target = "control"
        elif TARGETS[target].network is not None:
            target = "random_weights"
        measured = next(
            one
            for one in self.result.of_kind(probe)
            if (one.target, one.split, one.fold) == (target, "test", None)
        )
        facts = {own.name: getattr(measured, own.name) for own in fields(FitFacts)}
        return replace(FitFacts(**facts), C=None if is_control else self.C)


@dataclass(frozen=True, eq=False)
class _Chooser:
    """Makes the choices, from the results at all sites and positions.

    Attributes:
        places: the results by site and position; the site of baselines is None.
        table: the rows of all results.
        probers: the prober of each position.
    """

    places: Mapping[Place, SiteResult]
    table: pd.DataFrame
    probers: Mapping[str, Prober]

    @cached_property
    def of_task(self) -> list[pd.Series]:
        """The validation row of the task that each outer fold chose; see `fold_choices`."""
        return fold_choices(self.table)

    def task(self) -> list[_Pick]:
        """Return the choice of each outer fold for the task."""
        return [self._pick(row, "task") for row in self.of_task]

    def networks(self) -> dict[str, list[_Pick]]:
        """Return the choices of each network with random weights, by the target of the network.

        A network chooses by its own validation scores: in each outer fold, or once for a single
        split. It cannot choose kinds of probe that are scored on other rows than the baselines,
        such as whole texts. Empty if there are no such networks, or one has nothing to choose from.
        """
        prober, picks = next(iter(self.probers.values())), {}
        probes = {
            probe
            for probe in self.table["probe"].unique()
            if np.array_equal(prober.rows_of(probe), prober.test_rows)
        }
        table = self.table[self.table["probe"].isin(probes)]
        for target in NETWORKS:
            if (self.table["target"] == target).any():
                by_fold = prober.is_nested
                ranked = fold_ranks(table, target) if by_fold else [ranked_rows(table, target)]
                if any(rows.empty for rows in ranked) or not ranked:
                    return {}
                picks[target] = [self._pick(rows.iloc[0], target) for rows in ranked]
        return picks

    def at_embedding(self) -> list[_Pick]:
        """Return each fold's choice with its site replaced by the embedding.

        The embedding is that of the same line of the layer curve; see `placed`.

        Empty if a fold has no score at the embedding, or if all folds chose the embedding.
        """
        same = ("line", "probe", "position")
        pairs = zip(self.of_task, fold_ranks(self.table), strict=True)
        sites = [
            only(ranked, depth=EMBED_DEPTH, **{name: row[name] for name in same})["site"]
            for row, ranked in pairs
        ]
        is_same = all(row["depth"] == EMBED_DEPTH for row in self.of_task)
        if is_same or any(own.empty for own in sites):
            return []
        return [
            replace(self._pick(row | {"site": own.iloc[0]}, "task"), C=None)
            for row, own in zip(map(dict, self.of_task), sites, strict=True)
        ]

    def baseline(self, target: str) -> list[_Pick]:
        """Return, for each fold, a baseline at the position that the fold chose.

        Empty without a sweep: then the baseline has the same position, and needs no choice.
        """
        if len(self.probers) == 1:
            return []
        baselines = {"site": None, "head": None, "probe": "none", "C": None}
        return [self._pick(dict(row) | baselines, target) for row in self.of_task]

    def _pick(self, row: Mapping[str, Any] | pd.Series, target: str) -> _Pick:
        site, position = row["site"], row["position"]
        return _Pick(
            fold=0 if pd.isna(row["fold"]) else int(row["fold"]),
            result=self.places[site and site_with_head(site, row["head"]), position],
            predictor=Predictor(row["probe"], target),
            prober=self.probers[position],
            C=None if pd.isna(row["C"]) else float(row["C"]),
        )


def chosen_sites(results: Sequence[SiteResult], probers: Mapping[str, Prober]) -> SiteResult | None:
    """Return measurements and predictions at chosen sites; None if there are none.

    Only a nested cross-validation has the task, the control task at the same sites, the embedding
    and, for a sweep of positions, the baselines. Every run has the mean score of its networks with
    random weights, each at its own chosen sites.

    Args:
        results: the results of all sites and of the baselines, at every position.
        probers: the prober of each position.
    """
    table = make_table([row for result in results for row in result.rows], RESULTS)
    places: dict[Place, SiteResult] = {}
    for result in results:
        site, own = result.place["site"], result.place["position"]
        places[site and site_with_head(site, result.place["head"]), own] = result
    chooser = _Chooser(places, table, probers)
    # For a sweep the position is empty, because folds may choose different positions.
    position = next(iter(probers)) if len(probers) == 1 else ""
    no_site = dict.fromkeys(("site", "layer", "component", "head", "view"))
    chosen = SiteResult(place={**results[0].place, **no_site, "position": position})
    task = chooser.task()
    if task:
        draws: list[Scored | None] = []
        if all(pick.prober.has_control for pick in task):
            n_draws = task[0].prober.settings.control_draws
            draws = [_pooled(task, draw) for draw in range(n_draws)]
        known = [one for one in draws if one is not None]
        controls = Scored.of_draws(known) if known else None
        _add(chosen, NESTED["task"], task, controls)
        if controls is not None:
            of_control = controls.with_facts(probe=NESTED_PROBE, target=NESTED["control"])
            chosen.measurements.extend(task[0].prober.measure(of_control))
        _add(chosen, NESTED["embedding"], chooser.at_embedding())
        for target in BASELINES:
            _add(chosen, target, chooser.baseline(target), probe="none")
    networks = chooser.networks()
    pooled = {target: one for target, picks in networks.items() if (one := _pooled(picks))}
    if pooled:
        mean = Scored.of_draws([*pooled.values()])
        mean = mean.with_facts(probe=NESTED_PROBE, target=NESTED["random_weights"])
        prober = next(iter(networks.values()))[0].prober
        chosen.measurements.extend(prober.measure(mean))
        for network, one in pooled.items():
            chosen.predictions[Predictor(NESTED_PROBE, network)] = one.predictions[0]
    return chosen if chosen.measurements else None


def _add(
    chosen: SiteResult,
    target: str,
    picks: Sequence[_Pick],
    controls: Scored | None = None,
    probe: str = NESTED_PROBE,
) -> None:
    """Pool the predictions of the picks; add them with their scores. Do nothing if one has none.

    Args:
        chosen: gets the measurements and predictions.
        target: the target to add them as.
        picks: the choice of each fold.
        controls: pooled predictions of the draws of the control task, for selectivity.
        probe: the name of the probe to add them as.
    """
    pooled = _pooled(picks)
    if pooled is None:
        return
    prober = picks[0].prober
    scored = pooled.with_facts(probe=probe, target=target)
    chosen.measurements.extend(prober.measure(scored))
    if controls is not None:
        comparable = np.concatenate([pick.prober.comparable(pick.fold) for pick in picks])
        own = scored.take(comparable)
        metric, against = prober.main_metric, controls.predictions
        selectivity = replace(own, metric=metric, against=against)
        chosen.measurements.extend(prober.measure(selectivity))
    chosen.predictions[Predictor(probe, target)] = pooled.predictions[0]


def _pooled(picks: Sequence[_Pick], draw: int | None = None) -> Scored | None:
    """Return the predictions of the picks, one after the other; None if one has none."""
    scored = [pick.scored(draw) for pick in picks]
    known = [one for one in scored if one is not None]
    return Scored.of_splits(known) if known and len(known) == len(picks) else None
