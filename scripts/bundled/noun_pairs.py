"""Pairs of beginnings of sentences that differ in the number of one of two nouns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from scripts.bundled.table import BundledSet, Row, shuffled

_N_CONTEXTS = 4  # contexts per subject noun; each gives four rows
# Singular and plural of these nouns have equally many tokens, so that positions correspond.
_SUBJECTS = (
    "farmer soldier singer student pilot writer tourist dog horse bird rabbit frog pig goat key "
    "letter box picture book coin candle brush ticket map"
)
_PREPOSITIONS = ("near", "behind", "beside", "next to")
_ATTRACTORS = "gate tree window bush statue door tent pond wall chair fence vase"
_NUMBERS = ("singular", "plural")
_VERBS = {"singular": " is", "plural": " are"}
_HISSING = ("s", "x", "sh", "ch")  # plural in -es


def noun_pairs() -> BundledSet:
    """Return beginnings of sentences with two nouns, and the same with another number of one noun.

    >>> row = noun_pairs().rows[1]
    >>> row["text"], row["subject_flipped"], row["verb"]
    ('The farmer next to the statues', 'The farmers next to the statues', ' is')
    """
    return BundledSet(
        name="noun_pairs",
        title="Number of the subject and of the nearest noun, with counterfactuals",
        task="A sentence ends before its verb. Which of its two nouns decides the number of the "
        "verb that the network predicts: the subject, or the noun that is nearest to the verb?",
        construction="Each context has all four combinations of the numbers of its two nouns, so "
        "that neither number predicts the other. `subject_flipped` and `nearest_flipped` are the "
        "same text with the other number of one noun, and as many tokens for the network `mini`.",
        shortcuts=("A plural is usually one letter longer, so text length is predictive.",),
        columns={
            "text": "the beginning of a sentence",
            "label": "number of the subject",
            "nearest": "number of the noun that is nearest to the verb",
            "group": "the subject noun in the singular",
            "subject_flipped": "the text with the other number of the subject",
            "nearest_flipped": "the text with the other number of the nearest noun",
            "verb": "the verb that agrees with the subject",
            "other_verb": "the verb that does not",
            "nearest_verb": "the verb that agrees with the nearest noun",
            "nearest_other": "the verb that does not",
        },
        rows=tuple(_rows(random.Random(0))),
    )


def _rows(generator: random.Random) -> Iterator[Row]:
    for subject in _SUBJECTS.split():
        contexts = product(_PREPOSITIONS, _ATTRACTORS.split())
        for preposition, nearest in shuffled(contexts, generator)[:_N_CONTEXTS]:
            for own, other in product(_NUMBERS, _NUMBERS):
                yield _row(subject, preposition, nearest, own, other)


def _row(subject: str, preposition: str, nearest: str, own: str, other: str) -> Row:
    def text(first: str, last: str) -> str:
        return f"The {_noun(subject, first)} {preposition} the {_noun(nearest, last)}"

    return {
        "text": text(own, other),
        "label": own,
        "nearest": other,
        "group": subject,
        "subject_flipped": text(_flipped(own), other),
        "nearest_flipped": text(own, _flipped(other)),
        "verb": _VERBS[own],
        "other_verb": _VERBS[_flipped(own)],
        "nearest_verb": _VERBS[other],
        "nearest_other": _VERBS[_flipped(other)],
    }


def _noun(noun: str, number: str) -> str:
    if number == "singular":
        return noun
    return noun + ("es" if noun.endswith(_HISSING) else "s")


def _flipped(number: str) -> str:
    return _NUMBERS[number == _NUMBERS[0]]
