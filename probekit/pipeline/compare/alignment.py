"""Whether two runs were tested on the same rows, and which row of one is which of the other."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.experiment.schema import DataSection, Experiment
from probekit.results.finished_run import FinishedRun

_ROW = ["example", "group", "label"]


def align(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> NDArray[np.int64] | None:
    """Return for each test row of a the number of the same row in b; None if the rows differ.

    Rows are the same that agree in example, group and label; of several such rows (the tokens of
    one text) the first of a is the first of b.

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


def names_rows_alike(a: FinishedRun[Experiment], b: FinishedRun[Experiment]) -> bool:
    """Return whether an example's name means the same text in both runs.

    A name that is only the number of a row does so in one and the same data set alone.
    """
    same_data = a.record.digests.get("dataset") == b.record.digests.get("dataset")
    return same_data or all(_has_names(run.experiment.data) for run in (a, b))


def _has_names(data: DataSection) -> bool:
    return data.format == "conllu" or data.columns.id is not None


def n_shared(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> int:
    """Return how many examples stand in the test rows of both.

    >>> n_shared(pd.DataFrame({"example": ["s1", "s2"]}), pd.DataFrame({"example": ["s2"]}))
    1
    """
    return len(set(rows_a["example"]) & set(rows_b["example"]))
