"""Alignment of the test rows of two runs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.experiment.schema import DataSection, Experiment
from probekit.results.finished_run import FinishedRun

_ROW = ["example", "group", "label"]


def align(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> NDArray[np.int64] | None:
    """Return the index in b of each test row of a; None if the rows differ.

    Rows are equal if example, group and label are equal. Several equal rows (the tokens of one
    text) are matched in order.

    >>> rows = pd.DataFrame({"example": ["s1", "s1", "s2"], "group": "g", "label": ["x", "x", "y"]})
    >>> align(rows, rows[::-1].reset_index(drop=True)).tolist()
    [1, 2, 0]
    >>> align(rows, rows[:2]) is None
    True
    """
    if len(rows_a) != len(rows_b):
        return None
    places = _keys(rows_b).get_indexer(_keys(rows_a)).astype(np.int64)
    return None if (places < 0).any() else places


def _keys(rows: pd.DataFrame) -> pd.MultiIndex:
    occurrence = rows.groupby(_ROW, sort=False).cumcount()
    return pd.MultiIndex.from_frame(rows[_ROW].assign(occurrence=occurrence))


def shares_ids(a: FinishedRun[Experiment], b: FinishedRun[Experiment]) -> bool:
    """Return whether an example id refers to the same text in both runs.

    Ids that are row numbers do so only within the same data set.
    """
    same_data = a.record.digests.get("dataset") == b.record.digests.get("dataset")
    return same_data or all(_has_ids(run.experiment.data) for run in (a, b))


def _has_ids(data: DataSection) -> bool:
    return data.format == "conllu" or data.columns.id is not None


def n_shared(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> int:
    """Return the number of examples in the test rows of both runs.

    >>> n_shared(pd.DataFrame({"example": ["s1", "s2"]}), pd.DataFrame({"example": ["s2"]}))
    1
    """
    return len(set(rows_a["example"]) & set(rows_b["example"]))
