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
        type: the type of its cells. Empty cells are "" in text columns, NaN in number columns and
            NA in boolean columns.
        allowed: the allowed values of text cells; empty for any.
        is_new: whether older releases did not write the column. Its cells are then read as empty.
        former: the name of the column in files of older releases; empty if it is the same.
    """

    name: str
    type: ColumnType = "text"
    allowed: tuple[str, ...] = ()
    is_new: bool = False
    former: str = ""


def _numbers(*names: str) -> tuple[TableColumn, ...]:
    return tuple(TableColumn(name, "number") for name in names)


RESULTS = (
    TableColumn("run"),
    TableColumn("model"),
    TableColumn("dataset"),
    TableColumn("site"),
    TableColumn("layer", "number"),
    TableColumn("component"),
    TableColumn("head", "number"),
    TableColumn("position"),
    TableColumn("probe"),
    TableColumn("target", allowed=tuple(TARGETS)),
    TableColumn("split", allowed=("test", "validation", "online", "learning")),
    TableColumn("fold", "number", is_new=True),
    TableColumn("metric", allowed=tuple(METRICS)),
    *_numbers("value", "ci_low", "ci_high", "chance", "n_train", "n_test", "n_groups"),
    *_numbers("C", "n_iter"),
    TableColumn("converged", "boolean"),
    TableColumn("seed", "number"),
    TableColumn("view"),
    TableColumn("null", is_new=True),
    TableColumn("null_low", "number", is_new=True),
    TableColumn("null_high", "number", is_new=True),
    TableColumn("main_metric", is_new=True),
    TableColumn("positive", is_new=True),
    TableColumn("order", "number", is_new=True),
)

DIFFERENCES = (
    TableColumn("a"),
    TableColumn("b"),
    TableColumn("metric", allowed=tuple(METRICS)),
    *_numbers("value_a", "value_b", "difference", "ci_low", "ci_high", "p"),
    TableColumn("p_adjusted", "number", former="p_holm"),
    *_numbers("n_test", "n_groups"),
)


def make_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[TableColumn]) -> pd.DataFrame:
    """Return the rows as a table with the declared columns, in this order.

    >>> make_table([{"b": "length", "a": "task"}], DIFFERENCES).columns[:2].tolist()
    ['a', 'b']
    """
    return pd.DataFrame(list(rows), columns=[column.name for column in columns])
