"""Files of a cache in an object store reached by fsspec: s3://, gs://, memory://."""

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

from probekit.activations.local import CHUNK, LOCK, checked, parse_array
from probekit.activations.records import FloatArray
from probekit.errors import MissingError, StoreError
from probekit.files import Disk, Draft, as_store_error, signature
from probekit.model.weights.files import ArrayHeader
from probekit.provenance import install_command

# Errors of the libraries under fsspec that are not the documented OSErrors.
_FOREIGN = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))

_DAY = 86_400  # seconds


class ObjectFiles:
    """Files of a cache in an object store.

    Uploads are atomic, so drafts are kept on the local disk until they are uploaded. Nothing is
    memory-mapped.

    Args:
        url: URL of the cache.

    Raises:
        StoreError: the fsspec implementation of such URLs is not installed or fails to connect.
    """

    is_mapped = False

    def __init__(self, url: str) -> None:
        self.place = url
        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise StoreError(
                f"Cannot reach {url}: {error}. For s3:// run {install_command('s3')}, for gs:// "
                f"{install_command('gs')}."
            ) from error
        self._mark = secrets.token_hex(8)  # content of the lock that this process creates
        self._is_exclusive: bool | None = None  # None until it is tested
        self._is_held = False  # whether this process holds the lock

    @property
    def is_exclusive(self) -> bool:
        """Whether `create` succeeds for only one of several writers; tested on first use."""
        if self._is_exclusive is None:
            self._is_exclusive = creates_atomically(self._system) and self._rejects_second_create()
        return self._is_exclusive

    def _rejects_second_create(self) -> bool:
        """Return whether the server refuses to create an object twice."""
        probe = f"{LOCK}.{self._mark}"
        try:
            # Servers that ignore the condition accept the second one.
            return self._create(probe, b"1") and not self._create(probe, b"2")
        finally:
            self.remove(probe)

    def begin(self, folder: str = "") -> None:
        """Check that writing is safe; folders need not be created in an object store.

        The cache itself ("") is not checked, because all writers write the same layout and spec.

        Raises:
            StoreError: the store cannot create objects exclusively, and this process has no lock.
        """
        if folder and not self._is_held and not self.is_exclusive:
            raise StoreError(
                f"{self.place} does not support exclusive creation of objects, so several writers "
                "would overwrite each other. Write there with one process, which locks it, or "
                "write to a local folder and run `probekit cache push`."
            )

    def draft(self, name: str) -> Draft:
        """Return a temporary local file to be written and then published."""
        return Draft(Disk(), Path(tempfile.gettempdir()) / name.replace("/", "."))

    def publish(self, draft: Draft, name: str) -> None:
        """Upload a draft as the object `name`."""
        draft.release()
        with self._store_errors("write", name):
            self._system.put_file(str(draft.temporary), self._key(name))

    def create(self, name: str, content: bytes) -> bool:
        """Create an object with this content; return False if the name exists.

        If the store is not exclusive, several writers that create it at the same time may succeed.
        """
        if self.is_exclusive:
            return self._create(name, content)
        if self.read_all([name]):
            return False
        with self._store_errors("write", name):
            self._system.pipe_file(self._key(name), content)
        return True

    def _create(self, name: str, content: bytes) -> bool:
        """Create an object on condition that it does not exist; return whether this succeeded."""
        with self._store_errors("write", name):
            try:
                self._system.pipe_file(self._key(name), content, mode="create")
            except FileExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Return the content of an object.

        Raises:
            MissingError: the object does not exist.
            StoreError: the object cannot be read.
        """
        return b"".join(self.chunks(name))

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of those objects that exist, by name, in one batched request."""
        name_of_key, contents = {self._key(name): name for name in names}, {}
        if not name_of_key:
            return {}
        with self._store_errors("read", ""):
            for key, content in self._system.cat(list(name_of_key), on_error="return").items():
                if isinstance(content, bytes):
                    contents[name_of_key[key]] = content
                elif not isinstance(content, FileNotFoundError):
                    raise content
        return contents

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in chunks of a few megabytes."""
        with self._store_errors("read", name):
            try:
                with self._system.open(self._key(name), "rb") as file:
                    while chunk := file.read(CHUNK):
                        yield chunk
            except FileNotFoundError as error:
                raise MissingError(f"{self.place}/{name} does not exist.") from error

    def array(self, name: str, header: bytes, array_header: ArrayHeader) -> FloatArray:
        """Return the array of an object that consists of `header` and one array.

        Raises:
            DamagedError: the object has another header or size.
        """
        return parse_array(self.read(name), header, array_header, f"{self.place}/{name}")

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of the objects directly in a folder, by path in the cache."""
        return {
            f"{folder}/{name}".lstrip("/"): entry["size"]
            for name, entry in self._list(folder).items()
            if entry["type"] == "file" and not name.startswith(".")
        }

    def special_files(self, folder: str = "") -> list[str]:
        """Return an empty list: object stores have no links."""
        del folder
        return []

    def size(self, name: str) -> int | None:
        """Return the size of an object; None if it does not exist."""
        self._system.invalidate_cache()
        with self._store_errors("read", name), contextlib.suppress(FileNotFoundError):
            return int(self._system.info(self._key(name))["size"])
        return None

    def folders(self) -> list[str]:
        """Return the names of the subfolders of the cache."""
        return sorted(n for n, entry in self._list("").items() if entry["type"] == "directory")

    def _list(self, folder: str) -> dict[str, dict[str, Any]]:
        """Return the entries of a folder as fsspec describes them, by name."""
        self._system.invalidate_cache()  # other processes may write
        with self._store_errors("read", folder), contextlib.suppress(FileNotFoundError):
            entries = self._system.ls(self._key(folder), detail=True)
            return {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in entries}
        return {}

    def remove(self, name: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        with self._store_errors("remove", name), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._key(name))

    def remove_abandoned(self, name: str, is_in_use: Callable[[], bool] = bool) -> bool:
        """Remove an object if it is unused and older than a day; return whether it was removed.

        Live and dead writers cannot be distinguished here, but no live one takes a day between
        writing a shard's rows and its record. The default of `is_in_use`, `bool`, returns False.
        """
        changed = self.changed(name)
        if changed is None or time.time() - changed < _DAY or is_in_use():
            return False
        self.remove(name)
        return True

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Try to create a lock object; yield whether this succeeded, and remove it afterwards.

        The lock object of a killed process remains.
        """
        is_acquired = self.create(name, signature().encode())
        try:
            yield is_acquired
        finally:
            if is_acquired:
                self.remove(name)

    def remove_folder(self, folder: str = "") -> bool:
        """Return whether a folder no longer exists; it disappears with its last object."""
        self._system.invalidate_cache()
        with self._store_errors("read", folder):
            return not self._system.find(self._key(folder))

    def changed(self, name: str) -> float | None:
        """Return the modification time of an object in seconds since 1970; None if missing."""
        with self._store_errors("read", name), contextlib.suppress(FileNotFoundError):
            return float(self._system.modified(self._key(name)).timestamp())
        return None

    def break_lock(self) -> None:
        """Remove the lock, which must be that of a dead writer."""
        self.remove(LOCK)

    def sweep(self) -> dict[str, int]:
        """Return an empty dictionary: killed writers leave no temporary objects."""
        return {}

    def sync_names(self, folder: str = "") -> None:
        """Do nothing: uploads are durable."""

    @contextlib.contextmanager
    def lock(self, tell: Callable[[str], None] | None, *, name: str = LOCK) -> Iterator[None]:
        """Lock the cache for one writer if the store cannot create objects exclusively.

        Has no effect if it can, or within a block in which this process holds the lock.

        Args:
            tell: not used: a writer that waits for the lock of a killed one would wait for ever.
            name: not used: one lock protects the whole cache.

        Raises:
            StoreError: the lock is held, by a live writer or by a killed one.
        """
        del tell, name
        if self.is_exclusive or self._is_held:
            yield
            return
        # Creation is not exclusive: several writers may succeed, and the one whose mark remains has
        # the lock. It is therefore read back.
        if not self.create(LOCK, self._mark.encode()) or self.read(LOCK) != self._mark.encode():
            raise StoreError(
                f"Another writer has locked {self.place}, which allows only one. Wait for it; if "
                f"it was killed, remove its lock with `probekit cache repair {self.place}`."
            )
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self.remove(LOCK)

    def _key(self, name: str) -> str:
        """Return the path of an object in the file system of fsspec."""
        return "/".join((self._root.rstrip("/"), *checked(name).parts))

    @contextlib.contextmanager
    def _store_errors(self, action: str, name: str) -> Iterator[None]:
        """Convert errors of fsspec and of the libraries under it to StoreError."""
        where = f"{self.place}/{name}" if name else str(self.place)
        # A library that is not imported cannot raise.
        foreign = [(module, error) for module, error in _FOREIGN if sys.modules.get(module)]
        library_errors = tuple(getattr(sys.modules[module], error) for module, error in foreign)
        with as_store_error(action, where):
            try:
                yield
            except library_errors as error:
                raise StoreError(f"Cannot {action} {where}: {error}") from error


def creates_atomically(system: AbstractFileSystem) -> bool:
    """Return whether a file system implements conditional creation itself.

    Otherwise fsspec checks whether the name exists and then writes, so that two writers can both
    succeed.

    >>> creates_atomically(fsspec.filesystem("memory"))
    True
    >>> creates_atomically(fsspec.filesystem("file"))
    False
    """
    kind = type(system)
    # Asynchronous file systems override `_pipe_file`, the others `pipe_file`.
    write: Any = getattr(kind, "_pipe_file", None) if system.async_impl else kind.pipe_file
    is_overridden = write not in (None, AbstractFileSystem.pipe_file)
    return is_overridden and "mode" in inspect.signature(write).parameters
