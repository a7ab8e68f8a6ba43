"""Selection of a site: the one with the best cross-validated score of the task.

With one split this is the site whose test score is reported. Under a nested cross-validation each
outer fold selects a site, kind and position by its own validation scores (`fold_choices`), and the
reported score pools the test predictions of these choices (`headline_row`). The selection over all
folds (`chosen_row`) then only determines the probe that is refitted on all rows: its validation
scores come from rows that other folds test.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from probekit.probes.targets import HEADLINE
from probekit.results.metrics import MAIN_METRICS, P_VALUES
from probekit.results.table import figure_rows, of_all_folds, only, placed

MOST_SIZES = 2  # maximum number of sizes of one kind in a curve
SIZED = r"^(?P<family>.+):(?P<size>\d+)$"


def main_metric(table: pd.DataFrame) -> str:
    """Return the metric by which sites are selected: the first main metric in the table.

    >>> main_metric(pd.DataFrame({"metric": ["spearman", "r2"]}))
    'r2'
    """
    measured = set(table["metric"])
    return next((metric for metric in MAIN_METRICS if metric in measured), MAIN_METRICS[0])


def ranked_rows(table: pd.DataFrame, target: str = "task", fold: int | None = None) -> pd.DataFrame:
    """Return the placed rows of a target in descending order of the cross-validated score.

    Test rows of the split, or of the outer fold, are not used. Ties are in order of depth,
    shallowest first. Concatenated sites are excluded, because they do not localise information.

    Args:
        table: rows of results.csv.
        target: the target whose scores are ranked.
        fold: the outer fold whose scores are used; None for the scores of all folds.
    """
    own = of_all_folds(table) if fold is None else table[table["fold"] == fold]
    validated = only(own, target=target, split="validation")
    # Scores of different metrics cannot be ranked together.
    rows = placed(only(validated, metric=main_metric(validated)))
    return rows.sort_values("value", ascending=False, kind="stable")


def chosen_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the validation row of the best site and probe; None if there are no ranked rows.

    Under a nested cross-validation it is that of the probe that is refitted on all rows.
    """
    return next((row for _, row in ranked_rows(table).iterrows()), None)


def is_nested(table: pd.DataFrame) -> bool:
    """Return whether the table has validation scores of single outer folds."""
    return "fold" in table and bool(table["fold"].notna().any())


def fold_choices(table: pd.DataFrame, target: str = "task") -> list[pd.Series]:
    """Return the validation row of the site and probe that each outer fold chooses, in fold order.

    A fold uses the validation scores of its own training rows only. The list is empty for a single
    split, and if a fold has no validation score.
    """
    ranked = fold_ranks(table, target)
    return [] if any(rows.empty for rows in ranked) else [rows.iloc[0] for rows in ranked]


def fold_ranks(table: pd.DataFrame, target: str = "task") -> list[pd.DataFrame]:
    """Return the rows that each outer fold chooses from, best first; empty for a single split."""
    folds = sorted(table["fold"].dropna().unique()) if is_nested(table) else []
    return [ranked_rows(table, target, fold) for fold in folds]


def headline_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the test row of the nested choice; None for a single split."""
    rows = only(table, target=HEADLINE, split="test", metric=main_metric(table))
    return next((row for _, row in rows.iterrows()), None)


def reported_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the row that identifies the score of a run; None if nothing was chosen.

    It is the test row of the nested choice, or the validation row of the site that a single split
    chose.
    """
    return headline_row(table) if is_nested(table) else chosen_row(table)


def choices(table: pd.DataFrame) -> list[pd.Series]:
    """Return the validation row that each outer fold chose, or the single split; may be empty."""
    chosen = chosen_row(table)
    if is_nested(table) or chosen is None:
        return fold_choices(table)
    return [chosen]


def choice_counts(table: pd.DataFrame) -> dict[str, int]:
    """Return by how many outer folds each site was chosen, most often first.

    A single split counts as one fold. Empty if no site was chosen.
    """
    counts = Counter(selection(row["site"], row["head"]) for row in choices(table))
    return dict(counts.most_common())


def single_choice(table: pd.DataFrame) -> pd.Series | None:
    """Return the validation row of the site whose test score is reported; None if there is none.

    A nested choice is not the score of one site, so there is none.
    """
    return None if is_nested(table) else chosen_row(table)


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
