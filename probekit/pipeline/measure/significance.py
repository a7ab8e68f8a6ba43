"""What the numbers of a run may claim together: p-values over all sites, and differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.probes.curve import Prober
from probekit.probes.score.differences import all_differences, enough_draws
from probekit.probes.score.measurement import Predictions, metrics_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.permutation import exchanged_leads, group_leads, holm, p_values
from probekit.probes.score.regression import NumberPredictions
from probekit.results.differences import answers_name
from probekit.results.metrics import P_VALUES
from probekit.results.predictions import Predictor
from probekit.results.site_results import SiteResult


@dataclass(frozen=True, eq=False)
class ScoredPredictions:
    """The answers of one probe at one site with the row of results.csv that tells their score."""

    name: str
    row: Mapping[str, Any]
    said: Predictions


def scored(found: Sequence[SiteResult], metric: str) -> list[ScoredPredictions]:
    """Return every probe's answers on the test rows that are scored by the metric."""
    return [
        ScoredPredictions(_name(row), row, site.said[Predictor(row["probe"], row["target"])])
        for site in found
        for row in site.rows
        if row["split"] == "test" and row["metric"] == metric
        if Predictor(row["probe"], row["target"]) in site.said
    ]


def _name(row: Mapping[str, Any] | pd.Series[Any]) -> str:
    """Return what differences.csv calls the answers of a row: a baseline by its target alone."""
    return str(row["target"]) if pd.isna(row["site"]) else answers_name(row, row["target"])


def p_value_rows(
    all_scored: Sequence[ScoredPredictions], prober: Prober, draws: int
) -> list[dict[str, Any]]:
    """Return rows of results.csv with the p-values of the task at each site.

    A probe is judged by its lead over the best constant guess, with which it swaps answers group by
    group. `p_value` judges a site that was named beforehand, `p_holm` is adjusted
    for all sites and kinds, `p_best` compares the site to the best of all in each exchange.
    """
    tasks = [one for one in all_scored if one.row["target"] == "task" and _is_by_row(one.said)]
    if not tasks or not draws or not METRICS[prober.main_metric].is_row_mean:
        return []
    leads = np.stack([_leads(one, prober) for one in tasks])
    enough = enough_draws(len(tasks), draws, leads.shape[1])
    found = p_values(leads.sum(axis=1), exchanged_leads(leads, enough, prober.settings.seed))
    told = zip(P_VALUES, (found.single, holm(found.single), found.maximum), strict=True)
    return [
        {**one.row, "metric": metric, "value": float(p[n]), **_NO_INTERVAL}
        for metric, p in told
        for n, one in enumerate(tasks)
    ]


_NO_INTERVAL = {"ci_low": None, "ci_high": None, "chance": None}


def _is_by_row(said: Predictions) -> bool:
    return isinstance(said, ClassPredictions | NumberPredictions)


def _leads(one: ScoredPredictions, prober: Prober) -> NDArray[np.float64]:
    """Return how far each group puts a probe ahead of the best constant guess of its test rows.

    That of the training rows would not do: where the shares of labels differ in the test rows, even
    a probe that knows nothing is ahead of it.
    """
    probe = one.row["probe"]
    truth = prober.truth_of(probe)
    best = truth.mean() if prober.settings.reads_numbers else np.bincount(truth).argmax()
    assert isinstance(one.said, ClassPredictions | NumberPredictions)
    scores, plain = (
        _row_scores(guess, truth) for guess in (one.said.guess, np.full(len(truth), best))
    )
    return group_leads(scores, plain, prober.data.groups[prober.rows_of(probe)])


def _row_scores(guess: NDArray[Any], truth: NDArray[Any]) -> NDArray[np.float64]:
    """Return what each row adds to accuracy or, of numbers, to R2."""
    if guess.dtype.kind == "f":
        missed: NDArray[np.float64] = np.square(guess - truth) / truth.var()
        return -missed
    right: NDArray[np.float64] = (guess == truth).astype(np.float64)
    return right


def difference_rows(
    all_scored: Sequence[ScoredPredictions], chosen: pd.Series[Any], prober: Prober
) -> list[dict[str, Any]]:
    """Return how far the chosen probe is ahead of every other one and of all its company.

    All answers are on the same rows, so that the bootstrap is paired; p is adjusted by Holm for all
    differences of the run.
    """
    by_row = {
        one.name: one
        for one in all_scored
        if _is_by_row(one.said)
        # A baseline has one name at all positions of a sweep: that of the chosen one counts.
        and (pd.notna(one.row["site"]) or one.row["position"] == chosen["position"])
    }
    name, metric = _name(chosen), chosen["metric"]
    if name not in by_row:
        return []
    rows = prober.rows_of(chosen["probe"])
    said = {
        other: one.said
        for other, one in by_row.items()
        if np.array_equal(prober.rows_of(one.row["probe"]), rows)
    }
    if len(said) < 2:
        return []
    groups, settings = prober.data.groups[rows], prober.settings
    n_draws = enough_draws(len(said) - 1, settings.bootstrap, len(np.unique(groups)))
    resamples = Resamples.draw(groups, n_draws, settings.seed)
    found = all_differences(metrics_of(said[name])[metric], said, name, resamples)
    return [
        {
            "a": name,
            "b": other,
            "metric": metric,
            "value_a": one.b,
            "value_b": one.a,
            "difference": -one.value,
            "ci_low": -one.ci_high,
            "ci_high": -one.ci_low,
            "p": one.p,
            "p_holm": one.holm_p,
            "n_test": len(resamples.group_of_row),
            "n_groups": resamples.n_groups,
        }
        for other, one in found.items()
    ]
