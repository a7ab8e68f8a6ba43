"""Rows in memory, Parquet files, and data sets of the Hugging Face hub.

Data frames are those of any library that narwhals reads; a data set of the Hugging Face library is
read as one of pyarrow. Other rows in memory are lists of dicts.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from probekit.data.examples import RowSource, StringArray
from probekit.data.table import Table, TableRow, distinct_cells, reading_data, shown
from probekit.errors import ConfigError, DataError, MissingError, check_ordered, nearest
from probekit.provenance import install_command
from probekit.section import URL, Section, rule_error

_COMMIT = re.compile("[0-9a-f]{40}")  # hash of a commit
_SAVED = ("dataset_dict.json", "state.json")  # files of `save_to_disk`
_SIDES = ("train", "test")
_ALLOWED = (
    "Allowed: a data frame of pandas or polars, a list of dicts, a `datasets.Dataset`, or a dict "
    'with two of these: {"train": ..., "test": ...}. Collect lazy rows first; for a file, set '
    "`format` and `file` in the section `data`; for a dict of columns, pass pandas.DataFrame(data)."
)


@dataclass(frozen=True, eq=False)
class MemoryData:
    """One table in memory.

    Attributes:
        rows: a data frame, a list of dicts, or a `datasets.Dataset`.
        side: "train" or "test" for one of two tables, else "".
    """

    rows: Any
    side: str = ""

    @property
    def kind(self) -> str:
        """The type of the table in words, such as "pandas DataFrame".

        >>> import pandas as pd
        >>> MemoryData(pd.DataFrame()).kind, MemoryData([{"text": "a"}]).kind
        ('pandas DataFrame', 'list of dicts')
        """
        library = type(self.rows).__module__.partition(".")[0]
        return "list of dicts" if _is_list(self.rows) else f"{library} {type(self.rows).__name__}"

    @property
    def name(self) -> str:
        """The name of the table in messages, such as "DataFrame" or "train DataFrame"."""
        name = "list" if _is_list(self.rows) else type(self.rows).__name__
        return f"{self.side} {name}".lstrip()


def tables_in(data: Any) -> tuple[MemoryData, ...]:
    """Return the one table in `data`, or its tables of training and test rows.

    >>> [table.name for table in tables_in({"train": [{"text": "a"}], "test": [{"text": "b"}]})]
    ['train list', 'test list']

    Raises:
        ConfigError: the type of `data` is not supported, or there are other tables.
    """
    import narwhals as nw

    tables: tuple[MemoryData, ...] = (MemoryData(data),)
    if isinstance(data, Mapping) and set(data) == set(_SIDES):
        tables = tuple(MemoryData(data[side], side) for side in _SIDES)
    for table in tables:
        kind = type(table.rows)
        is_lazy = kind.__name__ in ("LazyFrame", "IterableDataset")
        # Not `from_native`: duplicate names are reported when the table is read.
        is_frame = not is_lazy and nw.dependencies.is_into_dataframe(table.rows)
        if not (is_frame or _is_list(table.rows) or _is_dataset(table.rows)):
            name = f"data[{table.side!r}]" if table.side else "data"
            problem = f"{name} is of type {kind.__module__}.{kind.__qualname__}"
            raise ConfigError(f"{problem}. {_ALLOWED}")
    return tables


def memory_table(data: MemoryData, columns: Collection[str]) -> Table:
    """Return the rows of a table in memory; only the given columns are read.

    Raises:
        ConfigError: two columns have the same name.
        DataError: an entry of a list is not a dict.
    """
    if _is_list(data.rows):
        return _of_dicts(data, columns)
    read = dataset_table if _is_dataset(data.rows) else frame_table
    return read(data.rows, columns, data.name)


def parquet_table(path: Path, columns: Collection[str]) -> Table:
    """Return the rows of a Parquet file; only the given columns are read.

    Raises:
        ConfigError: pyarrow is not installed, or two of the columns have the same name.
        MissingError: the file does not exist.
        DataError: the file is not valid Parquet.
    """
    with reading_data(path):  # raises if it is no file
        pass
    if find_spec("pyarrow") is None:
        raise ConfigError(
            f"Parquet files need pyarrow. Install it with: {install_command('parquet')}."
        )
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            nested = [one.name for one in file.schema_arrow if pa.types.is_nested(one.type)]
            frame = file.read(columns=[name for name in dict.fromkeys(names) if name in columns])
    except (pa.ArrowException, OSError) as error:
        reason = str(error).split("\n", 1)[0].rstrip(".")
        raise DataError(
            f"{path} is not a valid Parquet file: {reason}. Write it again, or check the format."
        ) from error
    return replace(frame_table(frame, columns, str(path)), names=names, nested=nested)


def dataset_table(dataset: Any, columns: Collection[str], name: str) -> Table:
    """Return the rows of a `datasets.Dataset`; numbers of classes become names of classes.

    Args:
        dataset: the data set.
        columns: the columns to read.
        name: name in messages.
    """
    present = [column for column in dataset.column_names if column in columns]
    # The data set may have another format, such as tensors, and a selection of its rows.
    frame = dataset.with_format("arrow").select_columns(present)[:]
    class_names = {
        column: list(feature.names)
        for column, feature in dataset.features.items()
        if type(feature).__name__ == "ClassLabel"
    }
    kinds = {column: type(one).__name__ for column, one in dataset.features.items()}
    nested = [column for column, kind in kinds.items() if kind not in ("Value", "ClassLabel")]
    found = frame_table(frame, columns, name, class_names)
    return replace(found, names=dataset.column_names, nested=nested)


def frame_table(
    frame: Any,
    columns: Collection[str],
    name: str,
    class_names: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Return the rows of a data frame.

    Args:
        frame: a data frame that narwhals reads.
        columns: the columns to read, as far as they exist.
        name: name in messages.
        class_names: names of the classes, by column, for columns of numbers of classes.

    Raises:
        ConfigError: two columns have the same name.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"text": ["Yes."], "label": [True]}, index=["q7"])
    >>> [(str(row.source), row.cells) for row in frame_table(frame, ["label"], "DataFrame").rows]
    [("DataFrame index 'q7'", {'label': True})]
    """
    import narwhals as nw

    # In pyarrow, `columns` are not the names.
    names = frame.column_names if hasattr(frame, "column_names") else frame.columns
    twice = [one for one, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ConfigError(f"{name}: two columns have the name {twice[0]!r}. Rename one of them.")
    narrow = nw.from_native(frame, eager_only=True)
    key_of_name = {str(key): key for key in narrow.columns}  # keys may be numbers
    cells_of = {}
    for column in dict.fromkeys(columns):
        if column in key_of_name:
            key = key_of_name[column]
            cells = [plain_cell(value) for value in narrow.get_column(key).to_list()]
            classes = (class_names or {}).get(column)
            if classes is not None:  # on the hub, a negative number means no label
                cells = [None if cell is None or cell < 0 else classes[cell] for cell in cells]
            elif narrow.schema[key] == nw.Float32:  # written in their shortest form
                cells = [None if cell is None else str(np.float32(cell)) for cell in cells]
            cells_of[column] = cells
    row_keys = [str(position) for position in range(len(narrow))]
    if narrow.implementation.is_pandas_like():
        row_keys = [repr(plain_cell(label)) for label in frame.index]
        if not frame.index.is_unique:
            row_keys = [f"{key} (position {position})" for position, key in enumerate(row_keys)]
    rows = (
        TableRow(RowSource(name, key=row_key), {column: cells_of[column][n] for column in cells_of})
        for n, row_key in enumerate(row_keys)
    )
    nested = [one for one, key in key_of_name.items() if narrow.schema[key].is_nested()]
    return Table(name, rows, names=key_of_name, nested=nested, text=number_text)


def number_text(where: str, value: object) -> str:
    """Return a string unchanged, and a number or truth value as text, as in a CSV file of pandas.

    >>> number_text("", 1), number_text("", 1.0), number_text("", True), number_text("", 1e-7)
    ('1', '1.0', 'True', '1e-07')

    Raises:
        DataError: the value is missing or of another type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        raise DataError(f"{where} has no value (null or NaN). Fill it in, or remove the row.")
    raise DataError(
        f"{where} has the value {shown(value)} of type {type(value).__name__}. Allowed: texts, "
        "numbers, true and false. Convert the column to texts."
    )


def _of_dicts(data: MemoryData, columns: Collection[str]) -> Table:
    """Return the rows of a list of dicts; raise DataError if an entry is not a dict.

    >>> [row.cells for row in _of_dicts(MemoryData([{0: "a", "b": 1}]), ["0"]).rows]
    [{'0': 'a', 'b': None}]
    """
    rows: list[dict[str, Any]] = []
    sources = [RowSource(data.name, key=str(position)) for position in range(len(data.rows))]
    for source, row in zip(sources, data.rows, strict=True):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{source} is of type {type(row).__name__}. Each entry must be a dict, such as "
                '{"text": "...", "label": "..."}.'
            )
        # Keys may be numbers.
        rows.append(distinct_cells(source, [(str(key), value) for key, value in row.items()]))
    # Columns that are not read have empty cells: an error message on a missing column names them.
    cells: list[dict[str, Any]] = [dict.fromkeys(row) for row in rows]
    for column in dict.fromkeys(columns):
        having = [number for number, row in enumerate(rows) if column in row]
        values = [plain_cell(rows[number][column]) for number in having]
        # As in a data frame, integers among floats become floats.
        is_mixed = {type(value) for value in values if value is not None} == {int, float}
        for number, value in zip(having, values, strict=True):
            cells[number][column] = float(value) if is_mixed and value is not None else value
    return Table(data.name, map(TableRow, sources, cells), text=number_text)


def _is_list(rows: Any) -> bool:
    """Return whether a table is a list of dicts."""
    return isinstance(rows, list | tuple)


def _is_dataset(rows: Any) -> bool:
    """Return whether an object is a `datasets.Dataset`; the library is not imported."""
    kind = type(rows)
    return kind.__module__.partition(".")[0] == "datasets" and kind.__name__ == "Dataset"


def plain_cell(value: Any) -> Any:
    """Return a NumPy scalar as a Python object, a missing value as None, all else unchanged."""
    if value is None or type(value) in (str, int, bool):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    is_scalar = type(value).__module__ == "numpy" and not getattr(value, "shape", ())
    if is_scalar and hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and math.isnan(value) else value


def plain_texts(name: str, values: Iterable[Any], *, distinct: bool = False) -> StringArray:
    """Return values as texts, shape (n_rows,); equal values are one object.

    Args:
        name: name of the argument, for messages.
        values: the values.
        distinct: whether values are names, so that 1 and "1", or 1 and True, would be confused.

    Raises:
        ConfigError: the values are not a list or an array.
        DataError: a value is missing, or neither a text nor a number, or would be confused.
    """
    cells = plain_cells(name, values)
    wrong = {one for one in set(map(type, cells)) if not issubclass(one, str | int | float)}
    for row, value in enumerate(cells if wrong else ()):
        if type(value) in wrong:
            problem = f"of type {type(value).__name__}. Allowed: texts and numbers."
            if value is None:
                problem = "a missing value. Fill it in, or remove the row from all sites too."
            raise DataError(f"{name}[{row}] is {problem}")
    # Each value once, with its type, because 1 and True are equal.
    texts = {pair: str(pair[1]) for pair in zip(map(type, cells), cells, strict=True)}
    firsts: dict[Any, Any] = {}
    for _, value in texts if distinct else ():
        for key in (("text", str(value)), value):
            first = firsts.setdefault(key, value)
            if type(first) is not type(value):
                pairs = list(zip(map(type, cells), cells, strict=True))
                row, first_row = (pairs.index((type(one), one)) for one in (value, first))
                raise DataError(
                    f"{name}[{first_row}] is {first!r} and {name}[{row}] is {value!r}, which "
                    f"differ in type but not in text or value. Write all {name} with the same "
                    f"type, such as [str(one) for one in {name}] if they are different."
                )
    return np.fromiter((texts[type(cell), cell] for cell in cells), dtype=object, count=len(cells))


def plain_cells(name: str, values: Iterable[Any]) -> list[Any]:
    """Return values as plain Python objects, missing values as None.

    Raises:
        ConfigError: the values have no order, are one text, or cannot be iterated.
        DataError: an array does not have one axis.
    """
    check_ordered(name, values)
    if hasattr(values, "detach"):  # a tensor, on any device
        values = values.detach().cpu()
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) != 1:
        raise DataError(
            f"{name} has shape {tuple(shape)}, but needs one axis, with one value for each row."
        )
    cells = values.tolist() if hasattr(values, "tolist") else list(values)
    is_plain = set(map(type, cells)) <= {str, int, bool}  # none is missing
    return cells if is_plain else [*map(plain_cell, cells)]


class HubSection(Section):
    """A data set of the Hugging Face hub, or a folder that its library reads.

    Attributes:
        name: name on the hub, or a folder: one written by `save_to_disk`, or one with Parquet, CSV
            or JSON files; a relative path is resolved like that of `model.source`
        revision: hash of a commit; null for a folder
        config: name of the configuration, if there are several
        split: name of the split; null for the only one
        train: instead of `split`: split of the training rows
        test: split of the test rows, together with `train`
    """

    name: str = Field(min_length=1, examples=["stanfordnlp/sst2"])
    revision: str | None = None
    config: str | None = None
    split: str | None = None
    train: str | None = None
    test: str | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> HubSection:
        is_folder, commit = Path(self.name).is_absolute(), self.revision or ""
        key = "revision" if commit else ""  # an absent key has no line, so the section is located
        if URL.match(self.name):
            raise rule_error("give a name such as org/name, not a URL", "name")
        if is_folder and commit:
            raise rule_error("a folder has no revision; remove `revision`", "revision")
        if not is_folder and not _COMMIT.fullmatch(commit):
            raise rule_error(
                f"`revision` is {commit or 'missing'}. It must be the hash of a commit: `git "
                f"ls-remote https://huggingface.co/datasets/{self.name} HEAD`. (If {self.name} is "
                "a folder, it does not exist at this path)",
                key,
            )
        if (self.train is None) != (self.test is None) or (self.train and self.split):
            raise rule_error("give either `split`, or both `train` and `test`")
        if self.train is not None and self.train == self.test:
            raise rule_error(f"`train` and `test` are the same split, {self.train}", "test")
        return self


def hub_table(data: HubSection, columns: Collection[str]) -> Table:
    """Return the rows of a split; only the given columns are read.

    Numbers of classes are replaced by the names of the classes.

    Raises:
        ConfigError: the library `datasets` is not installed, the name is invalid, or the split does
            not exist or is not given.
        MissingError: there is no such data set or folder, or the hub cannot be reached.
        DataError: the data set cannot be read.
    """
    if find_spec("datasets") is None:
        raise ConfigError(
            "Data of the hub need the library datasets. Install it with: "
            f"{install_command('datasets')}."
        )
    folder = Path(data.name)
    if not folder.is_absolute():
        folder = _download(data)
    elif not folder.is_dir():
        raise MissingError(f"There is no folder {folder}. Check the path.")
    dataset = _split_of(_load(data, folder), data)
    name = f"{data.name} {data.split}" if data.split else data.name
    return dataset_table(dataset, columns, name)


def _download(data: HubSection) -> Path:
    """Return the folder with the files of a commit in the hub's local cache.

    `datasets.load_dataset` would read any other cached revision if the hub cannot be reached.
    """
    # Importing the hub's client takes a quarter of a second.
    from probekit.hub import constants, errors, how_to_access, is_hub_reachable, snapshot_download

    named = f"The data set {data.name!r} at revision {data.revision}"
    try:
        path = snapshot_download(
            data.name,
            repo_type="dataset",
            revision=data.revision,
            # Otherwise the hub's client retries for half a minute, or minutes behind a firewall.
            local_files_only=not is_hub_reachable(),
        )
    except errors.LocalEntryNotFoundError as error:
        raise MissingError(
            f"{named} is not in the hub's local cache ({constants.HF_HUB_CACHE}), and the hub "
            "could not be reached. To work offline, write it to a folder on another machine with "
            "`datasets.load_dataset(...).save_to_disk(FOLDER)`, copy the folder, and give its path "
            "as the name."
        ) from error
    except errors.GatedRepoError as error:
        raise MissingError(f"{named} {how_to_access(f'datasets/{data.name}')}") from error
    except (errors.RevisionNotFoundError, errors.RepositoryNotFoundError) as error:
        raise MissingError(
            f"{named} does not exist on the hub, or it is private and no token is set. Check name "
            "and revision."
        ) from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{data.name!r} is neither a folder nor a valid hub name.") from error
    except errors.HfHubHTTPError as error:
        raise MissingError(f"{named} could not be downloaded: {error}.") from error
    return Path(path)


def _load(data: HubSection, folder: Path) -> Any:
    """Return the `Dataset` or `DatasetDict` in a folder."""
    import datasets

    were_shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        if any((folder / name).is_file() for name in _SAVED):
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder), data.config)
    except (datasets.exceptions.DatasetsError, OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().split("\n", 1)[0].rstrip(".")
        raise DataError(f"The data set {data.name} cannot be read: {reason}.") from error
    finally:
        if were_shown:
            datasets.enable_progress_bars()


def _split_of(loaded: Any, data: HubSection) -> Any:
    """Return the split of a loaded data set.

    Raises:
        ConfigError: there is no such split, or several and none is given.
    """
    if not isinstance(loaded, Mapping):
        if data.split not in (None, None if loaded.split is None else str(loaded.split)):
            raise ConfigError(
                f"{data.name} is a single table without splits, so that there is no split "
                f"{data.split!r}. Remove `split`."
            )
        return loaded
    if data.split is None and len(loaded) > 1:
        raise ConfigError(f"{data.name} has the splits {', '.join(loaded)}. Set `split` to one.")
    split = next(iter(loaded)) if data.split is None else data.split
    if split not in loaded:
        raise ConfigError(f"{data.name} has no split {split!r}. {nearest(split, loaded)}")
    return loaded[split]
