"""Digests of a model folder's files: those in `digests.json`, and those in the hub's cache.

`save_pretrained` of a model and of a tokenizer write `digests.json`, which covers weights, config
and vocabulary. The hub's cache names a file by its digest. A file with neither is read unverified.
Digests detect accidents, not somebody who rewrites both file and digest.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from probekit.errors import CheckpointError
from probekit.provenance import digest, digest_json, pretty_json, write_atomic

DIGESTS = "digests.json"
CHUNK = 1 << 22  # bytes hashed at a time
# The hub's cache names a large file by its SHA-256, any other by its hash in git.
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GIT = re.compile(r"[0-9a-f]{40}")


def write_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Add the digests of files to those that a folder has.

    Raises:
        CheckpointError: the folder's digests.json is damaged.
        StoreError: it cannot be written.
    """
    write_atomic(folder / DIGESTS, _pack(read_digests(folder) | dict(digests)))


def _pack(files: dict[str, str]) -> bytes:
    return pretty_json({"digest": digest_json(files), "files": files}).encode()


def read_digests(folder: Path) -> dict[str, str]:
    """Return the digests of a folder's files by name, none if it has no digests.json.

    Raises:
        CheckpointError: it is damaged.
    """
    path = folder / DIGESTS
    try:
        content = path.read_bytes()
        files = json.loads(content)["files"]
        if not isinstance(files, dict) or _pack(files) != content:
            raise ValueError("its own digest is not that of its contents")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}. {_way_out(folder)}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
    return files


def read_verified(path: Path) -> bytes:
    """Return the content of a file, compared with its digest if it has one.

    Raises:
        CheckpointError: it is not the file that was saved.
        OSError: it cannot be read.
    """
    content = path.read_bytes()
    _compare(path, [content], len(content))
    return content


def verify(path: Path) -> bool:
    """Return whether a file has a digest, which is compared with its content.

    Raises:
        CheckpointError: it is not the file that was saved.
        OSError: it cannot be read.
    """
    return _compare(path, _chunks(path), path.stat().st_size)


def origin_of_digest(path: Path) -> str | None:
    """Return where the digest of a file comes from, None if it has none."""
    if path.name in read_digests(path.parent):
        return DIGESTS
    name = path.resolve().name
    return "hub" if _SHA256.fullmatch(name) or _GIT.fullmatch(name) else None


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _compare(path: Path, chunks: Iterable[bytes], size: int) -> bool:
    written = read_digests(path.parent).get(path.name)
    if written is not None:
        if digest(chunks) != written:
            raise CheckpointError(
                f"{path} is damaged or of another model: it is not the file that {DIGESTS} beside "
                f"it was written for. {_way_out(path.parent)}"
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
            f"{path} is damaged: it is not the file that the hub gave. Delete {blob} and run again "
            "to fetch it anew."
        )
    return True


def _way_out(folder: Path) -> str:
    return (
        "Copy or save the model again. If the change is intended, delete "
        f"{folder / DIGESTS}: the folder is then loaded without this check."
    )
