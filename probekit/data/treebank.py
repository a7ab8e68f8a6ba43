"""Treebanks into examples: one for each syntactic word, with its place in the text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Literal, TypeAlias

from probekit.data.conllu import Sentence, Surface, Word, read_sentences
from probekit.data.examples import Dataset, Example
from probekit.errors import ConfigError, DataError, nearest

Span: TypeAlias = tuple[int, int]

_FEATS = "FEATS:"
_HEAD = "HEAD"
_LABELS = {
    name: attrgetter(name.lower()) for name in ("FORM", "LEMMA", "UPOS", "XPOS", "DEPREL", _HEAD)
}
_GROUPS = ("sentence", "document")

_NO_TEXT = "sentences without a text, which was put together from their words"
_EMPTY = "empty nodes left out, as they are no part of the text"
_NO_LABEL = "words without the label left out"
_NOT_THERE = "words left out, as the text has something else in their place"
_NOT_WHOLE = "sentences left out, as a word of their tree has no head or no place in the text"
_NOT_SPELLED = "words with the span of their multiword token, as its words do not spell it"


@dataclass(frozen=True)
class ConlluColumns:
    """What of a treebank becomes the label and the group.

    Attributes:
        label: FORM, LEMMA, UPOS, XPOS, DEPREL, or a feature such as FEATS:Number. HEAD is the place
            of the word's head in its sentence, from 0, and -1 for the root; where one word of a
            sentence would be left out, the whole sentence is.
        group: what a split keeps together, "sentence" or "document".

    Raises:
        ConfigError: there is no such label or group.
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
    r"""Return one example for each word of a CoNLL-U file that has the label, in its order.

    A word's span is found character by character. Words that are left out or mended are counted
    in the notes.

    Raises:
        MissingError: there is no such file.
        DataError: the file is not CoNLL-U, or no word has the label; the message gives the line.

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
    ('words without the label left out: 1',)
    """
    examples: list[Example] = []
    notes: Counter[str] = Counter()
    for sentence, own_name, document in _named_sentences(path):
        group = own_name if columns.group == "sentence" else document
        if group is None:
            raise DataError(
                f"{path}:{sentence.line}: no `# newdoc` stands before this sentence, so that it "
                "belongs to no document. Group by sentence."
            )
        examples += _examples(path, sentence, columns.label, own_name, group, notes)
    if not examples:
        raise DataError(_nothing_found(path, columns.label))
    told = tuple(f"{note}: {n}" for note, n in notes.items() if n)
    return Dataset(name, tuple(examples), told, marks_words=True)


def _named_sentences(path: Path) -> Iterator[tuple[Sentence, str, str | None]]:
    """Yield each sentence with its name and its document's; a running number where it has none."""
    line_of: dict[str, int] = {}
    document: str | None = None
    for number, sentence in enumerate(read_sentences(path), start=1):
        name = sentence.comments.get("sent_id") or f"{path.name}, sentence {number}"
        if name in line_of:
            raise DataError(
                f"{path}:{sentence.line}: the sentence on line {line_of[name]} has the sent_id "
                f"{name!r} already. Give each its own."
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
    """Yield the words of a sentence, which stands at line `sentence.line` of `path`."""
    text = sentence.comments.get("text") or _text_of(sentence.surfaces)
    notes.update({_NO_TEXT: int(not sentence.comments.get("text")), _EMPTY: sentence.n_empty_nodes})
    spans = _spans(text, sentence, notes)
    try:
        values = [_label_of(word, label, len(spans)) for word in sentence.words]
    except DataError as error:
        raise DataError(f"{path}:{sentence.line}: {error}") from error
    if label == _HEAD and (None in spans or None in values):
        notes[_NOT_WHOLE] += 1
        return
    for word, span, value in zip(sentence.words, spans, values, strict=True):
        if value is None:
            notes[_NO_LABEL] += 1
        elif span is None:
            notes[_NOT_THERE] += 1
        else:
            try:
                id, line = f"{name}:{word.id}", sentence.line
                yield Example(text, value, group, id, span, file=str(path), line=line)
            except DataError as error:
                where = f"{path}:{sentence.line}: word {word.id} of the sentence that begins here"
                raise DataError(f"{where}: {error}") from error


def _label_of(word: Word, label: str, n_words: int) -> str | None:
    if label == _HEAD:
        return _place_of_head(word, n_words)
    if label not in _LABELS:
        return word.features.get(label.removeprefix(_FEATS))
    value: str = _LABELS[label](word)
    # `_` stands for no value, but an underscore is a word and its own lemma.
    is_the_word = word.form == "_" and label in ("FORM", "LEMMA")
    return value if value != "_" or is_the_word else None


def _place_of_head(word: Word, n_words: int) -> str | None:
    """Return where the head stands, from 0; "-1" for the root, None without a head."""
    if word.head == "_":
        return None
    if not word.head.isdecimal() or not 0 <= int(word.head) <= n_words:
        raise DataError(
            f"word {word.id} of the sentence that begins here has the head {word.head!r}. Allowed: "
            f"0 (the root) to {n_words}, the number of its words."
        )
    return str(int(word.head) - 1)


def _nothing_found(path: Path, label: str) -> str:
    words = [word for sentence in read_sentences(path) for word in sentence.words]
    features = {_FEATS + feature for word in words for feature in word.features}
    return f"{path}:1: no word has {label} and a place in its text. " + nearest(
        label, features.union(_LABELS)
    )


def _text_of(surfaces: list[Surface]) -> str:
    return "".join(surface.form + " " * surface.space_after for surface in surfaces).rstrip(" ")


def _spans(text: str, sentence: Sentence, notes: Counter[str]) -> list[Span | None]:
    """Return the place of each word; None from the first on that is not where it should be."""
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


def _part_spans(whole: Span, surface: str, forms: list[str], notes: Counter[str]) -> list[Span]:
    if "".join(forms) != surface:
        notes[_NOT_SPELLED] += len(forms)
        return [whole] * len(forms)
    return list(pairwise(accumulate(map(len, forms), initial=whole[0])))
