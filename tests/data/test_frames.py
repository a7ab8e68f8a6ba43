"""Rows in memory and Parquet files give the examples of the CSV file with the same rows."""

import sys

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from probekit.data.frames import MemoryData, tables_in
from probekit.data.readers import read_dataset, read_texts
from probekit.data.table import TableColumns
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


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("text", "", "The text is empty"),
        ("text", None, "column 'text' has no value"),
        ("text", ["a"], "column 'text' has the value [\"a\"] of type list. Allowed: texts"),
        ("text", "\ud83d", "lone surrogate"),
        ("label", None, "column 'label' has no value"),
        ("label", float("nan"), "column 'label' has no value"),
        ("label", pd.NA, "column 'label' has no value"),
        ("label", "NaN", "common spelling of a missing value"),
        ("label", 1, "the label 1 has another type than those from index "),
        ("label", pd.Timestamp("2020-01-01"), "of type Timestamp"),
        ("key", "k1", "the id 'k1' is a duplicate of index "),
        ("from", "x", "column 'from' has the value 'x', which is not a position"),
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


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_wrong_columns_are_reported_with_the_nearest(make):
    frame = make({"sentence": ["a"], "Label": ["x"]})
    with pytest.raises(UnknownNameError, match=r"no column 'text'\. Allowed: Label, sentence\."):
        read(frame)
    columns = TableColumns(text="sentense")
    with pytest.raises(UnknownNameError, match=r"no column 'sentense'\. Nearest: sentence\.$"):
        read(frame, columns)
    with pytest.raises(UnknownNameError, match=r"'label'\. Nearest: Label\."):
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
    with pytest.raises(DataError, match=r"^DataFrame: there are no rows\.$"):
        read(pd.DataFrame({"text": [], "label": []}))
    with pytest.raises(ConfigError, match="there are no columns"):
        read(pd.DataFrame())


TWO = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
DICTS = TWO.to_dict("records")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("rows.csv", r"^data is of type builtins\.str\. .* for a file, set `format` and `file`"),
        (3, r"^data is of type builtins\.int\. Allowed: a data frame of pandas or polars, a list"),
        (TWO["text"], r"^data is of type pandas.*Series\. Allowed"),
        (np.ones((2, 2)), r"^data is of type numpy\.ndarray\. Allowed"),
        (
            {"text": ["a"], "label": ["x"]},
            r"^data is of type builtins\.dict\. .* pass pandas\.Data",
        ),
        ({"train": TWO, "dev": TWO, "test": TWO}, r"^data is of type builtins\.dict\."),
        ({"train": TWO, "test": "x.csv"}, r"^data\['test'\] is of type builtins\.str"),
        (pl.from_pandas(TWO).lazy(), r"LazyFrame\. .* Collect lazy rows first"),
        (datasets.Dataset.from_list(DICTS).to_iterable_dataset(), r"IterableDataset\. .* Collect"),
    ],
)
def test_other_types_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        tables_in(data)


def test_two_tables_are_training_and_test_rows():
    for data in (
        {"test": DICTS, "train": TWO},
        datasets.DatasetDict(
            train=datasets.Dataset.from_list(DICTS), test=datasets.Dataset.from_list(DICTS)
        ),
    ):
        assert [table.side for table in tables_in(data)] == ["train", "test"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"^list: there are no rows"),
        ([*DICTS, "a"], r"^list index 2 is of type str\. Each entry must be a dict"),
        ([*DICTS, {"text": "c"}], r"^list index 2: no column 'label'\. Allowed: text\.$"),
        ([*DICTS, {"text": "c", "label": None}], r"^list index 2: column 'label' has no value"),
    ],
)
def test_invalid_entries_of_a_list_are_named_by_their_position(rows, message):
    with pytest.raises(DataError, match=message):
        read(rows)


def test_a_data_set_has_the_rows_of_its_data_frame():
    whole = datasets.Dataset.from_pandas(TWO)
    assert read(whole) == read(TWO)
    assert read(whole.with_format("torch")) == read(TWO)
    assert [e.text for e in read(whole.select([1, 0])).examples] == ["b", "a"]
    with pytest.raises(UnknownNameError, match=r"no column 'text'\. Nearest: texts\."):
        read(whole.rename_column("text", "texts"))
    with pytest.raises(DataError, match=r"^Dataset: there are no rows"):
        read(whole.select([]))
    with pytest.raises(DataError, match=r"^Dataset index 1: The text is empty"):
        read(datasets.Dataset.from_list([DICTS[0], {"text": "", "label": "y"}]))


def test_numbers_of_classes_become_their_names():
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = {"text": ["a", "b"], "label": [1, 0]}
    assert list(read(datasets.Dataset.from_dict(rows, features)).labels) == ["pos", "neg"]
    rows["label"][1] = -1  # the hub's way to leave out the labels of test rows
    with pytest.raises(DataError, match="Dataset index 1: column 'label' has no value"):
        read(datasets.Dataset.from_dict(rows, features))


STORED = pd.DataFrame(
    {
        "text": ["a", "b", "c"],
        "label": [True, False, True],
        "group": [1, 2, 3],
        "x": [[1], [2], [3]],
    }
)


@pytest.fixture
def path(tmp_path):
    STORED.to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_examples_are_those_of_the_data_frame(path):
    columns = TableColumns(group="group")
    own = read_dataset(path, format="parquet", columns=columns, name="rows")
    assert own == read_dataset(MemoryData(STORED), format="memory", columns=columns, name="rows")
    assert own.examples[2].where == f"{path} index 2"
    assert read_texts(path, "parquet") == ("a", "b", "c")


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-9], lambda b: b"text,label\n"])
def test_other_files_are_refused(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"rows\.parquet is not a valid Parquet file: .*\. Write"):
        read_dataset(path, format="parquet")


def test_a_missing_library_is_named_with_its_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("probekit.data.frames.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"need pyarrow\. Install it with: pip install .*parquet"):
        read_dataset(path, format="parquet")
