"""Eight small tasks of a study: solved by words, only by structure, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from scripts.bundled.sentiment import sentiment
from scripts.bundled.subject_number import subject_number
from scripts.bundled.table import Row, rows_as_csv, shuffled

COLUMNS = ("text", "label", "group")
N_GROUPS = 40  # of each task, with four rows each, two of each label

_NAMES = (
    "Anna Peter Mary John Alice Henry Emma George Jane Thomas Clara Arthur Ruth Edward Sarah "
    "Walter Lucy Robert Helen Frank Martha James Rose Charles Ellen David Laura Samuel Grace "
    "Philip Julia Simon Nora Oliver Kate Victor Agnes Martin Fanny Edgar"
)
_SEA = "ship sail harbour captain wave island anchor sailor"
_FARM = "barn horse field farmer corn mill plough shepherd"
_NOUNS = (
    "lamp river coat table window garden letter door chair clock mirror basket candle bottle ring "
    "spoon hammer ribbon towel knife scarf book coin brush box cup bell gate tree road"
)
_COLOURS = "red black white green blue brown"


def _rows(group: str, texts: dict[str, list[str]]) -> Iterator[Row]:
    """Yield the rows of a group, given the texts of each label."""
    for label, of_label in texts.items():
        for text in of_label:
            yield {"text": text, "label": label, "group": group}


def _topic(generator: random.Random) -> Iterator[Row]:
    """Words of the sea or of a farm occur in sentences of one form."""
    for name in _NAMES.split():
        texts: dict[str, list[str]] = {}
        for label, words in (("sea", _SEA), ("farm", _FARM)):
            drawn = shuffled(words.split(), generator)
            texts[label] = [
                f"{name} spoke of the {one}, the {two} and the {three} yesterday"
                for one, two, three in (drawn[:3], drawn[3:6])
            ]
        yield from _rows(name, texts)


def _negation(generator: random.Random) -> Iterator[Row]:
    """One word, `not` or `also`, is the label."""
    for name in _NAMES.split():
        nouns, colours = shuffled(_NOUNS.split(), generator), shuffled(_COLOURS.split(), generator)
        pairs = list(zip(nouns, colours, strict=False))[:4]
        texts = {
            label: [f"The {noun} of {name} was {word} {colour}" for noun, colour in of_label]
            for label, word, of_label in (
                ("negated", "not", pairs[:2]),
                ("affirmed", "also", pairs[2:]),
            )
        }
        yield from _rows(name, texts)


def _length(generator: random.Random) -> Iterator[Row]:
    """Lists of two or three things, or of six or seven."""
    for name in _NAMES.split():
        texts: dict[str, list[str]] = {}
        for label, sizes in (("short", (2, 3)), ("long", (6, 7))):
            lists = [", the ".join(shuffled(_NOUNS.split(), generator)[:size]) for size in sizes]
            texts[label] = [f"{name} saw the {things}" for things in lists]
        yield from _rows(name, texts)


def _number(generator: random.Random) -> Iterator[Row]:
    """The number of the subject, after a noun of either number; see `subject_number`."""
    of_group: dict[str, list[Row]] = {}
    for row in subject_number().rows:
        of_group.setdefault(row["group"], []).append(row)
    for group in sorted(shuffled(of_group, generator)[:N_GROUPS]):
        # The four rows of a context follow each other.
        start = 4 * int(generator.random() * (len(of_group[group]) // 4))
        yield from (
            {key: row[key] for key in COLUMNS} for row in of_group[group][start : start + 4]
        )


def _contrast(generator: random.Random) -> Iterator[Row]:
    """Two opposite adjectives in one order or the other; see `sentiment`."""
    of_group: dict[str, list[Row]] = {}
    for row in sentiment().rows:
        if row["construction"] in ("not but", "comma not", "rather"):
            of_group.setdefault(row["group"], []).append(row)
    for group in sorted(shuffled(of_group, generator)[:N_GROUPS]):
        for label in ("positive", "negative"):
            rows = [row for row in of_group[group] if row["label"] == label]
            for row in shuffled(rows, generator)[:2]:
                yield {key: row[key] for key in COLUMNS}


def _repetition(generator: random.Random) -> Iterator[Row]:
    """One thing occurs twice: it is the last one of the list, or an earlier one."""
    for number in range(N_GROUPS):
        texts: dict[str, list[str]] = {"last": [], "earlier": []}
        for _ in range(2):
            a, b, c, d = shuffled(_NOUNS.split(), generator)[:4]
            texts["last"].append(f"The {a}, the {b}, the {c}, the {d} and the {a}")
            texts["earlier"].append(f"The {a}, the {b}, the {a}, the {c} and the {d}")
        yield from _rows(f"list {number + 1}", texts)


def _sentences(generator: random.Random) -> Iterator[tuple[str, str]]:
    """Yield four sentences with the name of their group."""
    for name in _NAMES.split():
        nouns = shuffled(_NOUNS.split(), generator)
        for first, second in zip(nouns[:4], nouns[4:8], strict=True):
            yield name, f"{name} left the {first} near the {second}"


def _noise_rows(generator: random.Random) -> Iterator[Row]:
    """Labels drawn for each row, two of each in a group."""
    sentences = list(_sentences(generator))
    for start in range(0, len(sentences), 4):
        labels = shuffled(("one", "one", "two", "two"), generator)
        for (group, text), label in zip(sentences[start : start + 4], labels, strict=True):
            yield {"text": text, "label": label, "group": group}


def _noise_groups(generator: random.Random) -> Iterator[Row]:
    """Labels drawn for each group, which a probe could memorise if its rows were split."""
    labels = dict(
        zip(shuffled(_NAMES.split(), generator), ("one", "two") * (N_GROUPS // 2), strict=True)
    )
    for group, text in _sentences(generator):
        yield {"text": text, "label": labels[group], "group": group}


# Name of a task -> the function that yields its rows.
TASKS: dict[str, Callable[[random.Random], Iterator[Row]]] = {
    "words_topic": _topic,
    "words_negation": _negation,
    "words_length": _length,
    "structure_number": _number,
    "structure_contrast": _contrast,
    "structure_repetition": _repetition,
    "noise_rows": _noise_rows,
    "noise_groups": _noise_groups,
}


def study_tasks() -> dict[str, str]:
    """Return the contents of the CSV file of each task, by name.

    >>> [len(text.splitlines()) - 1 for text in study_tasks().values()]
    [160, 160, 160, 160, 160, 160, 160, 160]
    """
    return {
        name: rows_as_csv(COLUMNS, rows(random.Random(number)))
        for number, (name, rows) in enumerate(TASKS.items())
    }
