"""The files of one cache, by name: in a folder of this machine, or wherever `remote.py` reaches."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from probekit.activations.store.layout import DTYPES, ArrayHeader, FloatArray
from probekit.disk import Disk, Draft, told
from probekit.errors import DamagedError, MissingError, StoreError

Location = Path | str  # a folder, or the URL of an object store

LOCK = ".lock"
CHUNK = 1 << 22
# Where a page that is not in memory comes over a network, mapping it costs one trip for each.
_NETWORK = re.compile(r"nfs|cifs|smb|9p|fuse\.sshfs|ceph|lustre|glusterfs|beegfs|afs")


class Files(Protocol):
    """What a store needs of the place where it lies; names have `/` between folder and file."""

    @property
    def place(self) -> Location:
        """The folder or URL."""

    @property
    def is_mapped(self) -> bool:
        """Whether arrays are read when they are looked at, so that keeping one costs no memory."""

    @property
    def is_exclusive(self) -> bool:
        """Whether `create` lets only one of several writers win."""

    def begin(self, folder: str = "") -> None:
        """Make a folder of the cache, or the cache's own, so that it survives a power loss."""

    def draft(self, name: str) -> Draft:
        """Return a file to be written bit by bit, which has no name yet."""

    def publish(self, draft: Draft, name: str) -> None:
        """Give a draft its name, at once, in place of what has it."""

    def create(self, name: str, content: bytes) -> bool:
        """Return whether a new file was made; False, if there was one of that name."""

    def read(self, name: str) -> bytes:
        """Return all bytes of a file."""

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of those files that are there."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file, some megabytes at a time."""

    def array(self, name: str, header: bytes, kind: ArrayHeader) -> FloatArray:
        """Return the numbers of a file that begins with `header` and has one array after it."""

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the size of every file right in a folder."""

    def size(self, name: str) -> int | None:
        """Return the size of a file, None if there is none."""

    def folders(self) -> list[str]:
        """Return the names of the folders in the cache's own."""

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone already."""

    def remove_abandoned(self, name: str, is_in_use: Callable[[], bool] = bool) -> bool:
        """Return whether a file was removed; False, if its writer is alive or it is in use."""

    def claim(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """Hold a file that only one can hold; False, if another one does. It goes with its holder.

        `remove_abandoned` tells whether the holder is dead, as far as that can be known.
        """

    def remove_folder(self, folder: str = "") -> bool:
        """Return whether a folder is gone; False, if something stands in it."""

    def changed(self, name: str) -> float | None:
        """Return when a file was last written, in seconds since 1970; None if there is none."""

    def break_lock(self) -> None:
        """Take away the lock that a dead writer has left."""

    def sweep(self) -> dict[str, int]:
        """Return the sizes of the files that killed writers had left, and that are gone now."""

    def settle(self, folder: str = "") -> None:
        """Make the names in a folder survive a power loss, whoever gave them."""

    def lock(
        self, tell: Callable[[str], None] | None, *, name: str = LOCK
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the cache for one writer; a second one waits and is told so, or is refused."""


class LocalFiles:
    """The files of a cache in a folder.

    Args:
        folder: of the cache.
        disk: what touches the disk.
        mapped: whether arrays are memory-mapped; None: unless the folder is on a network.
    """

    is_exclusive = True

    def __init__(
        self, folder: Path, *, disk: Disk | None = None, mapped: bool | None = None
    ) -> None:
        self.place = folder
        self.disk = Disk() if disk is None else disk
        self.is_mapped = not is_on_network(folder) if mapped is None else mapped
        self._begun: set[str] = set()

    def begin(self, folder: str = "") -> None:
        """Make a folder of the cache, or the cache's own with those above it."""
        if folder in self._begun:
            return
        path = self._path(folder)
        # A site's folder is never made where the cache itself was taken away.
        made = [path] if folder else [path, *path.parents]
        with told("write", path):
            for each in reversed(made):
                with contextlib.suppress(FileExistsError, PermissionError):
                    if folder or not self.disk.is_folder(each):
                        self.disk.make_folder(each)
                # Also if it was there: who made it may have been killed just then.
                with contextlib.suppress(PermissionError):
                    self.disk.sync_folder(each.parent)
        self._begun.add(folder)

    def draft(self, name: str) -> Draft:
        """Return a file to be written bit by bit, which has no name yet."""
        return Draft(self.disk, self._path(name))

    def publish(self, draft: Draft, name: str) -> None:
        """Give a draft its name, at once, in place of what has it."""
        draft.rename(self._path(name))

    def create(self, name: str, content: bytes) -> bool:
        """Return whether a new file was made; False, if there was one of that name."""
        with self.draft(name) as draft:
            draft.write(content)
            return draft.link(self._path(name))

    def read(self, name: str) -> bytes:
        """Return all bytes of a file.

        Raises:
            MissingError: there is none.
            StoreError: it cannot be read.
        """
        return b"".join(self.chunks(name))

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of those files that are there."""
        found = {}
        for name in names:
            with contextlib.suppress(MissingError):
                found[name] = self.read(name)
        return found

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file, some megabytes at a time."""
        with self._opened(name) as descriptor:
            start = 0
            while chunk := self.disk.read(descriptor, CHUNK, start):
                yield chunk
                start += len(chunk)

    def array(self, name: str, header: bytes, kind: ArrayHeader) -> FloatArray:
        """Return the numbers of a file that begins with `header` and has one array after it.

        Raises:
            DamagedError: the file is lost, or is of another kind.
        """
        if not self.is_mapped:
            return parse_array(self.read(name), header, kind, self._path(name))
        with self._opened(name) as descriptor:
            size = self.disk.size(descriptor)
            content = self.disk.map(descriptor, size) if size else b""
            return parse_array(content, header, kind, self._path(name))

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        path = self._path(name)
        with told("read", path):
            try:
                descriptor = self.disk.open(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise MissingError(f"There is no {path}.") from error
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ELOOP):
                    raise damaged(path, "it is a link, or no file at all") from error
                raise
            try:
                yield descriptor
            finally:
                self.disk.close(descriptor)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the size of every regular file in a folder, temporary ones left out."""
        prefix = f"{folder}/" if folder else ""
        return {
            prefix + name: found.st_size
            for name, found in self._list(folder).items()
            if stat.S_ISREG(found.st_mode) and not name.startswith(".")
        }

    def size(self, name: str) -> int | None:
        """Return the size of a file, None if there is none."""
        with contextlib.suppress(MissingError), self._opened(name) as descriptor:
            return self.disk.size(descriptor)
        return None

    def folders(self) -> list[str]:
        """Return the names of the folders in the cache's own."""
        listed = self._list("").items()
        return sorted(name for name, found in listed if stat.S_ISDIR(found.st_mode))

    def _list(self, folder: str) -> dict[str, os.stat_result]:
        path = self._path(folder)
        with told("read", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self.disk.list(path)
        return {}

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone already."""
        path = self._path(name)
        with told("remove", path), contextlib.suppress(FileNotFoundError):
            self.disk.remove(path)

    def remove_abandoned(self, name: str, is_in_use: Callable[[], bool] = bool) -> bool:
        """Return whether a file was removed; False, if its writer is alive, or it is in use.

        Args:
            name: of the file.
            is_in_use: asked when no writer holds it any more, so that the answer stays.
        """
        path = self._path(name)
        with told("remove", path), contextlib.suppress(FileNotFoundError):
            descriptor = self.disk.open(path)
            try:
                is_left = self.disk.lock(descriptor, wait=False) and not is_in_use()
                # A writer of the same rows may have put its file in place of this one.
                if is_left and self.disk.is_named(descriptor):
                    self.disk.remove(path)
                    return True
            finally:
                self.disk.close(descriptor)
        return False

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Hold a file that only one can hold; False, if another one does. It goes with its holder.

        It stays locked meanwhile: the file of a killed holder is known by its being free.
        """
        with self.draft(name) as draft:
            is_ours = draft.link(self._path(name))
            try:
                yield is_ours
            finally:
                if is_ours:
                    self.remove(name)

    def remove_folder(self, folder: str = "") -> bool:
        """Return whether a folder is gone; False, if something stands in it."""
        path = self._path(folder)
        with told("remove", path), contextlib.suppress(FileNotFoundError):
            try:
                self.disk.remove_folder(path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return False
        return True

    def changed(self, name: str) -> float | None:
        """Return when a file was last written, in seconds since 1970; None if there is none."""
        found = self._list("").get(name)
        return None if found is None else found.st_mtime

    def break_lock(self) -> None:
        """Do nothing: the system lets go of the locks of the dead."""

    def sweep(self) -> dict[str, int]:
        """Return the sizes of the files that killed writers had left, and that are gone now."""
        swept = {}
        for folder in ("", *self.folders()):
            for file, found in self._list(folder).items():
                name = f"{folder}/{file}" if folder else file
                is_draft = file.startswith(".") and not file.startswith(LOCK)
                if is_draft and self.remove_abandoned(name):
                    swept[name] = found.st_size
        return swept

    def settle(self, folder: str = "") -> None:
        """Make the names in a folder survive a power loss, whoever gave them."""
        path = self._path(folder)
        with told("write", path):
            self.disk.sync_folder(path)

    @contextlib.contextmanager
    def lock(self, tell: Callable[[str], None] | None, *, name: str = LOCK) -> Iterator[None]:
        """Hold the cache for one writer; a second one waits and is told so, or is refused.

        Where the file system has no locks, nobody is held up.

        Args:
            tell: hears that there is another one; None: that is an error.
            name: of the file that stands for what is held.

        Raises:
            StoreError: the folder cannot be written, or another run is writing it.
        """
        with told("write", self._path(name)):
            descriptor = self.disk.open_lock(self._path(name))
        try:
            with told("write", self.place):
                if self.disk.lock(descriptor, wait=False) is False:
                    if tell is None:
                        raise StoreError(f"Another run is writing {self.place}. Wait, or stop it.")
                    tell(
                        f"another run is writing {self.place}; waiting for it, then using its rows"
                    )
                    self.disk.lock(descriptor, wait=True)
            yield
        finally:
            with told("unlock", self.place):
                self.disk.close(descriptor)

    def _path(self, name: str) -> Path:
        return self.place.joinpath(*checked(name).parts)


def checked(name: str) -> PurePosixPath:
    """Return the path of a file within a cache.

    Raises:
        DamagedError: it would lead out of it.

    >>> checked("hook_embed/00000.json").parts
    ('hook_embed', '00000.json')
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or re.search(r"[\\\0]", name):
        raise DamagedError(f"{name!r} is no name of a file within a cache.")
    return path


def parse_array(
    content: bytes | mmap.mmap, header: bytes, kind: ArrayHeader, path: Location
) -> FloatArray:
    """Return the numbers of the bytes of a file, not copied; `path` is what a message calls it.

    Raises:
        DamagedError: it is of another kind.
    """
    if content[: len(header)] != header or len(content) != len(header) + kind.size:
        raise damaged(path, "it has another size, or begins with another header")
    values = np.frombuffer(content, DTYPES[kind.dtype], offset=len(header))
    return values.reshape(kind.shape)


def damaged(path: Location, why: str) -> DamagedError:
    """Return the error that says which file is not what was written."""
    return DamagedError(
        f"{path} is damaged: {why}. `probekit cache repair` takes it out, and the next run makes "
        "it again."
    )


def is_on_network(folder: Path) -> bool:
    """Return whether a folder lies on a network file system, as far as the system tells.

    >>> is_on_network(Path("/"))
    False
    """
    with contextlib.suppress(OSError):
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        points = {line.split()[1]: line.split()[2] for line in mounts.splitlines()}
        path = folder.resolve()
        nearest = next((str(p) for p in (path, *path.parents) if str(p) in points), "")
        return _NETWORK.match(points.get(nearest, "")) is not None
    return False
