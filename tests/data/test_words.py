"""Words get their span in the text, or are skipped and counted; each invalid line is named."""

from collections import defaultdict
from pathlib import Path

import pytest

from probekit.data.readers import read_dataset
from probekit.data.table import Columns
from tests.stored import each_line


def word(id, form, *, head="0", misc="_"):
    """The line of a word."""
    return "\t".join([str(id), form, "_", "X", "xX", "_", str(head), "dep", "_", misc])


@pytest.fixture
def read(tmp_path):
    """Write lines to a file and read it."""

    def write_and_read(*lines, label="UPOS", group="sentence"):
        path = tmp_path / "tiny.conllu"
        path.write_text("\n".join(lines) + "\n")
        return read_dataset(path, format="conllu", columns=Columns(label=label, group=group))

    return write_and_read


def forms(dataset):
    """The text of each span."""
    return [example.text[slice(*example.span)] for example in dataset.examples]


def text_of(dataset):
    """Words with their labels, spans, texts, ids, groups and lines, and what was skipped."""
    lines = [
        f"{form!r} is {one.label} at {one.span} of {one.text!r}: {one.id} in {one.group}, line "
        f"{one.where.rpartition(':')[2]}"
        for form, one in zip(forms(dataset), dataset.examples, strict=True)
    ]
    return "\n".join([*lines, *dataset.notes])


FOLDER = Path(__file__).with_name("words")
SENTENCE = (FOLDER / "sentence.conllu").read_text("utf-8").splitlines()
TREE = (FOLDER / "tree.conllu").read_text("utf-8").splitlines()
CONLL_2003 = (FOLDER / "conll_2003.txt").read_text()
MERGED = [
    "# text = Vámonos al mar",
    *(word("1-2", "Vámonos"), word(1, "Vamos"), word(2, "nos")),
    *(word("3-4", "al"), word(3, "a"), word(4, "el"), word(5, "mar")),
]
DOCUMENTS = ["# newdoc id = d1", word(1, "a"), "", word(1, "b"), "", "# newdoc", word(1, "c")]


@each_line("call")
def test_words_have_their_span_and_label_or_are_skipped_and_counted(read, snapshot, call):
    assert text_of(eval(call, globals() | {"read": read})) == snapshot


def headed(head):
    """The tree twice, the second time with another head of its last word."""
    return [*TREE, *TREE[1:7], TREE[7].replace("\t3\t", f"\t{head}\t")]


@each_line("call")
def test_invalid_conllu_is_reported_with_file_and_line(read, refused, call):
    refused(eval, call, globals() | {"read": read})


def test_the_english_treebank_is_read_to_the_last_word(ewt):
    train, test = ewt["train"], ewt["test"]
    assert (len(train), len(test)) == (204_577, 25_094)
    assert train.notes == ("empty nodes skipped, because they are not part of the text: 37",)
    assert forms(test)[:3] == ["What", "if", "Google"]


def test_the_heads_of_the_english_treebank_are_trees(shared):
    path = shared / "datasets" / "ud_english_ewt" / "test.conllu"
    heads = read_dataset(path, format="conllu", columns=Columns(label="HEAD"))
    by_sentence = defaultdict(list)
    for example in heads.examples:
        by_sentence[example.group].append(int(example.label))
    assert len(by_sentence) == 2_077
    for places in by_sentence.values():
        assert places.count(-1) == 1
        assert max(places) < len(places)


@pytest.fixture
def read_columns(tmp_path):
    def write_and_read(content, **columns):
        path = tmp_path / "train.txt"
        path.write_bytes(content.encode())
        return read_dataset(
            path, format="columns", columns=Columns(**({"label": "2"} | columns)), name="words"
        )

    return write_and_read


def test_words_have_spans_labels_and_sentences(read_columns, snapshot):
    dataset = read_columns(CONLL_2003, label="4")
    assert text_of(dataset) == snapshot
    assert dataset.marks_words
    assert dataset.has_groups
    others = [CONLL_2003.replace("\n", "\r\n"), CONLL_2003.rstrip("\n"), "\ufeff" + CONLL_2003]
    others += [CONLL_2003.replace(" ", space) for space in ("\t", "   ")]
    assert all(read_columns(other, label="4") == dataset for other in others)


@each_line("call")
def test_other_columns_separators_and_groups(read_columns, snapshot, call):
    assert text_of(eval(call, globals() | {"read": read_columns})) == snapshot


@each_line("call")
def test_invalid_lines_and_columns_are_named(read_columns, refused, call, tmp_path):
    refused(eval, call, globals() | {"read": read_columns, "tmp_path": tmp_path})
