"""Columns of results.csv and differences.csv, declared once for writing and reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS

ColumnType = Literal["text", "number", "boolean"]


@dataclass(frozen=True)
class TableColumn:
    """One column of a table on disk.

    Attributes:
        name: the name in the header.
        meaning: the contents of the cells, for the reference pages.
        type: the type of its cells. Empty cells are "" in text columns, NaN in number columns and
            NA in boolean columns.
        allowed: the allowed values of text cells; empty for any.
    """

    name: str
    meaning: str
    type: ColumnType = "text"
    allowed: tuple[str, ...] = ()


RESULTS = (
    TableColumn("run", "key of the run, the name of its folder"),
    TableColumn("model", "model as given in the experiment"),
    TableColumn("dataset", "name of the data set"),
    TableColumn("site", "probed site; empty for baselines and for scores that combine choices"),
    TableColumn("layer", "block of the site; empty outside of the blocks", "number"),
    TableColumn("component", "kind of the site, without the block"),
    TableColumn("head", "attention head, if a single one is probed", "number"),
    TableColumn("position", "probed token, such as `last` or `word:last-1`"),
    TableColumn("probe", "kind of probe with its options"),
    TableColumn(
        "target",
        "what is scored: the task, a control, a baseline or the random weights",
        allowed=tuple(TARGETS),
    ),
    TableColumn(
        "split",
        "rows that are scored: test rows, validation rows of the inner folds, blocks of online "
        "coding, or test rows after training on fewer rows",
        allowed=("test", "validation", "online", "learning"),
    ),
    TableColumn("fold", "outer fold; empty for scores of all test rows", "number"),
    TableColumn("metric", "name of the metric", allowed=tuple(METRICS)),
    TableColumn("value", "value of the metric", "number"),
    TableColumn("ci_low", "lower end of the 95 % interval over groups", "number"),
    TableColumn("ci_high", "upper end of the 95 % interval over groups", "number"),
    TableColumn("chance", "score of predictions that ignore the activations", "number"),
    TableColumn("n_train", "number of training rows", "number"),
    TableColumn("n_test", "number of scored rows", "number"),
    TableColumn("n_groups", "number of groups among the scored rows", "number"),
    TableColumn("C", "penalty selected by cross-validation: C or alpha", "number"),
    TableColumn("n_iter", "iterations of the solver", "number"),
    TableColumn("converged", "whether the solver converged", "boolean"),
    TableColumn("seed", "random seed of the experiment, or of the random weights", "number"),
    TableColumn("view", "`raw` activations, or `normalized` by a layer norm"),
    TableColumn("null", "null distribution of a p-value: how labels are exchanged"),
    TableColumn("null_low", "lower end of the 95 % band of the null", "number"),
    TableColumn("null_high", "upper end of the 95 % band of the null", "number"),
    TableColumn("main_metric", "metric that selected C and the site"),
    TableColumn("positive", "label that metrics of one class refer to"),
    TableColumn("order", "place of given activations on the layer axis", "number"),
)

DIFFERENCES = (
    TableColumn("a", "the selected probe"),
    TableColumn("b", "another probe or a baseline"),
    TableColumn("metric", "name of the metric", allowed=tuple(METRICS)),
    TableColumn("value_a", "score of `a`", "number"),
    TableColumn("value_b", "score of `b`", "number"),
    TableColumn("difference", "`value_a` minus `value_b`", "number"),
    TableColumn("ci_low", "lower end of the 95 % interval of the difference", "number"),
    TableColumn("ci_high", "upper end of the 95 % interval of the difference", "number"),
    TableColumn("p", "p-value of the difference, which its interval agrees with", "number"),
    TableColumn(
        "p_adjusted",
        "p-value adjusted for all comparisons made together",
        "number",
    ),
    TableColumn(
        "adjusted_low",
        "lower end of the interval for all comparisons together",
        "number",
    ),
    TableColumn(
        "adjusted_high",
        "upper end of the interval for all comparisons together",
        "number",
    ),
    TableColumn("n_test", "number of test rows that both have", "number"),
    TableColumn("n_groups", "number of groups among these rows", "number"),
)


def make_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[TableColumn]) -> pd.DataFrame:
    """Return the rows as a table with the declared columns, in this order.

    >>> make_table([{"b": "length", "a": "task"}], DIFFERENCES).columns[:2].tolist()
    ['a', 'b']
    """
    return pd.DataFrame(list(rows), columns=[column.name for column in columns])
