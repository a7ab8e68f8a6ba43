"""The parts of the interventions of a run: each is saved when it is complete, and never repeated.

causes/parts/<name>.json   numbers of one edit at one site (all heads of a layer together)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.errors import DamagedError, StoreError
from probekit.files import write_atomic
from probekit.provenance import digest_json, seal, unseal
from probekit.results.causes.tables import FOLDER

FORMAT = 1  # of the file of a part


@dataclass(frozen=True)
class Part:
    """One edit at one site, with everything that its numbers depend on.

    Attributes:
        title: name in progress messages.
        identity: settings of the edit, as JSON; its digest names the file.
        compute: returns the numbers, as JSON.
    """

    title: str
    identity: Mapping[str, Any]
    compute: Callable[[], dict[str, Any]]


def read_or_compute(part: Part, folder: Path) -> dict[str, Any]:
    """Return the numbers of a part; computes and saves them if they are missing or damaged.

    Raises:
        StoreError: the file cannot be read or written.
    """
    path = folder / FOLDER / "parts" / f"{digest_json(dict(part.identity))[:24]}.json"
    try:
        found = unseal(path.read_bytes(), str(path), FORMAT)
        if found["identity"] == dict(part.identity):
            saved: dict[str, Any] = found["numbers"]
            return saved
    except (FileNotFoundError, DamagedError, KeyError):
        pass
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    computed: dict[str, Any] = plain(part.compute())
    write_atomic(path, seal({"identity": dict(part.identity), "numbers": computed}, FORMAT))
    return computed


def plain(value: Any) -> Any:
    """Return a value with arrays as lists and NaN as null.

    >>> plain({"a": np.array([1.5, np.nan])})
    {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def floats_of(values: Any) -> np.ndarray:
    """Return a list of numbers and nulls as a float array.

    >>> floats_of([1.5, None]).tolist()
    [1.5, nan]
    """
    return np.array([np.nan if one is None else one for one in values], dtype=np.float64)
