"""Rows of an experiment, whatever their activations come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probekit.data.examples import Dataset
from probekit.data.findings import Finding
from probekit.data.positions import IntArray
from probekit.data.splits import Split
from probekit.pipeline.experiment.features import Probed
from probekit.pipeline.experiment.rows import PositionRows, StringArray


@dataclass(frozen=True)
class PreparedRows:
    """Examples, rows and splits of an experiment, before any probe is fitted.

    Attributes:
        dataset: the examples that have rows, with notes on those that were left out.
        n_read: number of examples read, including those without a row.
        examples: indices of training and test examples, in the order of `splits`.
        selections: probed sites in the order of the forward pass; concatenations last.
        positions: the rows at each probed position: one position, or one for each offset of a
            sweep. All positions have the same number of rows, n_rows.
        labels: label of each row, shape (n_rows,); the same at every position.
        example: index of the example of each row, shape (n_rows,).
        groups: group of each row, shape (n_rows,).
        splits: indices of training and test rows: one split, or one per outer fold of a nested
            cross-validation.
    """

    dataset: Dataset
    n_read: int
    examples: tuple[Split, ...]
    selections: tuple[Probed, ...]
    positions: tuple[PositionRows, ...]
    example: IntArray
    labels: StringArray
    groups: StringArray
    splits: tuple[Split, ...]

    @property
    def train(self) -> IntArray:
        """Indices of the training rows; of the first split if there are several."""
        return self.splits[0].train

    @property
    def test(self) -> IntArray:
        """Indices of the test rows; of the first split if there are several."""
        return self.splits[0].test

    @property
    def is_nested(self) -> bool:
        """Whether there are several splits, as in a nested cross-validation."""
        return len(self.splits) > 1

    @property
    def texts(self) -> npt.NDArray[np.object_] | None:
        """The text of each row, shape (n_rows,); None if the rows have no texts."""
        return None

    @property
    def text_indices(self) -> IntArray | None:
        """Index of the text or sentence of each row, shape (n_rows,); None without texts."""
        return None

    @property
    def has_types(self) -> bool:
        """Whether `types` of the positions are words or tokens, as the control task needs."""
        return True

    @property
    def axis_sizes(self) -> Mapping[str, int]:
        """Sizes of the axes of sites, such as `n_heads`, as far as they are known."""
        return {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the rows, in addition to those about the examples."""
        return ()
