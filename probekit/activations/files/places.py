"""Locations of caches: local folders and URLs of object stores."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from platformdirs import user_cache_path

from probekit.activations.files.local import Files, LocalFiles, Location
from probekit.errors import ConfigError, StoreError


def is_url(place: Location) -> bool:
    """Return whether a location is the URL of an object store.

    >>> is_url("s3://bucket/caches"), is_url("caches")
    (True, False)
    """
    return isinstance(place, str) and "://" in place


def as_place(text: str) -> Location:
    """Parse user input as a local folder or a URL.

    >>> as_place("memory://caches/")
    'memory://caches'
    """
    if is_url(text):
        return text.rstrip("/")
    with contextlib.suppress(RuntimeError):  # "~user" of an unknown user
        return Path(text).expanduser()
    return Path(text)


def join(root: Location, name: str) -> Location:
    """Return the location of a cache under a root.

    >>> join("s3://bucket/caches", "ab12")
    's3://bucket/caches/ab12'
    """
    return f"{root}/{name}" if is_url(root) else Path(root) / name


def files_at(place: Location | Files, *, mapped: bool | None = None) -> Files:
    """Return the files of the cache at a location; `mapped` as for `LocalFiles`.

    Raises:
        StoreError: the fsspec implementation of such URLs is not installed.
    """
    if not isinstance(place, Location):
        return place
    if is_url(place):
        from probekit.activations.files.object_store import (
            ObjectFiles,  # fsspec, which few runs need
        )

        return ObjectFiles(str(place))
    return LocalFiles(Path(place), mapped=mapped)


def default_root() -> Location:
    """Return the default cache root: $PROBEKIT_CACHE, or the user's cache folder.

    Raises:
        ConfigError: PROBEKIT_CACHE is a file, or one of its parents is.
        StoreError: The user has no home folder.
    """
    chosen = os.environ.get("PROBEKIT_CACHE")
    if chosen:
        place = as_place(chosen)
        if isinstance(place, Path):
            _refuse_file(place)
        return place
    try:
        return user_cache_path("probekit") / "activations"
    except RuntimeError as error:
        raise StoreError(
            "No home folder for caches was found. Set PROBEKIT_CACHE or use --cache."
        ) from error


def _refuse_file(folder: Path) -> None:
    found = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if found is not None and not found.is_dir():
        raise ConfigError(
            f"PROBEKIT_CACHE is {folder}, but {found} is a file, not a folder. Set it to a new "
            "or existing folder, or use --cache."
        )
