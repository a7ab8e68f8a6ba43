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
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from probekit.errors import ProbekitError, StoreError

_DRAFT = re.compile(r"\..+\.[0-9a-f]{16}")
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


def remove_abandoned(path: Path, disk: Disk, is_in_use: Callable[[], bool] = bool) -> bool:
    """Return whether a file was removed; False if its writer is alive, or it is in use.

    Args:
        path: of the file.
        disk: where it is.
        is_in_use: called when no writer holds the file any more, so that the answer stays true.

    Raises:
        StoreError: the file cannot be opened or removed.
    """
    with told("remove", path), contextlib.suppress(FileNotFoundError):
        descriptor = disk.open(path)
        try:
            is_left = disk.lock(descriptor, wait=False) and not is_in_use()
            # A writer of the same rows may have put its file in place of this one.
            if is_left and disk.is_named(descriptor):
                disk.remove(path)
                return True
        finally:
            disk.close(descriptor)
    return False


def sweep_drafts(paths: Iterable[Path]) -> list[Path]:
    """Return the drafts of dead writers among some paths; they are removed now.

    Drafts of living writers and all other files stay.
    """
    swept = []
    for path in paths:
        # What cannot be opened, such as a file of another user, is none of our drafts.
        with contextlib.suppress(StoreError):
            if _DRAFT.fullmatch(path.name) and remove_abandoned(path, Disk()):
                swept.append(path)
    return swept
