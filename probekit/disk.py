"""Files that appear whole or not at all: the calls on local files, and drafts of new ones.

Nothing of a store touches the local disk but through a `Disk`, so that a test can put one in its
place that kills, fails or forgets at any of its calls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from probekit.errors import DataError, ProbekitError, StoreError

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class Disk:
    """The operations on local files, each of them one call of the system or two."""

    def make_folder(self, path: Path) -> None:
        """Make one folder; its parent must be there."""
        path.mkdir()

    def is_folder(self, path: Path) -> bool:
        """Return whether there is a folder."""
        return path.is_dir()

    def create(self, path: Path) -> int:
        """Return the descriptor of a new, empty file; fail if there is one already."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: Path) -> int:
        """Return the descriptor of a file for reading; refuse whatever is no regular file."""
        # A FIFO would wait for its writer for ever, and a link may lead anywhere.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file")
        return descriptor

    def open_lock(self, path: Path) -> int:
        """Return the descriptor of a file that is there to be locked, made if it is not there."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def close(self, descriptor: int) -> None:
        """Let go of a file, and of the lock on it."""
        os.close(descriptor)

    def lock(self, descriptor: int, *, wait: bool) -> bool | None:
        """Return whether a file is now locked by us; a kill of the process lets it go.

        None: this file system has no locks.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
        return True

    def is_named(self, descriptor: int) -> bool:
        """Return whether an open file still has a name."""
        return os.fstat(descriptor).st_nlink > 0

    def read(self, descriptor: int, size: int, start: int = 0) -> bytes:
        """Return at most `size` bytes of a file."""
        return os.pread(descriptor, size, start)

    def map(self, descriptor: int, size: int) -> mmap.mmap:
        """Return the first bytes of a file, read when they are looked at."""
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)

    def size(self, descriptor: int) -> int:
        """Return how many bytes a file has."""
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, data: memoryview) -> int:
        """Return how many bytes were appended, which may be fewer than were given."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Make what was written survive a power loss."""
        full = getattr(fcntl, "F_FULLFSYNC", None)  # macOS, whose fsync stops at the drive's cache
        if full is None:
            os.fsync(descriptor)
        else:
            fcntl.fcntl(descriptor, full)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder survive a power loss."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file its new name, at once and in place of the file that has it."""
        old.replace(new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file one name more; fail if there is a file of that name."""
        os.link(old, new, follow_symlinks=False)

    def remove(self, path: Path) -> None:
        """Remove a name."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def list(self, folder: Path) -> dict[str, os.stat_result]:
        """Return what stands in a folder by name, links not followed."""
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found[entry.name] = entry.stat(follow_symlinks=False)
        return found


def inside(path: Path, root: Path | None = None) -> Path:
    """Return a path unchanged if it lies in a folder after its links are followed.

    A run of somebody else may hold a link to any file of the reader, whose contents would become
    part of a page. Whatever is read from a run passes through here.

    Args:
        path: of a file or folder, which need not exist.
        root: the folder; None for the parent of `path`.

    Raises:
        DataError: It leads out of the folder, in a circle, or to a pipe or device.
    """
    root = path.parent if root is None else root
    try:
        target = path.resolve()
        # Before Python 3.13 a circle is a RuntimeError; since then it stays in the path.
        is_circle = target.is_symlink()
    except (RuntimeError, OSError):
        is_circle = True
    if is_circle:
        raise DataError(f"{path} is a link that cannot be followed. Replace it by the file.")
    if not target.is_relative_to(root.resolve()):
        raise DataError(
            f"{path} leads out of {root}, to {target}. What belongs to a run is read from its own "
            "folder only. Replace the link by the file if you trust where it leads."
        )
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise DataError(f"{path} is a pipe or a device. Replace it by a regular file.")
    return path


@contextlib.contextmanager
def told(doing: str, path: Path | str, advice: str = "") -> Iterator[None]:
    """Turn the system's errors into a StoreError that says what could not be done to what.

    >>> with told("read", "x.json"):
    ...     raise OSError(errno.EIO, "Input/output error")
    Traceback (most recent call last):
        ...
    probekit.errors.StoreError: Cannot read x.json: Input/output error.
    """
    try:
        yield
    except ProbekitError:
        raise
    except OSError as error:
        raise StoreError(f"Cannot {doing} {path}: {error.strerror or error}.{advice}") from error


class Draft:
    """A file that is being written under a temporary name, until it gets its own.

    It is locked while it is open, so that whoever sweeps the leftovers of killed writers knows the
    living. Leaving the `with` block removes what got no name.

    Args:
        disk: where it is written.
        path: where it is meant to go; the temporary name stands beside it.

    Attributes:
        temporary: where it is until it gets its name.
        size: bytes written.

    Raises:
        StoreError: the disk is full, the folder cannot be written, ...
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._hasher = blake3()
        self.size = 0
        with self._told():
            self.temporary, self._descriptor = self._create()

    def _create(self) -> tuple[Path, int]:
        while True:
            temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
            descriptor = self._disk.create(temporary)
            with contextlib.ExitStack() as undo:
                undo.callback(self._drop, temporary, descriptor)
                self._disk.lock(descriptor, wait=True)
                if self._disk.is_named(descriptor):  # no sweep was faster than our lock
                    undo.pop_all()
                    return temporary, descriptor

    @property
    def digest(self) -> str:
        """The BLAKE3 digest of what was written, in hexadecimal."""
        return self._hasher.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append all of `data`."""
        rest = memoryview(data).cast("B")
        self._hasher.update(rest)
        self.size += len(rest)
        with self._told():
            while rest:
                rest = rest[self._disk.write(self._descriptor, rest) :]

    def rename(self, path: Path) -> None:
        """Put the file where it belongs, in place of what is there; then it survives anything."""
        with self._told():
            self._disk.sync(self._descriptor)
            self._disk.rename(self.temporary, path)
            self._disk.sync_folder(path.parent)

    def link(self, path: Path) -> bool:
        """Return whether the file went where it belongs; False, if another one was there before."""
        with self._told():
            self._disk.sync(self._descriptor)
            try:
                self._disk.link(self.temporary, path)
            except FileExistsError:
                return False
            self._disk.sync_folder(path.parent)
        return True

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._drop(self.temporary, self._descriptor)

    def _drop(self, temporary: Path, descriptor: int) -> None:
        # What cannot be removed now is swept later; the error that led here says more.
        with contextlib.suppress(OSError):
            self._disk.remove(temporary)
        with contextlib.suppress(OSError):
            self._disk.close(descriptor)

    def _told(self) -> contextlib.AbstractContextManager[None]:
        return told("write", self._path, " What is there stays valid.")
