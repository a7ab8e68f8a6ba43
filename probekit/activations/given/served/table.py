"""Files in which other programs save activations with the tokens of their requests.

A file is opened as a set of named tensors, whatever its format; `activations/requests.py` has the
names. The file NAME.py of a format in this folder has `NAME_tensors(path, content)`, which returns
the tensors by name; `content` is the unpacked file if it was compressed.

FORMATS       a row for each format, in the order in which a folder is searched
served_files  the files of a folder
open_tensors  the tensors of a file
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor

from probekit.activations.given.formats import check_unpacked
from probekit.errors import ConfigError, DataError
from probekit.files import is_held, state_of
from probekit.provenance import install_command

MOST_BYTES = 2**36  # that a compressed file may unpack to


class ServedFormat(NamedTuple):
    """A format of files with requests.

    Attributes:
        ending: ending of its files; of a folder, the name of a file in it.
        file: its file in this folder; "" if it is opened here.
        needs: the package that reads it, which is an extra of probekit; "" for none.
    """

    ending: str
    file: str = ""
    needs: str = ""


FORMATS = (
    ServedFormat(".safetensors"),  # vLLM, and caches of TransformerLens and nnsight
    ServedFormat(".npz", "npz"),  # the same caches, saved with NumPy
    ServedFormat(".gguf", "llama_cpp", "gguf"),  # callbacks of llama.cpp
    ServedFormat("dataset_info.json", "data_set", "datasets"),  # of Hugging Face
    ServedFormat(".json", "responses"),  # of vLLM-Lens and SGLang
    ServedFormat(".jsonl", "responses"),  # one response a line
)
_ZSTD = ".zst"  # after the ending of a compressed file
_PICKLES = (".pt", ".pth", ".bin", ".pkl")


def served_files(folder: Path) -> list[Path]:
    """Return the files of the first format that a folder and its subfolders have; or one file.

    Hidden files and folders, in which engines write unfinished files, are left out.

    Raises:
        DataError: a program is still writing a file, whose `.lock` it holds.
    """
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    paths = [path for path in paths if "/." not in f"/{path.relative_to(folder).as_posix()}"]
    for path in paths:
        if path.suffix == ".lock" and is_held(path.parent, path.name):
            raise DataError(
                f"{path.with_suffix('')} is still being written: a program holds {path.name}. Wait "
                "until the engine has finished, then run the command again."
            )
    for row in FORMATS:
        found = [one for one in paths if _format_of(one) == row and not one.is_dir()]
        if found:
            return found
    return []


def contents_of(path: Path) -> list[Path]:
    """Return the files whose content is that of a file: itself, or all files of a data set."""
    if path.name != "dataset_info.json":
        return [path]
    return sorted(one for one in path.parent.iterdir() if not one.is_dir())


def _format_of(path: Path) -> ServedFormat | None:
    name = path.name.removesuffix(_ZSTD)
    rows = [row for row in FORMATS if name.endswith(row.ending)]
    return max(rows, key=lambda row: len(row.ending), default=None)


def how_to_convert(folder: Path) -> str:
    """Return a sentence on a file of pickled tensors, and the lines that convert it; "" without.

    Files of torch are pickles, which can run code, so they are not opened here.
    """
    pickles = sorted(path for path in folder.rglob("*") if path.suffix in _PICKLES)
    if not pickles:
        return ""
    path = pickles[0]
    target = path.with_suffix(".safetensors")
    return (
        f" {path} is a pickle, which could run code. Convert it:\n"
        "    import torch; from safetensors.torch import save_file\n"
        f"    save_file({{key: one.contiguous().clone() for key, one in torch.load({str(path)!r}, "
        f"weights_only=True).items()}}, {str(target)!r})\n"
    )


class Arrays:
    """Tensors by name, with the methods of an open .safetensors file that readers use."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def metadata(self) -> dict[str, str]:
        """Return no metadata."""
        return {}

    def keys(self) -> list[str]:
        """Return the names."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> Tensor:
        """Return a tensor."""
        return self._tensors[name]

    def get_slice(self, name: str) -> _Slice:
        """Return a tensor, for its shape, type and parts."""
        return _Slice(self._tensors[name])


@dataclass(frozen=True)
class _Slice:
    tensor: Tensor

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def get_dtype(self) -> str:
        """Return the code that safetensors has for the type."""
        name = str(self.tensor.dtype).removeprefix("torch.")
        return name.replace("bfloat", "BF").replace("float", "F").replace("int", "I").upper()

    def __getitem__(self, place: Any) -> Tensor:
        return self.tensor[place]


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Yield the tensors of a file, with the methods of an open .safetensors file.

    Raises:
        ConfigError: the package that reads the format is not installed.
        DataError: a compressed file unpacks to too much.
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            yield file
        return
    yield _opened(path, tuple(map(state_of, contents_of(path))))


@lru_cache(maxsize=1)  # rows of one file are read one after the other
def _opened(path: Path, _state: tuple[tuple[int, int, int], ...]) -> Arrays:
    row = _format_of(path)
    if row is None:
        raise ValueError("its name has no ending of a known format")
    if row.needs:
        need(row.needs, path)
    try:
        content = unpacked(path.read_bytes(), path) if path.suffix == _ZSTD else None
        if not row.file:
            assert content is not None
            return Arrays(load(content))
        module = import_module(f"{__name__.rpartition('.')[0]}.{row.file}")
        return Arrays(getattr(module, f"{row.file}_tensors")(path, content))
    except BadZipFile as error:  # is no ValueError
        raise ValueError(str(error)) from error


def need(package: str, path: Path, extra: str = "") -> None:
    """Raise ConfigError if a package that reads a file is not installed.

    Args:
        package: its name.
        path: the file.
        extra: the extra of probekit that installs it; "" for one of the same name.
    """
    if find_spec(package) is None:
        raise ConfigError(
            f"{path} needs the package {package}. Install it: {install_command(extra or package)}."
        )


def unpacked(content: bytes, path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the bytes that Zstandard has compressed.

    Args:
        content: the compressed bytes.
        path: their file, for messages.
        most: largest number of bytes that they may unpack to.

    Raises:
        ConfigError: the package zstandard is not installed.
        DataError: they unpack to more, or to more than 10,000 times as many.
        ValueError: they are damaged.
    """
    need("zstandard", path, "vllm")
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True)
        parts, n_bytes = [], 0
        while part := reader.read(2**24):
            n_bytes += len(part)
            check_unpacked(str(path), n_bytes, len(content))
            if n_bytes > most:
                raise ValueError(f"it unpacks to more than {most:,} bytes")
            parts.append(part)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return b"".join(parts)


def parsed(path: Path, content: bytes | None) -> list[Any]:
    """Return the JSON values of a file: one, those of a list, or one of each line."""
    text = (path.read_bytes() if content is None else content).decode()
    if ".jsonl" in path.suffixes:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    found = json.loads(text)
    return found if isinstance(found, list) else [found]
