"""Which site a run chooses: the one with the best cross-validated score of the task."""

from __future__ import annotations

import numpy as np
import pandas as pd

from probekit.results.metrics import MAIN_METRICS, P_VALUES
from probekit.results.table import figure_rows, only, placed

MOST_SIZES = 2  # probes of one kind that a curve takes
SIZED = r"^(?P<family>.+):(?P<size>\d+)$"


def main_metric(table: pd.DataFrame) -> str:
    """Return the metric by which sites are chosen: the first of the main ones in the table.

    >>> main_metric(pd.DataFrame({"metric": ["spearman", "r2"]}))
    'r2'
    """
    there = set(table["metric"])
    return next((metric for metric in MAIN_METRICS if metric in there), MAIN_METRICS[0])


def ranked_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the placed task rows of the cross-validated score, from the highest to the lowest.

    Test rows are never looked at; among equals the shallowest comes first. Concatenated sites do
    not compete: what can be read from all of them says nothing of where.
    """
    validated = only(table, target="task", split="validation")
    # Scores of two metrics have no order among each other.
    rows = placed(only(validated, metric=main_metric(validated)))
    return rows.sort_values("value", ascending=False, kind="stable")


def chosen_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the first of the ranked rows, None without any."""
    return next((row for _, row in ranked_rows(table).iterrows()), None)


def selection(site: str, head: float | None) -> str:
    """Return a site with its head as people write it.

    >>> selection("blocks.5.attn.hook_z", 3)
    'blocks.5.attn.hook_z[head=3]'
    """
    return site if head is None or np.isnan(head) else f"{site}[head={head:.0f}]"


def measured_metrics(table: pd.DataFrame) -> list[str]:
    """Return the metrics that the table holds rows of to draw, at a site."""
    metrics = placed(figure_rows(table))["metric"]
    return list(metrics[~metrics.isin(P_VALUES)].unique())


def hidden_kinds(table: pd.DataFrame) -> list[str]:
    """Return the probes that differ from a better one in their size alone, where sizes are many.

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
