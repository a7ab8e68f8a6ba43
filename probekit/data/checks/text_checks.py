"""Checks of the texts of a data set: repeated texts, contradictions, spans, length."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from statistics import fmean

import numpy as np

from probekit.amounts import counted
from probekit.data.checks.findings import Finding, rows_of
from probekit.data.checks.spelling import is_inside_word
from probekit.data.examples import Example, Sides, SplitExamples, TextSpan

_SHOWN_CONTEXT = 20  # characters around a span
_SHOWN_TEXTS = 3  # with contradicting labels
_LONGEST_TEXT = 60  # characters
_LENGTH_BINS = 20
_LENGTH_MARGIN = 0.05  # balanced accuracy above chance that causes a warning


def repeated_texts(splits: SplitExamples) -> Iterator[Finding]:
    """Yield a warning for each side with texts, or spans, that occur more than once."""
    sides = [("test", part.test) for part in splits.parts]
    if not splits.is_nested:  # otherwise each training example is a test example of another fold
        sides.insert(0, ("train", splits.parts[0].train))
    repeated: Counter[str] = Counter()
    n_examples: Counter[str] = Counter()
    for side, examples in sides:
        repeated[side] += len(examples) - len({example.place for example in examples})
        n_examples[side] += len(examples)
    for side, n in repeated.items():
        if n:
            verb = "has" if n_examples[side] == 1 else "have"
            of_fold = " of the same fold" * splits.is_nested
            yield Finding(
                "warning",
                f"duplicates-in-{side}",
                f"{n:,} of {n_examples[side]:,} examples in {side} {verb} the same text and "
                f"span as an earlier one{of_fold}.",
            )


def texts_on_both_sides(splits: SplitExamples) -> Iterator[Finding]:
    """Yield a warning if texts, or spans, of test rows also occur in training rows."""
    of_folds = []
    for sides in splits.parts:
        seen = {example.place for example in sides.train}
        of_folds.append([example for example in sides.test if example.place in seen])
    repeated = [example for fold in of_folds for example in fold]
    if repeated:
        verb = "occurs" if len(repeated) == 1 else "occur"
        n_of = f"{len(repeated):,} of {len(splits.tested):,} examples in test"
        texts = f"({_n_texts(repeated):,} of {_n_texts(splits.tested):,} texts)"
        where, remedy = "train", "split.drop_repeated drops them from test"
        if splits.is_nested:
            n_folds = sum(map(bool, of_folds))
            where = f"the training rows of their outer fold, in {splits.number(n_folds)}"
            remedy = (
                "split.drop_repeated keeps each text in one group only; or give rows with the "
                "same text the same group"
            )
        yield Finding(
            "warning",
            "duplicates-across",
            f"{n_of} {texts} also {verb} in {where}, so that memorised texts raise the score; "
            f"{remedy}.",
        )


def contradicting_labels(examples: Iterable[Example]) -> Iterator[Finding]:
    """Yield a warning if equal texts, or spans, have different labels.

    Args:
        examples: all examples, those that `split.drop_repeated` drops included.
    """
    first: dict[TextSpan, dict[str, Example]] = defaultdict(dict)  # of each label
    for example in examples:
        first[example.place].setdefault(example.label, example)
    contradicting = [list(found.values()) for found in first.values() if len(found) > 1]
    if contradicting:
        shown = "; ".join(
            f"{_quoted(found[0])} is " + ", ".join(f"{e.label!r} in {e.where}" for e in found[:3])
            for found in contradicting[:_SHOWN_TEXTS]
        )
        n = len(contradicting)
        yield Finding(
            "warning",
            "contradictions",
            f"{n:,} {'text or span has' if n == 1 else 'texts or spans have'} examples with "
            f"different labels{', such as' * (n > _SHOWN_TEXTS) or ':'} {shown}. Correct these "
            "labels, or remove the rows: split.drop_repeated keeps a label that may be wrong.",
        )


def _quoted(example: Example) -> str:
    start, end = example.span or (0, len(example.text))
    text = example.text[start:end]
    shown = repr(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ...")
    return shown if example.span is None else f"{shown} at {start} to {end} of a text"


def spans_inside_words(splits: SplitExamples) -> Iterator[Finding]:
    """Yield a warning if spans begin or end inside a word."""
    marked = (example for example in splits.examples if example.span)
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


def nul_characters(splits: SplitExamples) -> Iterator[Finding]:
    """Yield a warning if texts have NUL characters."""
    found = [example for example in splits.examples if "\0" in example.text]
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


def predictive_length(splits: SplitExamples) -> Iterator[Finding]:
    """Yield how well text length alone predicts the label; a warning if it beats chance."""
    accuracy = _accuracy_of_length(splits)
    n_rows = Counter(example.label for example in splits.tested)
    chance = 1 / len(n_rows)
    error = math.sqrt(chance * (1 - chance) * sum(1 / n for n in n_rows.values())) / len(n_rows)
    beats_chance = accuracy > chance + max(_LENGTH_MARGIN, 3 * error)
    lead = "Length is associated with the label: the" if beats_chance else "The"
    yield Finding(
        "warning" if beats_chance else "info",
        "length",
        f"{lead} number of characters alone gives a balanced accuracy of {accuracy:.3f} in test "
        f"(chance {chance:.3f}).",
    )


def _accuracy_of_length(splits: SplitExamples) -> float:
    """Return the balanced test accuracy of a classifier that uses only the length of texts.

    The test examples of all folds are pooled.
    """
    hits: dict[str, list[bool]] = defaultdict(list)
    for sides in splits.parts:
        for example, guess in zip(sides.test, _guesses_from_length(sides), strict=True):
            hits[example.label].append(guess == example.label)
    return fmean(fmean(values) for values in hits.values())


def _guesses_from_length(sides: Sides) -> list[str | None]:
    """Return the label that the length of each test example predicts.

    In each bin of text or span lengths, it is the label with the largest share of its rows.
    """
    lengths = [list(map(_n_characters, examples)) for examples in (sides.train, sides.test)]
    edges = np.quantile(lengths[0], np.linspace(0, 1, _LENGTH_BINS + 1)[1:-1])
    fitted, tested = (np.searchsorted(edges, values).tolist() for values in lengths)
    n_rows = Counter(example.label for example in sides.train)
    by_bin: dict[int, Counter[str]] = defaultdict(Counter)
    for example, number in zip(sides.train, fitted, strict=True):
        by_bin[number][example.label] += 1
    # Shares, not counts: otherwise the majority class would be predicted in every bin.
    predicted = {
        number: max(counts, key=lambda label: counts[label] / n_rows[label])
        for number, counts in by_bin.items()
    }
    return [predicted.get(number) for number in tested]


def _n_characters(example: Example) -> int:
    start, end = example.span or (0, len(example.text))
    return end - start


def _n_texts(examples: Iterable[Example]) -> int:
    # A repeated sentence counts twice, but the words of a sentence share one text.
    return len({(example.group, example.text) for example in examples})
