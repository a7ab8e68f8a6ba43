"""Examples refuse what is not one; a data set's digest sees every change."""

from dataclasses import replace

import pytest

from probekit.data.examples import Dataset, Example, RowSource
from probekit.errors import DataError

EXAMPLE = Example("The keys", "plural", group="key", id="1", span=(4, 8), split="train")


@pytest.mark.parametrize("field", ["text", "label", "group", "id"])
@pytest.mark.parametrize("value", ["", " \n"])
def test_empty_fields_are_refused(field, value):
    with pytest.raises(DataError, match=f"The {field} is empty"):
        replace(EXAMPLE, span=None, **{field: value})


@pytest.mark.parametrize("span", [(-1, 2), (3, 3), (4, 2), (4, 9)])
def test_spans_outside_the_text_are_refused(span):
    with pytest.raises(DataError, match="not within the 8 characters"):
        replace(EXAMPLE, span=span)


def test_a_lone_surrogate_is_refused():
    with pytest.raises(DataError, match="lone surrogate"):
        replace(EXAMPLE, text="The \ud83d keys")
    assert replace(EXAMPLE, text="The \U0001f511 keys").span == (4, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Our keys"},
        {"label": "singular"},
        {"group": "lock"},
        {"id": "2"},
        {"span": (3, 8)},
        {"span": None},
        {"split": "test"},
        {"split": None},
    ],
)
def test_the_digest_sees_a_change_of_any_field(change):
    other = replace(EXAMPLE, id="0")
    digest = Dataset("a", (EXAMPLE, other)).digest
    assert Dataset("b", (EXAMPLE, other), notes=("skipped: 3",)).digest == digest
    assert Dataset("a", (replace(EXAMPLE, **change), other)).digest != digest


def test_the_digest_sees_the_order_and_the_borders_of_fields():
    other = replace(EXAMPLE, id="0")
    assert Dataset("a", (EXAMPLE, other)).digest != Dataset("a", (other, EXAMPLE)).digest
    first, second = (
        Dataset("a", (Example("text", label, group, "1"),))
        for label, group in [("ab", "c"), ("a", "bc")]
    )
    assert first.digest != second.digest


def test_the_digest_is_the_same_on_every_machine():
    expected = "06a25be71de3da5d0b5d99d24cdfbcbd90c66e5a21ef00bb15b580962732e681"
    assert Dataset("a", (EXAMPLE,)).digest == expected


def test_file_and_line_are_not_part_of_the_data():
    here, there = (
        Example("a", "x", "g", "1", source=RowSource(file, 2)) for file in ("a.csv", "b.csv")
    )
    assert (here.where, there.where, Example("a", "x", "g", "1").where) == (
        "a.csv:2",
        "b.csv:2",
        "1",
    )
    assert here == there
    assert Dataset("d", (here,)).digest == Dataset("d", (there,)).digest
