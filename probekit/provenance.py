"""What a number came from: content digests, versions, and files that appear whole or not at all."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blake3 import blake3

from probekit.disk import Disk, Draft, told

_RECORDED = ("probekit", "torch", "tiktoken", "scikit-learn", "numpy", "scipy", "pandas", "plotly")


def digest(chunks: Iterable[bytes | memoryview]) -> str:
    """Return the BLAKE3 digest of chunks of bytes, in hexadecimal.

    >>> digest([b"ab", b"c"]) == digest([b"abc"])
    True
    """
    hasher = blake3()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of a JSON value; the order of keys does not matter.

    >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    True
    """
    return digest([canonical_json(value).encode()])


def canonical_json(value: Any) -> str:
    """Return a JSON value as the one text that is hashed.

    >>> canonical_json({"b": [1.5, None], "a": "ü"})
    '{"a":"ü","b":[1.5,null]}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def pretty_json(value: Any) -> str:
    """Return a JSON value as people read it."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def versions() -> dict[str, str]:
    """Return the versions of everything that the numbers rest on."""
    return {"python": platform.python_version()} | {name: version(name) for name in _RECORDED}


def write_atomic(path: Path, content: bytes | str | Iterable[bytes | memoryview]) -> None:
    """Write a file that appears whole or not at all, and survives a power loss once it is there.

    Content that does not fit into memory comes as an iterable of its parts.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "result.txt"
    >>> write_atomic(path, "done")
    >>> path.read_text()
    'done'

    Raises:
        StoreError: the disk is full, the folder cannot be written, ...; nothing is left behind.
    """
    text = content.encode() if isinstance(content, str) else content
    with told("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with Draft(Disk(), path) as draft:
        for part in [text] if isinstance(text, bytes) else text:
            draft.write(part)
        draft.rename(path)
