"""Archives of NumPy, such as `numpy.savez(path, tokens=tokens, **cache)` with saved activations.

The names of TransformerLens' cache are those of its hooks, such as blocks.3.hook_resid_post (batch,
pos, d_model); those of nnsight are chosen by its user, such as model.layers.3.output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from probekit.activations.given.formats import check_unpacked


class _Archive(Mapping[str, Tensor]):
    """The arrays of an archive, each read when it is needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with ZipFile(path) as archive:
            self._names = [name.removesuffix(".npy") for name in archive.namelist()]
            n_bytes = sum(one.file_size for one in archive.infolist())
        check_unpacked(str(path), n_bytes, path.stat().st_size)

    def __getitem__(self, name: str) -> Tensor:
        with ZipFile(self._path) as archive, archive.open(f"{name}.npy") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
        if array.dtype.itemsize == 2 and array.dtype.kind == "V":  # bfloat16 of ml_dtypes
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def npz_tensors(path: Path, _content: bytes | None) -> Mapping[str, Tensor]:
    """Return the arrays of an archive by name."""
    return _Archive(path)
