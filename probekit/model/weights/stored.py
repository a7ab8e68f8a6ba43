"""Tensors of a checkpoint that are read on demand, and errors of damaged files."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from probekit.errors import CheckpointError

# Exceptions that readers raise for truncated or changed files.
_DAMAGED: tuple[type[Exception], ...] = (
    SafetensorError,
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, read on demand.

    Attributes:
        shape: shape in the file.
        read: returns the tensor, memory-mapped if the format allows it; a copy releases the file.
    """

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@contextmanager
def reading_tensor(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Convert exceptions of a damaged file, and `others`, to a CheckpointError with its path."""
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is damaged, or contains other objects than tensors, and reading it could run "
            "code. If you trust the file, convert it to model.safetensors."
        ) from error
    except _DAMAGED + others as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path} is damaged or has another format ({error}). Copy or download it again."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error
