"""Labels that look alike, and numbers read inexactly, are reported; correct ones are not."""

from dataclasses import replace
from pathlib import Path

import pytest

from probekit.data import labels
from probekit.data.examples import Dataset, Example, RowSource
from probekit.data.readers import read_dataset
from probekit.data.table import Columns

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


@pytest.mark.parametrize(
    "call",
    [
        r"alike('caf\xe9', 'caf\xe9', 'third', 'cafe\u0301')",
        r"alike('past', 'past', 'third', 'past\u200b')",
        r"alike('past', 'past', 'third', '\ufeffpast')",
        r"alike('past', 'past', 'third', 'p\u0430st')",
        r"alike('Yes', 'Yes', 'third', '\u03a5es')",  # occurs in English EWT
        r"alike('past', 'past', 'third', '\uff50ast')",
        r"alike('of time', 'of time', 'third', 'of\xa0time')",
        r"alike('3', '3', 'third', '\u0663')",
        "alike(*(f'{letter}{n}' for n in range(13) for letter in 'xX'))",
        "alike(*WORDS[:-2], 'May', 'may')",  # more labels are words, with case
        r"alike(*WORDS, 'may', 'm\u0430y')",
        *(f"alike('1', '1', '2', {n!r})" for n in ("01", "1.0", " 1", "+1", "1.")),
        "labels.rounded_numbers(rows('1', BEYOND, BEYOND))",
        "labels.rounded_numbers(rows('1', f'-{BEYOND}', f'-{BEYOND}'))",
        "labels.rounded_numbers(rows('1', f'{BEYOND}.0', f'{BEYOND}.0'))",
        "labels.rounded_numbers(rows('1', '0' * 5000 + BEYOND))",
        r"labels.other_digits(rows('12', '\u0661\u0662'))",
        "labels.similar('group', groups('A', 'A', 'a ', '7', '07', '7', 'B'))",
        "labels.similar('group', groups(*WORDS, 'g', 'G '))",  # however many there are
        *(
            f"{what}('1', '1', '2', {name})"
            for what, names in {
                "sources": (r"'1\u200b'", "'1.0'", "' 1'"),
                "texts": (r"'1\u200b'", "'1 '", r"'\uff11'"),
            }.items()
            for name in names
        ),
        r"sources('caf\xe9', 'cafe\u0301', 'A', 'a', 'B')",
        r"texts('the caf\xe9 ' + 60 * 'x', 'the  Cafe\u0301 ' + 60 * 'x')",
        *(
            f"labels.missing_names('group', groups('a', {g!r}, {g!r}))"
            for g in ("nan", "NaN", "None", " NA ")
        ),
        "sources('a', 'nan', 'nan')",
        "typos('pats', 'past')",
        "typos('singular', 'singulars')",
        "typos('negatve', 'negative')",
        "typos('neutrel', 'neutral')",
        "typos('NEGATVE', 'NEGATIVE')",
    ],
)
def test_what_is_alike_or_inexact_is_reported_with_rows_and_characters(call, snapshot):
    findings = list(eval(call))
    assert findings
    assert "\n".join(f"{one.level}, {one.code}: {one.message}" for one in findings) == snapshot


@pytest.mark.parametrize(
    "call",
    [
        r"alike('10\xb2', '102')",  # a superscript looks different
        r"alike('\u2460', '1')",
        r"alike('r\xe9sum\xe9', 'resume')",
        "alike('мир', 'mir')",  # another alphabet, and other shapes
        "alike('NN', 'NNS', 'VB', 'VBD', '.', ',', '``', \"''\", '$', '-LRB-')",
        "alike('1', 'l', 'I')",
        r"alike('\U0001f3f4\U000e0067\U000e007f', '\U0001f3f4\U000e0073\U000e007f')",
        "alike(*WORDS, 'May', 'may')",
        *(f"alike('1', {name!r})" for name in ("-1", "1.01", "10")),
        "alike('0.5', '5')",
        "labels.rounded_numbers(rows('9007199254740992', '9007199254740994'))",  # even, so exact
        "labels.rounded_numbers(rows('1e23', '0.1', '123456789012345.678'))",  # few on purpose
        "labels.other_digits(rows('12', '-1.5', '1e3'))",
        "labels.similar('group', groups('g1', 'g2', 'g10'))",
        "labels.missing_names('group', groups('a', 'nancy'))",
        "sources('v1', 'v10', '')",
        "texts('1', '1.0', 'one')",
        "texts('No', 'no', group='of one group')",
        "typos('pats', 'past', every=3)",  # not rare enough
        "typos('csubj', 'nsubj')",  # another first letter
        "typos('ADJ', 'ADV')",  # tags are short
        "typos('class1', 'class2')",  # numbers
        "typos('PRON', 'PROPN')",  # tags in capitals
        "typos('past', 'present')",
    ],
)
def test_what_is_different_and_exact_is_not_reported(call):
    assert not list(eval(call))


FAMILY = "\U0001f468\u200d\U0001f469"  # two people by a joiner


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (f"a {FAMILY} b", [3, 4]),
        ("\U0001f44d\U0001f3fd", [1]),  # a thumb and its colour
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", [1, 3]),  # two flags
        ("\u1112\u1161\u11ab\u1100\u1161", [1, 2, 4]),  # two syllables of Hangul
        ("\uac00\u11a8\uac00", [1]),
        ("\u597d\u7684 \U0001f600\U0001f600", []),
    ],
)
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
