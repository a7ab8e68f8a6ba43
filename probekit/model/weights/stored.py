"""A tensor of a checkpoint that is not read yet, and the errors of reading one."""

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

# What the readers raise for a file that is cut or changed.
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
    """A tensor in a file.

    Attributes:
        shape: its shape in the file.
        read: returns it, mapped from the file where that can be: a copy lets go of the file.
    """

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


@contextmanager
def reading_tensor(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Turn whatever a damaged file raises into a CheckpointError that names it.

    `others` are the errors of the library that reads it.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is damaged, or holds more than tensors, and reading it could run code: it is "
            "refused. Convert it to model.safetensors where you trust it."
        ) from error
    except _DAMAGED + others as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path} is damaged or not of its format ({error}). Fetch it again from where it came."
        ) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error
