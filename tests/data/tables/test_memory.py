"""Types of rows in memory, and lists of dicts and data sets."""

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest

from probekit.data.readers import read_dataset
from probekit.data.tables.memory import tables_in
from probekit.errors import ConfigError, DataError, UnknownNameError

FRAME = pd.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
ROWS = FRAME.to_dict("records")


def read(data):
    (table,) = tables_in(data)
    return read_dataset(table, format="memory", name="rows")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("rows.csv", r"^data is the str 'rows\.csv'\. For a file, set `format` and `file`"),
        (Path("rows.csv"), r"^data is the PosixPath|^data is the WindowsPath"),
        (3, r"^data is of type builtins\.int\. Allowed: a data frame of pandas or polars, a list"),
        (FRAME["text"], r"^data is of type pandas.*Series\. Allowed"),
        (np.ones((2, 2)), r"^data is of type numpy\.ndarray\. Allowed"),
        ({"text": ["a"], "label": ["x"]}, r"keys 'text', 'label'\. .* pass pandas\.DataFrame\(da"),
        ({"train": FRAME}, r"keys 'train'\. .* pass data\['train'\]\.$"),
        ({"train": FRAME, "dev": FRAME, "test": FRAME}, r"keys 'train', 'dev', 'test'\."),
        ({}, r"keys of an empty dict"),
        ({"train": FRAME, "test": "x.csv"}, r"^data\['test'\] is the str 'x\.csv'"),
        (pl.from_pandas(FRAME).lazy(), r"type LazyFrame: its rows .* Read them with \.collect\(\)"),
        (datasets.Dataset.from_list(ROWS).to_iterable_dataset(), r"type IterableDataset: its rows"),
    ],
)
def test_other_types_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        tables_in(data)


@pytest.mark.parametrize(
    ("data", "kind", "name"),
    [
        (FRAME, "pandas DataFrame", "DataFrame"),
        (pl.from_pandas(FRAME), "polars DataFrame", "DataFrame"),
        (ROWS, "list of dicts", "list"),
        (datasets.Dataset.from_list(ROWS), "datasets Dataset", "Dataset"),
    ],
)
def test_the_type_of_the_rows_is_recorded(data, kind, name):
    (table,) = tables_in(data)
    assert (table.kind, table.name) == (kind, name)


def test_two_tables_are_training_and_test_rows():
    for data in (
        {"test": ROWS, "train": FRAME},
        datasets.DatasetDict(
            train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS)
        ),
    ):
        assert [table.side for table in tables_in(data)] == ["train", "test"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"^list has no rows"),
        ([*ROWS, "a"], r"^list index 2 is of type str\. Each entry must be a dict"),
        ([*ROWS, {"text": "c"}], r"^list index 2: no column 'label'\. Allowed: text\.$"),
        ([*ROWS, {"text": "c", "label": None}], r"^list index 2: column 'label' has no value"),
        ([*ROWS, {"text": "c", "label": 1}], r"^list index 2: the label 1 has another type .* ind"),
    ],
)
def test_invalid_entries_of_a_list_are_named_by_their_position(rows, message):
    with pytest.raises(DataError, match=message):
        read(rows)


def test_a_wrong_column_of_a_list_is_reported_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"^list: no column 'label'\. Nearest: lable\.$"):
        read([{"text": "a", "lable": "x"}])


def test_a_data_set_has_the_rows_of_its_data_frame():
    whole = datasets.Dataset.from_pandas(FRAME)
    assert read(whole) == read(FRAME)
    assert read(whole.with_format("torch")) == read(FRAME)
    assert [e.text for e in read(whole.select([1, 0])).examples] == ["b", "a"]
    with pytest.raises(UnknownNameError, match=r"no column 'text'\. Nearest: texts\."):
        read(whole.rename_column("text", "texts"))
    with pytest.raises(DataError, match=r"^Dataset has no rows"):
        read(whole.select([]))
    with pytest.raises(DataError, match=r"^Dataset index 1: The text is empty"):
        read(datasets.Dataset.from_list([ROWS[0], {"text": "", "label": "y"}]))


def test_numbers_of_classes_become_their_names():
    names = datasets.ClassLabel(names=["neg", "pos"])
    features = datasets.Features({"text": datasets.Value("string"), "label": names})
    rows = {"text": ["a", "b"], "label": [1, 0]}
    assert list(read(datasets.Dataset.from_dict(rows, features)).labels) == ["pos", "neg"]
    rows["label"][1] = -1  # the hub's way to leave out the labels of test rows
    with pytest.raises(DataError, match="Dataset index 1: column 'label' has no value"):
        read(datasets.Dataset.from_dict(rows, features))
