"""Selection of a site: the one with the best cross-validated score of the task.

Single split: the run selects one site and reports its test score.

Nested cross-validation: each outer fold selects a site, kind and position by its own validation
scores. The reported score, the nested choice, pools the test predictions of these selections. The
best site over all folds is used only to fit a final probe on all rows; its test score would be
biased, because its validation scores come from rows that other folds test.

                  single split                      nested cross-validation
    chosen_row    validation row of selected site   validation row of the final probe
    headline_row  None                              test row of the nested choice
    choices       [validation row of selected site] validation row selected by each fold
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE, NESTED, TARGETS, WITHIN
from probekit.results.table import (
    EMBED_DEPTH,
    MAIN_METRICS,
    P_VALUES,
    figure_rows,
    n_blocks,
    of_all_folds,
    only,
    placed,
    tick,
)

MOST_SIZES = 2  # maximum number of sizes of one kind in a curve
SIZED = r"^(?P<family>.+):(?P<size>\d+)$"


def main_metrics(table: pd.DataFrame) -> tuple[str, ...]:
    """Return the main metrics that the run recorded: one, or for trees one per kind of probe.

    >>> main_metrics(pd.DataFrame({"main_metric": ["auroc", None]}))
    ('auroc',)
    """
    recorded = {name for cell in table["main_metric"].dropna().unique() for name in cell.split()}
    return tuple(name for name in METRICS if name in recorded)


def main_metric(table: pd.DataFrame) -> str:
    """Return the metric by which sites are selected: the first main metric that has rows.

    If none has rows, it is the first main metric. A table that records none has `MAIN_METRICS`.

    >>> main_metric(pd.DataFrame({"metric": ["spearman", "r2"], "main_metric": ["r2", "r2"]}))
    'r2'
    """
    candidates, measured = (main_metrics(table) or MAIN_METRICS), table["metric"].unique()
    return next((metric for metric in candidates if metric in measured), candidates[0])


def ranked_rows(table: pd.DataFrame, target: str = "task", fold: int | None = None) -> pd.DataFrame:
    """Return the validation rows of a target at single sites, best cross-validated score first.

    Test rows are not used. Equal scores are in order of depth, shallowest first.
    Concatenated sites are excluded, because they do not localise information.

    Args:
        table: rows of results.csv.
        target: the target whose scores are ranked.
        fold: the outer fold whose scores are used; None for the scores of all folds.
    """
    of_fold = of_all_folds(table) if fold is None else table[table["fold"] == fold]
    validated = only(of_fold, target=target, split="validation")
    # Scores of different metrics cannot be ranked together.
    metric = main_metric(validated)
    rows = placed(only(validated, metric=metric))
    return best_first(rows, metric)


def best_first(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows sorted by their value of a metric, best first; ties keep their order."""
    ascending = METRICS[metric].lower_is_better
    return rows.sort_values("value", ascending=ascending, kind="stable")


def chosen_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the validation row with the best score over all folds; None without validation.

    For a single split it is the selected probe. For a nested cross-validation it is only the final
    probe, which is fitted on all rows; the reported score is that of `headline_row`.
    """
    return next((row for _, row in ranked_rows(table).iterrows()), None)


def is_nested(table: pd.DataFrame) -> bool:
    """Return whether the table is that of a nested cross-validation: it has rows of outer folds."""
    return bool(table["fold"].notna().any())


def fold_choices(table: pd.DataFrame, target: str = "task") -> list[pd.Series]:
    """Return the best validation row of each outer fold, in the order of folds.

    A fold uses the validation scores of its own training rows only. The list is empty for a single
    split, or if a fold has no validation score.
    """
    ranked = fold_ranks(table, target)
    return [] if any(rows.empty for rows in ranked) else [rows.iloc[0] for rows in ranked]


def fold_ranks(table: pd.DataFrame, target: str = "task") -> list[pd.DataFrame]:
    """Return the validation rows of each outer fold, best first; empty for a single split."""
    # The folds inside the sources are others than those of all other targets.
    table = table[(table["target"] == WITHIN) == (target == WITHIN)]
    folds = sorted(table["fold"].dropna().unique()) if is_nested(table) else []
    return [ranked_rows(table, target, fold) for fold in folds]


def headline_row(table: pd.DataFrame) -> pd.Series | None:
    """Return the test row of the nested choice, the pooled score of all outer folds.

    None for a single split, or if there is no such row.
    """
    rows = only(table, target=HEADLINE, split="test", metric=main_metric(table))
    return next((row for _, row in rows.iterrows()), None)


def choices(table: pd.DataFrame) -> list[pd.Series]:
    """Return the validation row that each outer fold selected; a single split is one fold.

    The list is empty without validation scores.
    """
    if is_nested(table):
        return fold_choices(table)
    chosen = chosen_row(table)
    return [] if chosen is None else [chosen]


def site_with_head(site: str, head: float | None) -> str:
    """Return the name of a site, with its head if there is one.

    >>> site_with_head("blocks.5.attn.hook_z", 3)
    'blocks.5.attn.hook_z[head=3]'
    """
    return site if head is None or np.isnan(head) else f"{site}[head={head:.0f}]"


def measured_metrics(table: pd.DataFrame) -> list[str]:
    """Return the metrics that figures can show at single sites; p-values are left out."""
    columns = ["site", "order", "component", "head", "depth", "metric"]
    metrics = placed(figure_rows(table)[table.columns.intersection(columns)])["metric"]
    return list(metrics[~metrics.isin(P_VALUES)].unique())


def hidden_kinds(table: pd.DataFrame) -> list[str]:
    """Return the probes that are hidden because another size of the same kind ranks first.

    This applies to kinds with more than two sizes, such as k_sparse with many values of k.

    >>> hidden_kinds(pd.DataFrame({
    ...     "probe": ["k_sparse:1", "k_sparse:4", "k_sparse:16"], "value": [0.6, 0.8, 0.7],
    ...     "target": "task", "split": "validation", "metric": "accuracy",
    ...     "site": "hook_embed", "head": float("nan"), "fold": None, "main_metric": "accuracy",
    ... }))
    ['k_sparse:1', 'k_sparse:16']
    """
    probes = table["probe"].drop_duplicates()
    family = probes.str.extract(SIZED)["family"]
    best_to_worst = list(ranked_rows(table)["probe"].unique())
    hidden = []
    # Probes without a size have the family NaN, which `groupby` leaves out.
    for _, members in probes.groupby(family):
        ranked = [probe for probe in best_to_worst if probe in set(members)]
        if len(members) > MOST_SIZES and ranked:
            hidden += [probe for probe in members if probe != ranked[0]]
    return hidden


def answers_name(row: Mapping[str, Any] | pd.Series[Any], target: str = "task") -> str:
    """Return the name of predictions in differences.csv: site, position, probe and target."""
    return f"{site_with_head(row['site'], row['head'])} {row['position']} {row['probe']} {target}"


def named_rivals(table: pd.DataFrame, chosen: pd.Series) -> dict[str, tuple[str, str]]:
    """Return the rivals of the selected probe: name in differences.csv -> key and display name.

    The rivals are determined by cross-validation only; test rows are not used. Those of a nested
    choice are the baselines, and the nested choices of other targets. The key is the target that
    the rival predicts or is chosen for; it is "" for neighbouring sites and other kinds of probe.
    Baselines and networks that the run lacks are included.
    """
    named = {target: (target, TARGETS[target].title) for target in BASELINES}
    if is_nested(table):
        for target, choice in NESTED.items():
            if choice != HEADLINE:
                named[choice] = (target, TARGETS[choice].title)
        return named
    tasks = placed(only(table, target="task", split="validation"))
    tasks = only(tasks, position=chosen["position"], run=chosen["run"])
    line = only(tasks, line=chosen["line"], probe=chosen["probe"])
    at_site = only(tasks, line=chosen["line"], site=chosen["site"])
    networks_choice = NESTED["random_weights"]
    if (table["target"] == networks_choice).any():
        named[networks_choice] = ("random_weights", TARGETS[networks_choice].title)
    else:
        # The networks cannot choose sites without validation scores, as for probes of whole texts.
        label = f"{TARGETS['random_weights'].title}, same site"
        named[answers_name(chosen, "random_weights")] = ("random_weights", label)
    for _, row in line.iterrows():
        steps = row["depth"] - chosen["depth"]
        if row["depth"] == EMBED_DEPTH and steps:
            named[answers_name(row)] = ("embedding", "the embedding")
        elif abs(steps) == 1:
            named[answers_name(row)] = ("", _neighbour(row, table))
    hidden = hidden_kinds(table)
    for _, row in at_site.iterrows():
        if row["probe"] != chosen["probe"] and row["probe"] not in hidden:
            named[answers_name(row)] = ("", f"{row['probe']}, same site")
    return named


def _neighbour(row: pd.Series, table: pd.DataFrame) -> str:
    """Return the display name of a neighbouring site: its block; of given activations, its name."""
    if not pd.isna(row.get("order")):
        return f"neighbour: {row['site']}"
    label = tick(row["depth"], n_blocks(placed(table)))
    return f"neighbour: block {label}" if label.isdigit() else f"neighbour: {label}"
