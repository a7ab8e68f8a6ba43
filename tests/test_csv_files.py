"""Tables with untrusted texts: no cell is a formula, every value is read back unchanged."""

import csv
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from probekit.csv_files import csv_text, parse_csv, read_csv
from probekit.errors import DataError

FORMULAS = [
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1",
    "-1",
    "-1.5",
    "\t=1",
    "\r=1",
    "\n=1",
    "=1\r2",
    "-",
    "=",
    "\uff1d1",
    "\uff0b1",
    "\uff0d1",
    "\uff201",
]
PLAIN = [
    "a",
    "'",
    "'a",
    "''",
    "it's",
    " =1",
    "a=1",
    "1",
    "1.5",
    "NA",
    "nan",
    "None",
    "True",
    "a,b",
    'say "a"',
    "a\nb",
    "a\rb",
    "a\r\nb",
    "\x1b[2J",
    "\u202e",
    "a\0b",
    "</script><b>",
    "%{x}",
    "",
]
TEXTS = [*FORMULAS, *PLAIN, *(f"'{text}" for text in FORMULAS), *(f"''{t}" for t in FORMULAS)]
AS_TEXT = {"dtype": str, "keep_default_na": False}


def cells(text):
    return list(csv.reader(StringIO(text, newline="")))


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_text_is_escaped_and_restored(text):
    table = pd.DataFrame({text: [text, "b"], "x": [-1.5, 2.0]})
    written = csv_text(table)
    for row in cells(written):
        assert not row[0] or row[0][0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
    assert [row[1] for row in cells(written)] == ["x", "-1.5", "2.0"]
    again = parse_csv(written.encode(), **AS_TEXT)
    if text:  # pandas names a column without a name
        assert list(again.columns) == [text, "x"]
    assert again.iloc[:, 0].tolist() == [text, "b"]


def test_numbers_are_written_as_they_are():
    table = pd.DataFrame(
        {
            "float": [-1.5, np.nan],
            "single": np.array([-0.1, 1e-30], np.float32),
            "whole": [-1, 2],
            "either": pd.Series([-1, None], dtype=object),
            "flag": [True, False],
            "maybe": pd.array([True, None], "boolean"),
            "mixed": pd.Series([-1, "-1"], dtype=object),
        }
    )
    expected = table.to_csv(index=False, lineterminator="\n")
    assert csv_text(table) == expected.removesuffix("-1\n") + "'-1\n"
    assert csv_text(table.iloc[:0]) == expected.partition("\n")[0] + "\n"


def test_a_column_of_negative_labels_stays_text():
    """Without the quote pandas would read numbers, and '-1' and '-1.0' would be one label."""
    written = csv_text(pd.DataFrame({"label": ["-1", "-1.0"], "n": [-1, -2]}))
    again = parse_csv(written.encode(), keep_default_na=False)
    assert again["label"].tolist() == ["-1", "-1.0"]
    assert again["n"].tolist() == [-1, -2]


def test_files_of_other_programs_are_read_as_they_are():
    again = parse_csv(b"label,n\n=1,-1\n-1,2\n'a,3\n", **AS_TEXT)
    assert again["label"].tolist() == ["=1", "-1", "'a"]


def test_a_link_out_of_the_folder_is_not_read(tmp_path):
    (tmp_path / "mine.csv").write_text("a\n1\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.csv").symlink_to(tmp_path / "mine.csv")
    with pytest.raises(DataError, match=r"leads out of .*run, to .*mine\.csv"):
        read_csv(tmp_path / "run" / "results.csv")
