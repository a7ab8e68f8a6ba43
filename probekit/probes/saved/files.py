"""The two files of a saved probe, written atomically and checked by digests when read.

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

from probekit.errors import DataError, MissingError
from probekit.files import inside, write_atomic
from probekit.probes.saved.facts import Facts, ProbeFacts
from probekit.provenance import digest, digest_json, pretty_json

Floats = NDArray[np.float64]
LayerArrays = tuple[Floats, Floats]

FORMAT = 1
_SUFFIXES = (".json", ".safetensors")
_PARTS = ("weight", "bias")
_MOST_NAMED = 10  # probes listed in a message
# What a folder may contain instead of a probe, with glob patterns; a sweep adds a folder level.
_IN_FOLDERS = {
    "Give one of its probes": ("*.safetensors", "*/*.safetensors"),
    "It is the folder of a run. Give one of its probes": (
        "probes/*.safetensors",
        "probes/*/*.safetensors",
        "probes/*/*/*.safetensors",
    ),
    "It contains runs. Give a probe of one of them, as RUN/probes/SITE/KIND or RUN/probes/final": (
        "*/probes",
        "*/*/probes",
    ),
}


class _Record(Facts):
    """The contents of the JSON file without its own digest."""

    format: int
    tensors: str
    classes: Annotated[tuple[str, ...], Field(strict=False)]
    facts: ProbeFacts


def write_probe(
    path: Path, layers: tuple[LayerArrays, ...], classes: tuple[str, ...], facts: ProbeFacts
) -> Path:
    """Write the two files of a probe and return the path of the JSON file.

    Args:
        path: the common stem of the files, or the path of one of them.
        layers: weight and bias of each layer.
        classes: the labels.
        facts: the facts of the probe.

    Raises:
        StoreError: a file cannot be written.
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
    # If the process is killed between the two writes, the digests do not match and reading fails.
    write_atomic(json_path, pretty_json({"digest": digest_json(content)} | content))
    return json_path


def read_probe(path: Path) -> tuple[tuple[LayerArrays, ...], tuple[str, ...], ProbeFacts]:
    """Return layers, classes and facts of a saved probe.

    Args:
        path: the common stem of the files, or the path of one of them.

    Raises:
        MissingError: a file does not exist.
        DataError: a file is damaged, has another format, or is a link that leaves its run.
    """
    if not path.name or (path.is_dir() and not _with_suffix(path, ".json").exists()):
        raise MissingError(f"{path} is a folder. {_suggestion(path)}")
    json_path, tensor_path = probe_files(path)
    record = _read_record(json_path)
    content = _read_bytes(tensor_path)
    if digest([content]) != record.tensors:
        raise damaged_probe(tensor_path, f"its digest does not match the one in {json_path.name}")
    try:
        layers = _layers(safetensors.numpy.load(content))
    except (DataError, SafetensorError) as error:
        raise damaged_probe(tensor_path, str(error)) from error
    return layers, record.classes, record.facts


def probe_files(path: Path) -> tuple[Path, Path]:
    """Return the paths of the JSON and the tensor file, given their stem or one of the paths.

    >>> [path.as_posix() for path in probe_files(Path("blocks.0.hook_resid_pre/svm"))]
    ['blocks.0.hook_resid_pre/svm.json', 'blocks.0.hook_resid_pre/svm.safetensors']
    """
    return _with_suffix(path, ".json"), _with_suffix(path, ".safetensors")


def damaged_probe(path: Path, why: str) -> DataError:
    """Return the error for a probe file that cannot be used."""
    return DataError(
        f"{path} cannot be used: {why.rstrip('.')}. Copy both files of the probe again from their "
        "source, or fit the probe again."
    )


def _with_suffix(path: Path, suffix: str) -> Path:
    # Not `with_suffix`: site names contain dots.
    name = path.name
    for known in _SUFFIXES:
        name = name.removesuffix(known)
    return path.with_name(name + suffix)


def _suggestion(folder: Path) -> str:
    """Return a sentence that lists the probes, or the runs with probes, in a folder."""
    for what, patterns in _IN_FOLDERS.items():
        paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
        below = (path.parent if path.is_dir() else path for path in paths)
        names = [str(path.relative_to(folder)).removesuffix(".safetensors") for path in below]
        if names:
            more = f", ... ({len(names)} in total)" if len(names) > _MOST_NAMED else ""
            return f"{what}: {', '.join(names[:_MOST_NAMED])}{more}."
    return "It contains no probe."


def _layers(tensors: Mapping[str, NDArray[Any]]) -> tuple[LayerArrays, ...]:
    numbers = range(len(tensors) // 2)
    expected = {f"layers.{number}.{part}" for number in numbers for part in _PARTS}
    if tensors.keys() != expected or any(t.dtype != np.float64 for t in tensors.values()):
        actual = ", ".join(f"{name} {tensor.dtype}" for name, tensor in sorted(tensors.items()))
        raise DataError(f"it contains {actual or 'nothing'} instead of float64 layers of a probe")
    return tuple((tensors[f"layers.{n}.weight"], tensors[f"layers.{n}.bias"]) for n in numbers)


def _read_record(path: Path) -> _Record:
    content = _read_bytes(path)
    try:
        record = json.loads(content, parse_constant=_refuse_constant)
        if not isinstance(record, dict):
            raise TypeError("it is not a JSON object")
        is_exact = pretty_json(record).encode() == content
        stored, version = record.pop("digest"), record["format"]
        actual = digest_json(record)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged_probe(path, f"it is not the record of a probe ({error})") from error
    if version != FORMAT:
        raise DataError(
            f"{path} has format {version!r}, but this version of probekit reads format {FORMAT}. "
            "Use the version that wrote it, or fit the probe again."
        )
    if stored != actual or not is_exact:
        raise damaged_probe(path, "its contents changed after it was written")
    try:
        return _Record.model_validate(record)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        ]
        raise damaged_probe(path, "; ".join(problems)) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it contains {name}")


def _run_of(path: Path) -> Path | None:
    """Return the folder of the run that a probe belongs to; None for a probe outside a run."""
    folders = (folder.parent for folder in path.absolute().parents if folder.name == "probes")
    return next((folder for folder in folders if (folder / "run.json").exists()), None)


def _read_bytes(path: Path) -> bytes:
    run = _run_of(path)
    try:
        # Links are checked only inside a run; elsewhere the user chose the path.
        return (path if run is None else inside(path.absolute(), run)).read_bytes()
    except FileNotFoundError as error:
        raise MissingError(
            f"There is no probe file {path}. A probe consists of NAME.json and NAME.safetensors; "
            "give NAME or the path of one of them."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
