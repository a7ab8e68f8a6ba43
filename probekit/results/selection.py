"""Selection of a site: the one with the best cross-validated score of the task."""

from __future__ import annotations

import numpy as np
import pandas as pd

from probekit.results.metrics import MAIN_METRICS, P_VALUES
from probekit.results.table import figure_rows, only, placed

MOST_SIZES = 2  # maximum number of sizes of one kind in a curve
SIZED = r"^(?P<family>.+):(?P<size>\d+)$"


def main_metric(table: pd.DataFrame) -> str:
    """Return the metric by which sites are selected: the first main metric in the table.

    >>> main_metric(pd.DataFrame({"metric": ["spearman", "r2"]}))
    'r2'
    """
    measured = set(table["metric"])
    return next((metric for metric in MAIN_METRICS if metric in measured), MAIN_METRICS[0])


def ranked_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the placed task rows in descending order of the cross-validated score.

    Test rows are not used. Ties are in order of depth, shallowest first. Concatenated sites are
    excluded, because they do not localise information.
    """
    validated = only(table, target="task", split="validation")
    # Scores of different metrics cannot be ranked together.
    rows = placed(only(validated, metric=main_metric(validated)))
    return rows.sort_values("value", ascending=False, kind="stable")


def chosen_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the row of the selected site and probe; None if there are no ranked rows."""
    return next((row for _, row in ranked_rows(table).iterrows()), None)


def selection(site: str, head: float | None) -> str:
    """Return the name of a site, with its head if there is one.

    >>> selection("blocks.5.attn.hook_z", 3)
    'blocks.5.attn.hook_z[head=3]'
    """
    return site if head is None or np.isnan(head) else f"{site}[head={head:.0f}]"


def measured_metrics(table: pd.DataFrame) -> list[str]:
    """Return the metrics that have rows to draw at single sites, without p-values."""
    metrics = placed(figure_rows(table))["metric"]
    return list(metrics[~metrics.isin(P_VALUES)].unique())


def hidden_kinds(table: pd.DataFrame) -> list[str]:
    """Return the probes that are hidden because another size of the same kind scores better.

    This applies to kinds with more than two sizes, such as k_sparse with many values of k.

    >>> hidden_kinds(pd.DataFrame({
    ...     "probe": ["k_sparse:1", "k_sparse:4", "k_sparse:16"], "value": [0.6, 0.8, 0.7],
    ...     "target": "task", "split": "validation", "metric": "accuracy",
    ...     "site": "hook_embed", "head": float("nan"),
    ... }))
    ['k_sparse:1', 'k_sparse:16']
    """
    probes = table["probe"].drop_duplicates()
    family = probes.str.extract(SIZED)["family"]
    best = list(ranked_rows(table)["probe"].unique())
    hidden = []
    for _, members in probes.groupby(family):
        ranked = [probe for probe in best if probe in set(members)]
        if len(members) > MOST_SIZES and ranked:
            hidden += [probe for probe in members if probe != ranked[0]]
    return hidden
