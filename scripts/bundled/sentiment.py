"""Short opinions in which negation reverses the polarity of adjectives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from scripts.bundled.table import BundledSet, Row

_LABELS = ("positive", "negative")


class _Kind(NamedTuple):
    """Subjects of one kind, and positive/negative pairs of adjectives that describe them."""

    subjects: str
    adjectives: str


_KINDS = (
    _Kind(
        "plot acting dialogue ending script story",
        "gripping/dull brilliant/terrible clever/silly moving/lifeless",
    ),
    _Kind(
        "soup coffee bread dessert sauce salad",
        "delicious/disgusting fresh/stale tasty/bland wonderful/awful",
    ),
    _Kind(
        "waiter guide teacher driver doctor host",
        "friendly/rude helpful/useless polite/arrogant patient/careless",
    ),
    _Kind(
        "hotel room beach garden museum park",
        "charming/ugly clean/dirty pleasant/dreadful lovely/dreary",
    ),
)
# The first template affirms x, the second negates it.
_NEGATIONS = {
    "not": ("The {subject} was {x}.", "The {subject} was not {x}."),
    "call": ("I would call the {subject} {x}.", "I would not call the {subject} {x}."),
    "nobody": ("Everybody found the {subject} {x}.", "Nobody found the {subject} {x}."),
    "hardly": ("The {subject} was truly {x}.", "The {subject} was hardly {x}."),
}
# These affirm x and negate its opposite y, so that both labels have the same words.
_CONTRASTS = {
    "not but": "The {subject} was not {y} but {x}.",
    "comma not": "The {subject} was {x}, not {y}.",
    "rather": "If you ask me, the {subject} was {x} rather than {y}.",
}
_FIRST_CLAUSES = ("The {subject} was {x}", "The {subject} was not {x}")
_SECOND_CLAUSES = (", and I would call the {other} {z}.", ", and I would not call the {other} {z}.")


def sentiment() -> BundledSet:
    """Return opinions with and without negation, labelled `positive` or `negative`.

    >>> sentiment().rows[0]["label"]
    'positive'
    """
    return BundledSet(
        name="sentiment",
        title="Opinions with negation",
        task="Is the opinion `positive` or `negative`? Read it at the last token. Negated praise "
        "counts as negative, negated criticism as positive.",
        construction="In each construction every adjective and its opposite are affirmed as often "
        "as negated, so that no word occurs more often with one label than with the other. In "
        "`not but`, `comma not` and `rather` both labels have the same words in a different order; "
        "in `two clauses` each clause is negated independently. All of this holds within each "
        "group, which is a subject with one pair of adjectives.",
        shortcuts=(
            "In the constructions with one adjective, the adjective and the presence of a negation "
            "together determine the label, regardless of their order.",
            "In the constructions with opposites, the position of an adjective determines it.",
            "Adjectives and subjects occur in several groups, equally often with both labels.",
        ),
        columns={
            "text": "the opinion",
            "label": "whether it is favourable",
            "group": "the subject and its pair of adjectives",
            "construction": "the grammatical construction",
        },
        rows=tuple(_rows()),
    )


def _rows() -> Iterator[Row]:
    for kind in _KINDS:
        subjects, pairs = kind.subjects.split(), kind.adjectives.split()
        for (i, subject), (j, pair) in product(enumerate(subjects), enumerate(pairs)):
            neighbors = subjects[i - 1], pairs[j - 1]
            for construction, label, text in _opinions(subject, pair, *neighbors):
                yield {
                    "text": text,
                    "label": label,
                    "group": f"{subject} {pair}",
                    "construction": construction,
                }


def _opinions(
    subject: str, pair: str, other: str, other_pair: str
) -> Iterator[tuple[str, str, str]]:
    """Yield construction, label and text of each opinion on `subject`."""
    for label, negated in product(_LABELS, (False, True)):
        x = _adjective(pair, label, negated)
        for construction, templates in _NEGATIONS.items():
            yield construction, label, templates[negated].format(subject=subject, x=x)
        for other_negated in (False, True):
            z = _adjective(other_pair, label, other_negated)
            template = _FIRST_CLAUSES[negated] + _SECOND_CLAUSES[other_negated]
            yield "two clauses", label, template.format(subject=subject, x=x, other=other, z=z)
    for label, (construction, template) in product(_LABELS, _CONTRASTS.items()):
        x, y = _adjective(pair, label, False), _adjective(pair, label, True)
        yield construction, label, template.format(subject=subject, x=x, y=y)


def _adjective(pair: str, label: str, negated: bool) -> str:
    """Return the adjective of a pair that expresses the label, after a negation if `negated`."""
    return pair.split("/")[(label == "negative") != negated]
