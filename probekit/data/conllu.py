"""Reader of CoNLL-U files: sentences with comments, words and surface forms.

Source: https://universaldependencies.org/format.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from probekit.data.files import read_text
from probekit.errors import DataError

_ID = re.compile(r"(\d+)(?:([-.])(\d+))?", re.ASCII)


class Word(NamedTuple):
    """The ten fields of a word line."""

    id: str
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: str
    deprel: str
    deps: str
    misc: str

    @property
    def features(self) -> dict[str, str]:
        """Value of each morphological feature."""
        pairs = (feature.partition("=") for feature in self.feats.split("|"))
        return {name: value for name, _, value in pairs if value}


class Surface(NamedTuple):
    """A token of the text: one word, or the words of a multiword token such as "don't"."""

    form: str
    space_after: bool
    n_words: int


class Sentence(NamedTuple):
    """A sentence of a treebank.

    Attributes:
        line: first line in the file.
        comments: values of `# key = value` by key, "" without a value.
        words: syntactic words.
        surfaces: tokens of the text; they cover the words in order.
        n_empty_nodes: number of empty nodes, which are not part of the text.
    """

    line: int
    comments: dict[str, str]
    words: list[Word]
    surfaces: list[Surface]
    n_empty_nodes: int


def read_sentences(path: Path) -> Iterator[Sentence]:
    r"""Yield the sentences of a CoNLL-U file.

    Raises:
        MissingError: the file does not exist.
        DataError: the file is not valid CoNLL-U; the message gives the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.conllu"
    >>> word = "1\tFire\tfire\tNOUN\t_\t_\t0\troot\t_\tSpaceAfter=No"
    >>> _ = path.write_text(f"# sent_id = s1\n{word}\n")
    >>> sentence = next(read_sentences(path))
    >>> sentence.comments, sentence.words[0].upos, sentence.surfaces[0].space_after
    ({'sent_id': 's1'}, 'NOUN', False)
    """
    block: list[str] = []
    # Not splitlines, which also splits at U+2028. The added "" ends the last sentence.
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        if line and not line.isspace():
            block.append(line.rstrip("\r"))
        elif block:
            yield _sentence(path, number - len(block), block)
            block = []


def _sentence(path: Path, first_line: int, lines: list[str]) -> Sentence:
    comments: dict[str, str] = {}
    words: list[Word] = []
    surfaces: list[Surface] = []
    n_empty_nodes = 0
    n_covered = 0  # words covered by the surfaces so far
    for number, line in enumerate(lines, start=first_line):
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            comments[key.strip()] = value.strip()
            continue
        where = f"{path}:{number}"
        word = _word(where, line)
        line_type, last = _id(where, word.id, n_words=len(words), n_covered=n_covered)
        if line_type == ".":
            n_empty_nodes += 1
            continue
        if line_type != "-":
            words.append(word)
        if last > n_covered:
            surfaces.append(_surface(word, n_words=last - n_covered))
            n_covered = last
    if not words or len(words) < n_covered:
        fault = f"{len(words)} words, but tokens up to word {n_covered}" if words else "no words"
        raise DataError(f"{path}:{first_line}: the sentence that begins here has {fault}.")
    return Sentence(first_line, comments, words, surfaces, n_empty_nodes)


def _word(where: str, line: str) -> Word:
    fields = line.split("\t")
    if len(fields) != len(Word._fields) or "" in map(str.strip, fields):
        raise DataError(
            f"{where}: a word line has {len(Word._fields)} non-empty fields separated by tabs; "
            f"this line has {len(fields)} fields. Write `_` for a field without a value."
        )
    return Word(*fields)


def _id(where: str, id: str, *, n_words: int, n_covered: int) -> tuple[str | None, int]:
    """Return the type of a line and the number of its last word.

    The type is "-" for a multiword token, "." for an empty node and None for a word.
    """
    match = _ID.fullmatch(id)
    if match is None:
        raise DataError(
            f"{where}: {id!r} is not an id. Allowed: 3, 3-4 (multiword token), 3.1 (empty node)."
        )
    line_type, first = match[2], int(match[1])
    last = int(match[3]) if line_type == "-" else first
    expected = n_words if line_type == "." else n_words + 1
    if first != expected or last < first or (line_type == "-" and n_covered > n_words):
        raise DataError(
            f"{where}: the id {id} follows word {n_words}. Number the words 1, 2, 3, ..."
        )
    return line_type, last


def _surface(word: Word, n_words: int) -> Surface:
    return Surface(word.form, "SpaceAfter=No" not in word.misc.split("|"), n_words)
