"""Cells are read unchanged; ambiguous contents raise an error with file and line."""

import json
import re
from typing import get_args

import pytest

from probekit.data.examples import Example
from probekit.data.readers import FORMATS, FormatName, read_dataset, read_texts
from probekit.data.table import TableColumns
from probekit.errors import ConfigError, DataError, MissingError

ALL_COLUMNS = TableColumns(
    text="sentence", label="class", group="topic", id="key", span=("from", "to"), split="side"
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
def read(tmp_path):
    """Write bytes or text to a file and read it as `format`."""

    def write_and_read(content, format="csv", columns=None, **options):
        path = tmp_path / "file.data"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_dataset(path, format=format, columns=columns, **options)

    return write_and_read


@pytest.mark.parametrize("format", CONTENTS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_every_format_gives_the_same_examples(read, format, line_end, mark):
    header, *rest = CONTENTS[format].split("\n", 1)
    dataset = read(mark + line_end.join([header, *rest]).encode(), format, ALL_COLUMNS)
    assert dataset.examples == EXAMPLES
    assert dataset.name == "file"


def test_a_row_without_group_and_id_is_its_own_group(read):
    dataset = read("text,label\nYes.,y\n\nNo.,n\n", name="answers")
    assert [(e.id, e.group) for e in dataset.examples] == [("row 1", "row 1"), ("row 2", "row 2")]
    assert dataset.name == "answers"
    named = read("text,label,key\nYes.,y,a\n", columns=TableColumns(id="key"))
    assert named.examples[0].group == "a"


@pytest.mark.parametrize("label", ["no", "NO", "1", "1.0", "001", "true", "na", "none", "-", "1e5"])
def test_labels_stay_the_strings_they_are(read, label):
    assert read(f"text,label\nYes.,{label}\n").examples[0].label == label


def test_json_integers_become_strings(read):
    assert read('{"text": "Yes.", "label": 10}', "jsonl").examples[0].label == "10"


def test_line_separators_of_unicode_do_not_end_a_json_line(read):
    assert read('{"text": "a\u2028b", "label": "x"}', "jsonl").examples[0].text == "a\u2028b"


@pytest.mark.parametrize(
    ("format", "content", "line", "message"),
    [
        ("csv", "", 1, "the file is empty"),
        ("csv", "text,label\n", 1, "no rows"),
        ("csv", "text,label\nYes.,y\nNo.,\n", 3, "The label is empty"),
        ("csv", 'text,label\n"two\nlines",y\n,n\n', 4, "The text is empty"),
        ("csv", "text,label\nYes.,nan\n", 2, "missing value"),
        ("csv", b"text,label\nYes.,y\nN\xe9,n\n", 3, "0xe9 is not UTF-8"),
        ("csv", 'text,label\nYes.,y\n"No.,n\nOh.,o\n', 3, "not valid CSV"),
        ("csv", 'text,label\n"Yes" he said,y\n', 2, "not valid CSV"),
        ("csv", "text,label\nYes.,y\nNo, never,n\n", 3, "3 cells, the header has 2"),
        ("tsv", "text\tlabel\nYes.\n", 2, "1 cell, the header has 2. Put"),
        ("csv", "text,label,text\nYes.,y,No.\n", 1, "duplicate name 'text'"),
        ("jsonl", '{"text": "Yes.", "label": "y"}\n{"text": \n', 2, "not valid JSON"),
        ("jsonl", '{"text": "Yes.", "label": "y"}\n["No.", "n"]\n', 2, "a list"),
        ("jsonl", '{"text": "Yes.", "text": "No.", "label": "y"}', 1, "duplicate name 'text'"),
        ("jsonl", '{"text": "Yes.", "label": "y"}\n{"text": "No."}\n', 2, "no column 'label'"),
        ("jsonl", '{"text": "Yes.", "label": null}', 1, "'label' has no value"),
        ("jsonl", '{"text": "Yes.", "label": NaN}', 1, "'label' has no value"),
        ("jsonl", '{"text": "Yes.", "label": 1.5}', 1, "has the value 1.5"),
        (
            "jsonl",
            '{"text": "Yes.", "label": "1"}\n{"text": "No.", "label": 1}\n',
            2,
            "the label 1 has another type than those from line 1 on",
        ),
        ("jsonl", '{"text": "Yes.", "label": ["y"]}', 1, 'has the value ["y"]'),
        ("jsonl", '\n{"text": "\\ud83d", "label": "y"}', 2, "lone surrogate"),
    ],
)
def test_invalid_contents_are_reported_with_file_and_line(read, format, content, line, message):
    with pytest.raises(DataError, match=rf"file\.data:{line}: .*{re.escape(message)}") as raised:
        read(content, format)
    assert raised.type is DataError


@pytest.mark.parametrize("end", ["x", "-1", "2.0", "", "99", "0"])
def test_invalid_spans_are_reported_with_file_and_line(read, end):
    columns = TableColumns(span=("start", "end"))
    with pytest.raises(DataError, match=r"file\.data:2: "):
        read(f"text,label,start,end\nYes.,y,0,{end}\n", columns=columns)


def test_a_folder_and_an_endless_name_are_no_data_files(tmp_path):
    with pytest.raises(MissingError, match="does not exist"):
        read_dataset(tmp_path, format="csv")
    with pytest.raises(MissingError, match="cannot be read"):
        read_dataset(tmp_path / ("x" * 300), format="csv")


def test_duplicate_ids_are_refused_with_both_lines(read):
    with pytest.raises(DataError, match=r":4: the id 'a' is a duplicate of line 2"):
        read("text,label,key\nx,y,a\nx,y,b\nx,y,a\n", columns=TableColumns(id="key"))


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_missing_column_raises_an_error_with_the_nearest(read, format):
    content = {"csv": "text,lable\nYes.,y\n", "jsonl": '{"text": "Yes.", "lable": "y"}'}
    with pytest.raises(ConfigError, match=r"'label'\. Nearest: lable\.$"):
        read(content[format], format)


@pytest.mark.parametrize(("header", "name"), [("text\tlabel", "tab"), ("text;label", "semicolon")])
def test_a_file_of_another_separator_is_noticed(read, header, name):
    with pytest.raises(ConfigError, match=rf"a {name}. Check the format"):
        read(f"{header}\nYes.\ty\n")


def test_a_missing_file_is_reported_by_its_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError, match=re.escape(str(tmp_path / "none.csv"))):
        read_dataset(tmp_path.relative_to(tmp_path) / "none.csv", format="csv")


def test_the_line_of_the_header_is_reported(read):
    with pytest.raises(ConfigError, match=r":3: no column 'label'"):
        read("\n\ntext,lable\nYes.,y\n")


def test_every_format_has_a_row():
    assert tuple(FORMATS) == get_args(FormatName)


# Unlabelled texts.


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode())
        return path

    return write


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
    path = write(name, content)
    assert read_texts(path, name.split(".")[1], "said") == ("One, two", "no")


@pytest.mark.parametrize(
    ("name", "content", "format", "column", "error", "message"),
    [
        ("a.csv", "text\nx\n", None, None, ConfigError, "--format csv"),
        ("a.txt", "x\n", "xls", None, ConfigError, "Allowed: csv, jsonl, parquet, tsv, txt"),
        ("a.txt", "x\n", None, "text", ConfigError, "lines of text"),
        ("a.txt", "", None, None, DataError, "empty"),
        ("a.csv", "text\n", "csv", None, DataError, "no rows"),
        ("a.csv", "text,n\nx,1\n ,2\n", "csv", None, DataError, "a.csv:3: column 'text' is empty"),
        ("a.jsonl", '{"text": "x"}\n{"x": 1}\n', "jsonl", None, DataError, "a.jsonl:2.*no column"),
    ],
)
def test_invalid_files_are_reported(write, name, content, format, column, error, message):
    with pytest.raises(error, match=message):
        read_texts(write(name, content), format, column)
