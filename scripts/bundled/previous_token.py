"""Sentences labelled with the word directly before a marked word."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import cycle, product

from scripts.bundled.table import BundledSet, Row, shuffled

_LABELS = ("the", "my", "her", "his", "our", "their")
_N_NOUN_PAIRS = 30  # pairs per frame; each gives one sentence per label

_NOUNS = {
    "person": "neighbor doctor teacher friend cousin lawyer dentist boss grandmother guests",
    "thing": "keys bicycle camera suitcase umbrella notebook guitar letters phone map",
    "place": "house garden office kitchen garage tent shop hotel boat car",
    "animal": "dog cat horse parrot rabbit pony puppy goat",
}
# A kind of noun is in braces; the frames contain no label word.
_FRAMES = (
    "Anna left {thing} in {place} last night.",
    "Tom carried {thing} out of {place} without a word.",
    "Nobody could find {thing} anywhere near {place}.",
    "We finally found {thing} behind {place}.",
    "Someone must have taken {thing} from {place}.",
    "Please do not forget {thing} in {place} again.",
    "Yesterday I met {person} in front of {place}.",
    "Paul waved to {person} from {place}.",
    "You can wait with {person} outside {place}.",
    "It took an hour to drive {person} to {place}.",
    "Maria wanted to give {thing} to {person}.",
    "I think you should show {thing} to {person}.",
    "After lunch Sam sold {thing} to {person}.",
    "David had to ask {person} about {thing}.",
    "Did you thank {person} for {thing}?",
    "Every morning {person} walked past {place}.",
    "On Monday {person} painted {place} all alone.",
    "Sadly {person} never saw {thing} again.",
    "All winter {person} looked after {animal} for free.",
    "Last week {animal} ran away from {person}.",
    "For years {animal} slept right next to {place}.",
    "Emma took {animal} for a walk around {place}.",
    "As a joke we hid {thing} from {person}.",
    "They say that {animal} was afraid of {person}.",
)


def previous_token() -> BundledSet:
    """Return sentences with a marked word, labelled with the word directly before it.

    >>> row = previous_token().rows[0]
    >>> row["text"][: int(row["start"])].split()[-1] == row["label"]
    True
    """
    return BundledSet(
        name="previous_token",
        title="The word before",
        task="Which of a few common words is directly before the marked word? Read it at the "
        "marked word, from character `start` up to, but not including, `end`. Only attention can "
        "move this information there from the previous position.",
        construction="A frame has two nouns, each preceded by a label word; the second noun is the "
        "marked word. A frame with its nouns is a group, in which each label occurs once, so that "
        "neither frame nor nouns predict the label. The two label words of a sentence differ, and "
        "all their ordered pairs are equally frequent, so that both words without their order do "
        "not predict which one is before the marked word. The frames contain no label word.",
        shortcuts=(
            "The most recent label word is always the label, regardless of its distance.",
            "Frames and nouns occur in many groups, equally often with all labels.",
        ),
        columns={
            "text": "a sentence",
            "label": "the word directly before the marked one",
            "group": "the number of the frame, and both nouns",
            "start": "first character of the marked word",
            "end": "one past its last character",
        },
        rows=tuple(_rows(random.Random(0))),
    )


def _rows(generator: random.Random) -> Iterator[Row]:
    shifts = cycle(range(1, len(_LABELS)))
    for number, frame in enumerate(_FRAMES, start=1):
        beginning, kind, middle, other_kind, end = re.split(r"{(\w+)}", frame)
        nouns = product(_NOUNS[kind].split(), _NOUNS[other_kind].split())
        for noun, marked in shuffled(nouns, generator)[:_N_NOUN_PAIRS]:
            shift = next(shifts)
            for label, other in zip(_LABELS, _LABELS[shift:] + _LABELS[:shift], strict=True):
                before = f"{beginning}{other} {noun}{middle}{label} "
                yield {
                    "text": f"{before}{marked}{end}",
                    "label": label,
                    "group": f"{number} {noun} {marked}",
                    "start": str(len(before)),
                    "end": str(len(before) + len(marked)),
                }
