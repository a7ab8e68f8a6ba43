"""Labels that look alike, and numbers read inexactly, are reported; correct ones are not."""

from dataclasses import replace
from pathlib import Path

import pytest

from probekit.data.examples import Example, RowSource
from probekit.data.labels import (
    missing_groups,
    misspelt_labels,
    other_digits,
    rounded_numbers,
    similar_groups,
    similar_labels,
)
from probekit.data.readers import read_dataset
from probekit.data.words import ConlluColumns

BUNDLED = Path(__file__).parents[2] / "data"


def rows(*labels):
    """Rows with these labels, on the lines of a file from line 2 on."""
    return [
        Example(f"text {n}", label, f"g{n}", f"row {n}", source=RowSource("rows.csv", n))
        for n, label in enumerate(labels, start=2)
    ]


@pytest.mark.parametrize(
    ("label", "other", "character"),
    [
        ("caf\xe9", "cafe\u0301", "U+0301 COMBINING ACUTE ACCENT"),
        ("past", "past\u200b", "U+200B ZERO WIDTH SPACE"),
        ("past", "\ufeffpast", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("past", "p\u0430st", "U+0430 CYRILLIC SMALL LETTER A"),
        ("Yes", "\u03a5es", "U+03A5 GREEK CAPITAL LETTER UPSILON"),  # occurs in English EWT
        ("past", "\uff50ast", "U+FF50 FULLWIDTH LATIN SMALL LETTER P"),
        ("of time", "of\xa0time", "U+00A0 NO-BREAK SPACE"),
        ("3", "\u0663", "U+0663 ARABIC-INDIC DIGIT THREE"),
    ],
)
def test_labels_that_look_alike_are_reported_with_their_characters(label, other, character):
    (finding,) = similar_labels(rows(label, label, "third", other))
    assert finding.level == "warning"
    assert f"{label!r} (2 rows" in finding.message
    assert f"{other!r} (1 row: rows.csv:5, with {character}) look the same" in finding.message
    assert f"Write all as {label!r}" in finding.message


@pytest.mark.parametrize(
    "labels",
    [
        ("10\xb2", "102"),  # a superscript looks different
        ("\u2460", "1"),
        ("r\xe9sum\xe9", "resume"),
        ("мир", "mir"),  # another alphabet, and other shapes
        ("NN", "NNS", "VB", "VBD", ".", ",", "``", "''", "$", "-LRB-"),
        ("1", "l", "I"),
        ("\U0001f3f4\U000e0067\U000e007f", "\U0001f3f4\U000e0073\U000e007f"),  # two flags
    ],
)
def test_labels_that_look_different_are_not_reported(labels):
    assert not list(similar_labels(rows(*labels)))


def test_case_matters_where_labels_are_words():
    words = [f"word{n}" for n in range(200)]
    assert len(list(similar_labels(rows(*words[:-2], "May", "may")))) == 1
    assert not list(similar_labels(rows(*words, "May", "may")))
    assert len(list(similar_labels(rows(*words, "may", "m\u0430y")))) == 1


def test_many_sets_of_similar_labels_are_counted():
    labels = [f"{letter}{n}" for n in range(13) for letter in "xX"]
    messages = [finding.message for finding in similar_labels(rows(*labels))]
    assert len(messages) == 11
    assert messages[-1].startswith("3 more sets of labels differ only in case")


@pytest.mark.parametrize(
    ("label", "read_as"),
    [
        ("9007199254740993", "9007199254740992"),
        ("-9007199254740993", "-9007199254740992"),
        ("9007199254740993.0", "9007199254740992"),
        ("0" * 5000 + "9007199254740993", "9007199254740992"),
        ("9007199254740992", None),
        ("9007199254740994", None),  # even, so that it is exact
        ("1e23", None),  # written with few digits on purpose
        ("0.1", None),
        ("123456789012345.678", None),
    ],
)
def test_integers_that_float64_rounds_are_reported(label, read_as):
    found = list(rounded_numbers(rows("1", label, label)))
    assert len(found) == (read_as is not None)
    for finding in found:
        assert finding.level == "warning"
        assert "2 rows have an integer beyond 2^53" in finding.message
        assert f"(rows.csv:3, rows.csv:4): the label {label!r} is read as {read_as}. Subtract" in (
            finding.message
        )


def test_number_labels_with_digits_of_another_alphabet_are_reported():
    assert not list(other_digits(rows("12", "-1.5", "1e3")))
    (finding,) = other_digits(rows("12", "\u0661\u0662"))
    assert finding.level == "warning"
    assert "1 row has a number with digits other than 0 to 9 (rows.csv:3)" in finding.message
    assert "U+0661 ARABIC-INDIC DIGIT ONE, is read as 12." in finding.message
    assert "write them with the digits 0 to 9" in finding.message


@pytest.mark.parametrize("label", ["UPOS", "XPOS", "DEPREL", "FEATS:PronType", "FEATS:ExtPos"])
def test_tags_of_the_english_treebank_raise_no_alarm(shared, label):
    path = shared / "datasets" / "ud_english_ewt" / "test.conllu"
    examples = read_dataset(path, format="conllu", columns=ConlluColumns(label)).examples
    assert not [*similar_labels(examples), *misspelt_labels(examples)]


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*.csv")), ids=lambda path: path.stem)
def test_labels_of_the_bundled_data_raise_no_alarm(path):
    examples = read_dataset(path, format="csv").examples
    assert not [*similar_labels(examples), *misspelt_labels(examples)]


@pytest.mark.parametrize("label", ["01", "1.0", " 1", "+1", "1."])
def test_spellings_of_one_number_are_reported(label):
    (finding,) = similar_labels(rows("1", "1", "2", label))
    assert f"{label!r} (1 row: rows.csv:5)" in finding.message
    assert "and count as different classes" in finding.message


@pytest.mark.parametrize("labels", [("1", "-1"), ("1", "1.01"), ("10", "1"), ("0.5", "5")])
def test_different_numbers_are_not(labels):
    assert not list(similar_labels(rows(*labels)))


def with_groups(*groups):
    """Rows with these groups, on the lines of a file from line 2 on."""
    examples = rows(*("ab" * len(groups))[: len(groups)])
    return [replace(row, group=group) for row, group in zip(examples, groups, strict=True)]


def test_groups_that_look_alike_are_reported():
    (case, number) = similar_groups(with_groups("A", "A", "a ", "7", "07", "7", "B"))
    assert (
        "The groups 'A' (2 rows) and 'a ' (1 row: rows.csv:4) differ only in case" in case.message
    )
    assert "'7' (2 rows) and '07' (1 row: rows.csv:6) are the same number" in number.message
    assert "related rows may be in both train and test" in number.message
    assert {one.code for one in (case, number)} == {"similar-groups"}
    assert not list(similar_groups(with_groups("g1", "g2", "g10")))


@pytest.mark.parametrize("group", ["nan", "NaN", "None", " NA "])
def test_groups_of_missing_values_are_reported(group):
    (finding,) = missing_groups(with_groups("a", group, group))
    assert finding.message.startswith(f"2 rows have the group {group!r} (rows.csv:3, rows.csv:4)")
    assert not list(missing_groups(with_groups("a", group, "nancy")))
