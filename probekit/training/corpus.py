"""Reading the texts of a corpus from a folder, an archive or a file, and holding their ends out."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probekit.errors import DataError, MissingError, nearest
from probekit.provenance import digest_json

_INSIDE_PARAGRAPH = re.compile(r"(?<!\n)\n(?!\n)")


@dataclass(frozen=True)
class Text:
    """One text of a corpus.

    Attributes:
        name: of the file.
        train: what is learnt.
        held_out: its end, which is not.
    """

    name: str
    train: str
    held_out: str


def read_corpus(
    source: str | Path, files: Sequence[str] = (), *, unwrap: bool = False, held_out: float = 0.02
) -> tuple[Text, ...]:
    r"""Return the texts of a corpus, each cut where its held-out end begins.

    Args:
        source: a folder, a .tar (also .tar.gz, .tar.bz2, .tar.xz) or .zip archive, or a text file.
        files: names of the texts, in the order wanted; none means all that end in .txt, by name.
        unwrap: replace line breaks inside paragraphs by spaces.
        held_out: share of the characters of each text.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "book.txt"
    >>> _ = path.write_text("It is a truth\nuniversally known.\n\nThe end.")
    >>> read_corpus(path, unwrap=True, held_out=0.25)[0]
    Text(name='book.txt', train='It is a truth universally known', held_out='.\n\nThe end.')

    Raises:
        MissingError: there is no such source, or it lacks one of the files.
        DataError: a text is not UTF-8 or too short to hold any of it out, or there are no texts.
    """
    path = Path(source)
    try:
        contents = _read(path, files)
    except MissingError:  # an OSError as well, but one whose message is complete
        raise
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path} is damaged or not an archive: {error}.") from error
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not contents:
        raise DataError(f"{path} holds no file whose name ends in .txt; name others in `files`.")
    return tuple(
        _cut(name, _decode(path, name, content), unwrap, held_out)
        for name, content in contents.items()
    )


def corpus_digest(texts: Sequence[Text]) -> str:
    """Return what identifies the texts and where each is cut."""
    return digest_json([[text.name, text.train, text.held_out] for text in texts])


def _read(path: Path, files: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of the files asked for, by name, in the order asked for."""
    if path.is_dir():
        names = {str(p.relative_to(path)): p for p in sorted(path.rglob("*")) if p.is_file()}
        return {name: names[name].read_bytes() for name in _choose(path, names, files)}
    if not path.is_file():
        raise MissingError(f"There is no corpus at {path.absolute()}. Check `corpus.source`.")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = dict.fromkeys(i.filename for i in archive.infolist() if not i.is_dir())
            return {name: archive.read(name) for name in _choose(path, members, files)}
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            contents = dict(_members(archive, files))
        return {name: contents[name] for name in _choose(path, contents, files)}
    return {path.name: path.read_bytes()}


def _members(archive: tarfile.TarFile, files: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents in the order they stand in, for a stream is read once.

    Of what is not wanted the content is empty.
    """
    for member in archive:
        name = member.name.removeprefix("./")
        file = archive.extractfile(member) if member.isfile() else None
        if file is not None:
            is_wanted = name in files if files else name.endswith(".txt")
            yield name, file.read() if is_wanted else b""


def _choose(path: Path, names: Mapping[str, object], files: Sequence[str]) -> Sequence[str]:
    absent = [name for name in files if name not in names]
    if absent:
        raise MissingError(
            f"{path} has no text {absent[0]!r}{_others(absent)}. {nearest(absent[0], names)}"
        )
    return files or sorted(name for name in names if name.endswith(".txt"))


def _others(absent: Sequence[str]) -> str:
    return f" ({len(absent)} of the files are absent)" if len(absent) > 1 else ""


def _decode(path: Path, name: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: {name}, line {line}: the byte {content[error.start]:#04x} is not UTF-8. "
            "Save the text as UTF-8, or leave it out of `corpus.files`."
        ) from error
    return text.replace("\r\n", "\n")


def _cut(name: str, text: str, unwrap: bool, held_out: float) -> Text:
    if unwrap:
        text = _INSIDE_PARAGRAPH.sub(" ", text)
    end = int(len(text) * (1 - held_out) + 1e-6)  # 0.98 * 50 is 49, whatever its last bit says
    if not 0 < end < len(text):
        raise DataError(
            f"{name} has {len(text)} characters: too few to hold {held_out:.0%} of them out."
        )
    return Text(name, text[:end], text[end:])
