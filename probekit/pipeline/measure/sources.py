"""Scores of sources that were left out whole, compared with scores inside the sources.

sources.csv  a row for each source of `split.leave_out`, the worst first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.amounts import FEWEST_UNITS, counted
from probekit.pipeline.experiment.rows import Rows
from probekit.probes.prober import Prober
from probekit.probes.score.intervals import Interval, score_interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import (
    WIDER_OVER_FOLDS,
    ClassPredictions,
    NumberPredictions,
    Resamples,
    take,
)
from probekit.probes.score.scored import Predictor, SiteResult, metrics_of, parts_of
from probekit.probes.targets import HEADLINE, NESTED, NESTED_PROBE, WITHIN
from probekit.results.selection import fold_choices, site_with_head

RowPredictions = ClassPredictions | NumberPredictions


def source_rows(
    results: Sequence[SiteResult], table: pd.DataFrame, rows: Rows, prober: Prober, column: str
) -> list[dict[str, Any]]:
    """Return the rows of sources.csv; empty if no site was chosen.

    A source counts in the mean if its score is defined and at least two labels have 6 rows each;
    numbers need 12 rows.

    Args:
        results: the results of all sites; those of the nested choice are among them.
        table: the rows of results.csv.
        rows: the rows of the run.
        prober: the prober of any position.
        column: the column of the sources.
    """
    metric, name = prober.main_metric, Predictor(NESTED_PROBE, HEADLINE)
    chosen = next((one.predictions for one in results if name in one.predictions), {})
    inside = chosen.get(Predictor(NESTED_PROBE, NESTED[WITHIN]))
    found = []
    for fold, (split, pick) in enumerate(zip(rows.examples, fold_choices(table), strict=False)):
        of_all = chosen[name]
        assert isinstance(of_all, RowPredictions)
        assert of_all.folds is not None
        own = np.flatnonzero(of_all.folds == fold)
        predictions, groups = take(of_all, own), prober.data.groups[prober.test_rows[own]]
        guess = metrics_of(chance := prober.chance(predictions, fold))[metric]
        score, scored = _interval(predictions, metric, groups, 1.0), Interval(*[np.nan] * 3)
        if isinstance(inside, RowPredictions):
            scored = _interval(take(inside, own), metric, groups, WIDER_OVER_FOLDS)
        row = {
            "source": dict(rows.dataset.examples[split.test[0]].values)[column],
            "column": column,
            "metric": metric,
            "value": score.value,
            "ci_low": score.low,
            "ci_high": score.high,
            "chance": guess(chance, Resamples.whole(len(own)))[0],
            "within": scored.value,
            "within_low": scored.low,
            "within_high": scored.high,
            "difference": score.value - scored.value,
            "n_test": len(own),
            "n_groups": len(np.unique(groups)),
            "site": site_with_head(pick["site"], pick["head"]),
            "probe": pick["probe"],
            "C": pick["C"],
            "left_out": _why_not_averaged(rows.labels[prober.test_rows[own]], prober),
        }
        if not row["left_out"] and np.isnan(score.value):
            row["left_out"] = "undefined"
        found.append(row)
    sign = METRICS[metric].sign
    return sorted(
        found, key=lambda row: (row["left_out"] != "", sign * row["value"], row["source"])
    )


def _interval(
    predictions: RowPredictions, metric: str, groups: NDArray[np.generic], widening: float
) -> Interval:
    """Return the score of the rows of one source; without limits if they are in one group."""
    resamples = Resamples.leave_one_out(groups, widening=widening)
    whole = metrics_of(predictions)[metric](predictions, resamples.undrawn)
    if resamples.n_groups < 2 or np.isnan(whole[0]):
        return Interval(float(whole[0]), np.nan, np.nan)
    values = metrics_of(predictions)[metric](predictions, resamples)
    return score_interval(values, resamples, METRICS[metric].range, parts_of(metric, [predictions]))


def _why_not_averaged(labels: NDArray[np.str_], prober: Prober) -> str:
    """Return why a source with these labels does not count in the mean; "" if it does."""
    if prober.settings.reads_numbers:
        return "" if len(labels) >= 2 * FEWEST_UNITS else counted(len(labels), "row")
    counts = Counter(labels.tolist()).most_common(2)
    if len(counts) < 2:
        return f"only {counts[0][0]}"
    (_, (label, n)) = counts
    return "" if n >= FEWEST_UNITS else f"{counted(n, 'row')} of {label}"
