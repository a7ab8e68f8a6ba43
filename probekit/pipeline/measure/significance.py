"""Statistical tests over all sites of a run: p-values and paired differences."""

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
from probekit.probes.site_result import Predictor, SiteResult
from probekit.results.differences import answers_name
from probekit.results.metrics import P_VALUES


@dataclass(frozen=True, eq=False)
class ScoredPredictions:
    """Predictions of one probe at one site, with the row of results.csv that holds their score."""

    name: str
    row: Mapping[str, Any]
    predictions: Predictions


def scored(results: Sequence[SiteResult], metric: str) -> list[ScoredPredictions]:
    """Return the predictions on the test rows of every probe that is scored by the metric."""
    return [
        ScoredPredictions(_name(row), row, site.predictions[Predictor(row["probe"], row["target"])])
        for site in results
        for row in site.rows
        if row["split"] == "test" and row["metric"] == metric
        if Predictor(row["probe"], row["target"]) in site.predictions
    ]


def _name(row: Mapping[str, Any] | pd.Series[Any]) -> str:
    """Return the name of a row in differences.csv; a baseline is named by its target only."""
    return str(row["target"]) if pd.isna(row["site"]) else answers_name(row, row["target"])


def p_value_rows(
    all_scored: Sequence[ScoredPredictions], prober: Prober, draws: int, target: str = "task"
) -> list[dict[str, Any]]:
    """Return rows of results.csv with the p-values of a target, of the task at each site.

    The null distribution exchanges the predictions of a probe with the best constant guess, group
    by group. `p_value` applies to a site named in advance, `p_holm` is adjusted for all sites and
    kinds, and `p_best` compares the site with the maximum over all sites in each exchange.
    """
    tasks = [
        one for one in all_scored if one.row["target"] == target and _is_by_row(one.predictions)
    ]
    if not tasks or not draws or not METRICS[prober.main_metric].is_row_mean:
        return []
    leads = np.stack([_leads(one, prober) for one in tasks])
    n_draws = enough_draws(len(tasks), draws, leads.shape[1])
    p = p_values(leads.sum(axis=1), exchanged_leads(leads, n_draws, prober.settings.seed))
    columns = zip(P_VALUES, (p.single, holm(p.single), p.maximum), strict=True)
    return [
        {**one.row, "metric": metric, "value": float(values[n]), **_NO_INTERVAL}
        for metric, values in columns
        for n, one in enumerate(tasks)
    ]


_NO_INTERVAL = {"ci_low": None, "ci_high": None, "chance": None}


def _is_by_row(predictions: Predictions) -> bool:
    return isinstance(predictions, ClassPredictions | NumberPredictions)


def _leads(one: ScoredPredictions, prober: Prober) -> NDArray[np.float64]:
    """Return each group's score of a probe minus that of the best constant guess on the test rows.

    The best constant guess on the training rows is too weak a null: if the label frequencies differ
    in the test rows, even an uninformed probe beats it.
    """
    probe = one.row["probe"]
    truth = prober.truth_of(probe)
    best = truth.mean() if prober.settings.reads_numbers else np.bincount(truth).argmax()
    assert isinstance(one.predictions, ClassPredictions | NumberPredictions)
    scores, constant = (
        _row_scores(guess, truth) for guess in (one.predictions.guess, np.full(len(truth), best))
    )
    return group_leads(scores, constant, prober.data.groups[prober.rows_of(probe)])


def _row_scores(guess: NDArray[Any], truth: NDArray[Any]) -> NDArray[np.float64]:
    """Return the contribution of each row to accuracy or, for numbers, to R2."""
    if guess.dtype.kind == "f":
        error: NDArray[np.float64] = np.square(guess - truth) / truth.var()
        return -error
    correct: NDArray[np.float64] = (guess == truth).astype(np.float64)
    return correct


def difference_rows(
    all_scored: Sequence[ScoredPredictions], chosen: pd.Series[Any], prober: Prober
) -> list[dict[str, Any]]:
    """Return the paired differences between the selected probe and all others, with baselines.

    All predictions are on the same rows, so the bootstrap is paired. `p_holm` is adjusted for all
    differences of the run.
    """
    by_row = {
        one.name: one
        for one in all_scored
        if _is_by_row(one.predictions)
        # A baseline has the same name at all positions of a sweep: use the selected position's.
        and (pd.notna(one.row["site"]) or one.row["position"] == chosen["position"])
    }
    name, metric = _name(chosen), chosen["metric"]
    if name not in by_row:
        return []
    rows = prober.rows_of(chosen["probe"])
    predictions = {
        other: one.predictions
        for other, one in by_row.items()
        if np.array_equal(prober.rows_of(one.row["probe"]), rows)
    }
    if len(predictions) < 2:
        return []
    groups, settings = prober.data.groups[rows], prober.settings
    n_draws = enough_draws(len(predictions) - 1, settings.bootstrap, len(np.unique(groups)))
    resamples = Resamples.draw(groups, n_draws, settings.seed)
    differences = all_differences(
        metrics_of(predictions[name])[metric], predictions, name, resamples
    )
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
        for other, one in differences.items()
    ]
