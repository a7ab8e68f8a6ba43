"""Which examples and rows are trained on, and which are tested on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from probekit.amounts import counted
from probekit.data.examples import Dataset
from probekit.data.positions import RowPlan
from probekit.data.splits import (
    Split,
    given_split,
    grouped_split,
    joined_groups,
    unlabelled_split,
    without_repeated,
    without_shared_words,
)
from probekit.experiment.schema import Experiment
from probekit.probes.folds import group_folds

Words = npt.NDArray[np.str_]


@dataclass(frozen=True)
class HoldOut:
    """What is trained and tested on.

    Attributes:
        dataset: the data with notes of what is left out.
        examples: their split; of a nested cross-validation the first.
        rows: the split of rows, or every one of a nested cross-validation.
    """

    dataset: Dataset
    examples: Split
    rows: tuple[Split, ...]


def hold_out(dataset: Dataset, plan: RowPlan, words: Words, experiment: Experiment) -> HoldOut:
    """Return what is trained and tested on.

    `words` (n_rows,) are those of the rows; examples of which no row is left are on neither side.

    Raises:
        DataError: the data cannot be split, or nothing would be left of a side.
    """
    if experiment.split.folds is not None:
        has_classes, seed = experiment.probe.reads == "classes", experiment.split.seed
        with experiment.at("split", "folds"):
            return _nested(dataset, plan, experiment.split.folds, seed, has_classes)
    split = _split_examples(dataset, plan, words, experiment)
    if experiment.split.drop_repeated:
        dataset, split = _drop_repeated(dataset, split)
    rows = Split(*(np.flatnonzero(np.isin(plan.example, s)) for s in (split.train, split.test)))
    if experiment.split.word_disjoint:
        dataset, rows = _drop_shared_words(dataset, plan, words, rows, experiment)
        split = Split(*(np.unique(plan.example[side]) for side in (rows.train, rows.test)))
    return HoldOut(dataset, split, (rows,))


def _nested(dataset: Dataset, plan: RowPlan, folds: int, seed: int, has_classes: bool) -> HoldOut:
    """Return the splits in which each fold of the groups is tested once."""
    # Numbers and heads have no classes to spread evenly.
    labels = dataset.labels if has_classes else np.zeros(len(dataset))
    fold = group_folds(labels, dataset.groups, folds, seed)
    of_row = fold[plan.example]
    note = (
        f"nested cross-validation: each of {folds} parts is tested once by probes fitted on the "
        "others; counts and findings are those of the first"
    )
    return HoldOut(
        replace(dataset, notes=(*dataset.notes, note)),
        Split(*(np.flatnonzero(side) for side in (fold != 0, fold == 0))),
        tuple(
            Split(*(np.flatnonzero(side) for side in (of_row != part, of_row == part)))
            for part in range(folds)
        ),
    )


def _split_examples(dataset: Dataset, plan: RowPlan, words: Words, experiment: Experiment) -> Split:
    """Return the split that the data give, else one drawn by groups."""
    has_classes = experiment.probe.reads == "classes"
    if experiment.data.test is not None or experiment.data.columns.split is not None:
        return given_split(dataset, has_classes=has_classes)
    settings, groups = experiment.split, dataset.groups
    if settings.word_disjoint:
        labels_of_row, groups_of_row = dataset.labels[plan.example], groups[plan.example]
        groups = groups.copy()
        groups[plan.example] = joined_groups(labels_of_row, groups_of_row, words)
    if not has_classes:
        return unlabelled_split(groups, test=settings.test, seed=settings.seed)
    return grouped_split(dataset.labels, groups, test=settings.test, seed=settings.seed)


def _drop_repeated(dataset: Dataset, split: Split) -> tuple[Dataset, Split]:
    """Return the split less what stands on both sides, and the data with a note of it."""
    new = without_repeated(split, dataset)
    n_dropped = len(split.test) - len(new.test)
    if not n_dropped:
        return dataset, split
    note = f"left out of test: {counted(n_dropped, 'example')} that train has as well"
    return replace(dataset, notes=(*dataset.notes, note)), new


def _drop_shared_words(
    dataset: Dataset, plan: RowPlan, words: Words, rows: Split, experiment: Experiment
) -> tuple[Dataset, Split]:
    """Return the rows less those of words of the other side, and the data with a note of it."""
    settings, labels = experiment.split, dataset.labels[plan.example]
    with experiment.at("split", "word_disjoint"):
        new = without_shared_words(rows, labels, words, test=settings.test, seed=settings.seed)
    note = (
        f"{len(rows.train) - len(new.train)} of {len(rows.train)} training rows and "
        f"{len(rows.test) - len(new.test)} of {len(rows.test)} test rows were left out, so that no "
        "word stands on both sides"
    )
    return replace(dataset, notes=(*dataset.notes, note)), new
