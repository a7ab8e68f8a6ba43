"""Labelled examples, a data set as an immutable list of them, and findings of its checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import accumulate, chain, cycle
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from probekit.errors import DataError
from probekit.provenance import digest as digest_of

# Words of a text, and every other symbol as a word of its own.
WORD = r"\w+|[^\w\s]"

StringArray = npt.NDArray[np.object_]
TextSpan: TypeAlias = tuple[str, tuple[int, int] | None]

_BETWEEN = "\n\n"  # turns of a conversation


class Turn(NamedTuple):
    """A turn of a conversation: first and one past the last character in the text, and role.

    Roles are those of chat templates: user and assistant in turn, after at most one system.
    `others` is JSON of the other keys of the message, which only the template reads; "" for none.
    """

    start: int
    end: int
    role: str
    others: str = ""


Turns: TypeAlias = tuple[Turn, ...]


def join_turns(
    parts: Sequence[str],
    roles: Sequence[str] = ("user", "assistant"),
    others: Sequence[str] = ("",),
) -> tuple[str, Turns]:
    r"""Return a text of all turns, and their places in it; `roles` and `others` are repeated.

    >>> text, turns = join_turns(["Is it far?", "No."])
    >>> text, turns[1]
    ('Is it far?\n\nNo.', Turn(start=12, end=15, role='assistant', others=''))
    """
    starts = accumulate((len(part) + len(_BETWEEN) for part in parts[:-1]), initial=0)
    turns = (
        Turn(start, start + len(part), *about)
        for start, part, *about in zip(starts, parts, cycle(roles), cycle(others), strict=False)
    )
    return _BETWEEN.join(parts), tuple(turns)


class RowSource(NamedTuple):
    """Where a row was read from, for messages.

    Attributes:
        name: path of the file, or type of the table in memory.
        line: line in the file, from 1; 0 if the row has an index.
        key: index of the row in a table without lines, as it is written in messages: its position,
            from 0, or its label.

    >>> str(RowSource("rows.csv", 2)), str(RowSource("DataFrame", key="'q7'"))
    ('rows.csv:2', "DataFrame index 'q7'")
    """

    name: str
    line: int = 0
    key: str = ""

    @property
    def row(self) -> str:
        """Line or index, without the name.

        >>> RowSource("rows.csv", 2).row
        'line 2'
        """
        return f"line {self.line}" if self.line else f"index {self.key}"

    def __str__(self) -> str:
        return f"{self.name}:{self.line}" if self.line else f"{self.name} {self.row}"


def check_field(name: str, value: str) -> None:
    """Raise DataError if a text, label, group or id is empty or not valid; see `Example`."""
    if not value or value.isspace():
        raise DataError(f"The {name} is empty. Fill it in, or leave the example out.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"The {name} {value!r} contains a lone surrogate, which is not a character. "
            "Write the character itself, or both surrogates of its JSON escape."
        ) from error
    if name != "text" and "\0" in value:
        # NumPy strings drop trailing NULs, so that two labels would become equal.
        raise DataError(f"The {name} {value!r} contains a NUL character. Remove it.")


@dataclass(frozen=True, slots=True)
class Example:
    """A labelled text, or a labelled span of characters in a text.

    Attributes:
        text: input of the model.
        label: class that a probe predicts.
        group: examples of a group are always on the same side of a split.
        id: name in messages and results; unique within a data set.
        span: first character and one past the last; None means the whole text.
        split: "train" or "test" if the data file assigns it, else None.
        counterfactual: a text with another label, otherwise alike; None without one.
        turns: the turns of a conversation; empty if all of the text is one turn, or no
            conversation.
        values: cells of further columns, such as the right answer, as pairs of name and text.
        source: where it was read from, for messages; None if unknown. It is not part of the data.
        reply_ids: tokens of the last turn, if a network generated it; empty if it is tokenized.

    Raises:
        DataError: text, label, group or id is empty, one of them or a cell of `values` is not valid
            Unicode or, other than the text, contains a NUL character, or the span is empty or not
            within the text.

    >>> example = Example("The keys", "plural", group="key", id="row 1", span=(4, 8))
    >>> example.text[slice(*example.span)]
    'keys'
    """

    text: str
    label: str
    group: str
    id: str
    span: tuple[int, int] | None = None
    split: str | None = None
    counterfactual: str | None = None
    turns: Turns = ()
    values: tuple[tuple[str, str], ...] = ()
    source: RowSource | None = field(default=None, compare=False)
    reply_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("text", "label", "group", "id"):
            check_field(name, getattr(self, name))
        for name, cell in self.values:
            if cell and not cell.isspace():  # a cell may be empty
                check_field(f"cell of {name}", cell)
        if self.span is not None and not 0 <= self.span[0] < self.span[1] <= len(self.text):
            raise DataError(
                f"The span {self.span} is empty or not within the {len(self.text)} characters of "
                f"{self.text!r}. A span counts characters, not bytes, and ends one past its last."
            )

    @property
    def where(self) -> str:
        """The source in words, or the id if it is unknown.

        >>> Example("A text.", "x", "g", "row 1", source=RowSource("rows.csv", 2)).where
        'rows.csv:2'
        """
        return str(self.source) if self.source else self.id

    @property
    def places_of_turns(self) -> tuple[tuple[Any, ...], ...]:
        """The turns as they are digested: without roles, which follow from a system's turn."""
        return tuple(one[: 4 if one.others else 2 + (one.role == "system")] for one in self.turns)

    @property
    def place(self) -> TextSpan:
        """Text and span, which identify duplicates."""
        return self.text, self.span


_REQUIRED = ("text", "label", "group", "id", "span", "split")
_AT_ONCE = 10_000  # examples that are digested together
_OPTIONAL = ("counterfactual", "places_of_turns", "values")


@dataclass(frozen=True, eq=False)
class RowExamples(Sequence[Example]):
    """Examples of the rows of an array, as columns; each is made when it is read.

    Millions of `Example` objects would need more memory than a probe of their rows.

    Attributes:
        numbers: number of each row in the array, shape (n_rows,); the id is "row NUMBER".
        labels: label of each row, shape (n_rows,).
        groups: group of each row, shape (n_rows,); None makes each row its own group.
        texts: text of each row, shape (n_rows,); None for its id.
        splits: "train" or "test" for each row, shape (n_rows,); None if no split is given.

    >>> rows = RowExamples(np.arange(3), np.array(["x", "y", "y"], dtype=object))
    >>> rows[2].label, rows.take([0, 2]).column("group").tolist()
    ('y', ['row 0', 'row 2'])
    """

    numbers: npt.NDArray[np.int64]
    labels: StringArray
    groups: StringArray | None = None
    texts: StringArray | None = None
    splits: StringArray | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int | slice) -> Any:
        return self.take(place) if isinstance(place, slice) else next(iter(self.take([place])))

    def __iter__(self) -> Iterator[Example]:
        rows = zip(*(self.column(name) for name in _REQUIRED), strict=True)
        return (Example(**dict(zip(_REQUIRED, row, strict=True))) for row in rows)

    def take(self, place: Any) -> RowExamples:
        """Return the examples of a slice, of indices or of a mask."""
        columns: Any = {one.name: getattr(self, one.name) for one in fields(self)}
        given = {name: column[place] for name, column in columns.items() if column is not None}
        return RowExamples(**given)

    def column(self, name: str) -> StringArray:
        """Return a required field of each example, shape (n_rows,)."""
        given = {"label": self.labels, "group": self.groups, "text": self.texts}
        column = (given | {"split": self.splits}).get(name)
        if column is not None:
            return column
        if name in ("span", "split"):
            return np.full(len(self), None, dtype=object)
        return np.array([f"row {number}" for number in self.numbers.tolist()], dtype=object)


@dataclass(frozen=True)
class Dataset:
    """An immutable list of examples, with notes of its reader.

    Attributes:
        name: name shown in reports.
        examples: examples in the order of the file; `RowExamples` for rows of an array.
        notes: one sentence with a count for each type of row that the reader skipped or repaired.
        has_groups: whether the file assigns groups; otherwise each row is its own group.
        marks_words: whether spans are words of a treebank, where "don't" is two words.
        tables: for each table that was read, a function that reads it again, with other columns;
            not part of the data. Empty for words.

    >>> dataset = Dataset("tiny", (Example("a b", "x", "g", "1"), Example("c", "y", "h", "2")))
    >>> len(dataset), list(dataset.labels), list(dataset.select([1]).groups)
    (2, ['x', 'y'], ['h'])
    """

    name: str
    examples: Sequence[Example]
    notes: tuple[str, ...] = ()
    has_groups: bool = True
    marks_words: bool = False
    tables: tuple[Callable[[Collection[str]], Any], ...] = field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def labels(self) -> StringArray:
        """Label of each example, shape (n_examples,)."""
        return self.column("label")

    @property
    def groups(self) -> StringArray:
        """Group of each example, shape (n_examples,)."""
        return self.column("group")

    @property
    def group_codes(self) -> npt.NDArray[np.int64]:
        """Index of the group of each example among the sorted groups, shape (n_examples,)."""
        return self._grouped[0]

    @property
    def group_names(self) -> StringArray | npt.NDArray[np.int64]:
        """The sorted groups, shape (n_groups,); row numbers if each row of an array is a group."""
        return self._grouped[1]

    @cached_property
    def _grouped(self) -> tuple[npt.NDArray[np.int64], StringArray | npt.NDArray[np.int64]]:
        if isinstance(self.examples, RowExamples) and self.examples.groups is None:
            # The numbers in the order of the texts "row NUMBER", which are not made.
            texts, codes = np.unique(self.examples.numbers.astype(bytes), return_inverse=True)
            return codes, texts.astype(np.int64)
        import pandas as pd  # takes time that a mistake in a file does not need

        codes, names = pd.factorize(self.groups, sort=True)
        return codes, names

    def column(self, name: str) -> StringArray:
        """Return the text, label, group, id or split of each example, shape (n_examples,)."""
        if isinstance(self.examples, RowExamples):
            return self.examples.column(name)
        return np.array(list(map(attrgetter(name), self.examples)), dtype=object)

    @cached_property
    def digest(self) -> str:
        """BLAKE3 digest of the contents of all examples in order, in hexadecimal."""
        names: tuple[str, ...] = _REQUIRED
        examples = () if isinstance(self.examples, RowExamples) else self.examples
        # If no example has an optional field, all of them are left out, so that the digest of such
        # data does not depend on which optional fields exist.
        if any(one.counterfactual or one.turns or one.values for one in examples):  # noqa: PD011
            has_replies = any(one.reply_ids for one in examples)
            names += (*_OPTIONAL, "reply_ids") if has_replies else _OPTIONAL
        return digest_of(chain([b"["], self._json(names), [b"]"]))

    def _json(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yield the JSON of all examples in parts, without the brackets around it."""
        for start in range(0, len(self), _AT_ONCE):
            part = self.examples[start : start + _AT_ONCE]
            contents: Iterable[Any] = map(attrgetter(*names), part)
            if isinstance(part, RowExamples):
                contents = zip(*map(part.column, names), strict=True)
            yield f"{', ' * (start > 0)}{json.dumps(list(contents))[1:-1]}".encode()

    def select(self, indices: Iterable[int]) -> Dataset:
        """Return a data set of the examples at `indices`, in that order."""
        if isinstance(self.examples, RowExamples):
            return replace(self, examples=self.examples.take(np.fromiter(indices, np.int64)))
        return replace(self, examples=tuple(self.examples[index] for index in indices))


Severity = Literal["error", "warning", "info"]

_LEVELS: tuple[Severity, ...] = ("error", "warning", "info")
_SHOWN_ROWS = 3


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        level: "error" if results are wrong, "warning" if they may be, else "info".
        code: short, stable identifier.
        message: description with numbers.
    """

    level: Severity
    code: str
    message: str


warning = partial(Finding, "warning")


def by_level(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings sorted by level, errors first, otherwise in their order."""
    return tuple(sorted(findings, key=lambda finding: _LEVELS.index(finding.level)))


def rows_of(examples: Sequence[Example]) -> str:
    """Return the sources of the first few examples, such as file and line.

    >>> sources = [RowSource("a.csv", line) for line in range(2, 7)]
    >>> examples = [Example("a", "x", "g", str(row), source=row) for row in sources]
    >>> rows_of(examples)
    'a.csv:2, a.csv:3, a.csv:4, and 2 more'
    """
    more = f", and {len(examples) - _SHOWN_ROWS:,} more" if len(examples) > _SHOWN_ROWS else ""
    return ", ".join(example.where for example in examples[:_SHOWN_ROWS]) + more
