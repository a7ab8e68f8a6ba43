"""System calls on local files.

The activation store accesses the local disk only through a `Disk`, so that tests can substitute one
that kills the process, fails or loses writes at any call.
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
# Flags that some systems lack. Without O_BINARY, Windows translates line endings.
_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK = getattr(os, "O_NONBLOCK", 0)
_FOLDER = getattr(os, "O_DIRECTORY", None)  # None: a folder cannot be opened
_PAUSES = (0.02, 0.1, 0.5)  # seconds between attempts to replace a file that is open elsewhere
# On network file systems each page fault of a memory map costs one round trip.
_NETWORK = re.compile(r"nfs|cifs|smb|9p|fuse\.sshfs|ceph|lustre|glusterfs|beegfs|afs")


class Disk:
    """Operations on local files; each makes one or two system calls.

    Attributes:
        pins_open_files: whether the system refuses to rename or remove an open file, and lets a
            locked file be read only through the descriptor that holds the lock. True on Windows.
    """

    pins_open_files = os.name == "nt"

    def make_folder(self, path: Path) -> None:
        """Create a folder whose parent exists."""
        path.mkdir()

    def is_folder(self, path: Path) -> bool:
        """Return whether the path is a folder."""
        return path.is_dir()

    def create(self, path: Path) -> int:
        """Create an empty file and return its descriptor; fails if the file exists."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)

    def open(self, path: Path, *, for_lock: bool = False) -> int:
        """Open a regular file for reading or locking and return its descriptor.

        Raises:
            OSError: the path is not a regular file (EINVAL or ELOOP), or cannot be opened.
        """
        _refuse_link(path)
        # Without O_NONBLOCK, opening a FIFO blocks until a writer opens it.
        flags = _NO_FOLLOW | _NO_BLOCK | _BINARY
        try:
            # NFS grants an exclusive lock only on a descriptor opened for writing.
            descriptor = os.open(path, (os.O_RDWR if for_lock else os.O_RDONLY) | flags)
        except PermissionError:
            if not for_lock:
                raise
            descriptor = os.open(path, os.O_RDONLY | flags)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        return descriptor

    def open_lock(self, path: Path) -> int:
        """Open a lock file, create it if necessary, and return its descriptor."""
        _refuse_link(path)
        return os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW | _BINARY, 0o644)

    def close(self, descriptor: int) -> None:
        """Close a file and release its lock."""
        os.close(descriptor)

    def lock(self, descriptor: int, *, wait: bool) -> bool | None:
        """Lock a file exclusively and return whether this succeeded; None if locks are unsupported.

        This is a lock of the operating system: `flock`, or `LockFileEx` on Windows. It is released
        when the descriptor is closed or the process dies. Other processes see it; other machines
        see it if the network file system supports shared locks (docs/howto/cluster.md).

        Args:
            descriptor: the open file.
            wait: whether to block while another process holds the lock; otherwise return False.
        """
        try:
            return lock_descriptor(descriptor, blocking=wait)
        except OSError as error:
            is_unsupported = getattr(error, "winerror", None) in _NO_LOCKS_ON_WINDOWS
            if error.errno in _NO_LOCKS or is_unsupported:
                return None
            raise

    def is_named(self, descriptor: int) -> bool:
        """Return whether an open file still has a directory entry."""
        return os.fstat(descriptor).st_nlink > 0

    def read(self, descriptor: int, size: int) -> bytes:
        """Read up to `size` bytes from the current position; empty at the end of the file."""
        return os.read(descriptor, size)

    def map(self, descriptor: int, size: int) -> mmap.mmap:
        """Memory-map the first `size` bytes of a file for reading."""
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)

    def size(self, descriptor: int) -> int:
        """Return the size of a file in bytes."""
        return os.fstat(descriptor).st_size

    def write(self, descriptor: int, data: memoryview) -> int:
        """Append data and return the number of bytes written, which may be less than given."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Flush a file to the device, so that its content survives a power loss."""
        if sys.platform == "darwin":  # fsync does not flush the drive's cache there
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fsync(descriptor)

    def sync_folder(self, path: Path) -> None:
        """Flush the entries of a folder to the device, so that they survive a power loss.

        Does nothing on Windows, which cannot sync a folder; NTFS journals them.
        """
        if _FOLDER is None:
            return
        descriptor = os.open(path, os.O_RDONLY | _FOLDER)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file atomically; an existing file of the new name is replaced.

        On Windows this fails while any program has the replaced file open, as virus scanners do
        briefly with every new file. The rename is retried for about half a second.
        """
        for pause in _PAUSES if self.pins_open_files else ():
            with contextlib.suppress(PermissionError):
                old.replace(new)
                return
            time.sleep(pause)
        old.replace(new)

    def link(self, old: Path, new: Path) -> None:
        """Create a hard link; fails if the new name exists."""
        if os.link in os.supports_follow_symlinks:
            os.link(old, new, follow_symlinks=False)
        else:
            os.link(old, new)

    def remove(self, path: Path) -> None:
        """Remove a directory entry of a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def list(self, folder: Path) -> dict[str, os.stat_result]:
        """Return the status of each entry of a folder, by name; links are not followed."""
        entries_by_name = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    entries_by_name[entry.name] = entry.stat(follow_symlinks=False)
        return entries_by_name


def is_on_network(folder: Path) -> bool:
    """Return whether a folder is on a network file system; False if this cannot be determined.

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
    """Raise OSError for links and special files, on systems without O_NOFOLLOW."""
    if not _NO_FOLLOW:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OSError(errno.EINVAL, "not a regular file")


def inside(path: Path, root: Path | None = None) -> Path:
    """Return a path unchanged if it is inside a folder after links are resolved.

    A run folder received from someone else may contain a link to a private file of this user. Its
    content would then appear on a page. Every file of a run is therefore read through this
    function.

    Args:
        path: file or folder; it need not exist.
        root: the folder; None for the parent of `path`.

    Raises:
        DataError: the path resolves to a place outside the folder, forms a loop of links, or is
            a pipe or device.
    """
    root = path.parent if root is None else root
    try:
        target = path.resolve()
        # Before Python 3.13 a loop of links is a RuntimeError; since then it stays in the path.
        is_loop = target.is_symlink()
    except (RuntimeError, OSError):
        is_loop = True
    if is_loop:
        raise DataError(f"{path} is a link that cannot be followed. Replace it with the file.")
    if not target.is_relative_to(root.resolve()):
        raise DataError(
            f"{path} leads out of {root}, to {target}. Files of a run are read only from its own "
            "folder. Replace the link with the file if you trust its target."
        )
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise DataError(f"{path} is a pipe or a device. Replace it with a regular file.")
    return path


@contextlib.contextmanager
def exclusive(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder for this process during the block; create it if it does not exist.

    The operating system releases the lock when the process ends, even if it is killed. On a file
    system without locks, nothing is locked and no process is refused.

    Args:
        folder: the folder; its lock file `.lock` is never removed.
        refusal: the message if another process holds the lock.

    Raises:
        ConfigError: another process holds the lock.
        StoreError: the folder cannot be written.
    """
    disk = Disk()
    with as_store_error("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = disk.open_lock(folder / ".lock")
    try:
        with as_store_error("lock", folder):
            is_locked = disk.lock(descriptor, wait=False)
        if is_locked is False:
            raise ConfigError(refusal)
        yield
    finally:
        disk.close(descriptor)


@contextlib.contextmanager
def as_store_error(action: str, path: Path | str, advice: str = "") -> Iterator[None]:
    """Convert OSError to a StoreError that names the failed action and the path.

    Args:
        action: verb that completes "Cannot ... PATH".
        path: the file or folder, for the message.
        advice: text appended to the message; begins with a space.

    >>> with as_store_error("read", "x.json"):
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
        raise StoreError(f"Cannot {action} {path}: {error.strerror or error}.{advice}") from error


def why_unreadable(error: Exception) -> str:
    """Return the reason of an error of reading a file, in plain words and without a path."""
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).strip().rstrip(".")
