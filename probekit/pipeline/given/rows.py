"""Rows of experiments on given activations: labels, groups, tokens and split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probekit.activations.given.formats import ROWS, row_ids
from probekit.activations.given.given import GivenActivations, Position, open_activations
from probekit.amounts import counted
from probekit.data.examples import Dataset
from probekit.data.findings import Finding
from probekit.data.positions import RowPlan
from probekit.data.readers import read_dataset
from probekit.data.table import TableColumns
from probekit.errors import ConfigError, DataError, MissingError
from probekit.experiment.activations import ActivationExperiment
from probekit.pipeline.experiment.features import check_sparse
from probekit.pipeline.experiment.holdout import hold_out
from probekit.pipeline.experiment.prepare import require_groups
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.experiment.rows import GivenPosition, PositionRows
from probekit.pipeline.given.findings import (
    NO_GROUPS,
    constant_features,
    contradictions,
    left_out,
    repeated_rows,
)
from probekit.probes.data import check_numbers

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, eq=False)
class GivenTable:
    """Activations and rows in memory, in place of the files of an experiment.

    Attributes:
        activations: mapping from sites to arrays, or the path of a folder.
        dataset: one example for each row, whose text names the row.
        tokens: word or token of each row; None if they are unknown.
        has_groups: whether groups are given.
        position: for arrays with positions: the position to read, or one for each row.
    """

    activations: Any
    dataset: Dataset
    tokens: Sequence[str] | None
    has_groups: bool
    position: Position | None


@dataclass(frozen=True)
class GivenRows(PreparedRows):
    """Rows and activations of an experiment on given activations.

    Attributes:
        given: the activations.
        tokens: word or token of each row; None if they are unknown.
        lacks_groups: whether groups could be given in memory, but are not.
        has_classes: whether the labels are classes, not numbers.
    """

    given: GivenActivations
    tokens: Sequence[str] | None
    lacks_groups: bool
    has_classes: bool

    @property
    def has_types(self) -> bool:
        """Whether tokens are given."""
        return self.tokens is not None

    @property
    def axis_sizes(self) -> Mapping[str, int]:
        """Number of heads and of features of each, if an array has an axis of heads."""
        return self.given.axis_sizes

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the activations: repeated rows, constant features, missing controls."""
        keys = self.given.row_keys
        return (
            *((NO_GROUPS,) if self.lacks_groups else ()),
            *repeated_rows(keys, self.splits),
            *(contradictions(keys, self.dataset) if self.has_classes else ()),
            *constant_features(self.given.rows),
            left_out(has_tokens=self.has_types),
        )


def prepare_given(experiment: ActivationExperiment, table: GivenTable | None = None) -> GivenRows:
    """Return the rows of an experiment on given activations.

    Args:
        experiment: the settings.
        table: activations and rows in memory; None to read the files of the experiment.

    Raises:
        MissingError: a file or folder does not exist.
        ConfigError: a site, a column or a required key does not exist.
        DataError: the activations or rows cannot be used or split.
    """
    dataset, tokens = _read_rows(experiment) if table is None else (table.dataset, table.tokens)
    given = _open(experiment, table)
    _check_rows(experiment, dataset, given, table)
    if table is None and experiment.data.columns.group is not None:
        with experiment.at("data", "columns", "group"):
            require_groups(dataset, has_folds=experiment.split.folds is not None)
    if all(kind.specs[0].reads == "numbers" for kind in experiment.probe.kinds):
        with experiment.at("probe", "kinds"):
            check_numbers(dataset.labels, [example.where for example in dataset.examples])
    check_sparse(experiment, {s: one.n_features for s, one in given.rows.contents.items()})
    lacks_groups = table is not None and not table.has_groups
    return _split(experiment, dataset, tokens, given, lacks_groups=lacks_groups)


def _split(
    experiment: ActivationExperiment,
    dataset: Dataset,
    tokens: Sequence[str] | None,
    given: GivenActivations,
    *,
    lacks_groups: bool,
) -> GivenRows:
    if experiment.split.word_disjoint and tokens is None:
        with experiment.at("split", "word_disjoint"):
            raise ConfigError("`word_disjoint` needs the word of each row: give tokens.")
    rows = np.arange(len(dataset))
    ids = [example.id for example in dataset.examples]
    types = np.array(ids if tokens is None else tokens, dtype=str)
    plan = RowPlan(rows, np.zeros_like(rows), np.arange(len(dataset) + 1))
    held_out = hold_out(dataset, plan, types, experiment)
    return GivenRows(
        dataset=held_out.dataset,
        n_read=len(dataset),
        examples=held_out.examples,
        selections=given.sites,
        positions=(PositionRows(GivenPosition(), rows, types, None, None, None),),
        example=rows,
        labels=dataset.labels.astype(str),
        groups=dataset.groups.astype(str),
        splits=held_out.rows,
        given=given,
        tokens=tokens,
        lacks_groups=lacks_groups,
        has_classes=experiment.probe.reads == "classes",
    )


def _read_rows(experiment: ActivationExperiment) -> tuple[Dataset, Sequence[str] | None]:
    """Return the examples of the table of rows, and their tokens if it has them."""
    data, columns = experiment.data, experiment.data.columns
    if data.file is None or data.format is None:
        with experiment.at("data"):
            raise ConfigError(
                "the key 'data.file' is missing. Give the table with one line for each row of the "
                "activations, such as {format: csv, file: rows.csv}."
            )
    # The reader requires a text, which activations do not have.
    text = columns.token or columns.label
    named = TableColumns(text, columns.label, columns.group, columns.id, None, columns.split)
    try:
        dataset = read_dataset(
            Path(data.root) / data.file, format=data.format, columns=named, name=data.name
        )
    except (ConfigError, MissingError) as error:  # a DataError names the line already
        key = "columns" if isinstance(error, ConfigError) else "file"
        with experiment.at("data", key):
            raise
    if columns.token is not None:
        return dataset, [example.text for example in dataset.examples]
    examples = tuple(replace(example, text=example.id) for example in dataset.examples)
    return replace(dataset, examples=examples), None


def _open(experiment: ActivationExperiment, table: GivenTable | None) -> GivenActivations:
    settings = experiment.activations
    if table is not None:
        return open_activations(table.activations, sites=settings.sites, position=table.position)
    if settings.folder is None:
        with experiment.at("activations"):
            raise ConfigError("the key 'activations.folder' is missing. Give the folder.")
    with experiment.at("activations", "folder"):
        return open_activations(settings.folder, sites=settings.sites, position=settings.position)


def _check_rows(
    experiment: ActivationExperiment,
    dataset: Dataset,
    given: GivenActivations,
    table: GivenTable | None,
) -> None:
    """Raise DataError unless there is one example for each row, and all ids are the same."""
    if len(dataset) != given.rows.n_rows:
        named = "labels" if table else f"{experiment.data.file}"
        raise DataError(
            f"{named} has {counted(len(dataset), 'row')}, but the activations have "
            f"{given.rows.n_rows:,}. Give one label for each row of the activations, in the same "
            "order."
        )
    folder = experiment.activations.folder
    if table is not None or folder is None or experiment.data.columns.id is None:
        return
    ids = row_ids(Path(folder))
    if ids is None:
        return
    own = [example.id for example in dataset.examples]
    differing = [n for n, (a, b) in enumerate(zip(own, ids, strict=False)) if a != b]
    if differing or len(ids) != len(own):
        at = differing[0] if differing else min(len(ids), len(own))
        names = [repr(one[at]) if at < len(one) else "nothing" for one in (own, ids)]
        raise DataError(
            f"{dataset.examples[min(at, len(own) - 1)].where}: the id of row {at} is {names[0]}, "
            f"but {names[1]} in {ROWS} of the activations. Bring the rows into the same order."
        )
