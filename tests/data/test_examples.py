"""Examples refuse what is not one; a data set's digest sees every change."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.data.examples import Dataset, Example, RowExamples, RowSource, join_turns
from probekit.probes.data import names_of
from tests.stored import each_row

EXAMPLE = Example("The keys", "plural", group="key", id="1", span=(4, 8), split="train")


@pytest.mark.parametrize(
    "change",
    [
        *({"span": None, name: ""} for name in ("text", "label", "group", "id")),
        {"span": None, "text": " \n"},
        *({"span": span} for span in [(-1, 2), (3, 3), (4, 2), (4, 9)]),
        {"text": "The \ud83d keys"},
    ],
    ids=str,
)
def test_empty_fields_spans_outside_the_text_and_lone_surrogates_are_refused(change, refused):
    refused(replace, EXAMPLE, **change)
    assert replace(EXAMPLE, text="The \U0001f511 keys").span == (4, 8)


@each_row("change")
def test_the_digest_sees_a_change_of_any_field(change):
    other = replace(EXAMPLE, id="0")
    digest = Dataset("a", (EXAMPLE, other)).digest
    assert Dataset("b", (EXAMPLE, other), notes=("skipped: 3",)).digest == digest
    assert Dataset("a", (other, EXAMPLE)).digest != digest
    assert Dataset("a", (replace(EXAMPLE, **change), other)).digest != digest


def test_the_digest_sees_the_borders_of_fields():
    rows = (Example("text", *parts, "1") for parts in [("ab", "c"), ("a", "bc")])
    first, second = (Dataset("a", (row,)) for row in rows)
    assert first.digest != second.digest


def test_the_digest_is_the_same_on_every_machine():
    expected = "06a25be71de3da5d0b5d99d24cdfbcbd90c66e5a21ef00bb15b580962732e681"
    assert Dataset("a", (EXAMPLE,)).digest == expected


def test_only_a_system_and_further_keys_change_the_digest_of_turns():
    parts = ["Is it far?", "No."]
    (text, turns), (_, system) = join_turns(parts), join_turns(parts, ["system", "user"])
    _, named = join_turns(parts, others=["", '{"name": "Ann"}'])
    chats = [Example(text, "a", "g", "1", turns=one) for one in (turns, system, named)]
    digests = [Dataset("a", (chat,)).digest for chat in chats]
    assert digests[0].startswith("a9a0748072ea")
    assert len(set(digests)) == 3


def test_file_and_line_are_not_part_of_the_data():
    plain = Example("a", "x", "g", "1")
    here, there = (replace(plain, source=RowSource(name, 2)) for name in ("a.csv", "b.csv"))
    assert [one.where for one in (here, there, plain)] == ["a.csv:2", "b.csv:2", "1"]
    assert here == there
    assert Dataset("d", (here,)).digest == Dataset("d", (there,)).digest


@pytest.mark.parametrize("has_groups", [True, False])
def test_rows_of_an_array_are_the_same_data_as_their_examples(has_groups):
    numbers = np.arange(3, 28)  # "row 10" is before "row 9"
    labels = np.array([*"xyz"] * 8 + ["x"], dtype=object)
    groups = np.array([f"g{n % 7}" for n in numbers], dtype=object) if has_groups else None
    rows = RowExamples(numbers, labels, groups, splits=labels)
    made = Dataset("made", tuple(rows), has_groups=has_groups)
    assert made.examples[-1].id == "row 27"
    for column, plain in (
        (Dataset("rows", rows), made),
        (Dataset("rows", rows[2:9]), replace(made, examples=made.examples[2:9])),
        (Dataset("rows", rows).select([9, 4, 7]), made.select([9, 4, 7])),
    ):
        assert tuple(column.examples) == plain.examples
        assert column.digest == plain.digest
        for name in ("text", "label", "group", "id", "split"):
            assert column.column(name).tolist() == plain.column(name).tolist()
        assert column.group_codes.tolist() == plain.group_codes.tolist()
        for one in (column, plain):
            assert names_of(one.group_codes, one.group_names) == plain.groups.tolist()
    assert rows[-1] == made.examples[-1]
