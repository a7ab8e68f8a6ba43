"""Exported rows are the rows, in every format; what fails leaves nothing that passes for one."""

import json

import numpy as np
import pytest

from probekit.activations.given.given import open_activations
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import export_cache
from probekit.files import Disk
from tests.activations.captures import SITES as MODEL_SITES
from tests.activations.captures import run, shard_file
from tests.activations.small_store import SITES


@pytest.mark.parametrize("format", ["npy", "safetensors", "parquet"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_exported_rows_are_the_rows(tmp_path, model, monkeypatch, format, dtype, refused):
    pytest.importorskip("pyarrow" if format == "parquet" else "numpy")
    monkeypatch.setattr("probekit.activations.upkeep._ROWS_AT_ONCE", 50)
    store, out = run(tmp_path / "caches", model, dtype=dtype).store, tmp_path / "out"
    assert len(export_cache(store, out, format)) == len(MODEL_SITES) + 2
    given = open_activations(out)
    if dtype == "bfloat16" and format != "safetensors":
        dtype = "float32"  # the others have no bfloat16
    for site, array in given.arrays.items():
        rows = store.read(site)
        assert (array.shape, array.dtype) == (rows.shape, dtype)
        assert np.array_equal(given.read(site), rows.reshape(len(rows), -1))
        if format == "npy":
            assert np.array_equal(np.load(out / f"{site}.npy"), rows)
    assert set(given.arrays) == set(MODEL_SITES)
    assert json.loads((out / "export.json").read_text())["root"] == store.digest_of(MODEL_SITES)
    lines = (out / "rows.csv").read_text().splitlines()
    assert len(lines) == store.n_rows + 1
    row = store.layout.plan
    assert lines[2] == f"1,0,{' '.join(map(str, row.positions[row.offsets[1] : row.offsets[2]]))}"
    refused(export_cache, store, out, format)


def test_what_cannot_be_exported_is_reported(folder, tmp_path, monkeypatch, refused):
    store = ActivationStore.open(folder)
    refused(export_cache, store, tmp_path / "out", "csv")
    refused(export_cache, store, tmp_path / "out", "npy", ["hook_embd"])
    monkeypatch.setattr("probekit.activations.upkeep.find_spec", lambda name: None)
    refused(export_cache, store, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        refused(export_cache, store, out, "npy")
    assert len(export_cache(store, tmp_path / "out", "npy", [SITES[0], SITES[0]])) == 3


def test_a_damaged_shard_is_not_exported(folder, tmp_path, refused):
    path = shard_file(folder, SITES[1], 0)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    refused(export_cache, ActivationStore.open(folder), tmp_path / "out", "npy")
    assert not (tmp_path / "out").exists()
    assert export_cache(ActivationStore.open(folder, verify=False), tmp_path / "out", "npy")


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_a_failed_export_leaves_no_file(folder, tmp_path, monkeypatch, format, refused):
    pytest.importorskip("pyarrow" if format == "parquet" else "numpy")
    n_written = []

    def write(self, descriptor, data):
        n_written.append(len(data))
        if len(n_written) > 1:
            raise OSError(28, "No space left on device")
        return Disk.write(self, descriptor, data)

    full = type("FullDisk", (Disk,), {"write": write})
    monkeypatch.setattr("probekit.activations.upkeep.Disk", full)
    refused(export_cache, ActivationStore.open(folder), tmp_path / "out", format)
    assert not [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")]
