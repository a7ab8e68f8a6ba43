"""Local files: system calls, locks, atomic writes, and CSV files that are safe in a spreadsheet.

The activation store accesses the local disk only through a `Disk`, so that tests can substitute one
that kills the process, fails or loses writes at any call.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import mmap
import os
import platform
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from blake3 import blake3
from filelock import lock_descriptor

from probekit.errors import ConfigError, DataError, ProbekitError, StoreError

if TYPE_CHECKING:  # pandas takes long to import, and few files are tables
    import pandas as pd

if sys.platform == "darwin":
    import fcntl

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # errors of file systems without locks
_NO_LOCKS_ON_WINDOWS = (1, 50)  # ERROR_INVALID_FUNCTION, ERROR_NOT_SUPPORTED: some network drives
# Flags that some systems lack. Without O_BINARY, Windows translates line endings.
_BINARY = getattr(os, "O_BINARY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NO_BLOCK = getattr(os, "O_NONBLOCK", 0)
_FOLDER = getattr(os, "O_DIRECTORY", None)  # None: a folder cannot be opened
WAITED = 10.0  # seconds after which the holder of a lock is reported
_SIGNATURE, _SINCE = 160, " since "  # length of a signature; what its time follows
_UNSIGNED = "process PID of another user or machine since an unknown time"
_STOPPED = (
    "If it is stopped, continue it on its machine with `kill -CONT {0}`, or end it with "
    "`kill -KILL {0}`"
)
_PAUSES = (0.02, 0.1, 0.5)  # seconds between attempts to replace a file that is open elsewhere
# On network file systems each page fault of a memory map costs one round trip.
_NETWORK = re.compile(r"nfs|cifs|smb|9p|fuse\.sshfs|ceph|lustre|glusterfs|beegfs|afs")
_DRAFT = re.compile(r"\..+\.[0-9a-f]{16}")  # name of a temporary file; see `Draft`
# A spreadsheet evaluates a cell that begins with such a character as a formula, which may start
# programs. Such texts are written with a leading single quote, as OWASP recommends, and one more
# if they have quotes before it already, so that `parse_csv` restores every text. Numbers are
# written unchanged. The last four are full-width forms, which some spreadsheets treat like the
# first four.
_FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_TO_QUOTE = re.compile(f"'*{_FORMULA}")
_QUOTED = re.compile(f"'+{_FORMULA}")
_NUMBERS: Any = ["number", "bool", "boolean"]  # types of columns without texts


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
        except OSError as error:
            if not for_lock or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
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

    def lock(self, descriptor: int) -> bool | None:
        """Try to lock a file and return whether this succeeded; None if locks are unsupported.

        This is a lock of the operating system: `flock`, or `LockFileEx` on Windows. It is released
        when the descriptor is closed or the process dies. Other processes see it; other machines
        see it if the network file system supports shared locks (docs/howto/cluster.md).
        """
        try:
            return lock_descriptor(descriptor, blocking=False)
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
        options = {"follow_symlinks": False} if os.link in os.supports_follow_symlinks else {}
        os.link(old, new, **options)

    def remove(self, path: Path) -> None:
        """Remove a directory entry of a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def list(self, folder: Path) -> dict[str, os.stat_result]:
        """Return the status of each entry of a folder, by name; links are not followed."""
        status_of = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    status_of[entry.name] = entry.stat(follow_symlinks=False)
        return status_of


def _refuse_link(path: Path) -> None:
    """Raise OSError for links and special files, on systems without O_NOFOLLOW."""
    if not _NO_FOLLOW:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OSError(errno.EINVAL, "not a regular file")


def is_on_network(folder: Path) -> bool:
    """Return whether a folder is on a network file system; False if this cannot be determined.

    >>> is_on_network(Path("/"))
    False
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: a loop of links
        if folder.resolve().drive.startswith("\\\\"):  # Windows: \\server\share
            return True
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        # A line is device, mount point, type, ...
        type_of = dict(line.split()[1:3] for line in mounts.splitlines())
        path = folder.resolve()
        inner_to_outer = map(str, (path, *path.parents))
        mount_point = next((name for name in inner_to_outer if name in type_of), "")
        return _NETWORK.match(type_of.get(mount_point, "")) is not None
    return False


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
    target = Path(os.path.realpath(path))  # `resolve` fails at a loop of links, in some versions
    if os.path.islink(target):  # noqa: PTH114  # False for a name that is too long
        raise DataError(f"{path} is a link that cannot be followed. Replace it with the file.")
    if not target.is_relative_to(root.resolve()):
        raise DataError(
            f"{path} leads out of {root}, to {target}. Files of a run are read only from its own "
            "folder. Replace the link with the file if you trust its target."
        )
    if os.path.exists(target) and not (target.is_file() or target.is_dir()):  # noqa: PTH110
        raise DataError(f"{path} is a pipe or a device. Replace it with a regular file.")
    return path


@contextlib.contextmanager
def exclusive(folder: Path, what: str) -> Iterator[None]:
    """Lock a folder for this process during the block; create it if it does not exist.

    The operating system releases the lock when the process ends, even if it is killed. On a file
    system without locks, nothing is locked and no process is refused.

    Args:
        folder: the folder; its lock file `.lock` is never removed.
        what: what runs in it, for the message, such as "experiment".

    Raises:
        ConfigError: another process holds the lock.
        StoreError: the folder cannot be written or locked.
    """
    with try_lock(folder / ".lock", patience=_PAUSES[0]) as is_locked:
        if is_locked is False:  # None: the file system has no locks
            process = holder_of(folder) or _UNSIGNED
            raise ConfigError(
                f"Another process is running this {what} in {folder}: {process}. Wait for it to "
                "end: the same command then reuses its results. Or give another --out. "
                f"{_STOPPED.format(process.split()[1])}."
            )
        yield


@contextlib.contextmanager
def try_lock(path: Path, patience: float = 0.0) -> Iterator[bool | None]:
    """Try to lock a file for this process during the block, and yield whether this succeeded.

    None means that the file system has no locks. The file is created if it does not exist, and not
    removed. The operating system releases the lock when the process ends, even if it is killed.

    Args:
        path: the file.
        patience: seconds after which a lock that is held is tried once more, because `is_held` of
            another process has it for a moment.

    Raises:
        StoreError: the file cannot be written or locked.
    """
    disk = Disk()
    with as_store_error("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = disk.open_lock(path)
    try:
        with as_store_error("lock", path):
            is_locked = disk.lock(descriptor)
            if is_locked is False and patience:
                time.sleep(patience)
                is_locked = disk.lock(descriptor)
            if is_locked:
                sign(disk, descriptor)
        yield is_locked
    finally:
        disk.close(descriptor)


def signature() -> str:
    """Return this process, its machine and the time, as a line of text in a lock file."""
    now = datetime.now().astimezone().isoformat(" ", "seconds")
    return f"process {os.getpid()} on {platform.node()}{_SINCE}{now}"


def sign(disk: Disk, descriptor: int) -> None:
    """Write the signature of this process into a lock file that it has locked and just opened."""
    with contextlib.suppress(OSError):  # such as a full disk, which must not prevent a cleanup
        # Of one width, because it overwrites that of the last holder.
        disk.write(descriptor, memoryview(f"{signature():<{_SIGNATURE}}\n".encode()))


def holder_of(folder: Path, name: str = ".lock") -> str:
    """Return the signature of the process that holds the lock of a folder; "" if nobody does.

    A lock file that cannot be opened, such as a link, is held by nobody. On a file system without
    locks, every lock file counts as held. `name` is its name.
    """
    disk, text = Disk(), b""
    try:
        descriptor = disk.open(folder / name, for_lock=True)
    except OSError:
        return ""
    try:
        if disk.lock(descriptor):
            return ""
        with contextlib.suppress(OSError):  # Windows lets only the holder read it
            text = disk.read(descriptor, _SIGNATURE)
    finally:
        disk.close(descriptor)
    return text.decode(errors="replace").strip() or _UNSIGNED


def is_held(folder: Path, name: str = ".lock") -> bool:
    """Return whether a process holds the lock of a folder; see `holder_of`."""
    return holder_of(folder, name) != ""


class Waiting:
    """Reports which processes this one waits for, and how to continue without them.

    A process that is stopped (Ctrl-Z, SIGSTOP) keeps its locks.

    Args:
        place: what is locked, for the messages.
        tell: receives a message about each process that has held a lock for `WAITED` seconds.
    """

    def __init__(self, place: object, tell: Callable[[str], None]) -> None:
        self._place, self._tell = place, tell
        self._before: set[str] = set()  # signatures at the last look
        self._told = {"", signature().partition(_SINCE)[0]}  # processes that are not reported
        self._next = 0.0  # time of the next look: not more often, because each lock costs calls

    def look(self, holders: Iterable[str]) -> None:
        """Report the processes that have held a lock for long; call it often while waiting.

        `holders` yields the signatures of the processes that hold the locks now.
        """
        if time.monotonic() < self._next:
            return
        self._next, held = time.monotonic() + WAITED, set(holders)
        for process, _, since in (one.partition(_SINCE) for one in sorted(held & self._before)):
            if process not in self._told:
                self._told.add(process)
                self._tell(
                    f"waiting for {process}, which has locked {self._place} since {since}. "
                    f"{_STOPPED.format(process.split()[1])}: other processes then do its work"
                )
        self._before = held


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
    except ProbekitError:  # such as a StoreError, which is an OSError with a complete message
        raise
    except OSError as error:
        raise StoreError(f"Cannot {action} {path}: {error.strerror or error}.{advice}") from error


def regular(path: Path) -> Path:
    """Return the path of a regular file unchanged; opening a named pipe could block for ever.

    Raises:
        OSError: it is a folder, a named pipe, a socket or a device, or cannot be opened; with a
            reason in plain words.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # NUL, or a lone surrogate
        raise OSError(errno.EINVAL, f"its name is not valid ({error})", str(path)) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(mode):
        raise OSError(
            errno.EINVAL, "it is a named pipe, a socket or a device, not a file", str(path)
        )
    return path


def state_of(path: Path) -> tuple[int, int, int]:
    """Return values of a regular file that differ after it has changed or was replaced."""
    found = regular(path).stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def why_unreadable(error: Exception) -> str:
    """Return the reason of an error of reading a file, in plain words and without a path."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Only the first line: NumPy's second one recommends to allow pickle.
    return (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300].rstrip(". ")


class Draft:
    """A file that is written under a temporary name and renamed when it is complete.

    The file stays locked while it is open, so that a cleanup can distinguish drafts of live writers
    from those of killed ones. Leaving the `with` block removes a draft that was not renamed.

    Args:
        disk: file operations.
        path: final path; the temporary file is created in the same folder.

    Attributes:
        temporary: path of the temporary file.
        size: bytes written so far.

    Raises:
        StoreError: the disk is full, the folder is not writable, ...
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._hasher = blake3()
        self.size = 0
        self._descriptor: int | None  # None once it is closed
        with self._store_errors():
            self.temporary, self._descriptor = self._create()

    def _create(self) -> tuple[Path, int]:
        """Create and lock the temporary file; return its path and descriptor."""
        while True:
            temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
            descriptor = self._disk.create(temporary)
            with contextlib.ExitStack() as undo:
                undo.callback(self._drop, temporary, descriptor)
                # A cleanup may have locked and removed it before this process held the lock.
                if self._disk.lock(descriptor) is not False and self._disk.is_named(descriptor):
                    undo.pop_all()  # keep the file
                    return temporary, descriptor

    @property
    def digest(self) -> str:
        """BLAKE3 digest of the bytes written so far, in hexadecimal."""
        return self._hasher.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append all of `data`."""
        assert self._descriptor is not None
        rest = memoryview(data).cast("B")
        self._hasher.update(rest)
        self.size += len(rest)
        with self._store_errors():
            while rest:
                rest = rest[self._disk.write(self._descriptor, rest) :]

    def release(self) -> None:
        """On Windows, close the file so that it can be renamed, removed and read by others.

        This releases its lock. On other systems the file stays open and locked until the end.
        """
        if self._disk.pins_open_files and self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with self._store_errors():
                self._disk.close(descriptor)

    def rename(self, path: Path) -> None:
        """Sync the file and rename it to `path`, replacing an existing file."""
        self._sync()
        self.release()
        with self._store_errors():
            self._disk.rename(self.temporary, path)
            self._disk.sync_folder(path.parent)

    def link(self, path: Path, *, keep_locked: bool = False) -> bool:
        """Sync the file and link it to `path`; return False if that name exists.

        Args:
            path: the final name.
            keep_locked: whether the file stays locked on Windows, where a locked file cannot be
                read by other processes. On other systems it stays locked in any case.
        """
        self._sync()
        if not keep_locked:
            self.release()
        with self._store_errors():
            try:
                self._disk.link(self.temporary, path)
            except FileExistsError:
                return False
            self._disk.sync_folder(path.parent)
        return True

    def _sync(self) -> None:
        """Flush the file to the device, unless it is closed already."""
        if self._descriptor is not None:
            with self._store_errors():
                self._disk.sync(self._descriptor)

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._drop(self.temporary, self._descriptor)

    def _drop(self, temporary: Path, descriptor: int | None) -> None:
        """Close and remove a temporary file, in the order that the system needs."""
        remove = partial(self._disk.remove, temporary)
        close = [] if descriptor is None else [partial(self._disk.close, descriptor)]
        # Windows removes only a closed file; elsewhere the lock is held until the file is removed.
        for step in [*close, remove] if self._disk.pins_open_files else [remove, *close]:
            # A file that cannot be removed now is swept later; the original error matters more.
            with contextlib.suppress(OSError):
                step()

    def _store_errors(self) -> contextlib.AbstractContextManager[None]:
        return as_store_error("write", self._path, " An existing file there is unchanged.")


def remove_abandoned(path: Path, disk: Disk, is_in_use: Callable[[], bool] = bool) -> bool:
    """Remove a file unless it is in use, and return whether it was removed.

    Args:
        path: the file.
        disk: file operations.
        is_in_use: returns whether the file is needed; `bool` returns False. It is called while this
            process holds the lock of the file, so that the answer cannot become outdated.

    Raises:
        StoreError: the file cannot be opened or removed.
    """
    with as_store_error("remove", path), contextlib.suppress(FileNotFoundError):
        descriptor = disk.open(path, for_lock=True)
        try:
            # Without locks, where `lock` returns None, every file counts as in use.
            is_abandoned = disk.lock(descriptor) and not is_in_use()
            # Another writer of the same rows may have replaced this file.
            if not is_abandoned or not disk.is_named(descriptor):
                return False
            if not disk.pins_open_files:
                disk.remove(path)
        finally:
            disk.close(descriptor)
        if disk.pins_open_files:  # Windows removes only a closed file
            try:
                disk.remove(path)
            except PermissionError:  # another program has it open
                return False
        return True
    return False  # there is no such file


def sweep_drafts(paths: Iterable[Path]) -> list[Path]:
    """Remove those of the given files that are drafts of dead writers; return the removed paths.

    Drafts of live writers and all other files are kept.
    """
    swept = []
    for path in paths:
        # A file that cannot be opened, such as another user's, is not one of our drafts.
        with contextlib.suppress(StoreError):
            if _DRAFT.fullmatch(path.name) and remove_abandoned(path, Disk()):
                swept.append(path)
    return swept


def write_atomic(path: Path, content: bytes | str | Iterable[bytes | memoryview]) -> str:
    """Write a file atomically, sync it, and return the digest of its content.

    Args:
        path: the file; missing parent folders are created.
        content: text (encoded as UTF-8), bytes, or an iterable of chunks if it does not fit in
            memory.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "result.txt"
    >>> digest = write_atomic(path, "done")
    >>> path.read_text()
    'done'

    Raises:
        StoreError: the disk is full, the folder is not writable, ...; no partial file remains.
    """
    encoded = content.encode() if isinstance(content, str) else content
    with as_store_error("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with Draft(Disk(), path) as draft:
        for chunk in [encoded] if isinstance(encoded, bytes) else encoded:
            draft.write(chunk)
        draft.rename(path)
        return draft.digest


def quoted(cell: Any) -> Any:
    """Add a leading quote to a text that looks like a formula; return other cells unchanged.

    >>> quoted("=1+1"), quoted("-1"), quoted(-1), quoted("'-1"), quoted("it's"), quoted("'tis")
    ("'=1+1", "'-1", -1, "''-1", "it's", "'tis")
    """
    return f"'{cell}" if isinstance(cell, str) and _TO_QUOTE.match(cell) else cell


def unquoted(cell: Any) -> Any:
    """Remove the leading quote that `quoted` added to a text; return other cells unchanged.

    >>> unquoted("'=1+1"), unquoted("'-1"), unquoted("''-1"), unquoted("'tis")
    ('=1+1', '-1', "'-1", "'tis")
    """
    return cell[1:] if isinstance(cell, str) and _QUOTED.match(cell) else cell


def csv_text(table: pd.DataFrame) -> str:
    r"""Return a table as CSV text without its index; texts that look like formulas are quoted.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"label": ["-1", "a"], "score": [-1.5, None]}))
    "label,score\n'-1,-1.5\na,\n"
    """
    safe = _mapped(table, quoted)
    texts = [*safe.columns, *safe.select_dtypes(exclude=_NUMBERS).to_numpy().flat]
    # The csv module does not quote a lone carriage return, and readers end the row there.
    has_return = any(isinstance(text, str) and "\r" in text for text in texts)
    quoting: Any = csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL
    return safe.to_csv(index=False, lineterminator="\n", quoting=quoting)


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Return the table in a CSV file of a run folder, with the quotes of `csv_text` removed.

    Args:
        path: the file. A link that leads out of its folder is an error.
        options: keyword arguments of `pandas.read_csv`.

    Raises:
        DataError: the file is a link out of its folder, or not a regular file.
        OSError, ValueError: the file cannot be read or parsed.
    """
    return parse_csv(inside(path).read_bytes(), **options)


def parse_csv(content: bytes, **options: Any) -> pd.DataFrame:
    """Return the table in the bytes of a CSV file, with the quotes of `csv_text` removed.

    >>> import pandas as pd
    >>> parse_csv(csv_text(pd.DataFrame({"=label": ["-1"]})).encode()).to_dict("list")
    {'=label': ['-1']}
    """
    import pandas as pd

    return _mapped(pd.read_csv(BytesIO(content), **options), unquoted)


def _mapped(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """Return a table with `change` applied to all texts, column names included."""
    import pandas as pd

    texts = {  # `Series.map` would infer a new dtype and turn integers next to None into floats
        name: pd.Series([change(cell) for cell in column.tolist()], column.index, column.dtype)
        for name, column in table.select_dtypes(exclude=_NUMBERS).items()
    }
    columns = {change(name): texts.get(name, column) for name, column in table.items()}
    return pd.DataFrame(columns, index=table.index)
