"""The score that a run reports: of the chosen site, or of the choices of all outer folds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from probekit.probes.targets import HEADLINE
from probekit.results.selection import (
    choice_counts,
    headline_row,
    is_nested,
    reported_row,
)
from probekit.results.table import only, placed, same_features


@dataclass(frozen=True)
class HeadlineScore:
    """The reported score of a run, on test rows.

    Attributes:
        site: the chosen site; with outer folds, the site that most of them chose.
        metric: the main metric.
        value: the score; with outer folds, that of the pooled predictions of each fold's choice.
        ci_low: lower end of the 95 % interval.
        ci_high: upper end of the 95 % interval.
        chance: the score at chance level.
        p: p-value, adjusted for the maximum over all sites unless it is that of outer folds; NaN
            with too few groups, None without a test.
        n: number of test rows.
        sites: number of outer folds that chose each site.
    """

    site: str
    metric: str
    value: float
    ci_low: float
    ci_high: float
    chance: float
    p: float | None
    n: int
    sites: Mapping[str, int]


def headline_score(table: pd.DataFrame) -> HeadlineScore | None:
    """Return the reported score of a run; None if no site was chosen.

    Args:
        table: rows of results.csv.
    """
    chosen = reported_row(table)
    if chosen is None:
        return None
    if is_nested(table):
        row = headline_row(table)
        tested = only(table, target=HEADLINE, metric="p_value")["value"]
    else:
        own = same_features(placed(only(table, target="task")), chosen)
        measured = only(own, split="test", metric=chosen["metric"])
        row = None if measured.empty else measured.iloc[0]
        tested = only(own, metric="p_best")["value"]
    if row is None:
        return None
    sites = choice_counts(table)
    return HeadlineScore(
        site=next(iter(sites))
        if is_nested(table)
        else site_with_head(chosen["site"], chosen["head"]),
        metric=str(row["metric"]),
        value=float(row["value"]),
        ci_low=float(row["ci_low"]),
        ci_high=float(row["ci_high"]),
        chance=float(row["chance"]),
        p=None if tested.empty else float(tested.iloc[0]),
        n=int(row["n_test"]),
        sites=sites,
    )
