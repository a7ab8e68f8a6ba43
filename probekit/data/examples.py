"""Labelled examples: what is read, split, captured and probed, as one immutable list."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from probekit.errors import DataError
from probekit.provenance import digest

StringArray = npt.NDArray[np.object_]


SourceLine: TypeAlias = tuple[str, tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text, or one labelled stretch of characters within a text.

    Attributes:
        text: what the model reads.
        label: the class that a probe is to tell.
        group: examples of one group never stand on both sides of a split.
        id: names the example in messages and results; unique within a data set.
        span: first character and one past the last of the labelled stretch; None: the whole text.
        split: the side that the data file assigns, "train" or "test"; None: it assigns none.

    Raises:
        DataError: a field is empty or cannot be written as UTF-8, or the span is not in the text.

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

    def __post_init__(self) -> None:
        for name, value in (
            ("text", self.text),
            ("label", self.label),
            ("group", self.group),
            ("id", self.id),
        ):
            if not value or value.isspace():
                raise DataError(f"The {name} is empty. Fill it in, or leave the example out.")
            _require_unicode(name, value)
            if name != "text" and "\0" in value:
                # Arrays of strings drop it at the end, so that two labels would become one.
                raise DataError(f"The {name} {value!r} holds a NUL character. Remove it.")
        if self.span is not None and not 0 <= self.span[0] < self.span[1] <= len(self.text):
            raise DataError(
                f"The span {self.span} is empty or not within the {len(self.text)} characters of "
                f"{self.text!r}. A span counts characters from 0 and ends one past its last."
            )

    @property
    def place(self) -> SourceLine:
        """Text and span: what the model reads of the example, whatever it is called."""
        return self.text, self.span


def _require_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"The {name} {value!r} holds half a surrogate pair, which is not text. "
            "Write the character itself, or both halves of its JSON escape."
        ) from error


_FIELDS = attrgetter(*(field.name for field in fields(Example)))


@dataclass(frozen=True)
class Dataset:
    """An immutable list of examples, and what its reader left out.

    Attributes:
        name: what reports call the data set.
        examples: in the order of the file.
        notes: one sentence, with its count, for each thing that the reader skipped or mended.
        has_groups: whether the data say what belongs together; else each row is its own group.

    >>> dataset = Dataset("tiny", (Example("a b", "x", "g", "1"), Example("c", "y", "h", "2")))
    >>> len(dataset), list(dataset.labels), list(dataset.select([1]).groups)
    (2, ['x', 'y'], ['h'])
    """

    name: str
    examples: tuple[Example, ...]
    notes: tuple[str, ...] = ()
    has_groups: bool = True

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def labels(self) -> StringArray:
        """The label of each example, shape (n_examples,)."""
        return np.array([example.label for example in self.examples], dtype=object)

    @cached_property
    def groups(self) -> StringArray:
        """The group of each example, shape (n_examples,)."""
        return np.array([example.group for example in self.examples], dtype=object)

    @cached_property
    def digest(self) -> str:
        """The BLAKE3 digest of all fields of all examples in their order, in hexadecimal."""
        content = json.dumps([_FIELDS(example) for example in self.examples])
        return digest([content.encode()])

    def select(self, indices: Iterable[int]) -> Dataset:
        """Return the data set of the examples at `indices`, in that order."""
        return replace(self, examples=tuple(self.examples[index] for index in indices))
