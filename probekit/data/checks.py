"""Checks of a data set and its split: leaks, duplicates, imbalance, typos in labels.

Each check is a function in the table `_CHECKS` at the end of the file.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, TextSpan
from probekit.data.findings import Finding, Severity, by_level, rows_of
from probekit.data.label_checks import (
    misspelt_labels,
    other_digits,
    rounded_numbers,
    similar_labels,
)
from probekit.data.spelling import is_inside_word
from probekit.data.splits import Split

_SHOWN = 20  # labels listed in a message
_FEW_GROUPS = 20  # with fewer test groups, intervals are approximate
_FEW_EXAMPLES = 5  # with fewer training examples of a label, folds lack it
_MAJORITY = 0.8  # share of the most frequent label from which accuracy is a poor metric
_STRONG_IMBALANCE = 10  # ratio of the most frequent to the rarest label
_SHOWN_CONTEXT = 20  # characters around a span
_LENGTH_BINS = 20
_LENGTH_MARGIN = 0.05  # balanced accuracy above chance that causes a warning


_NO_GROUPS = Finding(
    "warning",
    "no-groups",
    "No group column is set, so each row is its own group. Related rows, such as instances of one "
    "template or words of one text, may be in both train and test, and confidence intervals are "
    "then too narrow. Set data.columns.group to the column that identifies related rows; if rows "
    "are unrelated, to a column with a different value in each.",
)


@dataclass(frozen=True)
class _Sides:
    """Examples of each side of a split."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]

    @property
    def examples(self) -> tuple[Example, ...]:
        """Examples of both sides."""
        return self.train + self.test

    def items(self) -> tuple[tuple[str, tuple[Example, ...]], ...]:
        return ("train", self.train), ("test", self.test)


def check_dataset(
    dataset: Dataset, split: Split, *, has_classes: bool = True, has_texts: bool = True
) -> tuple[Finding, ...]:
    """Return the findings about a data set and its split, errors first.

    With `has_classes=False`, for labels that are numbers or heads, checks of classes are skipped.
    With `has_texts=False`, for given activations, checks of texts are skipped.

    >>> rows = [("Yes!", "y", "a"), ("No!", "n", "b"), ("Yes!", "y", "c")]
    >>> examples = tuple(Example(*row, id=f"row {i}") for i, row in enumerate(rows))
    >>> split = Split(train=np.array([0, 1]), test=np.array([2]))
    >>> for finding in check_dataset(Dataset("tiny", examples), split)[:3]:
    ...     print(f"{finding.level}: {finding.message}")
    warning: 2 labels with fewer than 5 examples in train: n, y.
    warning: 1 label of train does not occur in test: n.
    warning: There is only 1 test group: intervals over fewer than 20 groups are approximate.
    """
    sides = _Sides(dataset.select(split.train).examples, dataset.select(split.test).examples)
    findings = [Finding("info", "reader", f"{note}.") for note in dataset.notes]
    findings += [] if dataset.has_groups else [_NO_GROUPS]
    skipped = (*(() if has_classes else _OF_CLASSES), *(() if has_texts else _OF_TEXTS))
    checks = [check for check in _CHECKS if check not in skipped]
    findings += [finding for check in checks for finding in check(sides)]
    of_labels = _OF_LABELS if has_classes else _OF_NUMBERS
    findings += [finding for check in of_labels for finding in check(sides.examples)]
    findings += [] if dataset.marks_words else _spans_inside_words(sides)
    return by_level(findings)


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
    (frequent, n_frequent), (rare, n_rare) = labels[0], labels[-1]
    share = n_frequent / len(sides.train)
    if share >= _MAJORITY or n_frequent >= _STRONG_IMBALANCE * n_rare:
        detection = f" or, to detect {rare!r}, auprc" if len(labels) == 2 else ""
        yield Finding(
            "info",
            "imbalance",
            f"train has {n_frequent:,} examples of {frequent!r} and {n_rare:,} of {rare!r}, so "
            f"always predicting {frequent!r} has an accuracy of {share:.2f}: set `probe.metric` to "
            f"balanced_accuracy{detection}.",
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
            verb = "does" if len(missing) == 1 else "do"
            yield Finding(
                level,
                f"missing-from-{side}",
                f"{counted(len(missing), 'label')} of {other} {verb} not occur in {side}: "
                f"{', '.join(missing[:_SHOWN])}.",
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
    yield from few_groups(len({example.group for example in sides.test}))


def few_groups(n_groups: int) -> list[Finding]:
    """Return a warning if there are so few test groups that intervals are approximate."""
    if n_groups >= _FEW_GROUPS:
        return []
    verb = "is" if n_groups == 1 else "are"
    message = (
        f"There {verb} only {counted(n_groups, 'test group')}: intervals over fewer than "
        f"{_FEW_GROUPS} groups are approximate."
    )
    return [Finding("warning", "few-groups", message)]


def _duplicates_within(sides: _Sides) -> Iterator[Finding]:
    for side, examples in sides.items():
        n_repeated = len(examples) - len({example.place for example in examples})
        if n_repeated:
            yield Finding(
                "warning",
                f"duplicates-in-{side}",
                f"{n_repeated:,} of {len(examples):,} examples in {side} have the same text and "
                "span as an earlier one.",
            )


def _duplicates_across(sides: _Sides) -> Iterator[Finding]:
    seen = {example.place for example in sides.train}
    repeated = [example for example in sides.test if example.place in seen]
    if repeated:
        yield Finding(
            "warning",
            "duplicates-across",
            f"{len(repeated):,} of {len(sides.test):,} examples in test ({_n_texts(repeated):,} of "
            f"{_n_texts(sides.test):,} texts) also occur in train; split.drop_repeated drops them "
            "from test.",
        )


def _contradictions(sides: _Sides) -> Iterator[Finding]:
    labels: dict[TextSpan, set[str]] = defaultdict(set)
    for example in sides.examples:
        labels[example.place].add(example.label)
    contradicting = [place for place, names in labels.items() if len(names) > 1]
    if contradicting:
        text, span = contradicting[0]
        yield Finding(
            "warning",
            "contradictions",
            f"{len(contradicting):,} texts or spans have examples with different labels, such as "
            f"{span or 'all'} of {text!r}: {', '.join(sorted(labels[text, span]))}.",
        )


def _spans_inside_words(sides: _Sides) -> Iterator[Finding]:
    marked = (example for example in sides.examples if example.span)
    cut = [e for e in marked if any(is_inside_word(e.text, end) for end in e.span or ())]
    if cut:
        first = cut[0]
        start, end = first.span or (0, 0)
        before = first.text[max(0, start - _SHOWN_CONTEXT) : start]
        after = first.text[end : end + _SHOWN_CONTEXT]
        yield Finding(
            "warning",
            "spans-inside-words",
            f"{counted(len(cut), 'row')} with a span that begins or ends inside a word "
            f"({rows_of(cut)}); the first: {before + '[' + first.text[start:end] + ']' + after!r}. "
            "Spans count characters from 0 and end one past the last: correct these spans, unless "
            "parts of words are intended.",
        )


def _nul_characters(sides: _Sides) -> Iterator[Finding]:
    found = [example for example in sides.examples if "\0" in example.text]
    if found:
        at = found[0].text.index("\0")
        around = found[0].text[max(0, at - _SHOWN_CONTEXT) : at + _SHOWN_CONTEXT]
        yield Finding(
            "warning",
            "nul-characters",
            f"{counted(len(found), 'row')} with a NUL character in the text ({rows_of(found)}); "
            f"the first is character {at}, in {around!r}. The model reads it as a token. Remove "
            "it; if the file was converted from UTF-16, convert it again.",
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
    """Return the balanced accuracy in test of a classifier on length only.

    In each bin of text or span lengths, it predicts the label with the largest share of its rows.
    """
    lengths = {side: list(map(_n_characters, examples)) for side, examples in sides.items()}
    edges = np.quantile(lengths["train"], np.linspace(0, 1, _LENGTH_BINS + 1)[1:-1])
    bins = {side: np.searchsorted(edges, values).tolist() for side, values in lengths.items()}
    n_rows = Counter(example.label for example in sides.train)
    by_bin: dict[int, Counter[str]] = defaultdict(Counter)
    for example, number in zip(sides.train, bins["train"], strict=True):
        by_bin[number][example.label] += 1
    # Shares, not counts: otherwise the majority class would be predicted in every bin.
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
    # A repeated sentence counts twice, but the words of a sentence share one text.
    return len({(example.group, example.text) for example in examples})


_CHECKS = (
    _counts,
    _imbalance,
    _rare_labels,
    _missing_labels,
    _crossing_groups,
    _few_groups,
    _duplicates_within,
    _duplicates_across,
    _contradictions,
    _nul_characters,
    _length,
)

_OF_CLASSES = (
    _counts,
    _imbalance,
    _rare_labels,
    _missing_labels,
    _length,
)

_OF_TEXTS = (
    _duplicates_within,
    _duplicates_across,
    _contradictions,
    _nul_characters,
    _length,
)

_OF_LABELS = (similar_labels, misspelt_labels)

_OF_NUMBERS = (rounded_numbers, other_digits)
