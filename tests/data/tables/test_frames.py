"""Data frames of any library give the examples of the CSV file with the same rows."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from probekit.data.readers import read_dataset
from probekit.data.tables.columns import TableColumns
from probekit.data.tables.memory import MemoryData
from probekit.errors import ConfigError, DataError, UnknownNameError

COLUMNS = TableColumns(group="topic", id="key", span=("from", "to"), split="side")
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


def read(rows, columns=None):
    return read_dataset(MemoryData(rows), format="memory", columns=columns, name="rows")


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


def test_labels_of_polars_are_those_of_pandas():
    for labels in ([True, False], [0.1, 2.0], [1, 2]):
        frames = [
            make({"text": ["a", "b"], "label": labels}) for make in (pd.DataFrame, pl.DataFrame)
        ]
        assert read(frames[0]) == read(frames[1])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("text", "", "The text is empty"),
        ("text", " ", "The text is empty"),
        ("text", None, "column 'text' has no value"),
        ("text", ["a"], "column 'text' has the value [\"a\"] of type list. Allowed: texts"),
        ("text", b"a", "column 'text' has the value b'a' of type bytes"),
        ("text", "\ud83d", "lone surrogate"),
        ("label", "", "The label is empty"),
        ("label", None, "column 'label' has no value"),
        ("label", float("nan"), "column 'label' has no value"),
        ("label", pd.NA, "column 'label' has no value"),
        ("label", pd.NaT, "column 'label' has no value"),
        ("label", "NaN", "common spelling of a missing value"),
        ("label", 1, "the label 1 has another type than those from index "),
        ("label", True, "the label true has another type than those from index "),
        ("label", pd.Timestamp("2020-01-01"), "of type Timestamp"),
        ("topic", np.nan, "column 'topic' has no value"),
        ("key", "k1", "the id 'k1' is a duplicate of index "),
        ("from", "x", "column 'from' has the value 'x', which is not a position"),
        ("from", 1.0, "column 'from' has the value '1.0', which is not a position"),
        ("to", 99, "is empty or not within"),
    ],
)
@pytest.mark.parametrize("index", [[0, 1, 2, 3], [7, 8, 9, 10], list("wxyz")])
def test_invalid_rows_are_named_by_their_index(column, value, message, index):
    rows = {name: list(cells) for name, cells in (ROWS | {"label": "xyxy"}).items()}
    rows[column][2] = value
    frame = pd.DataFrame({name: pd.Series(rows[name], index, object) for name in rows})
    with pytest.raises(DataError) as raised:
        read(frame, COLUMNS)
    assert str(raised.value).startswith(f"DataFrame index {index[2]!r}: ")
    assert message in str(raised.value)


def test_labels_of_an_index_that_occur_twice_have_their_position():
    frame = pd.DataFrame({"text": ["a", ""], "label": ["x", "y"]}, index=["i", "i"])
    with pytest.raises(DataError, match=r"^DataFrame index 'i' \(position 1\): The text"):
        read(frame)


def test_a_selection_of_rows_keeps_its_index():
    frame = pd.DataFrame({"text": ["a", "b", ""], "label": ["x", "y", "x"]})
    with pytest.raises(DataError, match=r"^DataFrame index 2: The text"):
        read(frame.iloc[1:])
    with pytest.raises(DataError, match=r"^DataFrame index 1: The text"):
        read(pl.from_pandas(frame)[1:])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_wrong_columns_are_reported_with_the_nearest(make):
    frame = make({"sentence": ["a"], "Label": ["x"]})
    with pytest.raises(UnknownNameError, match=r"no column 'text'\. Allowed: Label, sentence\."):
        read(frame)
    columns = TableColumns(text="sentense")
    with pytest.raises(UnknownNameError, match=r"no column 'sentense'\. Nearest: sentence\.$"):
        read(frame, columns)
    with pytest.raises(UnknownNameError, match=r"'label'\. Nearest: Label\. Column names are case"):
        read(frame, TableColumns(text="sentence"))


def test_two_columns_of_one_name_are_refused():
    frames = (
        pd.DataFrame([["a", "b", "x"]], columns=["text", "text", "label"]),
        pa.table([["a"], ["b"], ["x"]], names=["text", "text", "label"]),
    )
    for frame in frames:
        with pytest.raises(ConfigError, match="two columns have the name 'text'"):
            read(frame)


def test_columns_may_have_numbers_as_names():
    frame = pd.DataFrame([["a", "x"], ["b", "y"]])
    examples = read(frame, TableColumns(text="0", label="1")).examples
    assert [(e.text, e.label) for e in examples] == [("a", "x"), ("b", "y")]


def test_a_table_without_rows_or_columns_is_refused():
    with pytest.raises(DataError, match=r"^DataFrame has no rows\.$"):
        read(pd.DataFrame({"text": [], "label": []}))
    with pytest.raises(ConfigError, match="there are no columns"):
        read(pd.DataFrame())
