"""Export of rows to .npy, safetensors, Parquet or Zarr files, in data-set order."""

from __future__ import annotations

import io
import json
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.store.layout import CODES, FloatArray
from probekit.activations.store.store import ActivationStore
from probekit.disk import Disk, as_store_error
from probekit.distribution import install_command
from probekit.drafts import Draft, write_atomic
from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.provenance import pretty_json

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class ExportFormat:
    """A file format: its writer, file ending and required package."""

    write: Callable[[Path, ActivationStore, str], None]
    ending: str
    package: str | None = None


def export_cache(
    store: ActivationStore, folder: Path, format: str, sites: Sequence[str] | None = None
) -> list[Path]:
    """Export rows and return the files written: one per site, rows.csv and export.json.

    Args:
        store: the store to export.
        folder: output folder; created if missing.
        format: `npy`, `safetensors`, `parquet` or `zarr`.
        sites: full names; None for all finished sites.

    Raises:
        UnknownNameError: the format is unknown, or the store does not contain a site.
        ConfigError: a required package is not installed, or an output file exists.
        DamagedError: a shard is damaged; nothing is exported.
        StoreError: the folder cannot be written.
    """
    if format not in FORMATS:
        raise UnknownNameError(f"Unknown format {format!r}. {nearest(format, FORMATS)}")
    chosen = FORMATS[format]
    if chosen.package is not None and find_spec(chosen.package) is None:
        raise ConfigError(
            f"{format} needs {chosen.package}. Run {install_command(format)}, or export as npy."
        )
    finished = store.sites
    names = list(finished) if sites is None else list(dict.fromkeys(sites))
    if not names:
        raise ConfigError(f"{store.folder} has no finished site to export.")
    for site in names:
        if site not in finished:
            raise UnknownNameError(
                f"{store.folder} does not contain all of {site!r}. {nearest(site, finished)}"
            )
    paths = [folder / f"{site}.{chosen.ending}" for site in names]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists. Remove it, or use another folder.")
    if store.verifies:
        store.verify(names)  # all sites first, so that damage leaves no partial export
    with as_store_error("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for site, path in zip(names, paths, strict=True):
        with as_store_error("write", path):
            chosen.write(path, store, site)
    write_atomic(folder / "rows.csv", _rows_csv(store))
    metadata = {
        "root": store.digest_of(names),
        "identity": store.identity.to_json(),
        "files": {site: path.name for site, path in zip(names, paths, strict=True)},
    }
    write_atomic(folder / "export.json", pretty_json(metadata))
    return [*paths, folder / "rows.csv", folder / "export.json"]


def _parts(store: ActivationStore, site: str) -> Iterator[FloatArray]:
    """Yield all rows of a site in data-set order, in chunks."""
    for start in range(0, store.n_rows, _ROWS_AT_ONCE):
        yield store.read(site, np.arange(start, min(start + _ROWS_AT_ONCE, store.n_rows)))


def _write_npy(path: Path, store: ActivationStore, site: str) -> None:
    with Draft(Disk(), path) as draft:
        for number, values in enumerate(_parts(store, site)):
            if not number:
                draft.write(_npy_header(values, store.n_rows))
            draft.write(np.ascontiguousarray(values).data)
        draft.rename(path)


def _npy_header(values: FloatArray, n_rows: int) -> bytes:
    """Return the header of a .npy file, format version 1.0.

    Source: numpy/lib/format.py.
    """
    shape = (n_rows, *values.shape[1:])
    metadata = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
    text = repr(metadata)
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _write_safetensors(path: Path, store: ActivationStore, site: str) -> None:
    with Draft(Disk(), path) as draft:
        for number, values in enumerate(_parts(store, site)):
            if not number:
                shape = (store.n_rows, *values.shape[1:])
                n_bytes = values.dtype.itemsize * math.prod(shape)
                code = CODES[values.dtype]
                tensor = {"dtype": code, "shape": shape, "data_offsets": [0, n_bytes]}
                header = json.dumps({site: tensor}).encode()
                header += b" " * (-len(header) % 8)
                draft.write(len(header).to_bytes(8, "little") + header)
            draft.write(np.ascontiguousarray(values).data)
        draft.rename(path)


def _write_parquet(path: Path, store: ActivationStore, site: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with Draft(Disk(), path) as draft:
        writer = None
        for values in _parts(store, site):
            width = int(np.prod(values.shape[1:]))
            flat = pa.array(values.reshape(-1))
            table = pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, width)})
            if writer is None:
                metadata = {"site": site, "shape": json.dumps(values.shape[1:])}
                schema = table.schema.with_metadata(metadata)
                writer = parquet.ParquetWriter(_Sink(draft), schema)
            writer.write_table(table.replace_schema_metadata(metadata))
        assert writer is not None
        writer.close()
        draft.rename(path)


class _Sink(io.RawIOBase):
    """File object over a draft, for libraries that write to a file object."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Append bytes and return their number."""
        content = memoryview(data)
        self._draft.write(content)
        return content.nbytes


def _write_zarr(path: Path, store: ActivationStore, site: str) -> None:
    import zarr

    array, draft = None, path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    for number, values in enumerate(_parts(store, site)):
        if array is None:
            array = zarr.create_array(
                str(draft),
                shape=(store.n_rows, *values.shape[1:]),
                dtype=values.dtype,
                chunks=values.shape,
                attributes={"site": site},
                config={"write_empty_chunks": True},  # the importer refuses missing chunks
            )
        start = number * _ROWS_AT_ONCE
        array[start : start + len(values)] = values
    draft.rename(path)  # only now: a partial array would read as one padded with zeros


def _rows_csv(store: ActivationStore) -> str:
    """Return a CSV table with the example and positions of each row."""
    plan = store.layout.plan
    lines = ["row,example,positions"]
    for row, example in enumerate(plan.example):
        positions = plan.positions[plan.offsets[row] : plan.offsets[row + 1]]
        lines.append(f"{row},{example},{' '.join(map(str, positions))}")
    return "\n".join(lines) + "\n"


FORMATS = {
    "npy": ExportFormat(_write_npy, "npy"),
    "safetensors": ExportFormat(_write_safetensors, "safetensors"),
    "parquet": ExportFormat(_write_parquet, "parquet", "pyarrow"),
    "zarr": ExportFormat(_write_zarr, "zarr", "zarr"),
}
