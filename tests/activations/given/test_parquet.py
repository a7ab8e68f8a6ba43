"""Columns of Parquet files: lists of every type are read; nulls and unequal lists are named."""

import numpy as np
import pandas as pd
import pytest

from probekit.activations.given.given import open_activations
from probekit.errors import DataError, ProbekitError
from tests.activations.given.test_formats import ROWS, first_read

pa = pytest.importorskip("pyarrow")


def parquet(folder, table, **options):
    """Write columns, or an Arrow table, as a.parquet."""
    from pyarrow import parquet

    table = pa.table(table) if isinstance(table, dict) else table
    parquet.write_table(table, folder / "a.parquet", **options)


def lists(rows, kind="list_", **options):
    """Return rows as an Arrow array of lists of a fixed or variable length."""
    width = (4,) if kind == "fixed" else ()
    make = pa.large_list if kind == "large_list" else pa.list_
    return pa.array(list(rows), make(pa.float32(), *width), **options)


def test_each_column_of_a_parquet_file_is_a_site(tmp_path):
    parquet(tmp_path, {"layer_1": lists(ROWS), "layer_0": lists(ROWS + 1, "fixed")})
    given = open_activations(tmp_path)
    assert [site.text for site in given.sites] == ["layer_0", "layer_1"]
    assert given.digest == open_activations({"layer_0": ROWS + 1, "layer_1": ROWS}).digest


@pytest.mark.parametrize("kind", ["list_", "large_list", "fixed"])
@pytest.mark.parametrize("size", [7, 1000])
def test_parquet_lists_of_any_type_and_row_groups_are_read(tmp_path, monkeypatch, kind, size):
    monkeypatch.setattr("probekit.activations.given.given._NUMBERS_AT_ONCE", 20)  # 5 rows
    parquet(tmp_path, {"layer_0": lists(ROWS, kind)}, row_group_size=size)
    np.testing.assert_array_equal(first_read(tmp_path), ROWS)


def test_a_frame_of_pandas_is_read(tmp_path):
    frame = pd.DataFrame({"layer_0": list(ROWS), "layer_1": list(ROWS + 1)})
    frame.to_parquet(tmp_path / "a.parquet")
    same = open_activations({"layer_0": ROWS, "layer_1": ROWS + 1})
    assert open_activations(tmp_path).digest == same.digest


@pytest.mark.parametrize("kind", ["list_", "fixed"])
@pytest.mark.parametrize("row", [None, [1.0, None, 2.0, 3.0], [1.0, 2.0]], ids=str)
def test_nulls_and_unequal_parquet_lists_are_named(tmp_path, monkeypatch, kind, row, refused):
    if kind == "fixed" and row == [1.0, 2.0]:
        pytest.skip("cannot be written")
    monkeypatch.setattr("probekit.activations.given.given._NUMBERS_AT_ONCE", 20)
    rows = ROWS.tolist()
    rows[17] = row
    parquet(tmp_path, {"layer_0": lists(ROWS), "layer_1": lists(rows, kind)})
    assert open_activations(tmp_path, sites=["layer_0"]).n_rows == 40
    refused(open_activations, tmp_path)


def test_unusable_parquet_columns_are_refused(tmp_path, refused):
    texts, ok = pa.array(["x"] * 40), lists(ROWS)
    shaped = [{"site": "x", "shape": one} for one in ("[2, 1]", "[4.0]", "[-2, -2]")]
    for table in (
        {},
        pa.table([ok, ok], names=["a", "a"]),
        {"label": texts, "a": ok},
        {"a": pa.array(ROWS[:, 0])},
        {"a": pa.array([[1, 2]] * 40)},
        {"a": pa.array([[]] * 40, ok.type)},
        {"a": pa.array([], ok.type)},
        {"a": lists([None, *ROWS[1:]])},
        {"a": lists([[np.inf] * 4, *ROWS[1:]])},
        *(pa.table({"a": ok}).replace_schema_metadata(one) for one in shaped),
    ):
        parquet(tmp_path, table)
        refused(open_activations, tmp_path)
    parquet(tmp_path, {"label": texts, "a": ok})
    assert len(open_activations(tmp_path, sites=["a"]).sites) == 1


def test_a_small_parquet_file_of_many_numbers_is_refused_before_it_is_read(tmp_path):
    width = 450_000
    zeros = pa.array(np.zeros(40 * width, np.float32))
    fixed = pa.FixedSizeListArray.from_arrays(zeros, width)
    short_first = pa.ListArray.from_arrays(pa.array([0, 4, 20 * width, 40 * width]), zeros)
    for column in (fixed, fixed.cast(pa.list_(pa.float32())), short_first):
        parquet(tmp_path, {"a": column})
        assert (tmp_path / "a.parquet").stat().st_size < 5000
        with pytest.raises(DataError, match=r"the column 'a' unpacks from .* B to 72.0 MB"):
            open_activations(tmp_path)


def test_a_damaged_footer_is_refused(tmp_path):
    """PyArrow aborts the process if it returns the description of a damaged chunk."""
    pd.DataFrame({"a": list(ROWS)}).to_parquet(tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = 0
    for at in range(footer, footer + 250):
        (tmp_path / "a.parquet").write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
        try:
            open_activations(tmp_path)
        except ProbekitError:
            refused += 1
    assert 50 < refused < 250
