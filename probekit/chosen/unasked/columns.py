"""Columns of the data that an experiment does not use, read again from its tables.

The examples of a run keep the columns that it uses. The others are read when they are tested: at
most `MOST_COLUMNS`, in the order of the table, and `MOST_CELLS`, so that a table of any size needs
bounded memory. Of longer tables whole groups are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from probekit.chosen.unasked.statistics import ColumnCells, column_in
from probekit.data.table import Table
from probekit.experiment.activations import AnyExperiment
from probekit.lazy_rows import Codes
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.provenance import digest_json

MOST_COLUMNS = 200
MOST_CELLS = 2_000_000


class FurtherColumns(NamedTuple):
    """Columns that an experiment does not use, of the examples that are trained on or tested.

    Attributes:
        examples: the examples (n_read,).
        groups: the group (n_read,) of each.
        columns: name -> cells (n_read,), of those that may be related to the label.
        n_present: number of columns of the table that are not used.
        digest: digest of all cells that were read.
    """

    examples: Codes
    groups: Codes
    columns: Mapping[str, ColumnCells]
    n_present: int
    digest: str


def further_columns(experiment: AnyExperiment, design: ExperimentDesign) -> FurtherColumns:
    """Return the columns that an experiment does not use; none for words."""
    dataset, used = design.dataset, set(_used(experiment))
    has_labels = experiment.probe.reads in ("classes", "numbers")
    tables = [(read, read(())) for read in dataset.tables if has_labels]
    names = [name for one in tables[:1] for name in _names(*one) if name not in used]
    if not names:
        return FurtherColumns(np.arange(0), np.arange(0), {}, 0, "")
    read_names = names[:MOST_COLUMNS]
    examples = _drawn(design, MOST_CELLS // len(read_names))
    # Rows that no table was read for, those of given arrays, are in the order of the columns.
    has_source = dataset.examples[0].source is not None
    place_of: dict[Any, int] = {
        dataset.examples[n].source if has_source else int(n): place
        for place, n in enumerate(examples)
    }
    cells = {name: [""] * len(examples) for name in read_names}
    nested = set[str]()  # columns with lists or objects
    for read, table in tables:
        # A table with a list of its columns reads a few at a time; others have all in each row.
        step = len(names) if table.names is None else max(1, MOST_CELLS // len(dataset))
        for start in range(0, len(read_names), step):
            part = read_names[start : start + step]
            for number, row in enumerate(read(part).rows):
                place = place_of.get(row.source if has_source else number, -1)
                for name in part if place >= 0 else ():
                    value = row.cells.get(name)
                    if isinstance(value, str | int | float):
                        cells[name][place] = str(value).strip()
                    elif value is not None:
                        nested.add(name)
    groups = np.unique(dataset.group_codes[examples], return_inverse=True)[1]
    found = {name: column_in(cells[name], groups) for name in read_names if name not in nested}
    columns = {name: column for name, column in found.items() if column is not None}
    return FurtherColumns(examples, groups, columns, len(names), digest_json(cells))


def _names(read: Any, table: Table) -> Iterator[str]:
    """Yield the names of the columns of a table; those of its first row if it has no list."""
    names = next(iter(read(()).rows)).cells if table.names is None else table.names
    return (name for name in names if name not in table.nested)


def _drawn(design: ExperimentDesign, most: int) -> Codes:
    """Return the examples that are in a split; of more than `most` those of some groups."""
    examples: Codes = np.unique(np.concatenate([side for one in design.examples for side in one]))
    if len(examples) <= most:
        return examples
    codes = np.unique(design.dataset.group_codes[examples], return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(codes.max() + 1)
    is_in = np.cumsum(np.bincount(codes)[order]) <= most
    return examples[np.isin(codes, order[is_in])]


def _used(experiment: AnyExperiment) -> Iterator[str]:
    """Yield the names of the columns that an experiment uses."""
    data = experiment.data
    for named in data.columns.model_dump().values():
        yield from (named,) if isinstance(named, str) else (named or ())
    yield from getattr(experiment, "value_columns", ())  # of texts
    yield from (*(experiment.confounds or ()), experiment.split.leave_out or "")
    yield getattr(data, "pairs", None) or ""
