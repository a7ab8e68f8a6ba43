"""Rows of tokens grouped by the text or sentence that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.probes.data import ProbeData
from probekit.probes.solve.solver import Codes


@dataclass(frozen=True, eq=False)
class GroupedTokens:
    """Row numbers of tokens, grouped by example: the text or sentence that they belong to.

    Attributes:
        rows: The row numbers (n_rows,).
        example_of_row: The index (n_rows,) of each row's example, from 0.
        first: The first row (n_examples,) of each example.
    """

    rows: Codes
    example_of_row: Codes
    first: Codes

    @classmethod
    def of(cls, rows: Codes, examples: NDArray[np.int64] | None) -> GroupedTokens:
        """Return the rows grouped by example; without `examples` each row is its own example.

        >>> GroupedTokens.of(np.array([3, 4, 5]), np.array([0, 0, 0, 7, 7, 8])).first.tolist()
        [3, 5]
        """
        own = rows if examples is None else examples[rows]
        _, first, example_of_row = np.unique(own, return_index=True, return_inverse=True)
        return cls(rows, example_of_row, rows[first])


def first_rows(data: ProbeData) -> ProbeData:
    """Return the data with only the first row of each text in train and test.

    These rows represent whole texts, so they have no neighbouring words.
    """
    train, test = (
        GroupedTokens.of(np.sort(s), data.examples).first for s in (data.train, data.test)
    )
    return replace(data, train=train, test=test, neighbours=None)
