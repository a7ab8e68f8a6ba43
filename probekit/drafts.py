"""Atomic file writes: drafts under a temporary name, renamed when complete."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from probekit.disk import Disk, as_store_error
from probekit.errors import StoreError

_DRAFT = re.compile(r"\..+\.[0-9a-f]{16}")


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
        while True:
            temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
            descriptor = self._disk.create(temporary)
            with contextlib.ExitStack() as undo:
                undo.callback(self._drop, temporary, descriptor)
                self._disk.lock(descriptor, wait=True)
                if self._disk.is_named(
                    descriptor
                ):  # not removed by a cleanup before we held the lock
                    undo.pop_all()
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
        steps = [partial(self._disk.remove, temporary)]
        if descriptor is not None:
            steps.insert(
                0 if self._disk.pins_open_files else 1, partial(self._disk.close, descriptor)
            )
        for step in steps:
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
        is_in_use: returns whether the file is needed. It is called while this process holds the
            lock of the file, so that the answer cannot become outdated.

    Raises:
        StoreError: the file cannot be opened or removed.
    """
    with as_store_error("remove", path), contextlib.suppress(FileNotFoundError):
        descriptor = disk.open(path, for_lock=True)
        try:
            is_abandoned = disk.lock(descriptor, wait=False) and not is_in_use()
            # Another writer of the same rows may have replaced this file.
            if not is_abandoned or not disk.is_named(descriptor):
                return False
            if not disk.pins_open_files:
                disk.remove(path)
        finally:
            disk.close(descriptor)
        return not disk.pins_open_files or _removed(path, disk)
    return False


def _removed(path: Path, disk: Disk) -> bool:
    """Remove a file; return False if Windows refuses because another program has it open."""
    with contextlib.suppress(PermissionError):
        disk.remove(path)
        return True
    return False


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
    text = content.encode() if isinstance(content, str) else content
    with as_store_error("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with Draft(Disk(), path) as draft:
        for part in [text] if isinstance(text, bytes) else text:
            draft.write(part)
        draft.rename(path)
        return draft.digest
