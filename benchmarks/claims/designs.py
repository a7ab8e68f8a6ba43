"""Simulated test sets without a relation between features and labels, or with a planted one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

GROUPS = (3, 5, 8, 12, 20, 100)
ROWS = 12  # of each group, if all have equally many
SMALLEST, LARGEST = 2, 40  # number of rows of the groups otherwise

Sizes = Literal["equal", "1:20"]
Labels = Literal["mixed", "constant", "half"]


@dataclass(frozen=True)
class Design:
    """How the rows of a simulated test set depend on each other.

    Attributes:
        groups: number of groups.
        sizes: whether all groups have equally many rows, or from 2 to 40.
        labels: whether each group has several labels ("mixed"), one label ("constant"), or every
            second group has one label ("half").
        positives: share of rows with label 1.
        correlation: share of the variance of features that rows of a group share, and again the
            share that rows of a cluster share. Each group has two clusters.
        alignment: share of the rows of mixed groups whose label is that of their cluster.
    """

    groups: int
    sizes: Sizes
    labels: Labels
    positives: float
    correlation: float
    alignment: float

    @property
    def group_of_row(self) -> NDArray[np.int64]:
        """The group number (n_rows,) of each row."""
        sizes = np.full(self.groups, ROWS)
        if self.sizes == "1:20":
            sizes = np.geomspace(SMALLEST, LARGEST, self.groups).round().astype(np.int64)
        return np.repeat(np.arange(self.groups), sizes)

    def labels_and_clusters(
        self, generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return random labels (n_rows,) and the cluster number (n_rows,) of each row."""
        group = self.group_of_row
        first = np.searchsorted(group, group)
        within = (np.arange(len(group)) - first) % 2
        flips = generator.integers(2, size=self.groups)
        own = (generator.random(len(group)) < self.positives).astype(np.int64)
        by_cluster = generator.random(len(group)) < self.alignment
        mixed = np.where(by_cluster, (within + flips[group]) % 2, own)
        shared = (generator.random(self.groups) < self.positives).astype(np.int64)[group]
        is_shared = {"mixed": False, "constant": True, "half": group % 2 == 0}[self.labels]
        return np.where(is_shared, shared, mixed), 2 * group + within

    def features(
        self, clusters: NDArray[np.int64], n_features: int, generator: np.random.Generator
    ) -> NDArray[np.float64]:
        """Return features (n_rows, n_features) of variance 1 that are unrelated to the labels."""
        shared, rest = np.sqrt(self.correlation), np.sqrt(1 - 2 * self.correlation)
        of_group = generator.normal(size=(self.groups, n_features))[self.group_of_row]
        of_cluster = generator.normal(size=(2 * self.groups, n_features))[clusters]
        own = generator.normal(size=(len(clusters), n_features))
        features: NDArray[np.float64] = shared * (of_group + of_cluster) + rest * own
        return features


def designs(groups: tuple[int, ...] = GROUPS) -> Iterator[Design]:
    """Yield all designs: alignment only where labels vary within groups and are balanced."""
    for n, sizes, labels, positives, correlation, alignment in product(
        groups,
        ("equal", "1:20"),
        ("mixed", "constant", "half"),
        (0.5, 0.05),
        (0.0, 0.3),
        (0.0, 0.3, 1.0),
    ):
        if not alignment or (positives == 0.5 and labels != "constant"):
            yield Design(n, sizes, labels, positives, correlation, alignment)
