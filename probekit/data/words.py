"""Words of sentences with their spans: treebanks in CoNLL-U, and files of words in columns.

Source: https://universaldependencies.org/format.html, https://www.cnts.ua.ac.be/conll2003/ner/
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple, TypeAlias

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, RowSource
from probekit.data.table import Columns, read_text
from probekit.errors import ConfigError, DataError, nearest

_Span: TypeAlias = tuple[int, int]

_UNITS = ("sentence", "document")
# int() raises ValueError for thousands of digits.
_ID = re.compile(r"(\d{1,9})(?:([-.])(\d{1,9}))?", re.ASCII)
_LABELS = ("FORM", "LEMMA", "UPOS", "XPOS", "DEPREL", "HEAD")
_FEATS = "FEATS:"

_NO_TEXT = "sentences without a text, which was assembled from their words"
_EMPTY = "empty nodes skipped, because they are not part of the text"
_NO_LABEL = "words without the label skipped"
_NOT_IN_TEXT = "words skipped, because the text differs from their form"
_INCOMPLETE = "sentences skipped, because a word has no head or does not occur in the text"
_NOT_SPELLED = "words with the span of their multiword token, because its words do not spell it"


# Treebanks.


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
    for number, line in _lines(path):
        if line and not line.isspace():
            block.append(line)
        elif block:
            yield _sentence(path, number - len(block), block)
            block = []


def _sentence(path: Path, first_line: int, lines: list[str]) -> Sentence:
    """Return the sentence in a block of lines that begins at line `first_line` of the file."""
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
        fields = line.split("\t")
        if len(fields) != len(Word._fields) or "" in map(str.strip, fields):
            raise DataError(
                f"{where}: a word line has {len(Word._fields)} non-empty fields separated by tabs; "
                f"this line has {len(fields)} fields. Write `_` for a field without a value."
            )
        word = Word(*fields)
        n_words = len(words)
        match = _ID.fullmatch(word.id)
        if match is None:
            raise DataError(
                f"{where}: {word.id!r} is not an id. Allowed: 3, 3-4 (multiword token), 3.1 (empty "
                "node)."
            )
        is_empty_node, is_multiword, first = (match[2] == "."), (match[2] == "-"), int(match[1])
        last = int(match[3]) if is_multiword else first
        # An empty node has the number of the word before it.
        expected = n_words if is_empty_node else n_words + 1
        # A multiword token must not begin within the previous one.
        if first != expected or last < first or (is_multiword and n_covered > n_words):
            raise DataError(
                f"{where}: the id {word.id} follows word {n_words}. Number the words 1, 2, 3, ..."
            )
        if is_empty_node:
            n_empty_nodes += 1
            continue
        if not is_multiword:
            words.append(word)
        # A word within a multiword token is not a token of the text itself.
        if last > n_covered:
            space_after = "SpaceAfter=No" not in word.misc.split("|")
            surfaces.append(Surface(word.form, space_after, last - n_covered))
            n_covered = last
    if not words or len(words) < n_covered:
        fault = f"{len(words)} words, but tokens up to word {n_covered}" if words else "no words"
        raise DataError(f"{path}:{first_line}: the sentence that begins here has {fault}.")
    return Sentence(first_line, comments, words, surfaces, n_empty_nodes)


def read_treebank(path: Path, columns: Columns, *, name: str) -> Dataset:
    r"""Read a CoNLL-U file: one example for each word with the label that occurs in the text.

    The label is FORM, LEMMA, UPOS, XPOS, DEPREL, or a feature such as FEATS:Number. HEAD is the
    index of the word's head in its sentence, from 0, or -1 for the root; a sentence in which a word
    would be skipped is skipped completely.

    Examples are in file order. Spans are located by matching word forms with the text. The notes of
    the data set count the words, sentences and empty nodes that were skipped or repaired.

    Raises:
        ConfigError: label or group is unknown.
        MissingError: the file does not exist.
        DataError: the file is not valid CoNLL-U, a sent_id occurs twice, no word has the label, or
            a sentence belongs to no document although documents are the groups; the message gives
            the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.conllu"
    >>> _ = path.write_text(
    ...     "# text = Keys fell\n"
    ...     "1\tKeys\tkey\tNOUN\tNNS\tNumber=Plur\t2\tnsubj\t_\t_\n"
    ...     "2\tfell\tfall\tVERB\tVBD\tTense=Past\t0\troot\t_\t_\n"
    ... )
    >>> dataset = read_treebank(path, Columns(label="FEATS:Number"), name="tiny")
    >>> [(example.id, example.label, example.span) for example in dataset.examples]
    [('tiny.conllu, sentence 1:1', 'Plur', (0, 4))]
    >>> dataset.notes
    ('words without the label skipped: 1',)
    """
    if columns.label not in _LABELS and not columns.label.startswith(_FEATS):
        near = nearest(columns.label, [*_LABELS, f"{_FEATS}Number"])
        raise ConfigError(f"Unknown CoNLL-U label {columns.label!r}. {near}")
    unit = _unit(columns)
    examples: list[Example] = []
    notes: Counter[str] = Counter()
    line_of: dict[str, int] = {}
    document: str | None = None
    features: set[str] = set()
    for number, sentence in enumerate(read_sentences(path), start=1):
        comments, where = sentence.comments, f"{path}:{sentence.line}"
        sentence_name = comments.get("sent_id") or f"{path.name}, sentence {number}"
        if sentence_name in line_of:
            raise DataError(
                f"{where}: the sent_id {sentence_name!r} is a duplicate of line "
                f"{line_of[sentence_name]}. Make each sent_id unique."
            )
        line_of[sentence_name] = sentence.line
        if "newdoc id" in comments or "newdoc" in comments:
            unnamed = f"{path.name}, document from sentence {number}"
            document = comments.get("newdoc id") or unnamed
        group = sentence_name if unit == "sentence" else document
        if group is None:
            raise DataError(
                f"{where}: the sentence belongs to no document, because no `# newdoc` comes before "
                "it. Group by sentence."
            )
        examples += _examples(path, sentence, columns.label, sentence_name, group, notes)
        if not examples:  # the features are for the message, if no sentence has an example
            features.update(feature for word in sentence.words for feature in word.features)
    if not examples:
        known = [*_LABELS, *(_FEATS + feature for feature in features)]
        raise DataError(
            f"{path}:1: no word with {columns.label} occurs in its text. "
            + nearest(columns.label, known)
        )
    counted_notes = tuple(f"{note}: {n}" for note, n in notes.items() if n)
    return Dataset(name, tuple(examples), counted_notes, marks_words=True)


def _examples(
    path: Path, sentence: Sentence, label: str, name: str, group: str, notes: Counter[str]
) -> Iterator[Example]:
    """Yield the examples of a sentence, and count skipped and repaired words in `notes`."""
    source = RowSource(str(path), sentence.line)
    text = sentence.comments.get("text")
    notes.update({_NO_TEXT: int(not text), _EMPTY: sentence.n_empty_nodes})
    if not text:
        spaced = [f"{one.form} " if one.space_after else one.form for one in sentence.surfaces]
        text = "".join(spaced).rstrip(" ")
    # The span of each word; None from the first word on that differs from the text.
    spans: list[_Span | None] = []
    start = 0
    for surface in sentence.surfaces:
        if not text.startswith(surface.form, start):
            break
        forms = [word.form for word in sentence.words[len(spans) : len(spans) + surface.n_words]]
        end = start + len(surface.form)
        if "".join(forms) == surface.form:
            spans += pairwise(accumulate(map(len, forms), initial=start))
        else:
            notes[_NOT_SPELLED] += len(forms)
            spans += [(start, end)] * len(forms)
        # The next token begins after the white space, if there is any.
        start = len(text) - len(text[end:].lstrip()) if surface.space_after else end
    spans += [None] * (len(sentence.words) - len(spans))
    values = [_label_of(word, label, str(source), len(spans)) for word in sentence.words]
    if label == "HEAD" and (None in spans or None in values):
        notes[_INCOMPLETE] += 1
        return
    for word, span, value in zip(sentence.words, spans, values, strict=True):
        if value is None:
            notes[_NO_LABEL] += 1
        elif span is None:
            notes[_NOT_IN_TEXT] += 1
        else:
            try:
                yield Example(text, value, group, f"{name}:{word.id}", span, source=source)
            except DataError as error:
                raise DataError(
                    f"{source}: word {word.id} of the sentence that begins here: {error}"
                ) from error


def _label_of(word: Word, label: str, where: str, n_words: int) -> str | None:
    """Return the label of a word, None without one.

    The label HEAD is the index of the word's head from 0, "-1" for the root.
    """
    if label not in _LABELS:
        return word.features.get(label.removeprefix(_FEATS))
    value = str(getattr(word, label.lower()))
    # `_` means no value, except that an underscore is also a word and its own lemma.
    if value == "_" and not (word.form == "_" and label in ("FORM", "LEMMA")):
        return None
    if label != "HEAD":
        return value
    if not (re.fullmatch("[0-9]{1,9}", value) and int(value) <= n_words):
        raise DataError(
            f"{where}: word {word.id} of the sentence that begins here has the head {value!r}. "
            f"Allowed: 0 (the root) to {n_words}, the number of words."
        )
    return str(int(value) - 1)


# Words in columns, such as those of CoNLL-2000 and CoNLL-2003. Each line has a word and its labels,
# separated by spaces or tabs; a blank line ends a sentence, and `-DOCSTART-` begins a document. The
# text of a sentence is its words, joined by spaces.

_DOCUMENT = "-DOCSTART-"
_MAX_DIGITS = 4  # largest number of digits of a column number


def read_word_columns(path: Path, columns: Columns, *, name: str) -> Dataset:
    r"""Read a file of words in columns: one example for each word, in file order.

    Raises:
        ConfigError: a column is no number, the group is unknown, or the file has fewer columns, or
            those of CoNLL-U.
        MissingError: the file does not exist.
        DataError: a line has another number of columns or an empty one, the file has no words, or
            a sentence belongs to no document although documents are the groups; the message gives
            the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.txt"
    >>> _ = path.write_text("-DOCSTART- -X- O\n\nUN NNP I-ORG\nofficial NN O\n")
    >>> dataset = read_word_columns(path, Columns(label="3"), name="tiny")
    >>> [(example.id, example.text, example.label, example.span) for example in dataset.examples]
    [('tiny.txt, sentence 1:1', 'UN official', 'I-ORG', (0, 2)),
     ('tiny.txt, sentence 1:2', 'UN official', 'O', (3, 11))]
    """
    # The default is a name, and the columns of this format have numbers: use the first one.
    word = "1" if columns.text in (None, Columns().text) else str(columns.text)
    for key, column in (("label", columns.label), ("text", word)):
        is_number = column.isascii() and column.isdecimal() and len(column) <= _MAX_DIGITS
        if not is_number or int(column) < 1:
            raise ConfigError(
                f"{key} is {column!r}. Columns of words have no names: give the number of the "
                "column, counted from 1, such as `columns: {text: 1, label: 4}`."
            )
    unit, examples = _unit(columns), list[Example]()
    lines = _word_lines(path, int(word), int(columns.label))
    for number, (document, words) in enumerate(lines, start=1):
        sentence = f"{path.name}, sentence {number}"
        if unit == "document" and document == 0:
            first_line, _, _ = words[0]
            raise DataError(
                f"{path}:{first_line}: the sentence belongs to no document, because no line "
                f"`{_DOCUMENT}` comes before it. Group by sentence."
            )
        group = sentence if unit == "sentence" else f"{path.name}, document {document}"
        text = " ".join(word for _, word, _ in words)
        start = 0
        for place, (line, word, label) in enumerate(words, start=1):
            source, end = RowSource(str(path), line), start + len(word)
            try:
                id = f"{sentence}:{place}"
                examples.append(Example(text, label, group, id, (start, end), source=source))
            except DataError as error:
                raise DataError(f"{source}: {error}") from error
            start = end + 1
    if not examples:
        raise DataError(f"{path}:1: the file has no words.")
    return Dataset(name, tuple(examples), marks_words=True)


def _word_lines(
    path: Path, word: int, label: int
) -> Iterator[tuple[int, list[tuple[int, str, str]]]]:
    """Yield the document of each sentence, and line, word and label of its words.

    Words and labels are in the columns of these numbers, from 1. Documents are numbered from 1;
    sentences before the first one have 0.
    """
    document = 0
    words: list[tuple[int, str, str]] = []
    # The line number, number of columns and kind of separator of the first word; 0 before it. All
    # other words must have the same columns.
    first_line, n_columns, has_tabs = 0, 0, False
    for number, line in _lines(path):
        if not line.strip() or line.startswith(_DOCUMENT):
            if words:
                yield document, words
            words = []
            if line.startswith(_DOCUMENT):
                document += 1
            continue
        where = f"{path}:{number}"
        has_tabs = has_tabs if first_line else "\t" in line
        # Columns are not split at other white space, which may be part of a word.
        of_tabs = [cell.strip(" ") for cell in line.split("\t")]
        cells = of_tabs if has_tabs else [cell for cell in line.split(" ") if cell]
        if not first_line:
            first_line, n_columns = number, len(cells)
            _require_columns(where, word, label, cells)
        if "" in cells:
            raise DataError(
                f"{where}: column {cells.index('') + 1} is empty. Fill it in, or remove the line."
            )
        if len(cells) != n_columns:
            raise DataError(
                f"{where}: the line has {counted(len(cells), 'column')}, but line {first_line} has "
                f"{n_columns}. Separate all columns in the same way, and remove comments."
            )
        words.append((number, cells[word - 1], cells[label - 1]))


def _require_columns(where: str, word: int, label: int, cells: list[str]) -> None:
    """Raise ConfigError if the first word has too few columns, or those of CoNLL-U."""
    if len(cells) == len(Word._fields) and cells[0] == "1" and word == 1:
        raise ConfigError(
            f"{where}: the first of {len(cells)} columns numbers the words. If the file is "
            "CoNLL-U, set `format: conllu`; otherwise set `columns.text` to the number of the "
            "column of words."
        )
    highest = max(label, word)
    if len(cells) < highest:
        shown = ", ".join(f"{number}: {cell}" for number, cell in enumerate(cells[:12], start=1))
        raise ConfigError(
            f"{where}: no column {highest}. The columns of this line are {shown}. Set "
            "`columns: {text: NUMBER, label: NUMBER}`."
        )


def _unit(columns: Columns) -> str:
    """Return the unit that a split keeps together, "sentence" (the default) or "document"."""
    unit = columns.group or "sentence"
    if unit not in _UNITS:
        raise ConfigError(f"Unknown group {unit!r}. {nearest(unit, _UNITS)}")
    return unit


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, then of a blank one, which ends the last sentence."""
    # `splitlines` would also split at U+2028.
    for number, line in enumerate([*read_text(path).split("\n"), ""], start=1):
        yield number, line.rstrip("\r")
