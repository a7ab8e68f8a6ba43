"""Result of a transfer between data sets, for the terminal, the files and the page."""

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
    """Transfer scores and cosines for every pair of data sets, site and kind of probe.

    Attributes:
        names: the names of the data sets.
        model: the model that was probed.
        scores: scores, with the columns `SCORES`. A probe is fitted on the data set `train` and
            scored on the test rows of the data set `test`. `difference` is its score minus that of
            the probe fitted on `test` itself.
        cosines: cosine similarities between the directions of two probes, with the columns
            `COSINES`. If one of the two is fitted on permuted labels, 95 % of the cosines lie
            between `null_low` and `null_high`.
        metric: the main metric.
        chosen: the site and kind of probe with the best cross-validated score, averaged over sets.
        notes: remarks on the interpretation of the numbers.
    """

    names: tuple[str, ...]
    model: str
    scores: pd.DataFrame
    cosines: pd.DataFrame
    metric: str
    chosen: tuple[str, str]
    notes: tuple[str, ...]

    def places(self) -> list[tuple[str, str]]:
        """Return each pair of site and kind of probe, in the order of the forward pass."""
        pairs = self.scores[["site", "probe"]].drop_duplicates()
        return list(pairs.itertuples(index=False, name=None))

    def at(self, site: str, probe: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the scores and cosines of one kind of probe at one site."""
        scores, cosines = (
            only(table, site=site, probe=probe) for table in (self.scores, self.cosines)
        )
        return scores, cosines


def matrix(rows: pd.DataFrame, names: tuple[str, ...], column: str) -> pd.DataFrame:
    """Return a column as a matrix with training sets as rows and test sets as columns.

    >>> rows = pd.DataFrame({"train": ["x", "y"], "test": ["y", "x"], "value": [0.5, 0.7]})
    >>> matrix(rows, ("x", "y"), "value").to_numpy().tolist()
    [[nan, 0.5], [0.7, nan]]
    """
    wide = rows.pivot_table(index="train", columns="test", values=column, dropna=False)
    return wide.reindex(index=list(names), columns=list(names))
