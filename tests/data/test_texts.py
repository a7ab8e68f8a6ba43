"""Texts to be read by a probe: lines, or a column, never guessed."""

import pytest

from probekit.data.texts import read_texts
from probekit.errors import ConfigError, DataError, MissingError


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


def test_the_default_column_is_text(write):
    assert read_texts(write("a.csv", "text,x\nno,1\n"), "csv") == ("no",)


@pytest.mark.parametrize(
    ("name", "content", "format", "column", "error", "message"),
    [
        ("a.csv", "text\nx\n", None, None, ConfigError, "--format csv"),
        ("a.txt", "x\n", "xls", None, ConfigError, "Allowed: csv, jsonl, parquet, tsv, txt"),
        ("a.txt", "x\n", None, "text", ConfigError, "lines of text"),
        ("a.txt", "", None, None, DataError, "empty"),
        ("a.txt", "\n \n", "txt", None, DataError, "empty"),
        ("a.csv", "text\n", "csv", None, DataError, "no rows"),
        ("a.csv", "text,n\nx,1\n ,2\n", "csv", None, DataError, "a.csv:3: column 'text' is empty"),
        ("a.csv", "texts\nx\n", "csv", None, ConfigError, "Nearest: texts"),
        ("a.csv", "text;n\nx;1\n", "csv", None, ConfigError, "semicolon. Check the format"),
        ("a.jsonl", '{"text": null}\n', "jsonl", None, DataError, "a.jsonl:1.*no value"),
        ("a.jsonl", '{"text": "x"}\n{"x": 1}\n', "jsonl", None, DataError, "a.jsonl:2.*no column"),
    ],
)
def test_invalid_files_are_reported(write, name, content, format, column, error, message):
    with pytest.raises(error, match=message):
        read_texts(write(name, content), format, column)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"none\.txt"):
        read_texts(tmp_path / "none.txt")
