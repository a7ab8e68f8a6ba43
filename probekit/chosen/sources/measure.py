"""Scores of the sources that `split.leave_out` leaves out whole: sources.csv, the worst first."""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import FEWEST_UNITS, counted
from probekit.chosen.selected_probe import SelectedProbe
from probekit.probes.fitters import RowPredictions
from probekit.probes.prober import Prober
from probekit.probes.score.intervals import Interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, Resamples, take
from probekit.probes.score.scored import Predictor, lead_over, mean_score, with_interval
from probekit.probes.targets import HEADLINE, NESTED, NESTED_PROBE, WITHIN
from probekit.results.scores import site_with_head


def tables(_settings: None, chosen: SelectedProbe) -> dict[str, list[dict[str, Any]]]:
    """Return a row for each source; nothing without sources.

    A source counts in the mean if its score is defined and at least two labels have 6 rows each;
    numbers need 12 rows.
    """
    column, rows = chosen.source.experiment.split.leave_out, chosen.source.design
    if column is None:
        return {}
    prober, picks = chosen.prober, chosen.scores.choices
    metric, name = prober.main_metric, Predictor(NESTED_PROBE, HEADLINE)
    nested = next((one.predictions for one in chosen.results if name in one.predictions), {})
    inside = nested.get(Predictor(NESTED_PROBE, NESTED[WITHIN]))
    found = []
    for fold, (split, pick) in enumerate(zip(rows.examples, picks, strict=False)):
        of_all = nested[name]
        assert isinstance(of_all, RowPredictions)
        assert of_all.folds is not None
        own = np.flatnonzero(of_all.folds == fold)
        predictions, groups = take(of_all, own), prober.data.groups[prober.test_rows[own]]
        n_groups = len(np.unique(groups))
        resamples = Resamples.leave_one_out(groups)
        score = with_interval(metric, [predictions], resamples)
        chance = prober.splits[fold].chance(predictions)
        lead = lead_over(metric, [predictions], [chance], resamples)
        scored = Interval(np.nan, np.nan, np.nan)
        # No probe inside the sources was fitted on a source that is a single group.
        if isinstance(inside, RowPredictions) and n_groups > 1:
            wider = Resamples.leave_one_out(groups, widening=WIDER_OVER_FOLDS)
            scored = with_interval(metric, [take(inside, own)], wider)
        source = dict(rows.dataset.examples[split.test[0]].values)[column]
        row = {"source": source, "column": column, "metric": metric}
        row |= {"value": score.value, "ci_low": score.low, "ci_high": score.high}
        # A metric that is undefined for the guesses counts as 0, as in the lead.
        level = float(np.nan_to_num(mean_score(metric, [chance], resamples)[0]))
        row |= {"chance": level, "lead_low": lead.low, "lead_high": lead.high}
        row |= {"within": scored.value, "within_low": scored.low, "within_high": scored.high}
        row |= {"difference": score.value - scored.value, "n_test": len(own), "n_groups": n_groups}
        row |= {"site": site_with_head(pick["site"], pick["head"])}
        row |= {"probe": pick["probe"], "C": pick["C"]}
        why = _why_not_averaged(rows.labels[prober.test_rows[own]], prober)
        row["left_out"] = why or ("undefined" if np.isnan(score.value) else "")
        found.append(row)
    sign = METRICS[metric].sign
    found.sort(key=lambda row: (row["left_out"] != "", sign * row["value"], row["source"]))
    return {"sources.csv": found}


def _why_not_averaged(labels: NDArray[np.str_], prober: Prober) -> str:
    """Return why a source with these labels does not count in the mean; "" if it does."""
    if prober.settings.reads_numbers:
        return "" if len(labels) >= 2 * FEWEST_UNITS else counted(len(labels), "row")
    counts = Counter(labels.tolist()).most_common(2)
    if len(counts) < 2:
        return f"only {counts[0][0]}"
    (_, (label, n)) = counts
    return "" if n >= FEWEST_UNITS else f"{counted(n, 'row')} of {label}"
