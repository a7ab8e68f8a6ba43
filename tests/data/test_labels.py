"""Labels that look alike, and numbers read inexactly, are reported; correct ones are not."""

from dataclasses import replace
from pathlib import Path

import pytest

from probekit.data import labels
from probekit.data.examples import Dataset, Example, RowSource
from probekit.data.readers import read_dataset
from probekit.data.table import Columns
from tests.stored import each_line, each_row

BUNDLED = Path(__file__).parents[2] / "data"


def rows(*names):
    """Rows with these labels, on the lines of a file from line 2 on."""
    examples = [
        Example(f"text {n}", label, f"g{n}", f"row {n}", source=RowSource("rows.csv", n))
        for n, label in enumerate(names, start=2)
    ]
    return Dataset("rows", tuple(examples))


def groups(*names):
    dataset = rows(*("ab" * len(names))[: len(names)])
    pairs = zip(dataset.examples, names, strict=True)
    return replace(dataset, examples=tuple(replace(row, group=name) for row, name in pairs))


def sources(*names):
    """What is found of these values of the column `source`."""
    examples = zip(rows(*"x" * len(names)).examples, names, strict=True)
    marked = [replace(row, values=(("source", name),)) for row, name in examples]
    return labels.check_names("source", Dataset("rows", tuple(marked)), "source")


def texts(*texts, group=None):
    """What is found of these texts, each in a group of its own or all in one."""
    examples = zip(rows(*"x" * len(texts)).examples, texts, strict=True)
    marked = [replace(row, text=text, group=group or row.group) for row, text in examples]
    return labels.similar("text", Dataset("rows", tuple(marked)))


def alike(*names):
    return labels.similar("label", rows(*names))


def typos(label, other, every=10):
    """What is found if every tenth label is the first one, and the others are the second."""
    return labels.misspelt_labels(rows(*(other if row % every else label for row in range(80))))


WORDS = [f"word{n}" for n in range(200)]
BEYOND = "9007199254740993"  # the first integer that float64 rounds


@each_line("call")
def test_what_is_alike_or_inexact_is_reported_with_rows_and_characters(call, snapshot):
    findings = list(eval(call))
    assert findings
    assert "\n".join(f"{one.level}, {one.code}: {one.message}" for one in findings) == snapshot


@each_line("call")
def test_what_is_different_and_exact_is_not_reported(call):
    assert not list(eval(call))


@each_row("text, inside")
def test_boundaries_inside_a_symbol_are_inside_a_word(text, inside):
    assert [at for at in range(len(text) + 1) if labels.is_inside_word(text, at)] == inside


@pytest.mark.parametrize("label", ["UPOS", "XPOS", "DEPREL", "FEATS:PronType", "FEATS:ExtPos"])
def test_tags_of_the_english_treebank_raise_no_alarm(shared, label):
    path = shared / "datasets" / "ud_english_ewt" / "test.conllu"
    dataset = read_dataset(path, format="conllu", columns=Columns(label=label))
    assert not [*labels.similar("label", dataset), *labels.misspelt_labels(dataset)]


@pytest.mark.parametrize("path", sorted(BUNDLED.glob("*.csv")), ids=lambda path: path.stem)
def test_labels_of_the_bundled_data_raise_no_alarm(path):
    dataset = read_dataset(path, format="csv")
    assert not [*labels.similar("label", dataset), *labels.misspelt_labels(dataset)]
