"""Content digests and package versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from blake3 import blake3

from probekit.distribution import origin

_RECORDED = ("torch", "tiktoken", "scikit-learn", "numpy", "scipy", "pandas", "plotly")


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
