"""Checks of a data set and its split: leaks, duplicates, imbalance, length, typos in labels.

Each check is a function in one of the tables `_OF_SPLITS` and `_OF_EXAMPLES` at the end.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np

from probekit.amounts import FEWEST_UNITS, counted, percent
from probekit.data import examples
from probekit.data import labels as spelling
from probekit.data.examples import Dataset, Example, Finding, rows_of, warning
from probekit.data.splits import IntArray, LabelCounts, Split

_SHOWN = 20  # labels listed in a message, and characters around a span
_SHOWN_TEXTS = 3  # texts with contradicting labels that a message shows
_LONGEST_TEXT = 60  # characters
FEW_GROUPS = 20  # with fewer test groups, intervals are approximate
FEWEST_EFFECTIVE = 4  # groups of a label, if they are unlike
_FEW_EXAMPLES = 5  # with fewer training examples of a label, some inner folds lack it
_MAJORITY = 0.8  # share of the most frequent label from which accuracy is a poor metric
_STRONG_IMBALANCE = 10  # ratio of the most frequent to the rarest label
_LENGTH_BINS = 20
_LENGTH_MARGIN = 0.05  # balanced accuracy above chance that causes a warning

_Examples: TypeAlias = Sequence[Example]

_NO_GROUPS = warning(
    "no-groups",
    "No groups are given, so each row is its own group. Related rows, such as instances of one "
    "template or words of one text, may be in both train and test, and confidence intervals are "
    "then too narrow. Give data.columns.group, in Python `groups`: the same name for related rows; "
    "if rows are unrelated, a different one for each.",
)


@dataclass(frozen=True, eq=False)
class _Splits:
    """Splits of a data set: one, or all outer folds of a nested cross-validation.

    Attributes:
        dataset: all examples, those that `split.drop_repeated` drops included.
        parts: the splits.
    """

    dataset: Dataset
    parts: Sequence[Split]

    @property
    def is_nested(self) -> bool:
        """Whether there are several outer folds."""
        return len(self.parts) > 1

    @cached_property
    def tested(self) -> IntArray:
        """Indices of the test examples of all splits."""
        return np.concatenate([split.test for split in self.parts])

    @cached_property
    def rows(self) -> IntArray:
        """Indices of the examples of all splits, each once."""
        # Each example is a test example of at most one fold; repeated ones may be dropped.
        return np.sort(self.tested) if self.is_nested else np.concatenate(self.parts[0])

    @cached_property
    def texts(self) -> list[tuple[_Examples, _Examples]]:
        """The training and the test examples of each split."""
        return [(self.examples(train), self.examples(test)) for train, test in self.parts]

    def examples(self, indices: IntArray) -> _Examples:
        """Return the examples at some indices."""
        return self.dataset.select(indices).examples

    def named(self) -> tuple[tuple[str, IntArray], ...]:
        """Return the name of each side and the indices of its examples.

        Several folds have a single entry, "all folds", with the examples of all splits.
        """
        if self.is_nested:
            return (("all folds", self.rows),)
        return tuple(zip(("train", "test"), self.parts[0], strict=True))

    def where(self, side: str, of_folds: Sequence[Collection[Any]]) -> str:
        """Return a side in words; for several folds, with the number of folds; see `number`."""
        rows = "training" if side == "train" else side
        return f"the {rows} rows of {self.number(of_folds)}" if self.is_nested else side

    def number(self, of_folds: Sequence[Collection[Any]]) -> str:
        """Return the number of outer folds with a problem in words.

        Args:
            of_folds: the labels or examples with a problem in each fold; empty without one.
        """
        return f"{sum(map(bool, of_folds))} of {len(self.parts)} outer folds"


def check_dataset(
    dataset: Dataset, splits: Sequence[Split], *, has_classes: bool = True, has_texts: bool = True
) -> tuple[Finding, ...]:
    """Return the findings about a data set and its splits, errors first.

    Args:
        dataset: the examples.
        splits: one split, or all outer folds of a nested cross-validation.
        has_classes: False for labels that are numbers or heads: checks of numbers replace those of
            classes.
        has_texts: False for given activations: checks of texts are skipped.

    >>> from probekit.data.examples import Example
    >>> rows = [("Yes!", "y", "a"), ("No!", "n", "b"), ("Yes!", "y", "c")]
    >>> examples = tuple(Example(*row, id=f"row {i}") for i, row in enumerate(rows))
    >>> split = Split(train=np.array([0, 1]), test=np.array([2]))
    >>> for finding in check_dataset(Dataset("tiny", examples), [split])[:3]:
    ...     print(f"{finding.level}: {finding.message}")
    warning: 2 labels with fewer than 5 examples in train: n, y.
    warning: 1 label of train does not occur in test: n.
    warning: Only 1 test group: intervals over fewer than 20 groups are approximate.
    """
    checked = _Splits(dataset, splits)
    present = {
        "classes": has_classes,
        "numbers": not has_classes,
        "texts": has_texts,
        "groups": dataset.has_groups,
        # Words of a treebank may be parts of words of the text.
        "spans": has_texts and not dataset.marks_words,
    }
    findings = [Finding("info", "reader", f"{note}.") for note in dataset.notes]
    if not dataset.has_groups:
        findings.append(_NO_GROUPS)
    for check, needs in _OF_SPLITS:
        if all(present[need] for need in needs):
            findings += check(checked)
    for check_examples, need in _OF_EXAMPLES:
        if present[need]:
            findings += check_examples(dataset.select(checked.rows))
    # A misspelt label counts as a rare class: correct it before a metric is chosen for it.
    if {"misspelt-labels", "similar-labels"} & {finding.code for finding in findings}:
        findings = [finding for finding in findings if finding.code != "imbalance"]
    return examples.by_level(findings)


def _counts(splits: _Splits) -> Iterator[Finding]:
    """Yield the numbers of examples, groups and labels of each side, or of all folds together."""
    for side, rows in splits.named():
        labels = Counter(splits.dataset.labels[rows]).most_common()
        n_groups = len(np.unique(splits.dataset.group_codes[rows]))
        shown = [f"{label} {n:,} ({percent(n / len(rows), 1)})" for label, n in labels[:_SHOWN]]
        more = [f"and {len(labels) - _SHOWN} more"] if len(labels) > _SHOWN else []
        yield Finding(
            "info",
            f"{side.replace(' ', '-')}-counts",
            f"{side}: {counted(len(rows), 'example')}, {counted(n_groups, 'group')}, "
            f"{counted(len(labels), 'label')}: {', '.join(shown + more)}.",
        )


def _imbalance(splits: _Splits) -> Iterator[Finding]:
    """Yield a note if one label dominates the training rows, or those of all folds together."""
    (side, rows), *_ = splits.named()
    labels = Counter(splits.dataset.labels[rows]).most_common()
    (frequent, n_frequent), (rare, n_rare) = labels[0], labels[-1]
    share = n_frequent / len(rows)
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


def _rare_labels(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning on labels with few training examples in at least one split."""
    labels = [Counter(splits.dataset.labels[train]) for train, _ in splits.parts]
    of_folds = [{label for label, n in one.items() if n < _FEW_EXAMPLES} for one in labels]
    rare = sorted(set().union(*of_folds))
    if rare:
        yield warning(
            "rare-labels",
            f"{counted(len(rare), 'label')} with fewer than {_FEW_EXAMPLES} examples in "
            f"{splits.where('train', of_folds)}: {', '.join(rare[:_SHOWN])}.",
        )


def _missing_labels(splits: _Splits) -> Iterator[Finding]:
    """Yield an error on labels of test that train lacks, and a warning on those that test lacks."""
    labels = [[set(splits.dataset.labels[side]) for side in sides] for sides in splits.parts]
    levels: tuple[tuple[examples.Severity, str, str, list[set[str]]], ...] = (
        ("error", "train", "test", [test - train for train, test in labels]),
        ("warning", "test", "train", [train - test for train, test in labels]),
    )
    for level, side, other, of_folds in levels:
        missing = sorted(set().union(*of_folds))
        if missing:
            verb = "does" if len(missing) == 1 else "do"
            yield Finding(
                level,
                f"missing-from-{side}",
                f"{counted(len(missing), 'label')} of {other} {verb} not occur in "
                f"{splits.where(side, of_folds)}: {', '.join(missing[:_SHOWN])}.",
            )


def _crossing_groups(splits: _Splits) -> Iterator[Finding]:
    """Yield an error if a group has examples in train and in test of one split."""
    groups = splits.dataset.group_codes
    crossing = [np.intersect1d(groups[train], groups[test]) for train, test in splits.parts]
    found = np.unique(np.concatenate(crossing))
    if len(found):
        first = splits.dataset.examples[int(np.argmax(groups == found[0]))].group
        yield Finding(
            "error",
            "crossing-groups",
            f"{counted(len(found), 'group')} on both sides, such as {first!r}.",
        )


def _few_groups(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning if there are few test groups in all."""
    n_groups = len(np.unique(splits.dataset.group_codes[splits.tested]))
    if n_groups < FEW_GROUPS:
        yield warning(
            "few-groups",
            f"Only {counted(n_groups, 'test group')}: intervals over fewer than {FEW_GROUPS} "
            "groups are approximate.",
        )


def _few_groups_of_label(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning on the labels that only few of many test groups have."""
    groups = splits.dataset.group_codes[splits.tested]
    counts = LabelCounts.of(splits.dataset.labels[splits.tested], groups)
    n_rows, squares = (np.bincount(counts.label, weights=counts.n_rows**k) for k in (1, 2))
    effective = n_rows**2 / squares  # of equal groups their number
    entries = zip(counts.n_groups_of_label.tolist(), counts.labels, effective, strict=True)
    few = sorted(one for one in entries if one[0] < FEWEST_UNITS or one[2] < FEWEST_EFFECTIVE)
    if few and len(np.unique(counts.group)) >= 2 * FEWEST_UNITS:
        shown = [f"{label!r} ({n})" for n, label, _ in few[:_SHOWN]]
        yield warning(
            "few-groups-of-label",
            f"{counted(len(few), 'label')} in fewer than {FEWEST_UNITS} test groups, or mostly in "
            f"fewer than {FEWEST_EFFECTIVE}: {', '.join(shown)}. Scores that weight labels "
            "equally, such as balanced accuracy and AUROC, depend on these groups: their "
            "intervals are approximate, and differences between probes may have no p-value. With a "
            "label in a single group they have no interval.",
        )


def _repeated_texts(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning for each side with texts, or spans, that occur more than once in a fold."""
    sides = {"test": [test for _, test in splits.texts]}
    # With several folds, each training example is also a test example, of another fold.
    if not splits.is_nested:
        sides = {"train": [train for train, _ in splits.texts]} | sides
    for side, parts in sides.items():
        n_examples = sum(map(len, parts))
        n_repeated = n_examples - sum(len({example.place for example in part}) for part in parts)
        if n_repeated:
            of_fold = " of the same fold" if splits.is_nested else ""
            is_reply = any(example.reply_ids for part in parts for example in part)
            advice = "Remove the repeated rows, unless their frequency matters."
            if is_reply:
                advice = "For fewer equal replies, raise `temperature` or lower `samples`."
            yield warning(
                f"duplicates-in-{side}",
                f"{n_repeated:,} of {n_examples:,} examples in {side} have the same text and "
                f"span as an earlier one{of_fold}, and so count more than other texts. {advice}",
            )


def repeated_share(dataset: Dataset, splits: Sequence[Split]) -> float:
    """Return the share of test examples whose text and span also occur in their training rows.

    Args:
        dataset: the examples.
        splits: one split, or all outer folds of a nested cross-validation.
    """
    of_folds = _repeated_across(_Splits(dataset, splits))
    return sum(map(len, of_folds)) / sum(len(split.test) for split in splits)


def _repeated_across(splits: _Splits) -> list[list[Example]]:
    """Return for each split the test examples whose text and span occur in its training rows."""
    pairs = [({example.place for example in train}, test) for train, test in splits.texts]
    return [[example for example in test if example.place in seen] for seen, test in pairs]


def _texts_on_both_sides(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning if texts, or spans, of test rows also occur in training rows."""
    of_folds = _repeated_across(splits)
    repeated = [example for fold in of_folds for example in fold]
    if repeated:
        verb = "occurs" if len(repeated) == 1 else "occur"
        how_many = f"{len(repeated):,} of {len(splits.tested):,} examples in test"
        # A repeated sentence counts twice, but the words of a sentence share one text.
        n_texts = len({(one.group, one.text) for one in repeated})
        n_all = len({(one.group, one.text) for one in splits.examples(splits.tested)})
        where, remedy = "train", "split.drop_repeated drops them from test"
        if splits.is_nested:
            where = f"the training rows of their outer fold, in {splits.number(of_folds)}"
            remedy = (
                "split.drop_repeated keeps each text in one group only; or give rows with the "
                "same text the same group"
            )
        yield warning(
            "duplicates-across",
            f"{how_many} ({n_texts:,} of {n_all:,} texts) also {verb} in {where}, so that "
            f"memorised texts raise the score; {remedy}.",
        )


def _nul_characters(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning if a text contains a NUL character."""
    found = [example for example in splits.examples(splits.rows) if "\0" in example.text]
    if found:
        at = found[0].text.index("\0")
        around = found[0].text[max(0, at - _SHOWN) : at + _SHOWN]
        yield warning(
            "nul-characters",
            f"{counted(len(found), 'row')} with a NUL character in the text ({rows_of(found)}); "
            f"the first is character {at}, in {around!r}. The model reads it as a token. Remove "
            "it; if the file was converted from UTF-16, convert it again.",
        )


def _predictive_length(splits: _Splits) -> Iterator[Finding]:
    """Yield how well text length alone predicts the label; a warning if it beats chance.

    The test examples of all folds are pooled.
    """
    hits: dict[str, list[bool]] = defaultdict(list)
    for train, test in splits.texts:
        for example, guess in zip(test, _guesses_from_length(train, test), strict=True):
            hits[example.label].append(guess == example.label)
    accuracy = fmean(fmean(of_label) for of_label in hits.values())
    chance, inverse_sizes = 1 / len(hits), sum(1 / len(of_label) for of_label in hits.values())
    # The standard error of the balanced accuracy of random guesses: a mean over labels of shares,
    # each with the variance chance (1 - chance) / n_rows.
    error = math.sqrt(chance * (1 - chance) * inverse_sizes) / len(hits)
    beats_chance = accuracy > chance + max(_LENGTH_MARGIN, 3 * error)
    lead = "Length is associated with the label: the" if beats_chance else "The"
    yield Finding(
        "warning" if beats_chance else "info",
        "length",
        f"{lead} number of characters alone gives a balanced accuracy of {accuracy:.3f} in test "
        f"(chance {chance:.3f}).",
    )


def _guesses_from_length(train: _Examples, test: _Examples) -> list[str | None]:
    """Return the label that the length of each test example predicts.

    In each bin of text or span lengths, it is the label that has the largest share of its own
    training rows in the bin; None if the bin has no training example.
    """
    train_lengths, test_lengths = (
        [len(one.text) if one.span is None else one.span[1] - one.span[0] for one in side]
        for side in (train, test)
    )
    # Inner edges of bins with about equally many training rows.
    edges = np.quantile(train_lengths, np.linspace(0, 1, _LENGTH_BINS + 1)[1:-1])
    n_rows = Counter(example.label for example in train)
    by_bin: dict[int, Counter[str]] = defaultdict(Counter)
    for example, number in zip(train, np.searchsorted(edges, train_lengths).tolist(), strict=True):
        by_bin[number][example.label] += 1
    # Shares, not counts: otherwise the majority class would be predicted in every bin.
    predicted = {
        number: max(counts, key=lambda label: counts[label] / n_rows[label])
        for number, counts in by_bin.items()
    }
    return [predicted.get(number) for number in np.searchsorted(edges, test_lengths).tolist()]


def _contradicting_labels(splits: _Splits) -> Iterator[Finding]:
    """Yield a warning if equal texts, or spans, have different labels."""
    # The first example of each text or span with each label.
    firsts: dict[examples.TextSpan, dict[str, Example]] = defaultdict(dict)
    for example in splits.dataset.examples:
        firsts[example.place].setdefault(example.label, example)
    contradicting = [list(by_label.values()) for by_label in firsts.values() if len(by_label) > 1]
    if contradicting:
        texts = []
        for alike in contradicting[:_SHOWN_TEXTS]:
            labels = ", ".join(f"{one.label!r} in {one.where}" for one in alike[:3])
            start, end = alike[0].span or (0, len(alike[0].text))
            text = alike[0].text[start:end]
            quoted = repr(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ...")
            where = f" at {start} to {end} of a text" if alike[0].span else ""
            texts.append(f"{quoted}{where} is {labels}")
        shown, n = "; ".join(texts), len(contradicting)
        lead = ", such as" if n > _SHOWN_TEXTS else ":"
        yield warning(
            "contradictions",
            f"{n:,} {'text or span has' if n == 1 else 'texts or spans have'} examples with "
            f"different labels{lead} {shown}. Correct these "
            "labels, or remove the rows: split.drop_repeated keeps a label that may be wrong.",
        )


def _spans_inside_words(dataset: Dataset) -> Iterator[Finding]:
    """Yield a warning if a span begins or ends inside a word."""
    cuts_word, rows = spelling.is_inside_word, dataset.examples
    cut = [one for one in rows if any(cuts_word(one.text, end) for end in one.span or ())]
    if cut:
        text, (start, end) = cut[0].text, cut[0].span or (0, 0)
        before, after = text[max(0, start - _SHOWN) : start], text[end : end + _SHOWN]
        yield warning(
            "spans-inside-words",
            f"{counted(len(cut), 'row')} with a span that begins or ends inside a word "
            f"({rows_of(cut)}); the first: {before + '[' + text[start:end] + ']' + after!r}. "
            "Spans count characters from 0 and end one past the last: correct these spans, unless "
            "parts of words are intended.",
        )


def _spans_of_units(dataset: Dataset) -> Iterator[Finding]:
    """Yield a warning if spans fit the texts as well, or better, if they count other units.

    A span fits if another one has the same characters, and if its first and last are letters. Spans
    of letters with case are left out: `_spans_inside_words` reports them.
    """
    marked = [(one, *one.span) for one in dataset.examples if one.span]
    for size, code, units in ((2, "utf-16-le", "code units of UTF-16"), (1, "utf-8", "bytes")):
        read = []
        for one, start, end in marked:
            part = one.text.encode(code)[size * start : size * end]
            read.append((one.text[start:end], part.decode(code, "replace"), one))
        known = {own for own, other, _ in read if own == other}
        rows = [row for row in read if row[0] != row[1] and row[0].lower() == row[0].upper()]
        own, other = (
            sum((form in known) + form[:1].isalnum() + form[-1:].isalnum() for form in forms)
            for forms in ([own for own, _, _ in rows], [other for _, other, _ in rows])
        )
        # A character that a span cuts is replaced by U+FFFD.
        if rows and own <= other and not any("\ufffd" in row[1] for row in rows):
            yield warning(
                "spans-of-units",
                f"{counted(len(rows), 'row')} with a span that fits as well or better if it counts "
                f"{units} ({rows_of([row[2] for row in rows])}): {rows[0][0]!r} in characters "
                f"is {rows[0][1]!r} in {units}. Spans count characters: check or convert these.",
            )


# Checks, and what the data must have for each.
_OF_SPLITS: tuple[tuple[Callable[[_Splits], Iterator[Finding]], tuple[str, ...]], ...] = (
    (_counts, ("classes",)),
    (_imbalance, ("classes",)),
    (_rare_labels, ("classes",)),
    (_missing_labels, ("classes",)),
    (_crossing_groups, ()),
    (_few_groups, ()),
    (_few_groups_of_label, ("classes",)),
    (_repeated_texts, ("texts",)),
    (_texts_on_both_sides, ("texts",)),
    (_nul_characters, ("texts",)),
    (_predictive_length, ("classes", "texts")),
    (_contradicting_labels, ("texts",)),
)
_OF_EXAMPLES: tuple[tuple[Callable[[Dataset], Iterator[Finding]], str], ...] = (
    (partial(spelling.check_names, "label"), "classes"),
    (spelling.misspelt_labels, "classes"),
    (spelling.rounded_numbers, "numbers"),
    (spelling.other_digits, "numbers"),
    (partial(spelling.check_names, "group"), "groups"),
    (partial(spelling.similar, "text"), "texts"),
    (_spans_inside_words, "spans"),
    (_spans_of_units, "spans"),
)
