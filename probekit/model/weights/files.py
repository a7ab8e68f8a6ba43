"""Files of a model folder: headers, JSON, and verification by `digests.json` or the hub's cache.

`save_pretrained` of a model and of a tokenizer write `digests.json`, with the digests of weights,
config and vocabulary. The hub's cache names each file by its digest. A file without a digest is not
verified. Digests detect damage, not an attacker who replaces file and digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError

from probekit.errors import CheckpointError, MissingError
from probekit.files import regular, write_atomic
from probekit.memory import is_out_of_memory, out_of_memory
from probekit.provenance import digest, digest_json, pretty_json

if TYPE_CHECKING:
    from torch import Tensor

# Exceptions that readers raise for truncated or changed files, and where there is no damage.
_FAILURES: tuple[type[Exception], ...] = (
    *(OSError, MemoryError),  # the file cannot be read
    *(SafetensorError, zipfile.BadZipFile, EOFError),
    *(RuntimeError, ValueError, LookupError, AttributeError),
)

DIGESTS = "digests.json"  # name of the file with digests
CHUNK = 1 << 22  # bytes hashed at a time
_POINTER = b"version https://git-lfs"
# The hub's cache names large files by their SHA-256, all others by their git blob hash.
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")


# Size in bytes of a number, by the code of its dtype in the header of a safetensors file.
ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}


class ArrayHeader(NamedTuple):
    """Dtype of an array, as a code of the safetensors format, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size of the array data in bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.dtype]


def header(arrays: Mapping[str, ArrayHeader], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the safetensors header for arrays stored back to back.

    >>> header({"rows": ArrayHeader("F32", (2, 3))})[8:]
    b'{"rows":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}    '
    """
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.size
        entries[name] = array._asdict() | {"data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


def write_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Add digests of files to the digests.json of a folder.

    Raises:
        CheckpointError: the existing digests.json is damaged.
        StoreError: the file cannot be written.
    """
    write_atomic(folder / DIGESTS, _pack(read_digests(folder) | dict(digests)))


def _pack(files: dict[str, str]) -> bytes:
    """Return the contents of digests.json, with a digest of the digests."""
    return pretty_json({"digest": digest_json(files), "files": files}).encode()


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests in a folder's digests.json by file name, empty without that file.

    Raises:
        CheckpointError: the file is damaged or cannot be read.
    """
    path = folder / DIGESTS
    try:
        content = regular(path).read_bytes()
        files = json.loads(content)["files"]
        if not isinstance(files, dict) or _pack(files) != content:
            raise ValueError("its digest does not match its contents")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except CheckpointError:  # a ValueError with a complete message
        raise
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}. {_remedy(folder)}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    return files


def read_verified(path: Path) -> bytes:
    """Return the contents of a regular file after verifying its digest, if it has one.

    Raises:
        CheckpointError: the contents do not match the digest.
        OSError: it is not a regular file, or cannot be read.
    """
    content = regular(path).read_bytes()
    _compare(path, [content], len(content))
    return content


def verify(path: Path) -> bool:
    """Verify the digest of a file; return False if it has none.

    Raises:
        CheckpointError: the contents do not match the digest.
        OSError: the file cannot be read.
    """
    return _compare(path, chunks(path), regular(path).stat().st_size)


def origin_of_digest(path: Path) -> str | None:
    """Return the source of a file's digest: `digests.json`, `hub`, or None if it has none."""
    if path.name in read_digests(path.parent):
        return DIGESTS
    name = path.resolve().name
    return "hub" if _SHA256.fullmatch(name) or _GIT.fullmatch(name) else None


def chunks(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a file from a position on, some at a time."""
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield chunk


def _compare(path: Path, parts: Iterable[bytes], size: int) -> bool:
    """Raise if the content of a file does not match its digest; return whether it has one."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise CheckpointError(f"{path} is a pointer of Git LFS. Fetch it: `git lfs pull`.")
    # In the hub's cache a file is a link to a blob, whose name is the digest.
    digests, blob = read_digests(path.parent), path.resolve()
    if path.name in digests:
        if digest(parts) != digests[path.name]:
            raise CheckpointError(
                f"{path} is damaged or from another model: it does not match its digest in "
                f"{DIGESTS}. {_remedy(path.parent)}"
            )
        return True
    if _SHA256.fullmatch(blob.name):
        hasher = hashlib.sha256()
    elif _GIT.fullmatch(blob.name):
        # git hashes this header and then the content.
        hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        return False
    for chunk in parts:
        hasher.update(chunk)
    if hasher.hexdigest() != blob.name:
        raise CheckpointError(
            f"{path} is damaged: it does not match the hub's digest. Delete {blob} and run again "
            "to download it."
        )
    return True


def _remedy(folder: Path) -> str:
    return (
        "Copy or save the model again. If the change is intended, delete "
        f"{folder / DIGESTS}; the folder is then loaded without verification."
    )


_MAX_DEPTH = 100  # of lists and objects in each other; published files have at most 10


# Names of files that change the network and are not read: adapters, settings of quantised weights.
_NOT_READ = re.compile(
    r"(?i)(.*[._-])?(adapters?|lora)[._-].*(json|safetensors|bin|npz|pth?|gguf)|.*\.lora"
    r"|(hf_)?quant(ize)?_config\.json"
)


def refuse_unread(folder: Path) -> None:
    """Raise CheckpointError if a folder has a file that changes the network and is not read.

    Raises:
        CheckpointError: there is such a file, for example that of an adapter.
    """
    if found := sorted(path.name for path in folder.glob("*") if _NOT_READ.fullmatch(path.name)):
        raise CheckpointError(
            f"{folder} has {', '.join(found)}: an adapter, or quantised weights, are not read. "
            "Merge an adapter with peft: PeftModel.from_pretrained(base, FOLDER).merge_and_unload()"
            ".save_pretrained(NEW). Or move these files, to read the network without them."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model folder.

    >>> from probekit.model.weights.sources import MINI
    >>> read_json(MINI / "config.json")["n_layer"]
    6

    Raises:
        MissingError: the file does not exist, is not a regular one, or cannot be read.
        CheckpointError: the file does not match its digest, or is not a JSON object.
    """
    try:
        return json_object(path, read_verified(path))
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror}.") from error


def json_object(path: Path, content: bytes) -> dict[str, Any]:
    """Return the object in the contents of a JSON file.

    >>> json_object(Path("config.json"), b'{"n_layer": 6}')
    {'n_layer': 6}

    Args:
        path: the file, for messages.
        content: its bytes.

    Raises:
        CheckpointError: it is not a JSON object in UTF-8, or has an integer of thousands of digits,
            half a surrogate pair, or more than `_MAX_DEPTH` levels of lists and objects.
    """
    try:
        value = json.loads(content.decode())
        # Two escaped surrogates are a character; a single one is none, and cannot be encoded.
        if b"\\ud" in content.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must contain a JSON object, not a {type(value).__name__}.")
    level: list[Any] = [value]  # lists and objects of one depth
    for _ in range(_MAX_DEPTH):
        contents = [part.values() if isinstance(part, dict) else part for part in level]
        level = [item for items in contents for item in items if isinstance(item, dict | list)]
    if level:
        raise CheckpointError(f"{path} has more than {_MAX_DEPTH} lists and objects in each other.")
    return value


def shard_of_tensors(index: Path) -> dict[str, str]:
    """Return the file name of each tensor from the index of a sharded model.

    Raises:
        MissingError: the index does not exist or cannot be read.
        CheckpointError: the index is damaged, or a shard is not a weight file in its folder.
    """
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no weight_map from tensors to files.")
    for shard in shards.values():
        is_file_name = isinstance(shard, str) and Path(shard).name == shard
        if not is_file_name or Path(shard).suffix not in (".safetensors", ".bin"):
            raise CheckpointError(
                f"{index} lists the shard {shard!r}. Allowed: a .safetensors or .bin file in the "
                "folder of the index."
            )
    return shards


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, read on demand.

    Attributes:
        shape: shape in the file.
        read: returns the tensor, memory-mapped if the format allows it; a copy releases the file.
        is_mapped: whether the tensor is a private map of its own bytes: its pages are read when
            they are used, and a change of it changes a copy, not the file.
    """

    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    is_mapped: bool = False


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
    except _FAILURES + others as error:
        if isinstance(error, CheckpointError):  # a ValueError with a complete message
            raise
        if is_out_of_memory(error):
            raise out_of_memory(f"the tensors of {path}", path.stat().st_size) from error
        if isinstance(error, OSError):
            raise CheckpointError(f"{path} cannot be read ({error}).") from error
        raise CheckpointError(
            f"{path} is damaged or has another format ({error}). Copy or download it again."
        ) from error
