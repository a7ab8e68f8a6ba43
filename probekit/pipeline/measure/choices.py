"""Scores at chosen sites: of a nested cross-validation, and of networks with random weights.

Each outer fold of a nested cross-validation chooses site, kind and position by the validation
scores of its own training rows. The test predictions of these choices, pooled over the folds, give
the score of the run. A single choice for all folds would use the labels of test rows, because every
test row is a validation row of the other folds.

Each network with random weights also chooses its own site, even for a single split. The mean score
of these networks shows what the architecture reaches without training. Their score at the site of
the trained network would be too weak a rival.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from probekit.probes.prober import Prober
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, take
from probekit.probes.score.scored import Predictor, Scored, SiteResult, control_draw
from probekit.probes.targets import BASELINES, NESTED, NESTED_PROBE, NETWORKS, TARGETS, WITHIN
from probekit.results.scores import Scores, site_with_head
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
        predictions = self.result.predictions.get(Predictor(probe, name))
        if not isinstance(predictions, ClassPredictions | NumberPredictions):
            return None
        prober = self.prober
        # Single draws and networks have no test score: `target` is then that of their mean score.
        groups = prober.data.groups[prober.rows_of(probe)]
        if draw is not None:  # the control task is scored on comparable rows only
            groups, target = groups[prober.comparable], "control"
        elif TARGETS[target].network is not None:
            target = "random_weights"
        if prober.is_nested:
            if predictions.folds is None:
                return None
            is_test = predictions.folds == self.fold
            predictions, groups = replace(take(predictions, is_test), folds=None), groups[is_test]
        splits = prober.within if target == WITHIN else prober.splits
        chance = splits[self.fold].chance(predictions, draw)
        key, of_kind = (target, "test", None), self.result.of_kind(probe)
        measured = next(one for one in of_kind if (one.target, one.split, one.fold) == key)
        facts = replace(measured.facts, C=None if draw is not None else self.C)
        return Scored((predictions,), (chance,), groups, facts)


def chosen_sites(results: Sequence[SiteResult], probers: Mapping[str, Prober]) -> SiteResult | None:
    """Return measurements and predictions at chosen sites; None if there are none.

    Only a nested cross-validation has the task, the control task at the same sites, the embedding
    and, for a sweep of positions, the baselines. Every run that has networks with random weights
    has their mean score, each at its own chosen sites.

    Args:
        results: the results of all sites and of the baselines, at every position.
        probers: the prober of each position.
    """
    scores = Scores.of(make_table([row for result in results for row in result.rows], RESULTS))

    def place_of(row: Mapping[str, Any] | pd.Series) -> Place:
        site = row["site"]
        return None if site is None else site_with_head(site, row["head"]), row["position"]

    result_at = {place_of(result.place): result for result in results}

    def pick(row: Mapping[str, Any] | pd.Series, target: str) -> _Pick:
        return _Pick(
            fold=0 if pd.isna(row["fold"]) else int(row["fold"]),
            result=result_at[place_of(row)],
            predictor=Predictor(row["probe"], target),
            prober=probers[row["position"]],
            C=None if pd.isna(row["C"]) else float(row["C"]),
        )

    # For a sweep the position is empty, because folds may choose different positions.
    position = next(iter(probers)) if len(probers) == 1 else ""
    no_site = dict.fromkeys(("site", "layer", "component", "head", "view"))
    chosen = SiteResult(place={**results[0].place, **no_site, "position": position})

    def add(
        target: str, picks: Sequence[_Pick], controls: Scored | None, probe: str = NESTED_PROBE
    ) -> None:
        # Adds the pooled picks to `chosen`, with their selectivity if there are controls. Adds
        # nothing if one of them has no predictions.
        pooled = _pooled(picks)
        if pooled is None:
            return
        prober, scored = picks[0].prober, pooled.with_facts(probe=probe, target=target)
        chosen.measurements.extend(prober.measure(scored))
        if controls is not None:
            # The control task is scored on comparable rows only, and so is the task here.
            comparable = np.concatenate([one.prober.splits[one.fold].comparable for one in picks])
            selectivity = replace(
                scored.take(comparable), metric=prober.main_metric, against=controls.predictions
            )
            chosen.measurements.extend(prober.measure(selectivity))
        chosen.predictions[Predictor(probe, target)] = pooled.predictions[0]

    # The validation row of the task that each outer fold chose.
    of_task = scores.choices if scores.is_nested else []
    task = [pick(row, "task") for row in of_task]
    if task:
        draws: list[Scored | None] = []
        if all(choice.prober.has_control for choice in task):
            draws = [_pooled(task, n) for n in range(task[0].prober.settings.control_draws)]
        # Draws without predictions at a chosen site are left out; without any, so are the controls.
        known = [one for one in draws if one is not None]
        controls = Scored.of_draws(known) if known else None
        add(NESTED["task"], task, controls)
        if controls is not None:
            named = controls.with_facts(probe=NESTED_PROBE, target=NESTED["control"])
            chosen.measurements.extend(task[0].prober.measure(named))
        # The same kinds of probe at the embedding, the start of the line of the chosen site; see
        # `placed`. There is no score of it if all folds chose it, or if a line has no embedding.
        same = ("line", "probe", "position")
        sites = [
            only(ranked, depth=EMBED_DEPTH, **{name: row[name] for name in same})["site"]
            for row, ranked in zip(of_task, scores.fold_ranks(), strict=True)
        ]
        chose_embedding = all(row["depth"] == EMBED_DEPTH for row in of_task)
        if not chose_embedding and not any(of_fold.empty for of_fold in sites):
            changes = [{"site": of_fold.iloc[0], "C": None} for of_fold in sites]
            rows = [dict(row) | change for row, change in zip(of_task, changes, strict=True)]
            add(NESTED["embedding"], [pick(row, "task") for row in rows], controls=None)
        # Without a sweep, the baseline has the same position and needs no choice.
        no_fit = {"site": None, "head": None, "probe": "none", "C": None}
        for target in BASELINES if len(probers) > 1 else ():
            add(target, [pick(dict(row) | no_fit, target) for row in of_task], None, probe="none")
    add(NESTED[WITHIN], [pick(row, WITHIN) for row in scores.fold_choices(WITHIN)], None)
    choices = _network_choices(scores, next(iter(probers.values())))
    networks = {name: _pooled([pick(row, name) for row in rows]) for name, rows in choices.items()}
    # Networks whose predictions are not saved row by row are left out of the mean.
    known_networks = {name: pooled for name, pooled in networks.items() if pooled is not None}
    if known_networks:
        mean = Scored.of_draws([*known_networks.values()]).with_facts(
            probe=NESTED_PROBE, target=NESTED["random_weights"]
        )
        # The groups of the rows, and thus the intervals, are the same at all positions.
        first_choice = next(iter(choices.values()))[0]
        chosen.measurements.extend(probers[first_choice["position"]].measure(mean))
        for name, pooled in known_networks.items():
            chosen.predictions[Predictor(NESTED_PROBE, name)] = pooled.predictions[0]
    return chosen if chosen.measurements else None


def _network_choices(scores: Scores, prober: Prober) -> dict[str, list[pd.Series]]:
    """Return the validation rows that each network with random weights chose, by its target.

    A network chooses by its own validation scores: in each outer fold, or once for a single split.
    It cannot choose kinds of probe that are scored on other rows than the baselines, such as whole
    texts. Empty if there are no such networks, or one has nothing to choose from.
    """
    probes = {
        probe
        for probe in scores.rows["probe"].unique()
        if np.array_equal(prober.rows_of(probe), prober.test_rows)
    }
    scores, chosen = scores.where(scores.rows["probe"].isin(probes)), {}
    for target in NETWORKS:
        if (scores.rows["target"] == target).any():
            chosen[target] = scores.fold_choices(target)
            if not chosen[target]:
                return {}
    return chosen


def _pooled(picks: Sequence[_Pick], draw: int | None = None) -> Scored | None:
    """Return the predictions of the picks in the order of the test rows.

    None if one of them has none, or without picks. With a number of a draw, they are those of this
    draw of the control task.
    """
    scored = [pick.scored(draw) for pick in picks]
    known = [one for one in scored if one is not None]
    if not known or len(known) < len(picks):
        return None
    pooled, first = Scored.of_splits(known), picks[0]
    if first.predictor.target == WITHIN:  # its folds are not in the order of the test rows
        folds = first.prober.fold_of(first.predictor.probe, within=True)
        pooled = pooled.take(np.argsort(np.argsort(folds, kind="stable")))
    return pooled
