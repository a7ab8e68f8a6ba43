"""Damaged files of every format are refused with their name, and never read as other numbers."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import save_file

from probekit.activations.given.formats import NpyArray, row_ids
from probekit.activations.given.given import open_activations
from probekit.errors import DataError
from tests.stored import each_row

ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


def first_read(folder):
    """Return the rows of the first site; the iteration order is that of the layer axis."""
    given = open_activations(folder)
    return given.read(given.sites[0].text)


@pytest.mark.parametrize("name", ["b.npz", "B.NPZ", "d.pt", "e.h5"])
def test_a_folder_with_arrays_that_are_not_read_is_refused(tmp_path, name, refused):
    np.save(tmp_path / "a.npy", ROWS)
    np.save(tmp_path / "c.npy", ROWS)
    (tmp_path / "c.npy").rename(tmp_path / "c.NPY")
    (tmp_path / "notes.txt").write_text("x")
    assert [site.text for site in open_activations(tmp_path).sites] == ["a", "c"]
    (tmp_path / name).write_bytes(b"PK")
    refused(open_activations, tmp_path)


def zarr_array(folder, **options):
    """Write ROWS as a.zarr in four chunks; return its folder and the files of its chunks."""
    zarr = pytest.importorskip("zarr")
    path = folder / "a.zarr"
    zarr.create_array(str(path), data=ROWS, **{"chunks": (10, 4)} | options)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return path, [file for file in files if file.name[0] in "0123"]


@pytest.mark.parametrize("options", [{"zarr_format": 2}, {"zarr_format": 3}, {"shards": (20, 4)}])
def test_a_zarr_array_without_a_chunk_is_refused(tmp_path, options, refused):
    _, chunks = zarr_array(tmp_path, **options)
    np.testing.assert_array_equal(first_read(tmp_path), ROWS)
    chunks[1].unlink()
    refused(open_activations, tmp_path)


def test_only_the_chosen_arrays_of_a_group_need_all_chunks(tmp_path, refused):
    group = pytest.importorskip("zarr").open_group(str(tmp_path / "acts.zarr"), mode="w")
    group.create_array("layer_0", data=ROWS)
    group.create_array("layer_1", shape=ROWS.shape, chunks=(10, 4), dtype="f4")[:20] = ROWS[:20]
    assert len(open_activations(tmp_path, sites=["layer_0"]).sites) == 1
    refused(open_activations, tmp_path)
    shards = {"chunks": (5, 4), "shards": (20, 4), "dtype": "f4"}  # each of four chunks
    group.create_array("layer_1", shape=ROWS.shape, overwrite=True, **shards)[:25] = ROWS[:25]
    refused(open_activations, tmp_path)


def test_chunks_of_zeros_that_are_stored_are_read(tmp_path):
    zarr = pytest.importorskip("zarr")
    rows = ROWS.copy()
    rows[10:20] = 0
    options = {"chunks": (10, 4), "config": {"write_empty_chunks": True}}
    zarr.create_array(str(tmp_path / "a.zarr"), data=rows, **options)
    np.testing.assert_array_equal(first_read(tmp_path), rows)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-3], lambda data: b"", lambda data: b"\0" * len(data)],
    ids=["truncated", "empty", "zeros"],
)
@pytest.mark.parametrize(
    "options",
    [{"zarr_format": 2}, {"zarr_format": 3}, {"shards": (20, 4)}, {"compressors": None}],
    ids=str,
)
def test_a_damaged_zarr_chunk_is_refused(tmp_path, options, damage):
    _, chunks = zarr_array(tmp_path, **options)
    chunks[1].write_bytes(damage(chunks[1].read_bytes()))
    if "compressors" in options and len(chunks[1].read_bytes()) == 160:
        assert not first_read(tmp_path)[10:20].any()  # zeros are valid numbers there
        return
    with pytest.raises(DataError, match=r"a.zarr (cannot be read|contains NaN, or lacks a chunk)"):
        open_activations(tmp_path)


@pytest.mark.parametrize("codec", ["BZ2", "GZip", "LZ4", "LZMA", "Zlib"])
def test_a_chunk_that_no_codec_can_unpack_is_refused(tmp_path, codec):
    numcodecs = pytest.importorskip("numcodecs")
    _, chunks = zarr_array(tmp_path, zarr_format=2, compressors=getattr(numcodecs, codec)())
    chunks[2].write_bytes(chunks[2].read_bytes()[:10] + b"\xff" * 100)
    with pytest.raises(DataError, match=r"a.zarr cannot be read"):
        open_activations(tmp_path)


@each_row("changes, message")
def test_wrong_zarr_metadata_are_refused(tmp_path, changes, message):
    path, _ = zarr_array(tmp_path, zarr_format=2)
    metadata = json.loads((path / ".zarray").read_text()) | changes
    (path / ".zarray").write_text(json.dumps(metadata).replace("pickle", "pi\\u0063kle"))
    with pytest.raises(DataError, match=rf"a.zarr {message}|{message}"):
        open_activations(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b"[" * 100_000, b"\xff\xfe"])
def test_a_damaged_zarr_description_is_refused(tmp_path, content):
    path, _ = zarr_array(tmp_path)
    (path / "zarr.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a.zarr"):
        open_activations(tmp_path)


@pytest.mark.parametrize("is_nested", [False, True])
def test_no_folder_of_a_zarr_group_is_left_out(tmp_path, is_nested, refused):
    group = pytest.importorskip("zarr").open_group(str(tmp_path / "acts.zarr"), mode="w")
    group.create_array("layer_0", data=ROWS)
    if is_nested:
        group.create_group("more").create_array("layer_1", data=ROWS)
    else:
        group.create_array("more", data=ROWS)
        (tmp_path / "acts.zarr" / "more" / "zarr.json").unlink()
    refused(open_activations, tmp_path)


@pytest.mark.parametrize("name", ["a.parquet", "a.npy", "a.safetensors"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:4],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-20],
        lambda data: b"\0" * len(data),
        lambda data: data[:4] + b"\xff" * 300 + data[304:],
    ],
)
def test_damaged_files_are_refused(tmp_path, name, damage):
    pytest.importorskip("pyarrow")
    {
        "a.parquet": pd.DataFrame({"a": list(ROWS)}).to_parquet,
        "a.npy": lambda path: np.save(path, ROWS),
        "a.safetensors": lambda path: save_file({"a": ROWS}, path),
    }[name](tmp_path / name)
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    with pytest.raises(DataError, match=rf"{name} cannot be read: .*truncated: save it again"):
        open_activations(tmp_path)


def test_archives_second_arrays_and_numbers_of_many_digits_are_refused(tmp_path, refused):
    path = tmp_path / "a.npy"
    np.savez(tmp_path / "a.npz", ROWS)
    (tmp_path / "a.npz").rename(path)
    refused(open_activations, tmp_path)
    with path.open("wb") as file:
        np.save(file, ROWS)
        np.save(file, ROWS)
    refused(open_activations, tmp_path)
    path.write_bytes(path.read_bytes().replace(b"(40, 4)", b"(" + b"9" * 5000 + b",4)"))
    with pytest.raises(DataError, match=r"a.npy cannot be read"):
        open_activations(tmp_path)
    path.unlink()
    save_file({"1" * 5000: ROWS, "a": ROWS}, tmp_path / "a.safetensors")
    refused(open_activations, tmp_path)


def test_a_field_of_rows_csv_that_is_too_long_is_refused(tmp_path, refused):
    (tmp_path / "rows.csv").write_text(f"id\n{'x' * (csv.field_size_limit() + 1)}\n")
    refused(row_ids, tmp_path)


def test_masked_numbers_are_nan(refused):
    refused(open_activations, {"a": np.ma.masked_array(ROWS, ROWS[1, 1] == ROWS)})
    complete = np.ma.masked_array(ROWS, mask=False)
    assert open_activations({"a": complete}).digest == open_activations({"a": ROWS}).digest


class Short:
    """An object with a shape that has fewer rows."""

    shape, dtype = ROWS.shape, "float32"

    def __getitem__(self, rows):
        return ROWS[:3]


@pytest.mark.parametrize(
    "values",
    [
        torch.from_numpy(ROWS).to_sparse(),
        torch.from_numpy(ROWS).to("meta"),
        [row.requires_grad_() for row in torch.from_numpy(ROWS.copy())],
        list(torch.from_numpy(ROWS).bfloat16()),
        Short(),
    ],
    ids=["sparse", "meta", "list with gradients", "list of bfloat16", "short"],
)
def test_objects_that_are_no_dense_arrays_are_refused(values):
    with pytest.raises(DataError, match=r"^a.* dense array of NumPy or torch"):
        open_activations({"a": values})


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux reports mapped pages")
def test_pages_of_a_file_are_released_and_rows_read_afterwards_are_right(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1000, 4096)).astype(np.float32)  # 16 MB
    np.save(tmp_path / "a.npy", rows)
    array = NpyArray(tmp_path / "a.npy")

    def kept():
        """Return how many kB of the file are mapped into this process."""
        text = Path("/proc/self/smaps").read_text()
        return int(text.split("a.npy\n", 1)[1].split("\nRss:", 1)[1].split()[0])

    _ = array._open().sum()
    assert kept() > 10_000
    np.testing.assert_array_equal(array.at(np.array([900, 3])), rows[[900, 3]])
    assert kept() < 1000
    for number, part in enumerate(array.parts(100)):
        np.testing.assert_array_equal(part, rows[100 * number : 100 * (number + 1)])
        assert kept() < 3000
    np.testing.assert_array_equal(array.at(slice(5, 8)), rows[5:8])
