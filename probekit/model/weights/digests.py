"""Verification of a model folder's files against `digests.json` or the hub's cache.

`save_pretrained` of a model and of a tokenizer write `digests.json`, with the digests of weights,
config and vocabulary. The hub's cache names each file by its digest. A file without a digest is not
verified. Digests detect damage, not an attacker who replaces file and digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from probekit.errors import CheckpointError
from probekit.files import write_atomic
from probekit.provenance import digest, digest_json, pretty_json

DIGESTS = "digests.json"
CHUNK = 1 << 22  # bytes hashed at a time
# The hub's cache names large files by their SHA-256, all others by their git blob hash.
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")


def write_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Add digests of files to the digests.json of a folder.

    Raises:
        CheckpointError: the existing digests.json is damaged.
        StoreError: the file cannot be written.
    """
    write_atomic(folder / DIGESTS, _pack(read_digests(folder) | dict(digests)))


def _pack(files: dict[str, str]) -> bytes:
    return pretty_json({"digest": digest_json(files), "files": files}).encode()


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests in a folder's digests.json by file name, empty without that file.

    Raises:
        CheckpointError: the file is damaged or cannot be read.
    """
    path = folder / DIGESTS
    try:
        content = read_regular(path)
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


def read_regular(path: Path) -> bytes:
    """Return the contents of a regular file; reading a named pipe or a device might never end.

    Raises:
        CheckpointError: it is a folder, a named pipe or a device.
        OSError: the file cannot be read.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path} is not a regular file, but a folder, named pipe or device.")
    return path.read_bytes()


def read_verified(path: Path) -> bytes:
    """Return the contents of a regular file after verifying its digest, if it has one.

    Raises:
        CheckpointError: it is not a regular file, or the contents do not match the digest.
        OSError: the file cannot be read.
    """
    content = read_regular(path)
    _compare(path, [content], len(content))
    return content


def verify(path: Path) -> bool:
    """Verify the digest of a file; return False if it has none.

    Raises:
        CheckpointError: the contents do not match the digest.
        OSError: the file cannot be read.
    """
    return _compare(path, _chunks(path), path.stat().st_size)


def origin_of_digest(path: Path) -> str | None:
    """Return the source of a file's digest: `digests.json`, `hub`, or None if it has none."""
    if path.name in read_digests(path.parent):
        return DIGESTS
    name = path.resolve().name
    return "hub" if _SHA256.fullmatch(name) or _GIT.fullmatch(name) else None


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _compare(path: Path, chunks: Iterable[bytes], size: int) -> bool:
    expected = read_digests(path.parent).get(path.name)
    if expected is not None:
        if digest(chunks) != expected:
            raise CheckpointError(
                f"{path} is damaged or from another model: it does not match its digest in "
                f"{DIGESTS}. {_remedy(path.parent)}"
            )
        return True
    return _compare_blob(path, chunks, size)


def _compare_blob(path: Path, chunks: Iterable[bytes], size: int) -> bool:
    blob = path.resolve()
    if _SHA256.fullmatch(blob.name):
        hasher = hashlib.sha256()
    elif _GIT.fullmatch(blob.name):
        hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        return False
    for chunk in chunks:
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
