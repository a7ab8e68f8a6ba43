"""Prompts of two circuits of GPT-2 small that the literature describes, with counterfactuals.

    python -m scripts.prompts ioi ioi.csv --groups 40 --seed 1
    python -m scripts.prompts greater_than greater_than.csv

`make data` writes data/ioi.csv and data/greater_than.csv with the default options.

Columns: text, counterfactual, answer, wrong, label, group, template. The answer and the wrong
answer are single tokens of GPT-2, and a text has as many tokens as its counterfactual.

Source: Wang et al. (2022), Interpretability in the wild: a circuit for indirect object
identification in GPT-2 small; Hanna et al. (2023), How does GPT-2 compute greater-than?
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.bundled.table import Row, rows_as_csv, shuffled

COLUMNS = ("text", "counterfactual", "answer", "wrong", "label", "group", "template")

# Each is a single token of GPT-2 with a space before it.
_NAMES = (
    "Michael Christopher Jessica Matthew Ashley Jennifer Joshua Amanda Daniel David James Robert "
    "John Joseph Andrew Ryan Brandon Jason Justin Sarah William Jonathan Stephanie Brian Nicole "
    "Nicholas Anthony Heather Eric Elizabeth Adam Megan Melissa Kevin Steven Thomas Timothy "
    "Christina Kyle Rachel Laura Lauren Amber Brittany Danielle Richard Kimberly Jeffrey Amy "
    "Crystal Michelle Tiffany Jeremy Benjamin Mark Emily Aaron Charles Rebecca Jacob Stephen "
    "Patrick Sean Erin Jamie Kelly Samantha Nathan Sara Dustin Paul Angela Tyler Scott Katherine "
    "Andrea Gregory Erica Mary Travis Lisa Kenneth Bryan Lindsey Kristen Jose Alexander Jesse "
    "Katie Lindsay Shannon Vanessa Courtney Christine Alicia Cody Allison Bradley Samuel Tom Simon "
    "Alice"
)
NAMES = tuple(_NAMES.split())
PLACES = ("store", "garden", "restaurant", "school", "hospital", "office", "house", "station")
OBJECTS = ("ring", "kiss", "bone", "basketball", "computer", "necklace", "drink", "snack")
FRAMES = (
    "Then, {0} and {1} went to the {place}. {2} gave a {object} to",
    "When {0} and {1} went to the {place}, {2} gave a {object} to",
    "After {0} and {1} had been at the {place}, {2} gave a {object} to",
    "While {0} and {1} were working at the {place}, {2} decided to give a {object} to",
)

_EVENTS = (
    "abduction accord affair agreement attack campaign captivity case challenge collaboration "
    "competition confrontation conspiracy construction consultation contract cooperation decline "
    "demonstration development dispute dynasty employment engagement epidemic evaluation expansion "
    "expedition experiments friendship growth hostility illness imprisonment improvement "
    "insurgency invasion investigation journey kingdom marriage negotiation operation outbreak "
    "pilgrimage plague practice program project pursuit reforms reign relationship riot "
    "rivalry sanctions siege strikes study tour tradition treaty trial unemployment voyage warfare"
)
EVENTS = tuple(_EVENTS.split())
VERBS = ("lasted", "ran", "continued")
CENTURIES = (16, 17)  # in GPT-2 all their years, except the first, are two tokens of two digits
FIRST_YEAR = "01"  # of the counterfactual: every later year is right
YEARS = range(12, 89)
DISTANCES = range(1, 11)  # years between the given year and the answers


def ioi(n_groups: int = 50, seed: int = 0) -> list[Row]:
    """Return prompts of indirect object identification, eight for each pair of names.

    The answer is the name that occurs once; in the counterfactual the other name occurs once. The
    label is the order of the names: `ABBA` if the answer is the first name, else `BABA`. Each name
    is in one group only, and each group has both labels in every template.

    Args:
        n_groups: number of pairs of names.
        seed: random seed of pairs, places and objects.

    >>> row = ioi(1)[0]
    >>> row["text"]
    'After Laura and Thomas had been at the house, Thomas gave a basketball to'
    >>> row["answer"], row["wrong"], row["label"]
    (' Laura', ' Thomas', 'ABBA')
    """
    generator = random.Random(seed)
    names = shuffled(NAMES, generator)
    pairs = list(zip(names[::2], names[1::2], strict=False))[:n_groups]
    rows = []
    for first, second in pairs:
        for frame in shuffled(FRAMES, generator)[:2]:
            place, thing = (shuffled(words, generator)[0] for words in (PLACES, OBJECTS))
            for a, b in ((first, second), (second, first)):
                filled = frame.format(a, b, "{}", place=place, object=thing)
                own = {"group": f"{first}/{second}", "template": str(FRAMES.index(frame))}
                rows += [row | own for row in _both_orders(filled, a, b)]
    return rows


def _both_orders(frame: str, a: str, b: str) -> list[Row]:
    """Return the row whose answer is the first name of a frame, and that of the second."""
    return [
        {
            "text": frame.format(wrong),
            "counterfactual": frame.format(answer),
            "answer": f" {answer}",
            "wrong": f" {wrong}",
            "label": label,
        }
        for answer, wrong, label in ((a, b, "ABBA"), (b, a, "BABA"))
    ]


def greater_than(n_groups: int = 64, seed: int = 0) -> list[Row]:
    """Return beginnings of a year that is later than a given year, eight for each event.

    Answer and wrong answer are as far above and below the given year. The counterfactual has the
    year 01, after which both are right. The label is `late` if the given year is above 50.

    Args:
        n_groups: number of events.
        seed: random seed of years, verbs and distances.

    >>> row = greater_than(1)[0]
    >>> row["text"]
    'The marriage lasted from the year 1643 to the year 16'
    >>> row["answer"], row["wrong"], row["counterfactual"][-28:]
    ('49', '37', 'the year 1601 to the year 16')
    """
    generator = random.Random(seed)
    halves = {
        "early": [year for year in YEARS if year <= 50],
        "late": [year for year in YEARS if year > 50],
    }
    rows = []
    for event in shuffled(EVENTS, generator)[:n_groups]:
        for label, years in halves.items():
            for year in shuffled(years, generator)[:4]:
                century = shuffled(CENTURIES, generator)[0]
                distance = shuffled(DISTANCES, generator)[0]
                verb = shuffled(VERBS, generator)[0]
                frame = f"The {event} {verb} from the year {century}{{}} to the year {century}"
                rows.append(
                    {
                        "text": frame.format(year),
                        "counterfactual": frame.format(FIRST_YEAR),
                        "answer": str(year + distance),
                        "wrong": str(year - distance).zfill(2),
                        "label": label,
                        "group": event,
                        "template": verb,
                    }
                )
    return rows


GENERATORS: dict[str, Callable[[int, int], list[Row]]] = {"ioi": ioi, "greater_than": greater_than}
_MOST_GROUPS = {"ioi": len(NAMES) // 2, "greater_than": len(EVENTS)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the prompts of a circuit to a CSV file."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.prompts",
        description="Write prompts of a circuit of GPT-2 small, with counterfactuals and answers.",
    )
    parser.add_argument("circuit", choices=[*GENERATORS])
    parser.add_argument("file", type=Path, help="CSV file to write")
    parser.add_argument("--groups", type=int, help="Number of groups (pairs of names, or events)")
    parser.add_argument("--seed", type=int, default=0, help="Random seed")
    given = parser.parse_args(arguments)
    most = _MOST_GROUPS[given.circuit]
    groups = given.groups or min(most, 64)
    if not 1 <= groups <= most:
        parser.error(f"--groups is {groups}. Allowed: 1 to {most}.")
    text = rows_as_csv(COLUMNS, GENERATORS[given.circuit](groups, given.seed))
    given.file.write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
