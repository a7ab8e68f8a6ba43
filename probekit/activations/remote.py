"""The files of a cache in an object store, by whatever fsspec reaches: s3://, gs://, memory://, ..."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import fsspec
from fsspec.spec import AbstractFileSystem

from probekit.activations.files import CHUNK, LOCK, checked, parse_array
from probekit.activations.layout import FloatArray, Kind
from probekit.disk import Disk, Draft, told
from probekit.errors import MissingError, StoreError


class ObjectFiles:
    """The files of a cache in an object store.

    An object appears whole or not at all once it was sent, so drafts stand on the local disk; and
    nothing is memory-mapped.

    Args:
        url: of the cache.

    Raises:
        StoreError: what reaches such a URL is not installed, or cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.place = url
        with _told("reach", url):
            try:
                self._system, self._root = fsspec.core.url_to_fs(url, **_fresh(url))
            except (ImportError, ValueError) as error:
                raise StoreError(
                    f"Cannot reach {url}: {error}. Install `probekit[s3]` for s3://, `gcsfs` for "
                    "gs://, or what fsspec names."
                ) from error
        self._exclusive: bool | None = None
        self._mark = secrets.token_hex(8)

    @property
    def is_exclusive(self) -> bool:
        """Whether `create` lets only one of several writers win: found out by trying."""
        if self._exclusive is None:
            probe = f"{LOCK}.probe.{self._mark}"
            self._exclusive = _has_own_create(self._system) and (
                self._create(probe, b"1") and not self._create(probe, b"2")
            )
            self.remove(probe)
        return self._exclusive
