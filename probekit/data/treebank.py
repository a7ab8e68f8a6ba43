"""Reading treebanks: one example per syntactic word, with its span in the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Literal, TypeAlias

from probekit.data.conllu import Sentence, Surface, Word, read_sentences
from probekit.data.examples import Dataset, Example, RowSource
from probekit.errors import ConfigError, DataError, nearest

Span: TypeAlias = tuple[int, int]

_FEATS = "FEATS:"
_HEAD = "HEAD"
_LABELS = {
    name: attrgetter(name.lower()) for name in ("FORM", "LEMMA", "UPOS", "XPOS", "DEPREL", _HEAD)
}
_GROUPS = ("sentence", "document")

_NO_TEXT = "sentences without a text, which was assembled from their words"
_EMPTY = "empty nodes skipped, because they are not part of the text"
_NO_LABEL = "words without the label skipped"
_NOT_IN_TEXT = "words skipped, because the text differs from their form"
_INCOMPLETE = "sentences skipped, because a word has no head or does not occur in the text"
_NOT_SPELLED = "words with the span of their multiword token, because its words do not spell it"


@dataclass(frozen=True)
class ConlluColumns:
    """Which field of a treebank is the label of an example, and which unit is its group.

    Attributes:
        label: FORM, LEMMA, UPOS, XPOS, DEPREL, or a feature such as FEATS:Number. HEAD is the index
            of the word's head in its sentence, from 0, or -1 for the root; a sentence in which a
            word would be skipped is skipped completely.
        group: unit that a split keeps together, "sentence" or "document".

    Raises:
        ConfigError: label or group is unknown.
    """

    label: str = "UPOS"
    group: Literal["sentence", "document"] = "sentence"

    def __post_init__(self) -> None:
        if self.label not in _LABELS and not self.label.startswith(_FEATS):
            raise ConfigError(
                f"Unknown CoNLL-U label {self.label!r}. "
                + nearest(self.label, [*_LABELS, f"{_FEATS}Number"])
            )
        if self.group not in _GROUPS:
            raise ConfigError(f"Unknown group {self.group!r}. {nearest(self.group, _GROUPS)}")


def read_treebank(path: Path, columns: ConlluColumns, *, name: str) -> Dataset:
    r"""Read a CoNLL-U file: one example for each word that has the label, in file order.

    Spans are located by matching word forms with the text. The notes of the data set count the
    words that were skipped or repaired.

    Raises:
        MissingError: the file does not exist.
        DataError: the file is not valid CoNLL-U, or no word has the label; the message gives the
            line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "tiny.conllu"
    >>> _ = path.write_text(
    ...     "# text = Keys fell\n"
    ...     "1\tKeys\tkey\tNOUN\tNNS\tNumber=Plur\t2\tnsubj\t_\t_\n"
    ...     "2\tfell\tfall\tVERB\tVBD\tTense=Past\t0\troot\t_\t_\n"
    ... )
    >>> dataset = read_treebank(path, ConlluColumns(label="FEATS:Number"), name="tiny")
    >>> [(example.id, example.label, example.span) for example in dataset.examples]
    [('tiny.conllu, sentence 1:1', 'Plur', (0, 4))]
    >>> dataset.notes
    ('words without the label skipped: 1',)
    """
    examples: list[Example] = []
    notes: Counter[str] = Counter()
    for sentence, own_name, document in _named_sentences(path):
        group = own_name if columns.group == "sentence" else document
        if group is None:
            raise DataError(
                f"{path}:{sentence.line}: the sentence belongs to no document, because no "
                "`# newdoc` comes before it. Group by sentence."
            )
        examples += _examples(path, sentence, columns.label, own_name, group, notes)
    if not examples:
        raise DataError(_no_label_message(path, columns.label))
    counted_notes = tuple(f"{note}: {n}" for note, n in notes.items() if n)
    return Dataset(name, tuple(examples), counted_notes, marks_words=True)


def _named_sentences(path: Path) -> Iterator[tuple[Sentence, str, str | None]]:
    """Yield each sentence, its name (by default a running number) and its document."""
    line_of: dict[str, int] = {}
    document: str | None = None
    for number, sentence in enumerate(read_sentences(path), start=1):
        name = sentence.comments.get("sent_id") or f"{path.name}, sentence {number}"
        if name in line_of:
            raise DataError(
                f"{path}:{sentence.line}: the sent_id {name!r} is a duplicate of line "
                f"{line_of[name]}. Make each sent_id unique."
            )
        line_of[name] = sentence.line
        if "newdoc id" in sentence.comments or "newdoc" in sentence.comments:
            document = (
                sentence.comments.get("newdoc id")
                or f"{path.name}, document from sentence {number}"
            )
        yield sentence, name, document


def _examples(
    path: Path, sentence: Sentence, label: str, name: str, group: str, notes: Counter[str]
) -> Iterator[Example]:
    """Yield the examples of a sentence, and count skipped words in `notes`."""
    text = sentence.comments.get("text") or _text_of(sentence.surfaces)
    notes.update({_NO_TEXT: int(not sentence.comments.get("text")), _EMPTY: sentence.n_empty_nodes})
    spans = _spans(text, sentence, notes)
    try:
        values = [_label_of(word, label, len(spans)) for word in sentence.words]
    except DataError as error:
        raise DataError(f"{path}:{sentence.line}: {error}") from error
    if label == _HEAD and (None in spans or None in values):
        notes[_INCOMPLETE] += 1
        return
    for word, span, value in zip(sentence.words, spans, values, strict=True):
        if value is None:
            notes[_NO_LABEL] += 1
        elif span is None:
            notes[_NOT_IN_TEXT] += 1
        else:
            try:
                source = RowSource(str(path), sentence.line)
                yield Example(text, value, group, f"{name}:{word.id}", span, source=source)
            except DataError as error:
                where = f"{path}:{sentence.line}: word {word.id} of the sentence that begins here"
                raise DataError(f"{where}: {error}") from error


def _label_of(word: Word, label: str, n_words: int) -> str | None:
    if label == _HEAD:
        return _head_index(word, n_words)
    if label not in _LABELS:
        return word.features.get(label.removeprefix(_FEATS))
    value: str = _LABELS[label](word)
    # `_` means no value, except that an underscore is also a word and its own lemma.
    is_underscore = word.form == "_" and label in ("FORM", "LEMMA")
    return value if value != "_" or is_underscore else None


def _head_index(word: Word, n_words: int) -> str | None:
    """Return the index of the head, from 0; "-1" for the root, None without a head."""
    if word.head == "_":
        return None
    is_number = word.head.isascii() and word.head.isdecimal()
    if not is_number or not 0 <= int(word.head) <= n_words:
        raise DataError(
            f"word {word.id} of the sentence that begins here has the head {word.head!r}. Allowed: "
            f"0 (the root) to {n_words}, the number of words."
        )
    return str(int(word.head) - 1)


def _no_label_message(path: Path, label: str) -> str:
    words = [word for sentence in read_sentences(path) for word in sentence.words]
    features = {_FEATS + feature for word in words for feature in word.features}
    return f"{path}:1: no word with {label} occurs in its text. " + nearest(
        label, features.union(_LABELS)
    )


def _text_of(surfaces: list[Surface]) -> str:
    return "".join(surface.form + " " * surface.space_after for surface in surfaces).rstrip(" ")


def _spans(text: str, sentence: Sentence, notes: Counter[str]) -> list[Span | None]:
    """Return the span of each word; None from the first word on that differs from the text."""
    spans: list[Span | None] = []
    start = 0
    for surface in sentence.surfaces:
        if not text.startswith(surface.form, start):
            break
        words = sentence.words[len(spans) : len(spans) + surface.n_words]
        end = start + len(surface.form)
        spans += _part_spans((start, end), surface.form, [word.form for word in words], notes)
        start = len(text) - len(text[end:].lstrip()) if surface.space_after else end
    return spans + [None] * (len(sentence.words) - len(spans))


def _part_spans(token: Span, surface: str, forms: list[str], notes: Counter[str]) -> list[Span]:
    if "".join(forms) != surface:
        notes[_NOT_SPELLED] += len(forms)
        return [token] * len(forms)
    return list(pairwise(accumulate(map(len, forms), initial=token[0])))
