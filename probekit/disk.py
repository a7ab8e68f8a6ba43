"""The calls on local files.

Nothing of a store touches the local disk but through a `Disk`, so that a test can put one in its
place that kills, fails or forgets at any of its calls.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import lock_descriptor

from probekit.errors import ConfigError, DataError, ProbekitError, StoreError

if sys.platform == "darwin":
    import fcntl

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_NO_LOCKS_ON_WINDOWS = (1, 50)  # ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED: some network drives
# Flags that not every system has. Windows needs O_BINARY, or it changes the ends of lines.
_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK = getattr(os, "O_NONBLOCK", 0)
_FOLDER = getattr(os, "O_DIRECTORY", None)  # None: a folder cannot be opened
_PAUSES = (0.02, 0.1, 0.5)  # seconds between attempts to replace a file that another program reads
# Where a page that is not in memory comes over a network, mapping it costs one trip for each.
_NETWORK = re.compile(r"nfs|cifs|smb|9p|fuse\.sshfs|ceph|lustre|glusterfs|beegfs|afs")


class Disk:
    """The operations on local files, each of them one call of the system or two.

    Attributes:
        pins_open_files: whether an open file can be neither renamed nor removed, and a locked one
            be read only through the descriptor that locked it. So it is on Windows.
    """

    pins_open_files = os.name == "nt"

    def make_folder(self, path: Path) -> None:
        """Make one folder; its parent must be there."""
        path.mkdir()

    def is_folder(self, path: Path) -> bool:
        """Return whether there is a folder."""
        return path.is_dir()

    def create(self, path: Path) -> int:
        """Return the descriptor of a new, empty file; fail if there is one already."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)

    def open(self, path: Path, *, for_lock: bool = False) -> int:
        """Open a regular file for reading, or for locking, and return its descriptor.

        Raises:
            OSError: the path is no regular file (EINVAL or ELOOP), or cannot be opened.
        """
        _refuse_link(path)
        # O_NONBLOCK: opening a FIFO would wait for its writer for ever.
        flags = _NO_FOLLOW | _NO_BLOCK | _BINARY
        try:
            # On NFS an exclusive lock needs a descriptor for writing.
            descriptor = os.open(path, (os.O_RDWR if for_lock else os.O_RDONLY) | flags)
        except PermissionError:
            if not for_lock:
                raise
            descriptor = os.open(path, os.O_RDONLY | flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file")
        return descriptor

    def open_lock(self, path: Path) -> int:
        """Open a lock file, created if it does not exist, and return its descriptor."""
        _refuse_link(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW | _BINARY, 0o644)

    def close(self, descriptor: int) -> None:
        """Let go of a file, and of the lock on it."""
        os.close(descriptor)

    def lock(self, descriptor: int, *, wait: bool) -> bool | None:
        """Lock a file exclusively and return whether it is now locked; None if that is impossible.

        The lock is the operating system's: `flock`, or `LockFileEx` on Windows. It is released when
        the descriptor is closed or the process dies. Other processes see it, and so do other
        machines if the network file system shares locks (docs/cluster.md).

        Args:
            descriptor: of the file.
            wait: whether to wait for another holder; otherwise return False.
        """
        try:
            return lock_descriptor(descriptor, blocking=wait)
        except OSError as error:
            is_unknown = getattr(error, "winerror", None) in _NO_LOCKS_ON_WINDOWS
            if error.errno in _NO_LOCKS or is_unknown:
                return None
            raise

    def is_named(self, descriptor: int) -> bool:
        """Return whether an open file still has a name."""
        return os.fstat(descriptor).st_nlink > 0

    def read(self, descriptor: int, size: int) -> bytes:
        """Return the next bytes of a file, at most `size` of them."""
        return os.read(descriptor, size)

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
        if sys.platform == "darwin":  # its fsync stops at the drive's cache
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Make the names in a folder survive a power loss.

        Windows cannot sync a folder; NTFS keeps a journal of names instead.
        """
        if _FOLDER is None:
            return
        descriptor = os.open(path, os.O_RDONLY | _FOLDER)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file atomically, replacing the file of that name.

        On Windows this fails while any program has the replaced file open, and virus scanners open
        every new file for a moment: it is tried again for half a second.
        """
        for pause in _PAUSES if self.pins_open_files else ():
            with contextlib.suppress(PermissionError):
                old.replace(new)
                return
            time.sleep(pause)
        old.replace(new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file one name more; fail if there is a file of that name."""
        if os.link in os.supports_follow_symlinks:
            os.link(old, new, follow_symlinks=False)
        else:
            os.link(old, new)

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


def is_on_network(folder: Path) -> bool:
    """Return whether a folder lies on a network file system, as far as the system tells.

    >>> is_on_network(Path("/"))
    False
    """
    with contextlib.suppress(OSError):
        if folder.resolve().drive.startswith("\\\\"):  # Windows: \\server\share
            return True
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        points = {line.split()[1]: line.split()[2] for line in mounts.splitlines()}
        path = folder.resolve()
        nearest = next((str(p) for p in (path, *path.parents) if str(p) in points), "")
        return _NETWORK.match(points.get(nearest, "")) is not None
    return False


def _refuse_link(path: Path) -> None:
    """Raise OSError if a path is a link or no regular file, where opening it would not."""
    if not _NO_FOLLOW:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")


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
def exclusive(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder for this process, made if it does not exist.

    The operating system releases the lock when the process ends, even if it is killed. A file
    system without locks lets every process in.

    Args:
        folder: gets a file `.lock`, which stays there.
        refusal: the message if another process holds the lock.

    Raises:
        ConfigError: Another process holds the lock.
        StoreError: The folder cannot be written.
    """
    disk = Disk()
    with told("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = disk.open_lock(folder / ".lock")
    try:
        with told("lock", folder):
            is_locked = disk.lock(descriptor, wait=False)
        if is_locked is False:
            raise ConfigError(refusal)
        yield
    finally:
        disk.close(descriptor)


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
