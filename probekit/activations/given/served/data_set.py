"""Data sets of Hugging Face, as `Dataset.save_to_disk` writes them: one request in each row.

A column has the token ids (`input_ids`), another one the hidden states: (n_tokens, n_layers,
d_model), (n_tokens, d_model), or one vector, which is that of the last token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.files import inside


class _Rows(Mapping[str, Tensor]):
    """The cells of a data set, by row and column as in 17/input_ids."""

    def __init__(self, data: Any, columns: list[str], vectors: list[str]) -> None:
        self._data, self._columns, self._vectors = data, columns, vectors

    def __getitem__(self, name: str) -> Tensor:
        row, _, column = name.partition("/")
        if column == "start":  # a single vector is that of the last token
            return torch.tensor(len(self._data[int(row)][self._columns[0]]) - 1)
        value = self._data[int(row)][column]
        if value is None:
            raise ValueError(f"row {row} of the column {column} is null")
        array = np.asarray(value)
        array = array[None] if column in self._vectors else array
        is_float = array.dtype.kind == "f"
        return torch.from_numpy(array.astype(np.float32 if is_float else np.int64))

    def __iter__(self) -> Iterator[str]:
        names = [*self._columns, *(["start"] if self._vectors else [])]
        return (f"{row}/{name}" for row in range(len(self._data)) for name in names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def data_set_tensors(path: Path, _content: bytes | None) -> Mapping[str, Tensor]:
    """Return the cells with numbers of a data set.

    Raises:
        DataError: it has no rows or no column of token ids, or a file leads out of its folder.
    """
    import datasets

    listed = json.loads((path.parent / "state.json").read_bytes())["_data_files"]
    for one in listed:  # nothing outside of the folder is read
        inside(path.parent / one["filename"], path.parent)
    data = datasets.load_from_disk(str(path.parent))
    if not len(data):
        raise DataError(f"{path} has no rows. Save the data set again.")
    depths = {name: _depth(data.features[name]) for name in data.column_names}
    ids = [name for name, (depth, kind) in depths.items() if depth == 1 and kind.startswith("int")]
    floats = [name for name, (depth, kind) in depths.items() if depth and kind.startswith("float")]
    if not ids or not floats:
        raise DataError(
            f"{path} has the columns {', '.join(depths)}. It needs one of lists of integers, the "
            "token ids, and one of lists of numbers, the hidden states."
        )
    return _Rows(data, [*ids, *floats], [name for name in floats if depths[name][0] == 1])


def _depth(feature: Any) -> tuple[int, str]:
    """Return how many lists are in each other in a column, and the type of their values."""
    depth = len(getattr(feature, "shape", ()))  # Array2D, Array3D
    while hasattr(feature, "feature") or isinstance(feature, list):
        feature = feature[0] if isinstance(feature, list) else feature.feature
        depth += 1
    return depth, str(getattr(feature, "dtype", ""))
