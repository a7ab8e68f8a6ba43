"""Content digests, sealed JSON files, and package versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from blake3 import blake3

from probekit.distribution import origin
from probekit.errors import DamagedError, StoreError

_RECORDED = ("torch", "tiktoken", "scikit-learn", "numpy", "scipy", "pandas", "plotly")
FORMAT = 2  # version of all file formats of the activation store


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
    """Return a value as JSON with sorted keys and no spaces, the text that `digest_json` hashes.

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
    own = {"python": platform.python_version(), "probekit": origin().version}
    return own | {name: version(name) for name in _RECORDED}


def seal(content: dict[str, Any], format: int = FORMAT) -> bytes:
    """Return the bytes of a JSON file with `content`, its format version and a digest of both.

    >>> unseal(seal({"rows": 3}), "x.json")
    {'rows': 3}
    """
    numbered = {"format": format, **content}
    return pretty_json({**numbered, "seal": digest_json(numbered)}).encode()


def unseal(data: bytes, path: str, format: int = FORMAT) -> dict[str, Any]:
    """Return the content of a file written by `seal`.

    Args:
        data: the bytes of the file.
        path: the file's name in error messages.
        format: newest format version that can be read.

    Raises:
        DamagedError: the content differs from what was written.
        StoreError: the file was written by a newer release.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}.") from error
    file_format = content.pop("format", None) if isinstance(content, dict) else None
    if isinstance(file_format, int) and file_format > format:
        raise StoreError(
            f"{path} has format {file_format}; this release reads formats up to {format}. Use the "
            "release that wrote it, or a newer one."
        )
    if (
        file_format is None
        or content.pop("seal", None) is None
        or not _is_sealed(content, data, format)
    ):
        raise DamagedError(f"{path} is damaged: its digest does not match its content.")
    return dict(content)


def _is_sealed(content: dict[str, Any], data: bytes, format: int) -> bool:
    try:
        return seal(content, format) == data
    except ValueError:  # NaN, or an unpaired surrogate
        return False
