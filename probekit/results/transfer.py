"""What a transfer between data sets found, as the terminal, the files and the page show it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from probekit.results.table import only

_PLACE = ("model", "site", "position", "view", "probe", "train", "test")
SCORES = (
    *_PLACE,
    "metric",
    "value",
    "ci_low",
    "ci_high",
    "chance",
    "difference",
    "difference_low",
    "difference_high",
    "n_train",
    "n_test",
    "n_groups",
    "C",
    "converged",
    "known_texts",
    "known_groups",
    "seed",
)
COSINES = (*_PLACE, "space", "cosine", "null_low", "null_high", "p", "n_null")


@dataclass(frozen=True, eq=False)
class Transfer:
    """Scores and cosines of every pair of data sets, at every site, of every kind of probe.

    Attributes:
        names: of the data sets.
        model: that was probed.
        scores: rows of the columns `SCORES`: trained on `train`, tested on the test rows of `test`;
            `difference` is to the probe trained on `test` itself.
        cosines: rows of the columns `COSINES`, of the directions of two probes; `null_low` and
            `null_high` hold 95 % of the cosines to probes of permuted labels.
        chosen: site and kind of probe with the highest cross-validated score on the training rows
            of all sets, on average.
        notes: what should be read before the numbers are quoted.
    """

    names: tuple[str, ...]
    model: str
    scores: pd.DataFrame
    cosines: pd.DataFrame
    chosen: tuple[str, str]
    notes: tuple[str, ...]

    @property
    def metric(self) -> str:
        """The metric that stands first: accuracy, or R2 where the labels are numbers."""
        return "accuracy" if (self.scores["metric"] == "accuracy").any() else "r2"

    def places(self) -> list[tuple[str, str]]:
        """Return each pair of site and kind of probe, in the order of the forward pass."""
        pairs = self.scores[["site", "probe"]].drop_duplicates()
        return list(pairs.itertuples(index=False, name=None))

    def at(self, site: str, probe: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return scores and cosines of one kind of probe at one site."""
        scores, cosines = (
            only(table, site=site, probe=probe) for table in (self.scores, self.cosines)
        )
        return scores, cosines


def matrix(rows: pd.DataFrame, names: tuple[str, ...], column: str) -> pd.DataFrame:
    """Return a column of the rows as a table of training sets (down) by test sets (across).

    >>> rows = pd.DataFrame({"train": ["x", "y"], "test": ["y", "x"], "value": [0.5, 0.7]})
    >>> matrix(rows, ("x", "y"), "value").to_numpy().tolist()
    [[nan, 0.5], [0.7, nan]]
    """
    wide = rows.pivot_table(index="train", columns="test", values=column, dropna=False)
    return wide.reindex(index=list(names), columns=list(names))
