"""Reading Parquet files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from probekit.data.files import require_file
from probekit.data.tables.frames import frame_table
from probekit.data.tables.table import Table
from probekit.errors import ConfigError, DataError
from probekit.provenance import install_command


def parquet_table(path: Path, columns: Collection[str]) -> Table:
    """Return the rows of a Parquet file; only the given columns are read.

    Raises:
        ConfigError: pyarrow is not installed.
        MissingError: the file does not exist.
        DataError: the file is not valid Parquet.
    """
    if find_spec("pyarrow") is None:
        raise ConfigError(
            f"Parquet files need pyarrow. Install it with: {install_command('parquet')}."
        )
    import pyarrow as pa
    from pyarrow import parquet

    require_file(path)
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            frame = file.read(columns=[name for name in dict.fromkeys(names) if name in columns])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise DataError(
            f"{path} is not a valid Parquet file: {reason}. Write it again, or check the format."
        ) from error
    return replace(frame_table(frame, columns, str(path)), names=tuple(names))
