"""Cells are read unchanged; ambiguous contents raise an error with file and line."""

import json
from pathlib import Path
from typing import get_args

import pytest

from probekit.data.examples import Example
from probekit.data.readers import DEFAULT_COLUMNS, FORMATS, FormatName, read_dataset, read_texts
from probekit.data.table import Columns, read_messages
from probekit.experiment.data import DataSection, read_examples
from tests.stored import each_row

ALL_COLUMNS = Columns(
    text="sentence", label="class", group="topic", id="key", start="from", end="to", split="side"
)
ROWS = [
    {"sentence": 'He said "no".', "class": "no", "topic": "a", "key": "k1"}
    | {"from": 0, "to": 2, "side": "train"},
    {"sentence": "Two\nlines,\tone cell", "class": "1", "topic": "01", "key": "k2"}
    | {"from": 4, "to": 9, "side": "test"},
]
EXAMPLES = (
    Example('He said "no".', "no", "a", "k1", (0, 2), "train"),
    Example("Two\nlines,\tone cell", "1", "01", "k2", (4, 9), "test"),
)
CONTENTS = {
    "csv": "sentence,class,topic,key,from,to,side\n"
    '"He said ""no"".",no,a,k1,0,2,train\n'
    '"Two\nlines,\tone cell",1,01,k2,4,9,test\n',
    "tsv": "sentence\tclass\ttopic\tkey\tfrom\tto\tside\n"
    '"He said ""no""."\tno\ta\tk1\t0\t2\ttrain\n'
    '"Two\nlines,\tone cell"\t1\t01\tk2\t4\t9\ttest\n',
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
}


@pytest.fixture
def write(tmp_path):
    """Write bytes or text to a file and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def read(write):
    """Write a file and read it as `format`."""
    return lambda content, format="csv", columns=DEFAULT_COLUMNS, **options: read_dataset(
        write("file.data", content), format=format, columns=columns, **options
    )


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_format_gives_the_same_examples(read, format, line_end, mark):
    header, *rest = CONTENTS[format].split("\n", 1)
    dataset = read(mark + line_end.join([header, *rest]).encode(), format, ALL_COLUMNS)
    assert dataset.examples == EXAMPLES
    assert dataset.name == "file"


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_the_delimiter_of_csv_is_found_in_its_first_line(read, delimiter):
    dataset = read(CONTENTS["tsv"].replace("\t", delimiter), "csv", ALL_COLUMNS)
    texts = [example.text.replace(delimiter, "\t") for example in dataset.examples]
    assert texts == [example.text for example in EXAMPLES]
    assert read("text,label;x\na;b,c\n", "csv", Columns(label="label;x")).labels.tolist() == ["c"]


def test_a_delimiter_may_be_given(tmp_path, refused):
    (tmp_path / "rows.csv").write_text("text|label,x\nOne|a\n")
    given = {"name": "x", "format": "csv", "root": str(tmp_path), "file": "rows.csv"}
    data = DataSection(**given, delimiter="|", columns={"label": "label,x"})
    assert read_examples(data).labels.tolist() == ["a"]
    for wrong in ({"delimiter": "||"}, {"format": "jsonl", "delimiter": "|"}):
        refused(DataSection, **given | wrong)


def test_a_row_without_group_and_id_is_its_own_group(read):
    dataset = read("text,label\nYes.,y\n\nNo.,n\n", name="answers")
    assert [(e.id, e.group) for e in dataset.examples] == [("row 1", "row 1"), ("row 2", "row 2")]
    assert dataset.name == "answers"
    assert read("text,label,key\nYes.,y,a\n", columns=Columns(id="key")).examples[0].group == "a"


@pytest.mark.parametrize("label", ["no", "NO", "1", "1.0", "001", "true", "na", "none", "-", "1e5"])
def test_labels_stay_the_strings_they_are(read, label):
    assert read(f"text,label\nYes.,{label}\n").examples[0].label == label


@pytest.mark.parametrize(
    ("text", "label", "read_as"),
    [("Yes.", "10", "10"), ("Yes.", '"010"', "010"), ("a\u2028b", '"x"', "x")],
)
def test_json_integers_become_strings_and_only_line_ends_end_a_line(read, text, label, read_as):
    (example,) = read(f'{{"text": "{text}", "label": {label}}}', "jsonl").examples
    assert (example.text, example.label) == (text, read_as)


JSON = '{"text": "Yes.", "label": "y"}'


@each_row("format, content")
def test_invalid_contents_are_reported_with_file_and_line(read, refused, format, content):
    of_header = {"start,end": Columns(start="start", end="end"), ",key": Columns(id="key")}
    of_header |= {'"set"': Columns(group="set")}
    columns = [one for names, one in of_header.items() if names in str(content)]
    values = ("source",) if '"source"' in str(content) else ()
    refused(read, content, format, *columns, values=values)


def test_what_cannot_be_read_is_no_data_file(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    refused(read_dataset, tmp_path, format="csv")
    refused(read_dataset, Path("none.csv"), format="csv")  # reported by its absolute path
    refused(read_dataset, tmp_path / ("x" * 300), format="csv")


def test_messages_that_would_be_read_in_part_are_refused(refused):
    refused(read_messages, "r", '[{"role": "user", "content": "a", "content": "b"}]')
    refused(read_messages, "r", '[{"role": "user", "role": "system", "content": "b"}]')
    refused(read_messages, "r", {"role": "user"})
    refused(read_messages, "r", 3)


def test_messages_of_a_generator_are_read_once():
    turns = [{"role": "user", "content": "a", "name": "A"}, {"role": "assistant", "content": "b"}]
    assert read_messages("r", (one for one in turns)) == read_messages("r", turns)
    assert len(read_messages("r", iter(turns))[1]) == 2


def test_every_format_has_a_row():
    assert tuple(FORMATS) == get_args(FormatName)


# Unlabelled texts.


def test_lines_are_texts_and_blank_lines_are_skipped(write):
    path = write("a.txt", "\ufeff one \r\n\r\n  \ntwo\u2028still two\n")
    assert read_texts(path) == (" one ", "two\u2028still two")
    assert read_texts(path, "txt") == read_texts(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'id,said\n1,"One, two"\n\n2,no\n'),
        ("a.tsv", "id\tsaid\n1\tOne, two\n2\tno\n"),
        ("a.jsonl", '{"id": 1, "said": "One, two"}\n{"said": "no"}\n'),
    ],
)
def test_a_column_of_a_table_is_read_without_labels(write, name, content):
    assert read_texts(write(name, content), name.split(".")[1], "said") == ("One, two", "no")


@each_row("name, content, format, column")
def test_invalid_files_are_reported(write, refused, name, content, format, column):
    refused(read_texts, write(name, content), format, column)
