"""Reading of a corpus from a folder, an archive or a file; the end of each text is held out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from probekit.errors import DataError, MissingError, nearest
from probekit.provenance import digest_json
from probekit.training.archives import read_contents

MAX_MEGABYTES = 1000
_INSIDE_PARAGRAPH = re.compile(r"(?<!\n)\n(?!\n)")


@dataclass(frozen=True)
class Text:
    """One text of a corpus, split into a training part and a held-out end.

    Attributes:
        name: file name.
        train: training part.
        held_out: end of the text, not used for training.
    """

    name: str
    train: str
    held_out: str


def read_corpus(
    source: str | Path,
    files: Sequence[str] = (),
    *,
    unwrap: bool = False,
    held_out: float = 0.02,
    max_megabytes: int = MAX_MEGABYTES,
) -> tuple[Text, ...]:
    r"""Return the texts of a corpus, each split into a training part and a held-out end.

    Args:
        source: folder, .tar (also .tar.gz, .tar.bz2, .tar.xz) or .zip archive, or a text file
            (also .gz, .bz2, .xz).
        files: names of the texts, in this order; empty for all files that end in .txt, sorted.
        unwrap: whether to replace line breaks inside paragraphs with spaces.
        held_out: share of the characters of each text that is held out.
        max_megabytes: largest decompressed size of an archive, in units of 10^6 bytes.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "book.txt"
    >>> _ = path.write_text("It is a truth\nuniversally known.\n\nThe end.")
    >>> read_corpus(path, unwrap=True, held_out=0.25)[0]
    Text(name='book.txt', train='It is a truth universally known', held_out='.\n\nThe end.')

    Raises:
        MissingError: the source or one of the files does not exist.
        DataError: the archive is damaged, encrypted or too large; a text is not UTF-8 or too short
            to split; or there are no texts.
    """
    path = Path(source)
    try:
        contents = _read(path, files, max_megabytes)
    except MissingError:  # also an OSError, but its message is complete
        raise
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not contents:
        raise DataError(f"{path} contains no .txt file. Name other files in `corpus.files`.")
    return tuple(
        _cut(name, _decode(path, name, content), unwrap, held_out)
        for name, content in contents.items()
    )


def corpus_digest(texts: Sequence[Text]) -> str:
    """Return the digest of the texts and their splits."""
    return digest_json([[text.name, text.train, text.held_out] for text in texts])


def _read(path: Path, files: Sequence[str], max_megabytes: int) -> dict[str, bytes]:
    """Return the contents of the requested files by name, in the requested order."""
    if path.is_dir():
        names = {str(p.relative_to(path)): p for p in sorted(path.rglob("*")) if p.is_file()}
        return {name: names[name].read_bytes() for name in _choose(path, names, files)}
    if not path.is_file():
        raise MissingError(f"{path.absolute()} does not exist. Check `corpus.source`.")

    def is_wanted(name: str) -> bool:
        return name in files if files else name.endswith(".txt")

    contents = read_contents(path, is_wanted, max_megabytes)
    if isinstance(contents, bytes):
        return {path.name: contents}
    return {name: contents[name] for name in _choose(path, contents, files)}


def _choose(path: Path, names: Mapping[str, object], files: Sequence[str]) -> Sequence[str]:
    missing = [name for name in files if name not in names]
    if missing:
        raise MissingError(
            f"{path} does not contain {missing[0]!r}{_others(missing)}. "
            f"{nearest(missing[0], names)}"
        )
    return files or sorted(name for name in names if name.endswith(".txt"))


def _others(missing: Sequence[str]) -> str:
    return f" ({len(missing)} files are missing)" if len(missing) > 1 else ""


def _decode(path: Path, name: str, content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: {name}, line {line}: the byte {content[error.start]:#04x} is not UTF-8. "
            "Save the text as UTF-8, or remove it from `corpus.files`."
        ) from error
    return text.replace("\r\n", "\n")


def _cut(name: str, text: str, unwrap: bool, held_out: float) -> Text:
    if unwrap:
        text = _INSIDE_PARAGRAPH.sub(" ", text)
    end = int(len(text) * (1 - held_out) + 1e-6)  # rounding must not turn 0.98 * 50 = 49 into 48
    if not 0 < end < len(text):
        raise DataError(
            f"{name} has {len(text)} characters, too few to hold out {held_out:.0%} of them."
        )
    return Text(name, text[:end], text[end:])
