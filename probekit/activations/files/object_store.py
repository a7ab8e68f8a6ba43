"""The files of a cache in an object store, by whatever fsspec reaches: s3://, gs://, memory://."""

from __future__ import annotations

import contextlib
import inspect
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from probekit.activations.files.local import CHUNK, LOCK, checked, parse_array
from probekit.activations.store.layout import ArrayHeader, FloatArray
from probekit.disk import Disk, Draft, told
from probekit.errors import MissingError, StoreError

# What lies below fsspec raises of its own, beside the OSErrors that fsspec promises.
_FOREIGN = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))

_DAY = 86_400  # seconds


class ObjectFiles:
    """The files of a cache in an object store.

    An object appears whole or not at all once it was sent, so drafts stand on the local disk until
    then; and nothing is memory-mapped.

    Args:
        url: of the cache.

    Raises:
        StoreError: what reaches such a URL is not installed, or cannot be reached.
    """

    is_mapped = False

    def __init__(self, url: str) -> None:
        self.place = url
        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"Cannot reach {url}: {error}. Install probekit[s3] for s3://, probekit[gs] for gs://."
            ) from error
        self._mark = secrets.token_hex(8)
        self._is_exclusive: bool | None = None
        self._is_held = False

    @property
    def is_exclusive(self) -> bool:
        """Whether `create` lets only one of several writers win: found out by trying."""
        if self._is_exclusive is None:
            self._is_exclusive = creates_atomically(self._system) and self._refuses_a_second()
        return self._is_exclusive

    def _refuses_a_second(self) -> bool:
        probe = f"{LOCK}.{self._mark}"
        try:
            # Servers that do not know the condition let the second one through.
            return self._create(probe, b"1") and not self._create(probe, b"2")
        finally:
            self.remove(probe)

    def begin(self, folder: str = "") -> None:
        """Make sure that we may write here; folders are not made, they come with their objects.

        Raises:
            StoreError: several writers could not be told apart, and the lock is not ours.
        """
        if folder and not self._is_held and not self.is_exclusive:
            raise StoreError(
                f"{self.place} cannot create an object only where there is none, so that several "
                "writers would overwrite each other. Write there with one process, which holds the "
                "lock, or write to a folder and `probekit cache push` it."
            )

    def draft(self, name: str) -> Draft:
        """Return a file to be written bit by bit, on the local disk."""
        return Draft(Disk(), Path(tempfile.gettempdir()) / name.replace("/", "."))

    def publish(self, draft: Draft, name: str) -> None:
        """Send a draft as the object of that name."""
        with self._told("write", name):
            self._system.put_file(str(draft.temporary), self._key(name))

    def create(self, name: str, content: bytes) -> bool:
        """Return whether a new object was made; False, if there was one of that name."""
        if self.is_exclusive:
            return self._create(name, content)
        if self.read_all([name]):
            return False
        with self._told("write", name):
            self._system.pipe_file(self._key(name), content)
        return True

    def _create(self, name: str, content: bytes) -> bool:
        with self._told("write", name):
            try:
                self._system.pipe_file(self._key(name), content, mode="create")
            except FileExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Return all bytes of an object.

        Raises:
            MissingError: there is none.
            StoreError: it cannot be read.
        """
        return b"".join(self.chunks(name))

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of those objects that are there, many of them fetched at a time."""
        names_of = {self._key(name): name for name in names}
        if not names_of:
            return {}
        with self._told("read", ""):
            found = {}
            for key, content in self._system.cat(list(names_of), on_error="return").items():
                if isinstance(content, bytes):
                    found[names_of[key]] = content
                elif not isinstance(content, FileNotFoundError):
                    raise content
            return found

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of an object, some megabytes at a time."""
        with self._told("read", name):
            try:
                with self._system.open(self._key(name), "rb") as file:
                    while chunk := file.read(CHUNK):
                        yield chunk
            except FileNotFoundError as error:
                raise MissingError(f"There is no {self.place}/{name}.") from error

    def array(self, name: str, header: bytes, kind: ArrayHeader) -> FloatArray:
        """Return the numbers of an object that begins with `header` and has one array after it.

        Raises:
            DamagedError: it is of another kind.
        """
        return parse_array(self.read(name), header, kind, f"{self.place}/{name}")

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the size of every object right in a folder."""
        prefix = f"{folder}/" if folder else ""
        return {
            prefix + name: entry["size"]
            for name, entry in self._list(folder).items()
            if entry["type"] == "file" and not name.startswith(".")
        }

    def size(self, name: str) -> int | None:
        """Return the size of an object, None if there is none."""
        self._system.invalidate_cache()
        with self._told("read", name), contextlib.suppress(FileNotFoundError):
            return int(self._system.info(self._key(name))["size"])
        return None

    def folders(self) -> list[str]:
        """Return the names of the folders in the cache's own."""
        return sorted(n for n, entry in self._list("").items() if entry["type"] == "directory")

    def _list(self, folder: str) -> dict[str, dict[str, Any]]:
        self._system.invalidate_cache()  # others write, too
        with self._told("read", folder), contextlib.suppress(FileNotFoundError):
            entries = self._system.ls(self._key(folder), detail=True)
            return {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries}
        return {}

    def remove(self, name: str) -> None:
        """Remove an object; it may be gone already."""
        with self._told("remove", name), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._key(name))

    def remove_abandoned(self, name: str, is_in_use: Callable[[], bool] = bool) -> bool:
        """Return whether an object was removed; False, if it is in use or a day has not passed.

        No living writer can be told from a dead one here, but none takes a day to go from a shard's
        rows to its record.
        """
        changed = self.changed(name)
        if changed is None or time.time() - changed < _DAY or is_in_use():
            return False
        self.remove(name)
        return True

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Hold an object that only one can hold; False, if another one does.

        It goes with its holder, unless that one is killed.
        """
        is_ours = self.create(name, b"")
        try:
            yield is_ours
        finally:
            if is_ours:
                self.remove(name)

    def remove_folder(self, folder: str = "") -> bool:
        """Return whether a folder is gone, which it is with its last object."""
        self._system.invalidate_cache()
        with self._told("read", folder):
            return not self._system.find(self._key(folder))

    def changed(self, name: str) -> float | None:
        """Return when an object was last written, in seconds since 1970; None if there is none."""
        with self._told("read", name), contextlib.suppress(FileNotFoundError):
            return float(self._system.modified(self._key(name)).timestamp())
        return None

    def break_lock(self) -> None:
        """Take away the lock that a dead writer has left."""
        self.remove(LOCK)

    def sweep(self) -> dict[str, int]:
        """Return nothing: killed writers leave no object behind."""
        return {}

    def settle(self, folder: str = "") -> None:
        """Do nothing: what was sent is there."""

    @contextlib.contextmanager
    def lock(self, tell: Callable[[str], None] | None, *, name: str = LOCK) -> Iterator[None]:
        """Hold the cache for one writer, where the store cannot tell several apart itself.

        Raises:
            StoreError: another one holds it, or a killed one has left it held.
        """
        del tell, name  # nobody waits for a store that may hold a dead writer's lock for ever
        if self.is_exclusive or self._is_held:
            yield
            return
        if not self.create(LOCK, self._mark.encode()) or self.read(LOCK) != self._mark.encode():
            raise self._held_by_another()
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self.remove(LOCK)

    def _held_by_another(self) -> StoreError:
        return StoreError(
            f"Another writer holds {self.place}, which cannot tell several apart. Wait for it; or, "
            f"if it was killed, remove its lock with `probekit cache repair {self.place}`."
        )

    def _key(self, name: str) -> str:
        return "/".join((self._root.rstrip("/"), *checked(name).parts))

    @contextlib.contextmanager
    def _told(self, doing: str, name: str) -> Iterator[None]:
        where = f"{self.place}/{name}" if name else str(self.place)
        modules = [
            (sys.modules[module], error) for module, error in _FOREIGN if module in sys.modules
        ]
        foreign = tuple(getattr(module, error) for module, error in modules)
        with told(doing, where):
            try:
                yield
            except foreign as error:
                raise StoreError(f"Cannot {doing} {where}: {error}") from error


def creates_atomically(system: AbstractFileSystem) -> bool:
    """Return whether a file system has a conditional create of its own.

    fsspec's fallback looks first and writes then, between which another writer may come.

    >>> creates_atomically(fsspec.filesystem("memory"))
    True
    >>> creates_atomically(fsspec.filesystem("file"))
    False
    """
    kind = type(system)
    own = getattr(kind, "_pipe_file", None) if system.async_impl else kind.pipe_file
    is_own = own is not AbstractFileSystem.pipe_file
    return own is not None and is_own and "mode" in inspect.signature(own).parameters
