"""Reading files of words in columns, such as those of CoNLL-2000 and CoNLL-2003.

Each line has a word and its labels, separated by spaces or tabs; a blank line ends a sentence. A
line `-DOCSTART-` begins a document. The text of a sentence is its words, joined by spaces.

Source: https://www.cnts.ua.ac.be/conll2003/ner/
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, RowSource
from probekit.data.files import read_text
from probekit.errors import ConfigError, DataError, nearest

_DOCUMENT = "-DOCSTART-"
_GROUPS = ("sentence", "document")
_MAX_DIGITS = 4  # of a column number
_N_CONLLU = 10  # columns of a CoNLL-U file; the first numbers the words


@dataclass(frozen=True)
class WordColumns:
    """Which columns hold the words and the labels, and which unit is the group of an example.

    Attributes:
        label: number of the column of labels, from 1, as text.
        word: number of the column of words.
        group: unit that a split keeps together, "sentence" or "document".

    Raises:
        ConfigError: a number or the group is invalid.
    """

    label: str = "2"
    word: str = "1"
    group: Literal["sentence", "document"] = "sentence"

    def __post_init__(self) -> None:
        for key, number in (("label", self.label), ("text", self.word)):
            is_number = number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
            if not is_number or int(number) < 1:
                raise ConfigError(
                    f"{key} is {number!r}. Columns of words have no names: give the number of the "
                    "column, counted from 1, such as `columns: {text: 1, label: 4}`."
                )
        if self.group not in _GROUPS:
            raise ConfigError(f"Unknown group {self.group!r}. {nearest(self.group, _GROUPS)}")

    @property
    def highest(self) -> int:
        """The highest of the two numbers."""
        return max(int(self.label), int(self.word))


class _WordLine(NamedTuple):
    """Line number, word and label of a line."""

    line: int
    word: str
    label: str


def read_word_columns(path: Path, columns: WordColumns, *, name: str) -> Dataset:
    r"""Read a file of words in columns: one example for each word, in file order.

    Raises:
        ConfigError: the file has fewer columns.
        MissingError: the file does not exist.
        DataError: a line has another number of columns, or the file has no words; the message
            gives the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.txt"
    >>> _ = path.write_text("-DOCSTART- -X- O\n\nUN NNP I-ORG\nofficial NN O\n")
    >>> dataset = read_word_columns(path, WordColumns(label="3"), name="tiny")
    >>> [(example.id, example.text, example.label, example.span) for example in dataset.examples]
    [('tiny.txt, sentence 1:1', 'UN official', 'I-ORG', (0, 2)),
     ('tiny.txt, sentence 1:2', 'UN official', 'O', (3, 11))]
    """
    examples: list[Example] = []
    for number, (document, words) in enumerate(_sentences(path, columns), start=1):
        sentence = f"{path.name}, sentence {number}"
        if columns.group == "document" and document == 0:
            raise DataError(
                f"{path}:{words[0].line}: the sentence belongs to no document, because no line "
                f"`{_DOCUMENT}` comes before it. Group by sentence."
            )
        group = sentence if columns.group == "sentence" else f"{path.name}, document {document}"
        examples += _examples(path, words, sentence, group)
    if not examples:
        raise DataError(f"{path}:1: the file has no words.")
    return Dataset(name, tuple(examples), marks_words=True)


def _examples(path: Path, words: list[_WordLine], sentence: str, group: str) -> Iterator[Example]:
    text = " ".join(word.word for word in words)
    start = 0
    for number, word in enumerate(words, start=1):
        span = (start, start + len(word.word))
        start = span[1] + 1
        source = RowSource(str(path), word.line)
        try:
            yield Example(text, word.label, group, f"{sentence}:{number}", span, source=source)
        except DataError as error:
            raise DataError(f"{source}: {error}") from error


def _sentences(path: Path, columns: WordColumns) -> Iterator[tuple[int, list[_WordLine]]]:
    """Yield the number of the document, 0 before the first one, and the words of each sentence."""
    document = 0
    words: list[_WordLine] = []
    first: tuple[int, int] | None = None  # line and number of columns of the first word
    tabs = False
    # Not splitlines, which also splits at U+2028. The added "" ends the last sentence.
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        if not line.strip() or line.startswith(_DOCUMENT):
            if words:
                yield document, words
            words = []
            document += line.startswith(_DOCUMENT)
            continue
        tabs = "\t" in line if first is None else tabs
        cells = _cells(line.rstrip("\r"), tabs=tabs)
        if first is None:
            first = number, len(cells)
            _require_columns(f"{path}:{number}", columns, cells)
        if "" in cells:
            raise DataError(
                f"{path}:{number}: column {cells.index('') + 1} is empty. Fill it in, or remove "
                "the line."
            )
        if len(cells) != first[1]:
            raise DataError(
                f"{path}:{number}: the line has {counted(len(cells), 'column')}, but line "
                f"{first[0]} has {first[1]}. Separate all columns in the same way, and remove "
                "comments."
            )
        words.append(_WordLine(number, cells[int(columns.word) - 1], cells[int(columns.label) - 1]))


def _cells(line: str, *, tabs: bool) -> list[str]:
    """Return the cells of a line; not by any white space, which may be part of a word."""
    if tabs:
        return [cell.strip(" ") for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


def _require_columns(where: str, columns: WordColumns, cells: list[str]) -> None:
    """Raise ConfigError if the first word has too few columns, or those of CoNLL-U."""
    if len(cells) == _N_CONLLU and cells[0] == "1" == columns.word:
        raise ConfigError(
            f"{where}: the first of {_N_CONLLU} columns numbers the words. If the file is CoNLL-U, "
            "set `format: conllu`; otherwise set `columns.text` to the number of the column of "
            "words."
        )
    if len(cells) < columns.highest:
        shown = ", ".join(f"{number}: {cell}" for number, cell in enumerate(cells[:12], start=1))
        raise ConfigError(
            f"{where}: no column {columns.highest}. The columns of this line are {shown}. Set "
            "`columns: {text: NUMBER, label: NUMBER}`."
        )
