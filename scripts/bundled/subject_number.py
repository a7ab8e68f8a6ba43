"""Beginnings of sentences, labelled with the grammatical number of the subject."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from scripts.bundled.table import BundledSet, Row, shuffled

_N_CONTEXTS = 18  # contexts per subject noun; each gives four rows


class _Kind(NamedTuple):
    """Subjects of one kind, with the words that may precede and follow them."""

    openers: tuple[str, ...]  # each goes with both numbers
    subjects: str
    prepositions: tuple[str, ...]
    attractors: str


_KINDS = (
    _Kind(
        openers=("The", "The old", "The young", "The tall"),
        subjects="teacher doctor farmer singer painter lawyer nurse student driver cook writer "
        "baker pilot soldier tourist child man woman policeman fisherman",
        prepositions=("near", "behind", "beside", "next to"),
        attractors="gate tree window car bench statue bridge door wagon bus fence tent",
    ),
    _Kind(
        openers=("The", "The black", "The hungry", "The little"),
        subjects="dog cat horse fox duck bird rabbit frog pig goat rooster wolf goose mouse",
        prepositions=("near", "behind", "beside", "next to"),
        attractors="barn fence tree pond wagon shed bush gate box basket wall ladder",
    ),
    _Kind(
        openers=("The", "My", "His", "Her", "Our", "Their"),
        subjects="key letter box picture cup book coin basket candle brush toy dish ticket bottle "
        "ring map spoon bowl pencil hammer coat hat ribbon towel knife scarf",
        prepositions=("near", "behind", "beside", "next to"),
        attractors="lamp clock mirror vase plate chair shelf drawer suitcase window bag pillow",
    ),
)
_ADJECTIVES = ("", "old ", "small ", "other ")  # before the attractor
_IRREGULAR = {
    "child": "children",
    "fisherman": "fishermen",
    "goose": "geese",
    "knife": "knives",
    "man": "men",
    "mouse": "mice",
    "policeman": "policemen",
    "scarf": "scarves",
    "shelf": "shelves",
    "wolf": "wolves",
    "woman": "women",
}
_HISSING = ("s", "x", "sh", "ch")  # plural in -es


def subject_number() -> BundledSet:
    """Return beginnings of sentences, labelled with the number of the subject.

    >>> subject_number().rows[0]["attractor"] in ("same", "other")
    True
    """
    return BundledSet(
        name="subject_number",
        title="Number of the subject, with a noun in between",
        task="A sentence ends before its verb: is its subject `singular` or `plural`? Read it at "
        "the last token, a noun closer to the verb that is not its subject (the attractor).",
        construction="Each subject noun occurs in contexts of an opener, a preposition and an "
        "attractor. Each context has all four combinations of the numbers of subject and "
        "attractor, so that neither the attractor, nor its number, nor any other word of the "
        "context predicts the label. The openers go with both numbers. Both numbers of a subject "
        "noun are in one group.",
        shortcuts=(
            "A plural is usually one letter longer, so text length is slightly predictive.",
            "The subject is always the first noun.",
            "Attractors and openers occur in many groups, equally often with both labels.",
        ),
        columns={
            "text": "the beginning of a sentence",
            "label": "number of the subject",
            "group": "the subject noun in the singular",
            "attractor": "`same` if the last noun has the number of the subject, else `other`",
        },
        rows=tuple(_rows(random.Random(0))),
    )


def _rows(generator: random.Random) -> Iterator[Row]:
    for kind in _KINDS:
        for subject in kind.subjects.split():
            contexts = product(
                kind.openers, kind.prepositions, _ADJECTIVES, kind.attractors.split()
            )
            for context in shuffled(contexts, generator)[:_N_CONTEXTS]:
                yield from _four_rows(subject, *context)


def _four_rows(
    subject: str, opener: str, preposition: str, adjective: str, attractor: str
) -> Iterator[Row]:
    for label, number in product(_NUMBERS, _NUMBERS):
        nouns = _NUMBERS[label](subject), _NUMBERS[number](attractor)
        yield {
            "text": f"{opener} {nouns[0]} {preposition} the {adjective}{nouns[1]}",
            "label": label,
            "group": subject,
            "attractor": "same" if number == label else "other",
        }


def _plural(noun: str) -> str:
    return _IRREGULAR.get(noun, noun + ("es" if noun.endswith(_HISSING) else "s"))


_NUMBERS: dict[str, Callable[[str], str]] = {"singular": str, "plural": _plural}
