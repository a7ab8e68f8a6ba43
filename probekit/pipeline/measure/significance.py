"""Statistics over all sites of a run: p-values, paired differences and calibration.

results.csv       p-values, in rows of their own
differences.csv   paired differences of the selected probe from other probes and baselines
sources.csv       a row for each source of `split.leave_out`, the worst first
reliability.csv   calibration of each kind of probe with probabilities, at its best site
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from probekit.amounts import LEVEL
from probekit.probes.prober import Prober
from probekit.probes.score import scored as scoring
from probekit.probes.score.contributions import RowScores, difference_of_parts
from probekit.probes.score.differences import Difference, paired_differences
from probekit.probes.score.exchange import ROUNDING, holm
from probekit.probes.score.metric_table import METRICS, association
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.targets import HEADLINE, NESTED, NETWORKS, TARGETS, WITHIN
from probekit.results.scores import Scores, answers_name, named_rivals
from probekit.results.table import P_VALUES, only

# Draws per site that make the smallest possible p-value significant after Holm's adjustment.
DRAWS_A_SITE = 80
MOST_DRAWS = 20_000  # exchanges of labels


_PLACE = ("site", "head", "position")  # columns that identify a site at a position
RELIABILITY = ("probe", *_PLACE, *scoring.ReliabilityBin.__dataclass_fields__)  # columns


@dataclass(frozen=True, eq=False)
class ScoredPredictions:
    """Predictions of one probe at one site, with the row of results.csv that has their score.

    Attributes:
        row: the row.
        predictions: the predictions whose mean score it has: one entry, or one for each network
            with random weights.
    """

    row: Mapping[str, Any]
    predictions: tuple[scoring.Predictions, ...]

    @property
    def name(self) -> str:
        """The name of the row in differences.csv."""
        return _name(self.row)


def scored(results: Sequence[scoring.SiteResult], metric: str) -> list[ScoredPredictions]:
    """Return the test predictions of every probe and baseline that has a score of the metric.

    Scores without saved predictions, and those inside the sources, are left out.
    """
    found = []
    for site in results:
        for row in site.rows:
            is_within = row["target"] in (WITHIN, NESTED[WITHIN])
            if row["split"] == "test" and row["metric"] == metric and not is_within:
                target = TARGETS[row["target"]]
                names = NETWORKS if target.is_mean_of_networks else (target.name,)
                predictors = (scoring.Predictor(row["probe"], name) for name in names)
                known = [one for one in predictors if one in site.predictions]
                if known:
                    predictions = tuple(site.predictions[one] for one in known)
                    found.append(ScoredPredictions(row, predictions))
    return found


def _name(row: Mapping[str, Any] | pd.Series[Any]) -> str:
    """Return the name of a row in differences.csv; a baseline is named by its target only."""
    return str(row["target"]) if pd.isna(row["site"]) else answers_name(row, row["target"])


def p_value_rows(
    all_scored: Sequence[ScoredPredictions], prober: Prober, draws: int, target: str = "task"
) -> list[dict[str, Any]]:
    """Return rows of results.csv with the p-values of a target at each site.

    The null hypothesis is that predictions and labels are not associated; see `LabelExchange`.
    `p_value` applies to a site named in advance, `p_holm` is adjusted for all sites and kinds, and
    `p_best` compares the score of the site with the best score over all sites in each exchange of
    labels. There are no rows if `draws` is 0, if the metric has no p-value, or if there are too few
    groups.

    Args:
        all_scored: the predictions of the run.
        prober: holds groups and rows.
        draws: least number of exchanges; there are more for many sites, see `DRAWS_A_SITE`.
        target: the target.
    """
    if draws == 0:
        return []
    # Kinds that read whole texts are scored on other rows, with exchanges of their own.
    by_rows: dict[bytes, list[tuple[Mapping[str, Any], RowScores]]] = {}
    for one in all_scored:
        if one.row["target"] == target:
            first = one.predictions[0]
            of_rows = association(one.row["metric"], first.family)
            if of_rows is not None:  # otherwise the metric has no p-value
                key = prober.rows_of(one.row["probe"]).tobytes()
                by_rows.setdefault(key, []).append((one.row, of_rows(first)))
    rows = []
    for entries in by_rows.values():
        n_draws = max(draws, min(DRAWS_A_SITE * len(entries), MOST_DRAWS))
        # All entries are scored on the same rows, and so with the same labels.
        first_row, first_scores = entries[0]
        exchange = prober.label_exchange(first_scores.labels, first_row["probe"], n_draws)
        if not exchange.is_enough:
            continue
        # The first column is that of the true labels, the others are those of exchanged labels.
        null = exchange.null([found for _, found in entries])
        p = null.p
        facts = {"ci_low": None, "ci_high": None, "chance": None, "null": exchange.name}
        null_rows = []
        for (row, _), scores in zip(entries, null.scores, strict=True):
            low, high = np.nan, np.nan  # of 95 % of the scores under exchanged labels
            # The scores of a linear metric differ from its value by a constant: the difference for
            # the true labels, which are first, is that for all.
            if METRICS[row["metric"]].is_linear:
                ends = np.quantile(scores[1:], [LEVEL / 2, 1 - LEVEL / 2])
                low, high = row["value"] - scores[0] + ends
            null_rows.append({**row, **facts, "null_low": float(low), "null_high": float(high)})
        for metric, values in zip(P_VALUES, (p.single, holm(p.single), p.maximum), strict=True):
            for row, value in zip(null_rows, values, strict=True):
                rows.append(row | {"metric": metric, "value": float(value)})
    return sorted(rows, key=lambda row: P_VALUES.index(row["metric"]))


def difference_rows(
    all_scored: Sequence[ScoredPredictions],
    chosen: pd.Series[Any],
    table: pd.DataFrame,
    prober: Prober,
    *,
    has_p_values: bool = True,
) -> list[dict[str, Any]]:
    """Return the paired differences of the selected probe from other probes and baselines.

    Only predictions on the same rows are compared. P-values of rivals named in advance are adjusted
    for these rivals only; the other p-values are adjusted for all comparisons. The difference from
    the majority class gets the p-value of the selected probe in `table`, and the limits of
    `lead_over`; without requested p-values only if they exclude 0 exactly where p is below 0.05,
    and that class has the same score on any rows. A baseline with the scores of this class is the
    same comparison. The list is empty without predictions of the selected probe, or without others
    to compare.

    Args:
        all_scored: the predictions of the run.
        chosen: the row of the selected probe.
        table: the rows of results.csv, with p-values.
        prober: holds groups and rows.
        has_p_values: whether p-values were requested for the table.
    """
    name, metric = _name(chosen), chosen["metric"]
    rows = prober.rows_of(chosen["probe"])
    predictions = {}
    for one in all_scored:
        # A baseline has the same name at all positions of a sweep: use the selected position's.
        is_here = pd.notna(one.row["site"]) or one.row["position"] in ("", chosen["position"])
        is_by_row = isinstance(one.predictions[0], ClassPredictions | NumberPredictions)
        if is_here and is_by_row and np.array_equal(prober.rows_of(one.row["probe"]), rows):
            predictions[one.name] = one.predictions
    if len(predictions) < 2 or name not in predictions:
        return []
    resamples = prober.resamples_of(chosen["probe"])
    values = {
        other: scoring.mean_score(metric, several, resamples)
        for other, several in predictions.items()
    }
    parts = {other: scoring.parts_of(metric, several) for other, several in predictions.items()}

    def compared(others: Iterable[str]) -> dict[str, Difference]:
        """Return the differences of the selected probe from others, adjusted for these alone."""
        names = [other for other in others if other != name]
        results = paired_differences(
            [(values[name], values[other]) for other in names],
            resamples,
            [difference_of_parts(parts[name], parts[other]) for other in names],
        )
        return dict(zip(names, results, strict=True))

    # Adjusted for all comparisons; those of rivals named in advance are replaced below.
    found = compared(values)
    rivals = named_rivals(Scores.of(table), chosen)
    named = [other for other in found if other in rivals]
    has_lead = METRICS[metric].has_p and "majority" in found
    guess = values["majority" if has_lead else name]
    # A rival that guesses the same as the majority class is the same comparison.
    same = [one for one in named if has_lead and np.allclose(values[one], guess, atol=ROUNDING)]
    found |= compared(other for other in named if not has_p_values or other not in same)
    if same:
        majority = found["majority"]
        interval = scoring.lead_over(metric, predictions[name], predictions["majority"], resamples)
        low, high = interval.low, interval.high
        # Without exchanges of labels, p is that of the difference; the limits must agree with it.
        agrees = (low > 0 or high < 0) if majority.p < LEVEL else low <= 0 <= high
        # No adjusted limit is closer. A NaN limit stays NaN: `min` keeps its first argument then.
        ends = min(majority.adjusted_low, low), max(majority.adjusted_high, high)
        p, adjusted = majority.p, majority.p_adjusted
        if has_p_values:
            # The p-value that the page shows. That of a nested choice is not adjusted for the
            # choice, which did not use the test rows.
            which = "p_value" if chosen["target"] == HEADLINE else "p_best"
            tested = only(table, metric=which, target=chosen["target"])
            p_of_name = [row["value"] for _, row in tested.iterrows() if _name(row) == name]
            # With too few groups, the table has no p-values. Nothing is adjusted.
            p = adjusted = float(p_of_name[0]) if p_of_name else float("nan")
            ends = low, high
        if has_p_values or (np.ptp(guess) < ROUNDING and agrees):
            lead = Difference(majority.a, majority.b, majority.value, low, high, p, adjusted, *ends)
            found |= dict.fromkeys(same, lead)
    facts = {"metric": metric, "n_test": len(rows), "n_groups": resamples.n_groups}
    return [
        {"a": name, "b": other, **difference_columns(one, metric), **facts}
        for other, one in found.items()
    ]


def difference_columns(found: Difference, metric: str) -> dict[str, Any]:
    """Return the columns of a difference between `a` and `b`, within the range of the metric."""
    limited = asdict(found.within(METRICS[metric].range))
    names = {"a": "value_a", "b": "value_b", "value": "difference"}
    return {names.get(name, name): value for name, value in limited.items()}


def reliability_rows(
    results: Sequence[scoring.SiteResult], table: pd.DataFrame, prober: Prober
) -> pd.DataFrame:
    """Return the reliability bins of each probabilistic kind of probe at its best site.

    The best site has the best cross-validated score; test rows are not used for the selection.
    """
    bins = []
    for _, row in Scores.of(table).ranked.drop_duplicates("probe").iterrows():
        probe, place = row["probe"], {name: row[name] for name in ("probe", *_PLACE)}
        for site in results:
            found = site.predictions.get(scoring.Predictor(probe, "task"))
            if not (isinstance(found, ClassPredictions) and found.scores_are_log_probabilities):
                continue
            if answers_name({**site.place, "probe": probe}) == answers_name(row):
                of_probe = scoring.reliability_bins(found, prober.resamples_of(probe))
                bins += [place | asdict(one) for one in of_probe]
    return pd.DataFrame(bins, columns=list(RELIABILITY))
