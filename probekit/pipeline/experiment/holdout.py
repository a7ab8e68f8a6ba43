"""Training and test split of the examples and rows of an experiment."""

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
    in_one_group,
    joined_groups,
    labels_of_groups,
    unlabelled_split,
    without_repeated,
    without_shared_words,
)
from probekit.experiment.activations import AnyExperiment
from probekit.probes.data import group_folds

Words = npt.NDArray[np.str_]


@dataclass(frozen=True)
class HoldOut:
    """Training and test split of examples and rows.

    Attributes:
        dataset: the data, with notes on examples that were left out.
        examples: splits of the examples: one, or one per outer fold of a nested cross-validation.
        rows: splits of the rows, in the same order.
    """

    dataset: Dataset
    examples: tuple[Split, ...]
    rows: tuple[Split, ...]


def hold_out(dataset: Dataset, plan: RowPlan, words: Words, experiment: AnyExperiment) -> HoldOut:
    """Return the training and test split of an experiment.

    Examples that have lost all rows are neither in train nor in test.

    Args:
        dataset: the examples.
        plan: the rows of each example.
        words: the word of each row, shape (n_rows,).
        experiment: gives the split settings.

    Raises:
        DataError: the data cannot be split, or one side would be empty.
    """
    if experiment.split.folds is not None:
        with experiment.at("split", "folds"):
            return _nested(dataset, plan, experiment)
    split = _split_examples(dataset, plan, words, experiment)
    if experiment.split.drop_repeated:
        dataset, split = _drop_repeated(dataset, split)
    rows = Split(*(np.flatnonzero(np.isin(plan.example, s)) for s in (split.train, split.test)))
    if experiment.split.word_disjoint:
        dataset, rows = _drop_shared_words(dataset, plan, words, rows, experiment)
        split = Split(*(np.unique(plan.example[side]) for side in (rows.train, rows.test)))
    return HoldOut(dataset, (split,), (rows,))


def _nested(dataset: Dataset, plan: RowPlan, experiment: AnyExperiment) -> HoldOut:
    """Return the splits of a nested cross-validation: each fold of groups is tested once."""
    n_folds, has_classes = experiment.split.folds or 0, experiment.probe.reads == "classes"
    tested = np.arange(len(dataset))
    if experiment.split.drop_repeated:
        tested = in_one_group(dataset)
        dataset = _with_note(
            dataset,
            len(dataset) - len(tested),
            "removed: {} whose text and span also occur in an earlier group",
        )
    labels, groups = dataset.labels[tested], dataset.groups[tested]
    if has_classes:
        labels_of_groups(labels, groups)  # raises if a fold would lack a label
    # Folds are stratified by class; numbers and syntactic heads have no classes.
    strata = labels if has_classes else np.zeros(len(tested))
    fold = np.full(len(dataset), -1)
    fold[tested] = group_folds(strata, groups, n_folds, experiment.split.seed)
    note = (
        f"nested cross-validation: each of {n_folds} folds is tested once by probes fitted on the "
        "other folds"
    )
    return HoldOut(
        replace(dataset, notes=(*dataset.notes, note)),
        _splits_of_folds(fold, n_folds),
        _splits_of_folds(fold[plan.example], n_folds),
    )


def _splits_of_folds(fold: npt.NDArray[np.int64], n_folds: int) -> tuple[Split, ...]:
    """Return one split per fold; examples with fold number -1 are in no split."""
    return tuple(
        Split(np.flatnonzero((fold != part) & (fold >= 0)), np.flatnonzero(fold == part))
        for part in range(n_folds)
    )


def _split_examples(
    dataset: Dataset, plan: RowPlan, words: Words, experiment: AnyExperiment
) -> Split:
    """Return the split given by the data, or else a random split by groups."""
    has_classes = experiment.probe.reads == "classes"
    if any(example.split is not None for example in dataset.examples):
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
    """Remove test examples that also occur in the training examples; add a note to the data."""
    new = without_repeated(split, dataset)
    n_dropped = len(split.test) - len(new.test)
    return _with_note(dataset, n_dropped, "removed from test: {} also in train"), new


def _with_note(dataset: Dataset, n_dropped: int, template: str) -> Dataset:
    """Return the data with a note on the number of examples that were left out, if any were."""
    if not n_dropped:
        return dataset
    note = template.format(counted(n_dropped, "example"))
    return replace(dataset, notes=(*dataset.notes, note))


def _drop_shared_words(
    dataset: Dataset, plan: RowPlan, words: Words, rows: Split, experiment: AnyExperiment
) -> tuple[Dataset, Split]:
    """Remove rows until no word is in both train and test; add a note to the data."""
    settings, labels = experiment.split, dataset.labels[plan.example]
    with experiment.at("split", "word_disjoint"):
        new = without_shared_words(rows, labels, words, test=settings.test, seed=settings.seed)
    note = (
        f"{len(rows.train) - len(new.train)} of {len(rows.train)} training rows and "
        f"{len(rows.test) - len(new.test)} of {len(rows.test)} test rows were removed, so that no "
        "word is in both train and test"
    )
    return replace(dataset, notes=(*dataset.notes, note)), new
