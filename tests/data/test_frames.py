"""Rows in memory and Parquet files give the examples of the CSV file with the same rows."""

import sys

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from probekit.data.frames import MemoryData, tables_in
from probekit.data.readers import DEFAULT_COLUMNS, read_dataset, read_texts
from probekit.data.table import Columns
from probekit.errors import ConfigError, DataError
from tests.stored import each_line, each_row

COLUMNS = Columns(group="topic", id="key", start="from", end="to", split="side")
ROWS = {
    "text": ["No.", "Two\nlines", "=1+1", "É"],
    "label": [1, 0, 1, 0],
    "topic": ["a", "01", "a", "b"],
    "key": ["k1", "k2", "k3", "k4"],
    "from": [0, 4, 0, 0],
    "to": [2, 9, 1, 1],
    "side": ["train", "test", "train", "test"],
    "unused": [[1], [2], [3], [4]],
}
FRAMES = {
    "pandas": pd.DataFrame,
    "pandas nullable": lambda rows: pd.DataFrame(rows).convert_dtypes(),
    "pandas arrow": lambda rows: pd.DataFrame(rows).convert_dtypes(dtype_backend="pyarrow"),
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "dicts": lambda rows: pd.DataFrame(rows).to_dict("records"),
}


def read(rows, columns=DEFAULT_COLUMNS, **options):
    return read_dataset(MemoryData(rows), format="memory", columns=columns, name="rows", **options)


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("index", [None, list("wxyz")])
def test_examples_are_those_of_the_csv_file(make, index, tmp_path):
    frame = make(ROWS)
    if index is not None and isinstance(frame, pd.DataFrame):
        frame.index = index
    pd.DataFrame(ROWS).drop(columns="unused").to_csv(tmp_path / "rows.csv", index=False)
    expected = read_dataset(tmp_path / "rows.csv", format="csv", columns=COLUMNS, name="rows")
    assert read(frame, COLUMNS).examples == expected.examples
    assert read(frame, COLUMNS).digest == expected.digest


LABELS = {
    "bool": [True, False],
    "int8": np.array([1, -1], "int8"),
    "float64": [0.1, 1e-07],
    "float32": np.array([0.1, 16777216], "float32"),
    "integers with decimals": [1, 0.5],
    "texts": ["no", "1.0"],
    "categories": pd.Categorical(["b", "a"]),
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_are_written_as_in_a_csv_file(labels, tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"], "label": labels})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    expected = list(read_dataset(tmp_path / "rows.csv", format="csv").labels)
    assert list(read(frame).labels) == expected
    if not isinstance(labels, np.ndarray):
        dicts = [{"text": "a", "label": labels[0]}, {"text": "b", "label": labels[1]}]
        assert list(read(dicts).labels) == expected


def bad(column, value, index="wxyz"):
    """Read a data frame with a wrong cell in its third row, with a list or a text as index."""
    rows = {name: list(cells) for name, cells in (ROWS | {"label": "xyxy"}).items()}
    rows[column][2] = value
    read(pd.DataFrame({name: pd.Series(rows[name], list(index), object) for name in rows}), COLUMNS)


def with_classes(*numbers):
    """Read a data set whose labels are numbers of classes."""
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    return read(datasets.Dataset.from_dict({"text": ["a", "b"], "label": numbers}, features))


TWO = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
DICTS = TWO.to_dict("records")
SET = datasets.Dataset.from_pandas(TWO)
SENTENCES = {"sentence": ["a"], "Label": ["x"]}


@each_line("call")
def test_invalid_tables_are_refused_with_their_row_and_column(call, refused):
    refused(eval, call, globals())


def test_columns_may_have_numbers_as_names():
    examples = read(pd.DataFrame([["a", "x"], ["b", "y"]]), Columns(text="0", label="1")).examples
    assert [(e.text, e.label) for e in examples] == [("a", "x"), ("b", "y")]


@each_row("data, message")
def test_other_types_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        tables_in(data)


def test_two_tables_are_training_and_test_rows():
    for data in ({"test": DICTS, "train": TWO}, datasets.DatasetDict(train=SET, test=SET)):
        assert [table.side for table in tables_in(data)] == ["train", "test"]


def test_a_data_set_has_the_rows_of_its_data_frame():
    assert read(SET) == read(SET.with_format("torch")) == read(TWO)
    assert [e.text for e in read(SET.select([1, 0])).examples] == ["b", "a"]


def test_numbers_of_classes_become_their_names():
    assert list(with_classes(1, 0).labels) == ["pos", "neg"]


STORED = pd.DataFrame(
    {"text": list("abc"), "label": [True, False, True], "group": [1, 2, 3], "x": [[1], [2], [3]]}
)


@pytest.fixture
def path(tmp_path):
    STORED.to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_examples_are_those_of_the_data_frame(path):
    columns = Columns(group="group")
    own = read_dataset(path, format="parquet", columns=columns, name="rows")
    assert own == read_dataset(MemoryData(STORED), format="memory", columns=columns, name="rows")
    assert own.examples[2].where == f"{path} index 2"
    assert read_texts(path, "parquet") == ("a", "b", "c")


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-9], lambda b: b"text,label\n"])
def test_other_files_are_refused(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"rows\.parquet is not a valid Parquet file: .*\. Write"):
        read_dataset(path, format="parquet")


def test_a_missing_library_is_named_with_its_extra(path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("probekit.data.frames.find_spec", lambda name: None)
    refused(read_dataset, path, format="parquet")
