"""Checks of a data set and its split: leaks, duplicates, imbalance, typos in labels.

Each check is a function in the table `_CHECKS` at the end of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from probekit.amounts import FEWEST_UNITS, counted
from probekit.data.checks.findings import Finding, Severity, by_level
from probekit.data.checks.label_checks import (
    missing_groups,
    misspelt_labels,
    other_digits,
    rounded_numbers,
    similar_groups,
    similar_labels,
)
from probekit.data.checks.text_checks import (
    contradicting_labels,
    nul_characters,
    predictive_length,
    repeated_texts,
    spans_inside_words,
    texts_on_both_sides,
)
from probekit.data.examples import Dataset, Sides, SplitExamples
from probekit.data.splits import Split

_SHOWN = 20  # labels listed in a message
_FEW_GROUPS = 20  # with fewer test groups, intervals are approximate
_FEW_EXAMPLES = 5  # with fewer training examples of a label, folds lack it
_MAJORITY = 0.8  # share of the most frequent label from which accuracy is a poor metric
_STRONG_IMBALANCE = 10  # ratio of the most frequent to the rarest label


_NO_GROUPS = Finding(
    "warning",
    "no-groups",
    "No group column is set, so each row is its own group. Related rows, such as instances of one "
    "template or words of one text, may be in both train and test, and confidence intervals are "
    "then too narrow. Set data.columns.group to the column that identifies related rows; if rows "
    "are unrelated, to a column with a different value in each.",
)


def check_dataset(
    dataset: Dataset,
    splits: Sequence[Split],
    *,
    has_classes: bool = True,
    has_texts: bool = True,
) -> tuple[Finding, ...]:
    """Return the findings about a data set and its splits, errors first.

    Args:
        dataset: the examples.
        splits: one split, or all outer folds of a nested cross-validation.
        has_classes: False for labels that are numbers or heads: checks of classes are skipped.
        has_texts: False for given activations: checks of texts are skipped.

    >>> from probekit.data.examples import Example
    >>> rows = [("Yes!", "y", "a"), ("No!", "n", "b"), ("Yes!", "y", "c")]
    >>> examples = tuple(Example(*row, id=f"row {i}") for i, row in enumerate(rows))
    >>> split = Split(train=np.array([0, 1]), test=np.array([2]))
    >>> for finding in check_dataset(Dataset("tiny", examples), [split])[:3]:
    ...     print(f"{finding.level}: {finding.message}")
    warning: 2 labels with fewer than 5 examples in train: n, y.
    warning: 1 label of train does not occur in test: n.
    warning: There is only 1 test group: intervals over fewer than 20 groups are approximate.
    """
    every = _splits(dataset, splits)
    findings = [Finding("info", "reader", f"{note}.") for note in dataset.notes]
    findings += [] if dataset.has_groups else [_NO_GROUPS]
    skipped = (*(() if has_classes else _OF_CLASSES), *(() if has_texts else _OF_TEXTS))
    checks = [check for check in _CHECKS if check not in skipped]
    findings += [finding for check in checks for finding in check(every)]
    findings += contradicting_labels(dataset.examples) if has_texts else []
    of_labels = _OF_LABELS if has_classes else _OF_NUMBERS
    of_groups = _OF_GROUPS if dataset.has_groups else ()
    findings += [f for check in (*of_labels, *of_groups) for f in check(every.examples)]
    findings += [] if dataset.marks_words else spans_inside_words(every)
    return by_level(findings)


def _splits(dataset: Dataset, splits: Sequence[Split]) -> SplitExamples:
    parts = tuple(
        Sides(dataset.select(split.train).examples, dataset.select(split.test).examples)
        for split in splits
    )
    if len(parts) == 1:
        return SplitExamples(parts, parts[0].train + parts[0].test)
    tested = np.sort(np.concatenate([split.test for split in splits]))
    return SplitExamples(parts, dataset.select(tested).examples)


def _counts(splits: SplitExamples) -> Iterator[Finding]:
    for side, examples in splits.named():
        labels = Counter(example.label for example in examples).most_common()
        groups = {example.group for example in examples}
        shown = [f"{label} {n} ({n / len(examples):.1%})" for label, n in labels[:_SHOWN]]
        more = [f"and {len(labels) - _SHOWN} more"] if len(labels) > _SHOWN else []
        yield Finding(
            "info",
            f"{side.replace(' ', '-')}-counts",
            f"{side}: {counted(len(examples), 'example')}, {counted(len(groups), 'group')}, "
            f"{counted(len(labels), 'label')}: "
            f"{', '.join(shown + more)}.",
        )


def _imbalance(splits: SplitExamples) -> Iterator[Finding]:
    (side, examples), *_ = splits.named()
    labels = Counter(example.label for example in examples).most_common()
    (frequent, n_frequent), (rare, n_rare) = labels[0], labels[-1]
    share = n_frequent / len(examples)
    if share >= _MAJORITY or n_frequent >= _STRONG_IMBALANCE * n_rare:
        detection = f" or, to detect {rare!r}, auprc" if len(labels) == 2 else ""
        subject = "all folds together have" if splits.is_nested else f"{side} has"
        yield Finding(
            "info",
            "imbalance",
            f"{subject} {n_frequent:,} examples of {frequent!r} and {n_rare:,} of {rare!r}, so "
            f"always predicting {frequent!r} has an accuracy of {share:.2f}: set `probe.metric` to "
            f"balanced_accuracy{detection}.",
        )


def _rare_labels(splits: SplitExamples) -> Iterator[Finding]:
    rare: set[str] = set()
    n_folds = 0
    for sides in splits.parts:
        labels = Counter(example.label for example in sides.train)
        own = {label for label, n in labels.items() if n < _FEW_EXAMPLES}
        rare |= own
        n_folds += bool(own)
    if rare:
        where = "train"
        if splits.is_nested:
            where = f"the training rows of {splits.number(n_folds)}"
        yield Finding(
            "warning",
            "rare-labels",
            f"{counted(len(rare), 'label')} with fewer than {_FEW_EXAMPLES} examples in {where}: "
            f"{', '.join(sorted(rare)[:_SHOWN])}.",
        )


def _missing_labels(splits: SplitExamples) -> Iterator[Finding]:
    levels: tuple[tuple[Severity, str, str], ...] = (
        ("error", "train", "test"),
        ("warning", "test", "train"),
    )
    for level, side, other in levels:
        of_folds = [_labels(sides, other) - _labels(sides, side) for sides in splits.parts]
        missing = sorted(set().union(*of_folds))
        if missing:
            verb = "does" if len(missing) == 1 else "do"
            where = side
            if splits.is_nested:
                rows = "training" if side == "train" else "test"
                where = f"the {rows} rows of {splits.number(sum(map(bool, of_folds)))}"
            yield Finding(
                level,
                f"missing-from-{side}",
                f"{counted(len(missing), 'label')} of {other} {verb} not occur in {where}: "
                f"{', '.join(missing[:_SHOWN])}.",
            )


def _labels(sides: Sides, side: str) -> set[str]:
    return {example.label for example in (sides.train if side == "train" else sides.test)}


def _crossing_groups(splits: SplitExamples) -> Iterator[Finding]:
    crossing: set[str] = set()
    for sides in splits.parts:
        crossing |= {e.group for e in sides.train} & {e.group for e in sides.test}
    if crossing:
        yield Finding(
            "error",
            "crossing-groups",
            f"{counted(len(crossing), 'group')} on both sides, such as {min(crossing)!r}.",
        )


def _few_groups(splits: SplitExamples) -> Iterator[Finding]:
    n_groups = len({example.group for example in splits.tested})
    if n_groups < _FEW_GROUPS:
        verb = "is" if n_groups == 1 else "are"
        yield Finding(
            "warning",
            "few-groups",
            f"There {verb} only {counted(n_groups, 'test group')}: intervals over fewer than "
            f"{_FEW_GROUPS} groups are approximate.",
        )


def _few_groups_of_label(splits: SplitExamples) -> Iterator[Finding]:
    """Yield a warning on the labels that only few of the test groups have."""
    pairs = {(example.label, example.group) for example in splits.tested}
    n_groups = Counter(label for label, _ in pairs)
    few = sorted((n, label) for label, n in n_groups.items() if n < FEWEST_UNITS)
    if few and len({group for _, group in pairs}) >= 2 * FEWEST_UNITS:
        shown = [f"{label!r} ({n})" for n, label in few[:_SHOWN]]
        yield Finding(
            "warning",
            "few-groups-of-label",
            f"{counted(len(few), 'label')} in fewer than {FEWEST_UNITS} test groups: "
            f"{', '.join(shown)}. Scores that weight labels equally, such as balanced accuracy and "
            "AUROC, depend on these groups: their intervals are approximate, and differences "
            "between probes may have no p-value. With a label in a single group they have no "
            "interval.",
        )


_CHECKS = (
    _counts,
    _imbalance,
    _rare_labels,
    _missing_labels,
    _crossing_groups,
    _few_groups,
    _few_groups_of_label,
    repeated_texts,
    texts_on_both_sides,
    nul_characters,
    predictive_length,
)

_OF_CLASSES = (
    _counts,
    _imbalance,
    _rare_labels,
    _missing_labels,
    _few_groups_of_label,
    predictive_length,
)

_OF_TEXTS = (
    repeated_texts,
    texts_on_both_sides,
    nul_characters,
    predictive_length,
)

_OF_LABELS = (similar_labels, misspelt_labels)

_OF_GROUPS = (similar_groups, missing_groups)

_OF_NUMBERS = (rounded_numbers, other_digits)
