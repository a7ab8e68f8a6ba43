"""Content digests, package versions and atomic writes."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blake3 import blake3

from probekit.disk import Disk, as_store_error
from probekit.drafts import Draft

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
    """Return the canonical JSON text of a value, which is the one that is hashed.

    >>> canonical_json({"b": [1.5, None], "a": "ü"})
    '{"a":"ü","b":[1.5,null]}'
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def pretty_json(value: Any) -> str:
    """Return indented JSON with a final newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def versions() -> dict[str, str]:
    """Return the versions of Python and of all packages that affect results."""
    return {"python": platform.python_version()} | {name: version(name) for name in _RECORDED}


def write_atomic(path: Path, content: bytes | str | Iterable[bytes | memoryview]) -> str:
    """Write a file atomically, sync it, and return the digest of its content.

    Args:
        path: the file; missing parent folders are created.
        content: text (encoded as UTF-8), bytes, or an iterable of chunks if it does not fit in
            memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "result.txt"
    >>> write_atomic(path, "done") == digest([b"done"])
    True
    >>> path.read_text()
    'done'

    Raises:
        StoreError: the disk is full, the folder is not writable, ...; no partial file remains.
    """
    text = content.encode() if isinstance(content, str) else content
    with as_store_error("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with Draft(Disk(), path) as draft:
        for part in [text] if isinstance(text, bytes) else text:
            draft.write(part)
        draft.rename(path)
        return draft.digest
