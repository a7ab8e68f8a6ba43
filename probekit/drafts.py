"""Files that appear whole or not at all: drafts under a temporary name, renamed when complete."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from probekit.disk import Disk, told
from probekit.errors import StoreError

_DRAFT = re.compile(r"\..+\.[0-9a-f]{16}")


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
        self._descriptor: int | None  # None once it is closed
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
        assert self._descriptor is not None
        rest = memoryview(data).cast("B")
        self._hasher.update(rest)
        self.size += len(rest)
        with self._told():
            while rest:
                rest = rest[self._disk.write(self._descriptor, rest) :]

    def release(self) -> None:
        """On Windows, close the file so that it can be renamed, removed and read by others.

        Its lock is lost with that. Elsewhere it stays open and locked until the block ends.
        """
        if self._disk.pins_open_files and self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with self._told():
                self._disk.close(descriptor)

    def rename(self, path: Path) -> None:
        """Put the file where it belongs, in place of what is there; then it survives anything."""
        self._sync()
        self.release()
        with self._told():
            self._disk.rename(self.temporary, path)
            self._disk.sync_folder(path.parent)

    def link(self, path: Path, *, stays_locked: bool = False) -> bool:
        """Give the file its name unless another file has it, and return whether it was free.

        Args:
            path: the name.
            stays_locked: whether the lock matters more than that others can read the file.
        """
        self._sync()
        if not stays_locked:
            self.release()
        with self._told():
            try:
                self._disk.link(self.temporary, path)
            except FileExistsError:
                return False
            self._disk.sync_folder(path.parent)
        return True

    def _sync(self) -> None:
        if self._descriptor is not None:
            with self._told():
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
            # What cannot be removed now is swept later; the error that led here says more.
            with contextlib.suppress(OSError):
                step()

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
        descriptor = disk.open(path, for_lock=True)
        try:
            is_left = disk.lock(descriptor, wait=False) and not is_in_use()
            # A writer of the same rows may have put its file in place of this one.
            if not is_left or not disk.is_named(descriptor):
                return False
            if not disk.pins_open_files:
                disk.remove(path)
        finally:
            disk.close(descriptor)
        return not disk.pins_open_files or _removed(path, disk)
    return False


def _removed(path: Path, disk: Disk) -> bool:
    """Remove a file and return True; False if a program has opened it in the meantime."""
    with contextlib.suppress(PermissionError):
        disk.remove(path)
        return True
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
