"""Parquet files have the examples of their data frame; damaged ones are refused."""

import sys

import pandas as pd
import pytest

from probekit.data.readers import read_column, read_dataset
from probekit.data.tables.columns import TableColumns
from probekit.data.tables.memory import MemoryData
from probekit.errors import ConfigError, DataError, MissingError, UnknownNameError

FRAME = pd.DataFrame(
    {
        "text": ["a", "b", "c"],
        "label": [True, False, True],
        "group": [1, 2, 3],
        "x": [[1], [2], [3]],
    }
)


@pytest.fixture
def path(tmp_path):
    FRAME.to_parquet(tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def test_examples_are_those_of_the_data_frame(path):
    columns = TableColumns(group="group")
    own = read_dataset(path, format="parquet", columns=columns, name="rows")
    assert own == read_dataset(MemoryData(FRAME), format="memory", columns=columns, name="rows")
    assert own.examples[2].where == f"{path} index 2"
    assert read_column(path, format="parquet", column="text") == ("a", "b", "c")


def test_contents_are_checked(path):
    with pytest.raises(UnknownNameError, match=r"no column 'txt'\. Nearest: text"):
        read_dataset(path, format="parquet", columns=TableColumns(text="txt"))
    FRAME.assign(text=["a", None, "c"]).to_parquet(path)
    with pytest.raises(DataError, match=r"rows\.parquet index 1: column 'text' has no value"):
        read_dataset(path, format="parquet")
    with pytest.raises(MissingError, match="does not exist"):
        read_dataset(path.with_name("none.parquet"), format="parquet")


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-9], lambda b: b"text,label\n"])
def test_other_files_are_refused(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"rows\.parquet is not a valid Parquet file: .*\. Write"):
        read_dataset(path, format="parquet")


def test_a_missing_library_is_named_with_its_extra(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("probekit.data.tables.parquet.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"need pyarrow\. Install it with: pip install .*parquet"):
        read_dataset(path, format="parquet")
