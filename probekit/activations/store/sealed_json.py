"""JSON files of which every single byte is accounted for."""

from __future__ import annotations

import json
from typing import Any

from probekit.errors import DamagedError, StoreError
from probekit.provenance import digest_json, pretty_json

FORMAT = 2  # of all files of a store


def seal(content: dict[str, Any]) -> bytes:
    """Return the bytes of a JSON file that holds `content`, its format, and a digest over both.

    >>> unseal(seal({"rows": 3}), "x.json")
    {'rows': 3}
    """
    numbered = {"format": FORMAT, **content}
    return pretty_json({**numbered, "seal": digest_json(numbered)}).encode()


def unseal(data: bytes, path: str) -> dict[str, Any]:
    """Return the content of a file that `seal` made.

    Args:
        data: the bytes of the file.
        path: what a message calls it.

    Raises:
        DamagedError: a byte is another.
        StoreError: a newer release wrote it.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {error}.") from error
    found = content.pop("format", None) if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise StoreError(
            f"{path} is of format {found}, and this release knows those up to {FORMAT}. Read it "
            "with the release that wrote it, or a newer one."
        )
    if found is None or content.pop("seal", None) is None or not _is_sealed(content, data):
        raise DamagedError(f"{path} is damaged: its seal is not that of its content.")
    return dict(content)


def _is_sealed(content: dict[str, Any], data: bytes) -> bool:
    try:
        return seal(content) == data
    except ValueError:  # NaN, or half a surrogate pair
        return False
