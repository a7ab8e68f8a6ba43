"""The files of one cache in a local folder; `object_store` has the same operations for URLs."""

import contextlib
import errno
import mmap
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from platformdirs import user_cache_path

from probekit import files
from probekit.activations.records import DTYPES, FloatArray, Location
from probekit.errors import ConfigError, DamagedError, MissingError, StoreError
from probekit.files import Disk, Draft, Waiting
from probekit.model.weights.files import ArrayHeader

if TYPE_CHECKING:
    from probekit.activations.object_store import ObjectFiles


LOCK = ".lock"  # name of the lock file of a cache
CHUNK = 1 << 22  # bytes read at a time
_PAUSE = 0.1  # seconds between attempts to lock a cache


Files: TypeAlias = "LocalFiles | ObjectFiles"


class LocalFiles:
    """Files of a cache in a local folder.

    Args:
        folder: the cache folder.
        disk: file operations; tests substitute it.
        mapped: whether to memory-map arrays; None for yes, except on a network file system.
    """

    def __init__(
        self, folder: Path, *, disk: Disk | None = None, mapped: bool | None = None
    ) -> None:
        self.place = folder
        self.disk = Disk() if disk is None else disk
        self.is_mapped = not files.is_on_network(folder) if mapped is None else mapped
        self._begun: set[str] = set()

    def begin(self, folder: str = "") -> None:
        """Create a folder in the cache, or the cache folder with its parents, and sync it."""
        if folder in self._begun:
            return
        path = self._path(folder)
        is_site = folder != ""
        # Creating a site's folder must fail if the cache itself was removed.
        needed = [path] if is_site else [*reversed(path.parents), path]
        with files.as_store_error("write", path):
            for each in needed:
                # A folder that cannot be created may exist; if it does not, the first write fails.
                with contextlib.suppress(FileExistsError, PermissionError):
                    # Parents are tested first: making an existing "/" can raise other errors.
                    if is_site or not self.disk.is_folder(each):
                        self.disk.make_folder(each)
                # Sync existing folders too: their creator may have been killed before its sync.
                with contextlib.suppress(PermissionError):
                    self.disk.sync_folder(each.parent)
        self._begun.add(folder)

    def draft(self, name: str) -> Draft:
        """Return a temporary file to be written and then published."""
        return Draft(self.disk, self._path(name))

    def publish(self, draft: Draft, name: str) -> None:
        """Rename a draft atomically, replacing an existing file."""
        draft.rename(self._path(name))

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with this content; return False if the name exists."""
        with self.draft(name) as draft:
            draft.write(content)
            return draft.link(self._path(name))

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            MissingError: the file does not exist.
            StoreError: the file cannot be read.
        """
        return b"".join(self.chunks(name))

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the content of those files that exist, by name."""
        contents = {}
        for name in names:
            with contextlib.suppress(MissingError):
                contents[name] = self.read(name)
        return contents

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in chunks of a few megabytes."""
        with self._opened(name) as descriptor:
            while chunk := self.disk.read(descriptor, CHUNK):
                yield chunk

    def array(self, name: str, header: bytes, array_header: ArrayHeader) -> FloatArray:
        """Return the array of a file that consists of `header` and one array.

        Raises:
            DamagedError: the file has another header or size.
        """
        if not self.is_mapped:
            return parse_array(self.read(name), header, array_header, self._path(name))
        with self._opened(name) as descriptor:
            size = self.disk.size(descriptor)
            content = self.disk.map(descriptor, size) if size else b""  # cannot map no bytes
            return parse_array(content, header, array_header, self._path(name))

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """Open a file for reading during the block; yield its descriptor."""
        path = self._path(name)
        with files.as_store_error("read", path):
            try:
                descriptor = self.disk.open(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise MissingError(f"{path} does not exist.") from error
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ELOOP):
                    raise damaged(path, "it is a link or not a regular file") from error
                raise
            try:
                yield descriptor
            finally:
                self.disk.close(descriptor)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of a folder's regular, not temporary files, by path in the cache."""
        return {
            _joined(folder, name): status.st_size
            for name, status in self._list(folder).items()
            if stat.S_ISREG(status.st_mode) and not name.startswith(".")
        }

    def special_files(self, folder: str = "") -> list[str]:
        """Return names directly in a folder that are neither files nor folders, such as links."""
        return sorted(
            _joined(folder, name)
            for name, status in self._list(folder).items()
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode)
        )

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        with contextlib.suppress(MissingError), self._opened(name) as descriptor:
            return self.disk.size(descriptor)
        return None

    def folders(self) -> list[str]:
        """Return the names of the subfolders of the cache."""
        listed = self._list("").items()
        return sorted(name for name, status in listed if stat.S_ISDIR(status.st_mode))

    def _list(self, folder: str) -> dict[str, os.stat_result]:
        """Return the status of each entry of a folder, by name; empty if it does not exist."""
        path, missing = self._path(folder), (FileNotFoundError, NotADirectoryError)
        with files.as_store_error("read", path), contextlib.suppress(*missing):
            return self.disk.list(path)
        return {}

    def remove(self, name: str) -> None:
        """Remove a file; does nothing if it does not exist."""
        path = self._path(name)
        with files.as_store_error("remove", path), contextlib.suppress(FileNotFoundError):
            self.disk.remove(path)

    def remove_abandoned(self, name: str, is_in_use: Callable[[], bool] = bool) -> bool:
        """Remove a file if it is unused and its writer is dead; return whether it was removed.

        Args:
            name: the file.
            is_in_use: returns whether the file is needed; `bool` returns False. It is called while
                this process holds the lock of the file, so that the answer cannot become outdated.
        """
        return files.remove_abandoned(self._path(name), self.disk, is_in_use)

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Try to create a lock file; yield whether this succeeded, and remove the file afterwards.

        The process that created it keeps it locked. A lock file that is not locked belongs to a
        killed process.
        """
        with self.draft(name) as draft:
            if not self.disk.pins_open_files:  # Windows lets only the holder read it
                draft.write(files.signature().encode())
            is_acquired = draft.link(self._path(name), keep_locked=True)
            try:
                yield is_acquired
            finally:
                if is_acquired:
                    draft.release()
                    self.remove(name)

    def remove_folder(self, folder: str = "") -> bool:
        """Remove a folder if it is empty; return whether it no longer exists."""
        path = self._path(folder)
        with files.as_store_error("remove", path), contextlib.suppress(FileNotFoundError):
            try:
                self.disk.remove_folder(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return False
        return True

    def changed(self, name: str) -> float | None:
        """Return when a file of the top folder changed, in seconds since 1970; None if missing."""
        status = self._list("").get(name)
        return None if status is None else status.st_mtime

    def break_lock(self) -> None:
        """Do nothing: the operating system releases the locks of dead processes."""

    def sweep(self) -> dict[str, int]:
        """Remove the temporary files of dead writers and return their sizes, by name."""
        removed = {}
        for folder in ("", *self.folders()):
            for file, status in self._list(folder).items():
                is_temporary = file.startswith(".") and not file.startswith(LOCK)
                name = _joined(folder, file)
                if is_temporary and self.remove_abandoned(name):
                    removed[name] = status.st_size
        return removed

    def sync_names(self, folder: str = "") -> None:
        """Sync the entries of a folder to disk, whichever process created them."""
        path = self._path(folder)
        with files.as_store_error("write", path):
            self.disk.sync_folder(path)

    @contextlib.contextmanager
    def lock(self, tell: Callable[[str], None] | None, *, name: str = LOCK) -> Iterator[None]:
        """Lock the cache for one writer; a second writer waits, and reports for whom, or fails.

        Has no effect if the file system does not support locks.

        Args:
            tell: called with messages while waiting; None raises an error instead of waiting.
            name: name of the lock file.

        Raises:
            StoreError: the folder cannot be written, or another run is writing it.
        """
        with files.as_store_error("write", self._path(name)):
            descriptor = self.disk.open_lock(self._path(name))
        try:
            with files.as_store_error("write", self.place):
                # None: the file system does not support locks.
                waiting = Waiting(self.place, tell or (lambda _: None))
                while self.disk.lock(descriptor) is False:
                    if tell is None:
                        raise StoreError(f"Another run is writing {self.place}. Wait, or stop it.")
                    time.sleep(_PAUSE)
                    waiting.look(files.holder_of(self.place, one) for one in (name,))
                files.sign(self.disk, descriptor)
            yield
        finally:
            with files.as_store_error("unlock", self.place):
                self.disk.close(descriptor)

    def _path(self, name: str) -> Path:
        return self.place.joinpath(*checked(name).parts)


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def checked(name: str) -> PurePosixPath:
    """Return a file name as a path relative to the cache; raise if it leads out of the cache.

    Raises:
        DamagedError: the path would lead out of the cache.

    >>> checked("hook_embed/00000.json").parts
    ('hook_embed', '00000.json')
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or re.search(r"[\\\0]", name):
        raise DamagedError(f"{name!r} is not a valid file name in a cache.")
    return path


def parse_array(
    content: bytes | mmap.mmap, header: bytes, array_header: ArrayHeader, path: Location
) -> FloatArray:
    """Return the array in the content of a file without copying; `path` is used in messages.

    Raises:
        DamagedError: the content has another header or size.
    """
    if content[: len(header)] != header or len(content) != len(header) + array_header.size:
        raise damaged(path, "it has the wrong size or header")
    values = np.frombuffer(content, DTYPES[array_header.dtype], offset=len(header))
    return values.reshape(array_header.shape)


def damaged(path: Location, why: str) -> DamagedError:
    """Return the error for a damaged file, with the command that repairs it."""
    return DamagedError(
        f"{path} is damaged: {why}. `probekit cache repair` removes it, and the next run computes "
        "it again."
    )


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


def default_root() -> Location:
    """Return the default cache root: $PROBEKIT_CACHE, or the user's cache folder.

    Raises:
        ConfigError: PROBEKIT_CACHE is a file, or one of its parents is.
        StoreError: the user has no home folder.
    """
    chosen = os.environ.get("PROBEKIT_CACHE")
    if not chosen:
        try:
            return user_cache_path("probekit") / "activations"
        except RuntimeError as error:
            raise StoreError(
                "No home folder for caches was found. Set PROBEKIT_CACHE or use --cache."
            ) from error
    place = as_place(chosen)
    if isinstance(place, Path):
        existing = next((path for path in (place, *place.parents) if path.exists()), None)
        if existing is not None and not existing.is_dir():
            raise ConfigError(
                f"PROBEKIT_CACHE is {place}, but {existing} is a file, not a folder. Set it to a "
                "new or existing folder, or use --cache."
            )
    return place
