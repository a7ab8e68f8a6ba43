"""Columns of the data that an experiment does not use: false warnings of a relation, and power."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.designs import LARGEST, SMALLEST
from benchmarks.claims.rates import Rate
from probekit.amounts import LEVEL
from probekit.chosen.unasked.measure import LEAST_AUROC
from probekit.chosen.unasked.statistics import adjusted_p, auroc_alone, label_columns, p_of_columns

ROWS = 6  # of each group, if all have equally many
CORRELATION = 0.3  # share of the variance that rows of a group share
STRENGTHS = {"line": 1.5, "U": 1.5, "category": 2.0}  # in the log odds


@dataclass(frozen=True)
class Case:
    """A simulated data set.

    Attributes:
        groups: number of groups.
        labels: whether each group has one label or several.
        relation: how the label depends on the first column; "none" for not at all.
        columns: number of columns.
        classes: number of classes; 0 for numbers.
        sizes: whether all groups have equally many rows, or from 2 to 40.
        positives: share of rows with the second of two labels; about.
    """

    groups: int = 100
    labels: Literal["mixed", "constant"] = "constant"
    relation: Literal["none", "line", "U", "category"] = "none"
    columns: int = 10
    classes: int = 2
    sizes: Literal["equal", "1:20"] = "equal"
    positives: float = 0.5


def cases() -> Iterator[Case]:
    """Yield all simulated data sets."""
    for labels in ("constant", "mixed"):
        for groups in (20, 40, 100):
            for columns in (5, 10):
                yield Case(groups, labels, columns=columns)
            for relation in STRENGTHS:
                yield Case(groups, labels, relation)
        for changes in ({"classes": 4}, {"classes": 0}, {"sizes": "1:20"}, {"positives": 0.1}):
            for groups in (40, 100):
                yield Case(groups, labels, **changes)


def drawn(case: Case, seed: int) -> tuple[dict[str, NDArray[Any]], NDArray[Any], NDArray[Any]]:
    """Return columns, labels and groups of one data set.

    Of every five columns one is normal, one lognormal and the same in all rows of a group, one
    a count, one a category of rows with 3 values, and one a category of groups with 4 values.
    """
    rng = np.random.default_rng([case.groups, seed])
    sizes = np.full(case.groups, ROWS)
    if case.sizes == "1:20":
        sizes = np.geomspace(SMALLEST, LARGEST, case.groups).round().astype(np.int64)
    groups = np.repeat(np.arange(case.groups), sizes)
    n, is_whole = len(groups), case.labels == "constant"

    def normal(share: float) -> NDArray[np.float64]:
        """Return normal numbers, of whose variance rows of a group share a part."""
        own = rng.normal(size=case.groups)[groups]
        return np.sqrt(share) * own + np.sqrt(1 - share) * rng.normal(size=n)

    columns: dict[str, NDArray[Any]] = {}
    for number in range(case.columns):
        columns[f"column {number}"] = (
            normal(CORRELATION),
            np.exp(normal(1.0)),
            rng.poisson(np.exp(normal(CORRELATION))).astype(np.float64),
            np.digitize(normal(CORRELATION), [-0.4, 0.4]).astype(str),
            rng.integers(4, size=case.groups)[groups].astype(str),
        )[number % 5]
    z = normal(1.0 if is_whole else CORRELATION)
    level = np.digitize(z, [-0.4, 0.4])
    score = {"line": z, "U": (z**2 - 1) / np.sqrt(2), "category": level - 1.0}.get(case.relation)
    if score is not None:
        columns["column 0"] = level.astype(str) if case.relation == "category" else z
        score = STRENGTHS[case.relation] * score
    else:
        score = 0 * z
    if case.classes == 0:
        return columns, score + normal(1.0 if is_whole else CORRELATION), groups
    own = rng.logistic(size=case.groups)[groups]
    noise = own if is_whole else np.where(rng.random(n) < CORRELATION, own, rng.logistic(size=n))
    if case.classes == 2:
        return columns, (noise + score > np.log(1 / case.positives - 1)).astype(np.int64), groups
    return columns, np.digitize(noise + score, [-1.1, 0.0, 1.1]), groups


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield how often there is a warning, and how often a p below 0.05, for one kind of data."""
    warned, tested = [], []
    for seed in range(draws):
        columns, y, groups = drawn(case, seed)
        p = adjusted_p(p_of_columns(columns, label_columns(y), groups))
        names = list(columns) if case.relation == "none" else ["column 0"]
        found = [name for name, one in zip(columns, p, strict=True) if one < LEVEL]
        found = [name for name in found if name in names]
        tested.append(bool(found))
        warned.append(any(auroc_alone(columns[name], y, groups) >= LEAST_AUROC for name in found))
    yield asdict(Rate.of(warned)) | {"tested": np.mean(tested)}
