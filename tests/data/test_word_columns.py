"""Words in columns: spans and groups are known, and each invalid line is named."""

import pytest

from probekit.data.readers import read_dataset
from probekit.data.word_columns import WordColumns
from probekit.errors import ConfigError, DataError, MissingError

CONLL_2003 = """\
-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter NNP I-NP I-PER

-DOCSTART- -X- O O

BRUSSELS NNP I-NP I-LOC
1996-08-22 CD I-NP O
"""


@pytest.fixture
def read(tmp_path):
    def write_and_read(content, **columns):
        path = tmp_path / "train.txt"
        path.write_bytes(content.encode())
        return read_dataset(path, format="columns", columns=WordColumns(**columns), name="words")

    return write_and_read


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(" ", "\t"),
        lambda text: text.replace(" ", "   "),
        lambda text: text.rstrip("\n"),
        lambda text: "\ufeff" + text,
    ],
)
def test_words_have_spans_labels_and_sentences(read, change):
    dataset = read(change(CONLL_2003), label="4")
    assert [(e.text[slice(*e.span)], e.label) for e in dataset.examples] == [
        ("EU", "I-ORG"),
        ("rejects", "O"),
        ("Peter", "I-PER"),
        ("BRUSSELS", "I-LOC"),
        ("1996-08-22", "O"),
    ]
    assert [e.text for e in dataset.examples][:3] == ["EU rejects", "EU rejects", "Peter"]
    assert [e.group for e in dataset.examples] == [
        f"train.txt, sentence {number}" for number in (1, 1, 2, 3, 3)
    ]
    assert dataset.examples[1].id == "train.txt, sentence 1:2"
    assert dataset.examples[1].where.endswith("train.txt:4")
    assert dataset.marks_words
    assert dataset.has_groups


def test_groups_may_be_documents(read):
    groups = [e.group for e in read(CONLL_2003, label="4", group="document").examples]
    assert groups == [f"train.txt, document {number}" for number in (1, 1, 1, 2, 2)]
    with pytest.raises(DataError, match=r":3: the sentence belongs to no document, because no li"):
        read("\n\na x\n", group="document")


def test_other_columns_can_be_the_words(read):
    dataset = read("1\tI x\tPRP\n2\tgo\tVB\n", word="2", label="3")
    assert [e.text for e in dataset.examples] == ["I x go", "I x go"]  # a tab separates
    assert [e.span for e in dataset.examples] == [(0, 3), (4, 6)]


def test_only_blanks_and_tabs_separate(read):
    assert read("a\u00a0b X\nc\u2028d Y\n").examples[0].text == "a\u00a0b c\u2028d"


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ("", DataError, ":1: the file is empty"),
        ("\n-DOCSTART- O\n\n", DataError, ":1: the file has no words"),
        ("a X\nb\n", DataError, ":2: the line has 1 column, but line 1 has 2. Separate"),
        ("a X\nb X Y\n", DataError, ":2: the line has 3 columns, but line 1 has 2"),
        ("a\tX\n\tX\n", DataError, ":2: column 1 is empty"),
        ("a\tX\nb X\n", DataError, ":2: the line has 1 column, but line 1 has 2"),
        ("a\n", ConfigError, ":1: no column 2. The columns of this line are 1: a. Set"),
        ("1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n", ConfigError, "If the file is CoNLL-U, set `format:"),
    ],
)
def test_invalid_lines_are_named(read, content, error, message):
    with pytest.raises(error) as raised:
        read(content)
    assert message in str(raised.value)


@pytest.mark.parametrize("number", ["0", "-1", "NER", "1.0", "²", "99999"])
def test_columns_are_positive_numbers(number):
    with pytest.raises(ConfigError, match="give the number of the column, counted from 1"):
        WordColumns(label=number)


def test_unknown_groups_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"Unknown group 'documents'\. Nearest: document"):
        WordColumns(group="documents")
    with pytest.raises(MissingError, match="does not exist"):
        read_dataset(tmp_path / "none.txt", format="columns")
