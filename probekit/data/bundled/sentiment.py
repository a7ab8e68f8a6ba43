"""Short opinions in which negation turns the adjectives over."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from probekit.data.bundled.table import BundledSet, Row

_LABELS = ("positive", "negative")


class _Kind(NamedTuple):
    """Things of one kind, and what is said of them: positive/negative."""

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
# The first of each says x, the second denies it.
_NEGATIONS = {
    "not": ("The {subject} was {x}.", "The {subject} was not {x}."),
    "call": ("I would call the {subject} {x}.", "I would not call the {subject} {x}."),
    "nobody": ("Everybody found the {subject} {x}.", "Nobody found the {subject} {x}."),
    "hardly": ("The {subject} was truly {x}.", "The {subject} was hardly {x}."),
}
# These say x and deny its opposite y: both labels have the same words.
_CONTRASTS = {
    "not but": "The {subject} was not {y} but {x}.",
    "comma not": "The {subject} was {x}, not {y}.",
    "rather": "If you ask me, the {subject} was {x} rather than {y}.",
}
_FIRST_CLAUSES = ("The {subject} was {x}", "The {subject} was not {x}")
_SECOND_CLAUSES = (", and I would call the {other} {z}.", ", and I would not call the {other} {z}.")


def sentiment() -> BundledSet:
    """Return the data set.

    >>> sentiment().rows[0]["label"]
    'positive'
    """
    return BundledSet(
        name="sentiment",
        title="Opinions with negation",
        task="Is the opinion `positive` or `negative`? Read it at the last token. To deny praise "
        "counts as negative, to deny a complaint as positive.",
        construction="In each construction every adjective is affirmed as often as denied, and so "
        "is its opposite, so that no word goes with one label more than with the other. In `not "
        "but`, `comma not` and `rather` both labels have the very same words in another order; in "
        "`two clauses` each clause is denied or not on its own. All of this holds within each "
        "group, which is a subject with one pair of adjectives.",
        cheats=(
            "In the constructions with one adjective, the adjective and the presence of a negation "
            "settle the label together, whatever their order.",
            "In the constructions with opposites, the place of an adjective settles it.",
            "Adjectives and subjects occur in several groups, with both labels alike.",
        ),
        columns={
            "text": "the opinion",
            "label": "whether it is favourable",
            "group": "the subject and its pair of adjectives",
            "construction": "how the negation is built",
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
    for label, denied in product(_LABELS, (False, True)):
        x = _adjective(pair, label, denied)
        for construction, templates in _NEGATIONS.items():
            yield construction, label, templates[denied].format(subject=subject, x=x)
        for other_denied in (False, True):
            z = _adjective(other_pair, label, other_denied)
            template = _FIRST_CLAUSES[denied] + _SECOND_CLAUSES[other_denied]
            yield "two clauses", label, template.format(subject=subject, x=x, other=other, z=z)
    for label, (construction, template) in product(_LABELS, _CONTRASTS.items()):
        x, y = _adjective(pair, label, False), _adjective(pair, label, True)
        yield construction, label, template.format(subject=subject, x=x, y=y)


def _adjective(pair: str, label: str, denied: bool) -> str:
    """Return the adjective that makes the label, if it is denied or not."""
    return pair.split("/")[(label == "negative") != denied]
