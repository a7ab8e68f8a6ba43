"""JSON files with a digest of their content, so that any changed byte is detected."""

from __future__ import annotations

import json
from typing import Any

from probekit.errors import DamagedError, StoreError
from probekit.provenance import digest_json, pretty_json

FORMAT = 2  # version of all file formats of the activation store


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
