"""Scores of a run: the rows of results.csv by depth, and the sites that they select.

A site is selected by the best cross-validated score of the task.

Single split: the run selects one site and reports its test score.

Nested cross-validation: each outer fold selects a site, kind and position by its own validation
scores. The reported score, the nested choice, pools the test predictions of these selections. The
best site over all folds is used only to fit a final probe on all rows; its test score would be
biased, because its validation scores come from rows that other folds test.

                      single split                      nested cross-validation
    Scores.chosen     validation row of selected site   validation row of the final probe
    Scores.headline   None                              test row of the nested choice
    Scores.choices    [validation row of selected site] validation row selected by each fold
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE, NESTED, TARGETS, WITHIN
from probekit.results import table as run_tables
from probekit.results.table import EMBED_DEPTH, P_VALUES, TableColumn, only

MOST_SIZES = 2  # maximum number of sizes of one kind in a curve
SIZED = r"^(?P<family>.+):(?P<size>\d+)$"


@dataclass(frozen=True, eq=False)
class Scores:
    """Rows of results.csv, or some of them, with what is derived from these rows.

    Attributes:
        rows: the rows, with the columns of `with_depth`: `part`, `line` and `depth`.

    >>> table = pd.DataFrame({
    ...     "site": ["blocks.1.hook_resid_post", "blocks.0.hook_resid_post"], "value": [0.9, 0.8],
    ...     "head": float("nan"), "fold": None, "target": "task", "split": "validation",
    ...     "metric": "auroc", "main_metric": "auroc",
    ... })
    >>> scores = Scores.of(table)
    >>> scores.metric, scores.chosen["site"], scores.sited["depth"].tolist(), scores.blocks
    ('auroc', 'blocks.1.hook_resid_post', [0, 1], 2)
    """

    rows: pd.DataFrame

    @classmethod
    def of(cls, table: pd.DataFrame) -> Scores:
        """Return the scores in these rows of results.csv, numbered from 0."""
        return cls(run_tables.with_depth(table.reset_index(drop=True)))

    @classmethod
    def load(cls, path: Path, columns: Sequence[TableColumn] = run_tables.RESULTS) -> Scores:
        """Return the scores in a results.csv, or in another file with these columns.

        Raises:
            MissingError: The file does not exist.
            DataError: A column is missing, a cell is invalid, or there are no rows.
        """
        return cls.of(run_tables.load_table(path, columns))

    def where(self, keep: Any = None, **values: str | int) -> Scores:
        """Return the rows for which `keep` is true and whose columns hold the given values."""
        rows = self.rows if keep is None else self.rows[keep]
        return Scores(only(rows, **values))

    def of_runs(self) -> Iterator[Scores]:
        """Yield the scores of each run; of a single one these scores, with what they derive."""
        runs = self.rows.groupby("run", sort=False)
        yield from [self] if len(runs) == 1 else (Scores(rows) for _, rows in runs)

    @cached_property
    def layers(self) -> dict[int, str]:
        """The labels of the layer axis, by depth; empty without single sites."""
        return {} if self.sited.empty else run_tables.ticks(self.sited)

    @cached_property
    def of_all_folds(self) -> Scores:
        """The rows without those of single outer folds."""
        return self.where(self.rows["fold"].isna())

    @cached_property
    def sited(self) -> pd.DataFrame:
        """The rows of single sites, by depth."""
        return run_tables.by_depth(self.rows)

    @cached_property
    def concatenated(self) -> pd.DataFrame:
        """The rows of concatenated sites."""
        return only(self.rows, line=run_tables.CONCATENATED)

    @cached_property
    def blocks(self) -> int:
        """Number of blocks, taken from the deepest one that has a row."""
        return run_tables.n_blocks(self.sited["site"].unique())

    @cached_property
    def drawn(self) -> Scores:
        """The rows of figures: scores on test rows, and scores of online coding."""
        return self.where(self.rows["split"].isin(["test", "online"]))

    def measured(self, metric: str) -> Scores:
        """Return the rows of figures of a metric, including those of the baselines.

        For compression these are rows of the split `online`, measured on the training rows.
        """
        return self.drawn.where(metric=metric)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that figures can show at single sites; p-values are left out."""
        metrics = self.drawn.sited["metric"]
        return list(metrics[~metrics.isin(P_VALUES)].unique())

    @cached_property
    def main_metrics(self) -> tuple[str, ...]:
        """The main metrics that the run recorded: one, or for trees one per kind of probe."""
        cells = self.rows["main_metric"].dropna().unique()
        recorded = {name for cell in cells for name in cell.split()}
        return tuple(name for name in METRICS if name in recorded)

    @cached_property
    def metric(self) -> str:
        """The metric by which sites are selected: the first main metric that has rows.

        If none has rows, it is the first main metric. A run that records none has `MAIN_METRICS`.
        """
        candidates = self.main_metrics or run_tables.MAIN_METRICS
        measured = self.rows["metric"].unique()
        return next((metric for metric in candidates if metric in measured), candidates[0])

    @cached_property
    def is_nested(self) -> bool:
        """Whether the run is a nested cross-validation: there are rows of outer folds."""
        return bool(self.rows["fold"].notna().any())

    def ranks(self, target: str = "task", fold: int | None = None) -> pd.DataFrame:
        """Return the validation rows of a target at single sites, best score first.

        Test rows are not used. Equal scores are in order of depth, shallowest first.
        Concatenated sites are excluded, because they do not localise information.

        Args:
            target: the target whose scores are ranked.
            fold: the outer fold whose scores are used; None for the scores of all folds.
        """
        of_fold = self.of_all_folds if fold is None else self.where(self.rows["fold"] == fold)
        validated = of_fold.where(target=target, split="validation")
        # Scores of different metrics cannot be ranked together.
        return best_first(only(validated.sited, metric=validated.metric), validated.metric)

    def fold_ranks(self, target: str = "task") -> list[pd.DataFrame]:
        """Return the `ranks` of each outer fold; a single split is one fold."""
        # The folds inside the sources are others than those of all other targets.
        of_target = self.rows[(self.rows["target"] == WITHIN) == (target == WITHIN)]
        folds = sorted(of_target["fold"].dropna().unique())
        return [self.ranks(target, fold) for fold in folds or [None]]

    def fold_choices(self, target: str = "task") -> list[pd.Series]:
        """Return the best validation row of each outer fold; a single split is one fold.

        A fold uses the validation scores of its own training rows only. The list is empty if a
        fold has no validation score.
        """
        ranked = self.fold_ranks(target)
        return [] if any(rows.empty for rows in ranked) else [rows.iloc[0] for rows in ranked]

    @cached_property
    def choices(self) -> list[pd.Series]:
        """The validation row of the task that each outer fold selected; see `fold_choices`."""
        return self.fold_choices()

    @cached_property
    def ranked(self) -> pd.DataFrame:
        """The validation rows of the task over all folds, best score first; see `ranks`."""
        return self.ranks()

    @cached_property
    def chosen(self) -> pd.Series | None:
        """The validation row with the best score over all folds; None without validation.

        For a single split it is the selected probe. For a nested cross-validation it is only the
        final probe, which is fitted on all rows; the reported score is that of `headline`.
        """
        return None if self.ranked.empty else self.ranked.iloc[0]

    @cached_property
    def headline(self) -> pd.Series | None:
        """The test row of the nested choice, the pooled score of all outer folds.

        None for a single split, or if there is no such row.
        """
        rows = only(self.rows, target=HEADLINE, split="test", metric=self.metric)
        return None if rows.empty else rows.iloc[0]

    @property
    def reported(self) -> pd.Series | None:
        """The row of the choice whose test score is reported: `headline`, or else `chosen`."""
        return self.headline if self.is_nested else self.chosen

    @cached_property
    def hidden_kinds(self) -> list[str]:
        """The probes that are hidden because another size of the same kind ranks first.

        This applies to kinds with more than two sizes, such as k_sparse with many values of k.
        """
        probes = self.rows["probe"].drop_duplicates()
        family = probes.str.extract(SIZED)["family"]
        best_to_worst = list(self.ranked["probe"].unique())
        hidden = []
        # Probes without a size have the family NaN, which `groupby` leaves out.
        for _, members in probes.groupby(family):
            ranked = [probe for probe in best_to_worst if probe in set(members)]
            if len(members) > MOST_SIZES and ranked:
                hidden += [probe for probe in members if probe != ranked[0]]
        return hidden


def best_first(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the rows sorted by their value of a metric, best first; ties keep their order."""
    return rows.sort_values("value", ascending=METRICS[metric].lower_is_better, kind="stable")


def site_with_head(site: str, head: float | None) -> str:
    """Return the name of a site, with its head if there is one.

    >>> site_with_head("blocks.5.attn.hook_z", 3)
    'blocks.5.attn.hook_z[head=3]'
    """
    return site if head is None or np.isnan(head) else f"{site}[head={head:.0f}]"


def answers_name(row: Mapping[str, Any] | pd.Series[Any], target: str = "task") -> str:
    """Return the name of predictions in differences.csv: site, position, probe and target."""
    return f"{site_with_head(row['site'], row['head'])} {row['position']} {row['probe']} {target}"


def named_rivals(scores: Scores, chosen: pd.Series) -> dict[str, tuple[str, str]]:
    """Return the rivals of the selected probe: name in differences.csv -> key and display name.

    The rivals are determined by cross-validation only; test rows are not used. Those of a nested
    choice are the baselines, and the nested choices of other targets. The key is the target that
    the rival predicts or is chosen for; it is "" for neighbouring sites and other kinds of probe.
    Baselines and networks that the run lacks are included.
    """
    named = {target: (target, TARGETS[target].title) for target in BASELINES}
    if scores.is_nested:
        for target, choice in NESTED.items():
            if choice != HEADLINE:
                named[choice] = (target, TARGETS[choice].title)
        return named
    of_run = {"position": chosen["position"], "run": chosen["run"]}
    tasks = only(scores.sited, target="task", split="validation", **of_run)
    line = only(tasks, line=chosen["line"], probe=chosen["probe"])
    at_site = only(tasks, line=chosen["line"], site=chosen["site"])
    networks_choice = NESTED["random_weights"]
    if (scores.rows["target"] == networks_choice).any():
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
            is_given = not pd.isna(row.get("order"))  # it has the name of its site
            place = row["site"] if is_given else run_tables.tick(row["depth"], scores.blocks)
            block = "block " if not is_given and place.isdigit() else ""
            named[answers_name(row)] = ("", f"neighbour: {block}{place}")
    for _, row in at_site.iterrows():
        if row["probe"] != chosen["probe"] and row["probe"] not in scores.hidden_kinds:
            named[answers_name(row)] = ("", f"{row['probe']}, same site")
    return named
