"""Reading of archives with verification of every checksum that the format has.

.zip, .gz and .bz2 store a CRC-32 of their contents; .xz stores a CRC-64 unless it was written with
another check. A plain .tar has checksums of its headers only.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tarfile import (  # type: ignore[attr-defined]  # typeshed lacks EOFHeaderError
    EOFHeaderError,
    HeaderError,
    ReadError,
    TarError,
    TarFile,
    TarInfo,
)
from typing import BinaryIO, Protocol, Self, cast

from probekit.errors import DataError

CHUNK = 1 << 20
MEGABYTE = 10**6
_BLOCK = 512  # block size of .tar
_ZIP_TAIL = 2**16 + 1024  # contains the end record of a .zip and a comment of up to 2^16 - 1 bytes
_WRAPPED = 2**16  # a .zip without 64-bit fields counts its files modulo this

# Errors that the readers raise for damaged content; BadGzipFile and bz2's are plain OSErrors.
_DAMAGED: tuple[type[Exception], ...] = (
    TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    struct.error,
    EOFError,
    ValueError,
    LookupError,
    OverflowError,
    RecursionError,
)
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x1f\x8b\x08", "gz"),
    (b"\xfd7zXZ\x00", "xz"),
    *(
        (b"BZh%d" % level + block, "bz2")
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17rE8P\x90")
    ),
)
_FORMATS = {
    ".zip": "zip",
    ".tar": "tar",
    ".gz": "gz",
    ".tgz": "gz",
    ".bz2": "bz2",
    ".tbz": "bz2",
    ".tbz2": "bz2",
    ".xz": "xz",
    ".txz": "xz",
}
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz")


def read_contents(
    path: Path, is_wanted: Callable[[str], bool], max_megabytes: int
) -> dict[str, bytes] | bytes:
    """Return the files of an archive by name, or the content of a single text file.

    Args:
        path: a .zip, a .tar, a text, or a .tar or text compressed by gzip, bzip2 or xz.
        is_wanted: predicate on file names; other files are verified too, but returned empty.
        max_megabytes: limit of the total decompressed size, in units of 10^6 bytes.

    Raises:
        DataError: the archive is damaged, encrypted, or larger than the limit.
        OSError: the file cannot be read.
    """
    limit = _Limit(path, max_megabytes)
    with path.open("rb") as file, _naming(path):
        archive_format = _format(path, file.read(_BLOCK))
        file.seek(0)
        if archive_format is None:
            return file.read()
        if archive_format == "zip":
            return _read_zip(file, is_wanted, limit)
        content = _Content(_OPENERS[archive_format](file), limit)
        if path.name.lower().endswith(_TAR_ENDINGS) or _is_tar(content.peek(_BLOCK)):
            return _read_tar(content, is_wanted, limit)
        return content.read_all()


def _format(path: Path, head: bytes) -> str | None:
    """Detect the format of a file from its first bytes, else from its suffix."""
    archive_format = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if archive_format is not None:
        return archive_format
    if _is_tar(head):
        return "tar"
    # A .zip may be appended to other data, such as a self-extracting program.
    return "zip" if zipfile.is_zipfile(path) else _FORMATS.get(path.suffix.lower())


def _is_tar(block: bytes) -> bool:
    if block[257:262] == b"ustar":
        return True
    try:  # a .tar from before 1988 has only a checksum
        TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except HeaderError:
        return False
    return True


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Convert errors that readers of archives raise for damaged content to a DataError."""
    try:
        yield
    except DataError:
        raise
    except NotImplementedError as error:
        raise DataError(
            f"{path} uses a compression method that Python cannot read ({error}). Unpack it and "
            "set `corpus.source` to the folder."
        ) from error
    except _DAMAGED as error:
        raise _damaged(path, error) from error
    except OSError as error:
        # Decompressors set no errno. Damaged offsets in a .zip can point before its start.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    reason = str(error).rstrip(".") or type(error).__name__
    return DataError(
        f"{path} is damaged or not an archive: {reason}. Download it again, or unpack it and set "
        "`corpus.source` to the folder."
    )


class _Limit:
    """Limit on the total decompressed size of an archive."""

    def __init__(self, path: Path, max_megabytes: int) -> None:
        self._path = path
        self._max_megabytes = max_megabytes
        self._remaining = max_megabytes * MEGABYTE

    def count(self, size: int) -> None:
        """Add `size` bytes to the total.

        Raises:
            DataError: the total exceeds the limit.
        """
        self._remaining -= size
        if self._remaining < 0:
            raise DataError(
                f"{self._path} has more than {self._max_megabytes:,} MB of decompressed content. "
                "If this is intended, increase `corpus.max_megabytes`."
            )


class _Source(Protocol):
    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; empty at the end."""


class _Content:
    """Decompressed content of a file, as a forward-only stream."""

    def __init__(self, source: _Source, limit: _Limit) -> None:
        self._source = source
        self._limit = limit
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them; fewer than `size` only at the end."""
        while len(self._head) < size and (more := self._next(CHUNK)):
            self._head += more
        return self._head[:size]

    def read(self, size: int = CHUNK) -> bytes:
        """Return at most `size` bytes; empty at the end."""
        taken, self._head = self._head[:size], self._head[size:]
        return taken or self._next(size)

    def read_all(self) -> bytes:
        """Return all remaining bytes."""
        return b"".join(iter(self.read, b""))

    def _next(self, size: int) -> bytes:
        data = self._source.read(min(size, CHUNK))
        self._limit.count(len(data))
        return data


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Streams:
    """Decompressed content of one or more compressed streams stored back to back.

    Python's readers ignore unrecognised bytes after the first stream. They would silently omit a
    second stream if its first bytes are damaged.
    """

    def __init__(self, file: BinaryIO, start: Callable[[], _Decompressor]) -> None:
        self._file = file
        self._start = start
        self._decompressor = start()
        self._data = b""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; empty after the last stream."""
        while True:
            if self._decompressor.eof and not self._start_next_stream():
                return b""
            if self._decompressor.needs_input and not self._data:
                self._data = self._file.read(CHUNK)
                if not self._data:
                    raise EOFError("it ends in the middle of the compressed data")
            data, self._data = self._data, b""
            if content := self._decompressor.decompress(data, size):
                return content

    def _start_next_stream(self) -> bool:
        """Start the next stream and return True; return False if only padding remains."""
        rest = self._decompressor.unused_data.lstrip(b"\0")
        while not rest and (more := self._file.read(CHUNK)):
            rest = more.lstrip(b"\0")
        if rest:
            self._decompressor, self._data = self._start(), rest
        return bool(rest)


def _open_gzip(file: BinaryIO) -> _Source:
    return gzip.GzipFile(fileobj=file)  # reads all members; rejects trailing data except zeros


def _open_bzip2(file: BinaryIO) -> _Source:
    return _Streams(file, bz2.BZ2Decompressor)


def _open_xz(file: BinaryIO) -> _Source:
    return _Streams(file, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ))


def _open_plain(file: BinaryIO) -> _Source:
    return file


_OPENERS = {"gz": _open_gzip, "bz2": _open_bzip2, "xz": _open_xz, "tar": _open_plain}


class _Member(TarInfo):
    """A .tar header; a damaged one raises an error, where tarfile would end the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: TarFile) -> Self:
        """Read the next member."""
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:
            _check_end(tarfile)
            raise
        except HeaderError as error:
            raise ReadError(f"{error} where a file or the end of the archive must be") from error


def _check_end(archive: TarFile) -> None:
    """Raise if anything but zeros follows the end-of-archive mark."""
    assert archive.fileobj is not None
    while rest := archive.fileobj.read(CHUNK):
        if rest.strip(b"\0"):
            raise ReadError(
                "data follow the end-of-archive mark, as in concatenated .tar files or after a "
                "damaged block"
            )


def _read_tar(
    content: _Content, is_wanted: Callable[[str], bool], limit: _Limit
) -> dict[str, bytes]:
    files = {}
    # In mode r|, tarfile calls only `read`.
    with TarFile.open(fileobj=cast("BinaryIO", content), mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            if member.issparse():
                limit.count(member.size)  # holes of sparse files take no bytes in the archive
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                name = member.name.removeprefix("./")
                files[name] = file.read() if is_wanted(name) else b""
    return files


def _read_zip(file: BinaryIO, is_wanted: Callable[[str], bool], limit: _Limit) -> dict[str, bytes]:
    files = {}
    n_listed = _n_listed(file)
    with zipfile.ZipFile(file) as archive:
        if len(archive.infolist()) % _WRAPPED not in (n_listed, n_listed % _WRAPPED):
            raise zipfile.BadZipFile(
                f"it lists {len(archive.infolist())} files instead of {n_listed}"
            )
        for info in archive.infolist():
            _check_readable(Path(file.name), info)
            if not info.is_dir():
                parts = _member_parts(archive, info, limit)
                files[info.filename] = b"".join(p for p in parts if is_wanted(info.filename))
    return files


def _n_listed(file: BinaryIO) -> int:
    """Return the number of files recorded at the end of a .zip, which zipfile ignores."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _ZIP_TAIL))
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        raise zipfile.BadZipFile("its end is missing")
    (count,) = struct.unpack_from("<H", tail, end + 10)
    if count == _WRAPPED - 1 and (large := tail.rfind(b"PK\x06\x06", 0, end)) >= 0:
        (count,) = struct.unpack_from("<Q", tail, large + 32)
    return int(count)


def _check_readable(path: Path, info: zipfile.ZipInfo) -> None:
    if info.flag_bits & 1:
        raise DataError(
            f"{path} is encrypted: {info.filename} needs a password. Unpack it and set "
            "`corpus.source` to the folder."
        )
    # zipfile decompresses other methods with unbounded memory.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise NotImplementedError(f"method {info.compress_type} of {info.filename}")


def _member_parts(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: _Limit
) -> Iterator[bytes]:
    """Yield the content of a file in chunks; zipfile verifies its CRC-32 at the end."""
    with archive.open(info) as member:
        while part := member.read(CHUNK):
            limit.count(len(part))
            yield part
