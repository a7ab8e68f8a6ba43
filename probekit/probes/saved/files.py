"""The two files of a kept probe, which appear whole or are refused.

NAME.safetensors    layers.0.weight, layers.0.bias, ... in float64
NAME.json           classes, facts, digests of itself and of the file above; written last
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors import SafetensorError

from probekit.disk import inside
from probekit.errors import DataError, MissingError
from probekit.probes.saved.facts import Facts, ProbeFacts
from probekit.provenance import digest, digest_json, pretty_json, write_atomic

Floats = NDArray[np.float64]
LayerArrays = tuple[Floats, Floats]

FORMAT = 1
_SUFFIXES = (".json", ".safetensors")
_PARTS = ("weight", "bias")
_MOST_NAMED = 10  # in a message
# What a folder may hold in place of the two files, and what finds it; a sweep adds a level.
_IN_FOLDERS = {
    "Give one of its probes": ("*.safetensors", "*/*.safetensors"),
    "It holds a run. Give one of its probes": (
        "probes/*/*.safetensors",
        "probes/*/*/*.safetensors",
    ),
    "It holds runs. Give a probe of one of them, as RUN/probes/SITE/KIND": (
        "*/probes",
        "*/*/probes",
    ),
}


class _Record(Facts):
    """The contents of the JSON, less its own digest."""

    format: int
    tensors: str
    classes: Annotated[tuple[str, ...], Field(strict=False)]
    facts: ProbeFacts


def write_probe(
    path: Path, layers: tuple[LayerArrays, ...], classes: tuple[str, ...], facts: ProbeFacts
) -> Path:
    """Write the two files of a stem, or of one of their paths, and return the path of the JSON.

    Raises:
        StoreError: they cannot be written.
    """
    tensors: bytes = safetensors.numpy.save(
        {
            f"layers.{number}.{part}": array
            for number, layer in enumerate(layers)
            for part, array in zip(_PARTS, layer, strict=True)
        }
    )
    record = _Record(format=FORMAT, tensors=digest([tensors]), classes=classes, facts=facts)
    content = record.model_dump(mode="json")
    json_path, tensor_path = probe_files(path)
    write_atomic(tensor_path, tensors)
    # A kill between the two leaves a JSON that does not know the tensors, and is refused.
    write_atomic(json_path, pretty_json({"digest": digest_json(content)} | content))
    return json_path


def read_probe(path: Path) -> tuple[tuple[LayerArrays, ...], tuple[str, ...], ProbeFacts]:
    """Return layers, classes and facts from the two files of a stem, or of one of their paths.

    Raises:
        MissingError: a file is not there.
        DataError: a file is damaged or of another format, or a link that leads out of its run.
    """
    if not path.name or (path.is_dir() and not _beside(path, ".json").exists()):
        raise MissingError(f"{path} is a folder. {_offer(path)}")
    json_path, tensor_path = probe_files(path)
    record = _read_record(json_path)
    content = _read_bytes(tensor_path)
    if digest([content]) != record.tensors:
        raise damaged_probe(
            tensor_path, f"it is not the file that {json_path.name} was written with"
        )
    try:
        layers = _layers(safetensors.numpy.load(content))
    except (DataError, SafetensorError) as error:
        raise damaged_probe(tensor_path, str(error)) from error
    return layers, record.classes, record.facts


def probe_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the JSON and of the tensors of a stem, or of one of their paths.

    >>> [path.as_posix() for path in probe_files(Path("blocks.0.hook_resid_pre/svm"))]
    ['blocks.0.hook_resid_pre/svm.json', 'blocks.0.hook_resid_pre/svm.safetensors']
    """
    return _beside(path, ".json"), _beside(path, ".safetensors")


def damaged_probe(path: Path, why: str) -> DataError:
    """Return the error of a probe file that cannot be used."""
    return DataError(
        f"{path} cannot be used: {why.rstrip('.')}. Copy the probe's two files again from where "
        "they came, or fit it again."
    )


def _beside(path: Path, suffix: str) -> Path:
    # Not `with_suffix`: the names of sites hold dots.
    name = path.name
    for known in _SUFFIXES:
        name = name.removesuffix(known)
    return path.with_name(name + suffix)


def _offer(folder: Path) -> str:
    """Return which probes, or runs that have probes, are in a folder that is not a probe."""
    for what, patterns in _IN_FOLDERS.items():
        paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
        below = (path.parent if path.is_dir() else path for path in paths)
        names = [str(path.relative_to(folder)).removesuffix(".safetensors") for path in below]
        if names:
            more = f", ... ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
            return f"{what}: {', '.join(names[:_MOST_NAMED])}{more}."
    return "It holds no probe."


def _layers(tensors: Mapping[str, NDArray[Any]]) -> tuple[LayerArrays, ...]:
    numbers = range(len(tensors) // 2)
    wanted = {f"layers.{number}.{part}" for number in numbers for part in _PARTS}
    if tensors.keys() != wanted or any(t.dtype != np.float64 for t in tensors.values()):
        held = ", ".join(f"{name} {tensor.dtype}" for name, tensor in sorted(tensors.items()))
        raise DataError(f"it holds {held or 'nothing'}, not the float64 layers of a probe")
    return tuple((tensors[f"layers.{n}.weight"], tensors[f"layers.{n}.bias"]) for n in numbers)


def _read_record(path: Path) -> _Record:
    content = _read_bytes(path)
    try:
        record = json.loads(content, parse_constant=_refuse_constant)
        if not isinstance(record, dict):
            raise TypeError("it has no names")
        is_exact = pretty_json(record).encode() == content
        own, version = record.pop("digest"), record["format"]
        found = digest_json(record)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_probe(path, f"it is not the record of a probe ({error})") from error
    if version != FORMAT:
        raise DataError(
            f"{path} has format {version!r}; this version reads {FORMAT}. Use the version of "
            "probekit that wrote it, or fit the probe again."
        )
    if own != found or not is_exact:
        raise damaged_probe(path, "its contents are not those that were written")
    try:
        return _Record.model_validate(record)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        ]
        raise damaged_probe(path, "; ".join(problems)) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it holds {name}")


def _run_of(path: Path) -> Path | None:
    """Return the folder of the run that a probe belongs to; None for a probe outside a run."""
    folders = (folder.parent for folder in path.absolute().parents if folder.name == "probes")
    return next((folder for folder in folders if (folder / "run.json").exists()), None)


def _read_bytes(path: Path) -> bytes:
    run = _run_of(path)
    try:
        # Outside a run the path is the user's own, and so are its links.
        return (path if run is None else inside(path.absolute(), run)).read_bytes()
    except FileNotFoundError as error:
        raise MissingError(
            f"There is no probe file {path}. A probe is two files, NAME.json and NAME.safetensors; "
            "give NAME or one of them."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
