"""Export of rows to .npy, safetensors or Parquet files, in data-set order."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.records import CODES, FloatArray, stored_numbers
from probekit.activations.store import ActivationStore
from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.files import Disk, Draft, as_store_error, write_atomic
from probekit.model.weights.files import ArrayHeader, header
from probekit.provenance import install_command, pretty_json

_ROWS_AT_ONCE = 4096  # rows in memory


def export_cache(
    store: ActivationStore, folder: Path, format: str, sites: Sequence[str] | None = None
) -> list[Path]:
    """Export rows and return the files written: one per site, rows.csv and export.json.

    An existing rows.csv or export.json is replaced.

    Args:
        store: the store to export.
        folder: output folder; created if missing.
        format: `npy`, `safetensors` or `parquet`.
        sites: full names; None for all finished sites.

    Raises:
        UnknownNameError: the format is unknown, or the store does not contain a site.
        ConfigError: a required package is not installed, the output file of a site exists, or no
            site is finished.
        DamagedError: a shard is damaged. Nothing is exported, unless the store does not verify
            digests.
        StoreError: the folder cannot be written.
    """
    if format not in FORMATS:
        raise UnknownNameError(f"Unknown format {format!r}. {nearest(format, FORMATS)}")
    write, package = FORMATS[format]
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"{format} needs {package}. Run {install_command(format)}, or export as npy."
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
    paths = [folder / f"{site}.{format}" for site in names]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists. Remove it, or use another folder.")
    if store.verifies:
        store.verify(names)  # all sites first, so that damage leaves no partial export
    with as_store_error("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for site, path in zip(names, paths, strict=True):
        with as_store_error("write", path), Draft(Disk(), path) as draft:
            write(draft, store, site)
            draft.rename(path)
    plan, lines = store.layout.plan, ["row,example,positions"]
    for row, example in enumerate(plan.example):
        positions = plan.positions[plan.offsets[row] : plan.offsets[row + 1]]
        lines.append(f"{row},{example},{' '.join(map(str, positions))}")
    write_atomic(folder / "rows.csv", "\n".join(lines) + "\n")
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


def _write_npy(draft: Draft, store: ActivationStore, site: str) -> None:
    """Write a site as a .npy file, in parts."""
    for number, values in enumerate(_parts(store, site)):
        if number == 0:
            shape = (store.n_rows, *values.shape[1:])
            entries = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(_Sink(draft), entries)
        draft.write(np.ascontiguousarray(values).data)


def _write_safetensors(draft: Draft, store: ActivationStore, site: str) -> None:
    """Write a site as a .safetensors file with one tensor of the dtype on disk, in parts."""
    dtype = store.identity.dtype
    shape = (store.n_rows, *store.row_shape(site))
    draft.write(header({site: ArrayHeader(CODES[dtype], shape)}))
    for values in _parts(store, site):
        draft.write(stored_numbers(values, dtype).data)


def _write_parquet(draft: Draft, store: ActivationStore, site: str) -> None:
    """Write a site as a column of lists, in parts; the metadata have the shape of a row."""
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    for values in _parts(store, site):
        width = int(np.prod(values.shape[1:]))
        flat = pa.array(values.reshape(-1))
        table = pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, width)})
        metadata = {"site": site, "shape": json.dumps(values.shape[1:])}
        table = table.replace_schema_metadata(metadata)
        writer = writer or parquet.ParquetWriter(_Sink(draft), table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


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


_Write = Callable[[Draft, ActivationStore, str], None]
FORMATS: dict[str, tuple[_Write, str | None]] = {  # with the package that each needs
    "npy": (_write_npy, None),
    "safetensors": (_write_safetensors, None),
    "parquet": (_write_parquet, "pyarrow"),
}
