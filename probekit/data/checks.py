"""What is worth knowing of a data set and its split before any work is done on them.

Each check is one small function in the table `_CHECKS`, at the end.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, SourceLine
from probekit.data.splits import Split

Severity = Literal["error", "warning", "info"]

_LEVELS: tuple[Severity, ...] = ("error", "warning", "info")

_SHOWN = 20  # labels that a message spells out
_FEW_GROUPS = 10  # with fewer in test, an interval over groups says little
_FEW_EXAMPLES = 5  # of a label in train; with fewer, folds and sides lack it
_STRONG_IMBALANCE = 10  # rows of the most frequent label for one of the rarest
_LENGTH_BINS = 20
_LENGTH_MARGIN = 0.05  # balanced accuracy above chance that is worth a warning


@dataclass(frozen=True)
class Finding:
    """One thing found.

    Attributes:
        level: an "error" makes results wrong, a "warning" may, an "info" does not.
        code: short and stable, to filter by.
        message: one sentence, with the numbers.
    """

    level: Severity
    code: str
    message: str


_NO_GROUPS = Finding(
    "warning",
    "no-groups",
    "No column names groups, so each row is one by itself. Rows that are alike, such as fillings "
    "of one template or words of one text, may stand in both train and test, and intervals come "
    "out too narrow. Name the column that says which rows belong together: "
    "data.columns.group; if none do, a column that differs in each.",
)


@dataclass(frozen=True)
class _Sides:
    """The examples of each side of a split."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]

    def items(self) -> tuple[tuple[str, tuple[Example, ...]], ...]:
        return ("train", self.train), ("test", self.test)


def check_dataset(
    dataset: Dataset, split: Split, *, has_classes: bool = True
) -> tuple[Finding, ...]:
    """Return all there is to say of a data set and its split, errors first.

    Where labels are numbers or heads (`has_classes` is false), what is said of classes is left out.

    >>> rows = [("Yes!", "y", "a"), ("No!", "n", "b"), ("Yes!", "y", "c")]
    >>> examples = tuple(Example(*row, id=f"row {i}") for i, row in enumerate(rows))
    >>> split = Split(train=np.array([0, 1]), test=np.array([2]))
    >>> for finding in check_dataset(Dataset("tiny", examples), split)[:3]:
    ...     print(f"{finding.level}: {finding.message}")
    warning: 2 labels with fewer than 5 examples in train: n, y.
    warning: train has labels that test lacks: n.
    warning: test has only 1 group: intervals that resample so few are mostly too narrow.
    """
    sides = _Sides(dataset.select(split.train).examples, dataset.select(split.test).examples)
    findings = [Finding("info", "reader", f"{note}.") for note in dataset.notes]
    findings += [] if dataset.has_groups else [_NO_GROUPS]
    checks = _CHECKS if has_classes else [check for check in _CHECKS if check not in _OF_CLASSES]
    findings += [finding for check in checks for finding in check(sides)]
    return by_level(findings)


def by_level(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, errors first, else in their order."""
    return tuple(sorted(findings, key=lambda finding: _LEVELS.index(finding.level)))


def _counts(sides: _Sides) -> Iterator[Finding]:
    for side, examples in sides.items():
        labels = Counter(example.label for example in examples).most_common()
        groups = {example.group for example in examples}
        shown = [f"{label} {n} ({n / len(examples):.1%})" for label, n in labels[:_SHOWN]]
        more = [f"and {len(labels) - _SHOWN} more"] if len(labels) > _SHOWN else []
        yield Finding(
            "info",
            f"{side}-counts",
            f"{side}: {counted(len(examples), 'example')}, {counted(len(groups), 'group')}, "
            f"{counted(len(labels), 'label')}: "
            f"{', '.join(shown + more)}.",
        )


def _imbalance(sides: _Sides) -> Iterator[Finding]:
    labels = Counter(example.label for example in sides.train).most_common()
    (most, n_most), (least, n_least) = labels[0], labels[-1]
    if n_most >= _STRONG_IMBALANCE * n_least:
        yield Finding(
            "info",
            "imbalance",
            f"train has {n_most:,} examples of {most!r} and {n_least:,} of {least!r}: read "
            "balanced accuracy or macro-F1, not accuracy.",
        )


def _similar_labels(sides: _Sides) -> Iterator[Finding]:
    spellings: dict[str, set[str]] = defaultdict(set)
    for example in sides.train + sides.test:
        spellings[example.label.strip().casefold()].add(example.label)
    for names in spellings.values():
        if len(names) > 1:
            yield Finding(
                "warning",
                "similar-labels",
                f"The labels {', '.join(map(repr, sorted(names)))} differ by case or spaces alone, "
                "and count as different classes.",
            )


def _rare_labels(sides: _Sides) -> Iterator[Finding]:
    labels = Counter(example.label for example in sides.train)
    rare = sorted(label for label, n in labels.items() if n < _FEW_EXAMPLES)
    if rare:
        yield Finding(
            "warning",
            "rare-labels",
            f"{counted(len(rare), 'label')} with fewer than {_FEW_EXAMPLES} examples in train: "
            f"{', '.join(rare[:_SHOWN])}.",
        )


def _missing_labels(sides: _Sides) -> Iterator[Finding]:
    labels = {side: {example.label for example in examples} for side, examples in sides.items()}
    levels: tuple[tuple[Severity, str, str], ...] = (
        ("error", "train", "test"),
        ("warning", "test", "train"),
    )
    for level, side, other in levels:
        missing = sorted(labels[other] - labels[side])
        if missing:
            yield Finding(
                level,
                f"missing-from-{side}",
                f"{other} has labels that {side} lacks: {', '.join(missing[:_SHOWN])}.",
            )


def _crossing_groups(sides: _Sides) -> Iterator[Finding]:
    train, test = ({example.group for example in examples} for _, examples in sides.items())
    if train & test:
        yield Finding(
            "error",
            "crossing-groups",
            f"{counted(len(train & test), 'group')} on both sides, such as {min(train & test)!r}.",
        )


def _few_groups(sides: _Sides) -> Iterator[Finding]:
    n_groups = len({example.group for example in sides.test})
    if n_groups < _FEW_GROUPS:
        yield Finding(
            "warning",
            "few-groups",
            f"test has only {counted(n_groups, 'group')}: intervals that resample so few are "
            "mostly too narrow.",
        )


def _duplicates_within(sides: _Sides) -> Iterator[Finding]:
    for side, examples in sides.items():
        n_more = len(examples) - len({example.place for example in examples})
        if n_more:
            yield Finding(
                "warning",
                f"duplicates-in-{side}",
                f"{n_more:,} of {len(examples):,} examples in {side} repeat text and span of "
                "another.",
            )


def _duplicates_across(sides: _Sides) -> Iterator[Finding]:
    seen = {example.place for example in sides.train}
    repeated = [example for example in sides.test if example.place in seen]
    if repeated:
        yield Finding(
            "warning",
            "duplicates-across",
            f"{len(repeated):,} of {len(sides.test):,} examples in test ({_n_texts(repeated):,} of "
            f"{_n_texts(sides.test):,} texts) stand verbatim in train; with split.drop_repeated "
            "they are left out.",
        )


def _contradictions(sides: _Sides) -> Iterator[Finding]:
    labels: dict[SourceLine, set[str]] = defaultdict(set)
    for example in sides.train + sides.test:
        labels[example.place].add(example.label)
    contradicting = [place for place, found in labels.items() if len(found) > 1]
    if contradicting:
        text, span = contradicting[0]
        yield Finding(
            "warning",
            "contradictions",
            f"{len(contradicting):,} places have examples of different labels, such as "
            f"{span or 'all'} of {text!r}: {', '.join(sorted(labels[text, span]))}.",
        )


def _length(sides: _Sides) -> Iterator[Finding]:
    accuracy = _accuracy_of_length(sides)
    n_rows = Counter(example.label for example in sides.test)
    chance = 1 / len(n_rows)
    error = math.sqrt(chance * (1 - chance) * sum(1 / n for n in n_rows.values())) / len(n_rows)
    beats_chance = accuracy > chance + max(_LENGTH_MARGIN, 3 * error)
    yield Finding(
        "warning" if beats_chance else "info",
        "length",
        f"The number of characters alone gives a balanced accuracy of {accuracy:.3f} in test "
        f"(chance {chance:.3f}).",
    )


def _accuracy_of_length(sides: _Sides) -> float:
    """Return the balanced accuracy in test of the label that stands out in each bin of lengths."""
    lengths = {side: list(map(_n_characters, examples)) for side, examples in sides.items()}
    edges = np.quantile(lengths["train"], np.linspace(0, 1, _LENGTH_BINS + 1)[1:-1])
    bins = {side: np.searchsorted(edges, values).tolist() for side, values in lengths.items()}
    n_rows = Counter(example.label for example in sides.train)
    by_bin: dict[int, Counter[str]] = defaultdict(Counter)
    for example, number in zip(sides.train, bins["train"], strict=True):
        by_bin[number][example.label] += 1
    # Shares of each label, not counts: else the most frequent label would stand out everywhere.
    predicted = {
        number: max(counts, key=lambda label: counts[label] / n_rows[label])
        for number, counts in by_bin.items()
    }
    hits: dict[str, list[bool]] = defaultdict(list)
    for example, number in zip(sides.test, bins["test"], strict=True):
        hits[example.label].append(predicted.get(number) == example.label)
    return fmean(fmean(values) for values in hits.values())


def _n_characters(example: Example) -> int:
    start, end = example.span or (0, len(example.text))
    return end - start


def _n_texts(examples: Iterable[Example]) -> int:
    # A sentence that occurs twice is two texts, though all its words are rows of one.
    return len({(example.group, example.text) for example in examples})


_CHECKS = (
    _counts,
    _imbalance,
    _similar_labels,
    _rare_labels,
    _missing_labels,
    _crossing_groups,
    _few_groups,
    _duplicates_within,
    _duplicates_across,
    _contradictions,
    _length,
)

_OF_CLASSES = (_counts, _imbalance, _similar_labels, _rare_labels, _missing_labels, _length)
