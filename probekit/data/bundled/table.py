"""A generated data set as two files: its rows, and a card that describes them."""

from __future__ import annotations

import csv
import io
import random
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

Row = dict[str, str]
Item = TypeVar("Item")

_CARD = """\
# {title}

{task}

{n_rows} rows, {n_texts} distinct texts, {n_groups} groups of {group_sizes} rows.

| label | rows | share |
|---|---:|---:|
{labels}

| column | holds |
|---|---|
{columns}

## How the rows are made
{construction}

## What a probe could still use
{cheats}

## Origin
Written by `probekit/data/bundled/{name}.py`; nobody else's text is in it. Released under CC0 1.0:
use it for anything. `python -m probekit.data.bundled data` writes this file and the rows again,
byte for byte.
"""


@dataclass(frozen=True)
class BundledSet:
    """A generated data set, and what its card says.

    Attributes:
        name: of its files and of its generator.
        title: of the card.
        task: what the label says, and where to read it.
        construction: how the rows are made, and which cheats that rules out.
        cheats: what a probe could still use.
        columns: what each column holds, in their order.
        rows: a cell for every column; "label" and "group" are among them.
    """

    name: str
    title: str
    task: str
    construction: str
    cheats: tuple[str, ...]
    columns: dict[str, str]
    rows: tuple[Row, ...]

    def csv(self) -> str:
        """Return the rows as the contents of a CSV file."""
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, list(self.columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return file.getvalue()

    def card(self) -> str:
        """Return the card in Markdown; its numbers are counted from the rows."""
        labels = Counter(row["label"] for row in self.rows)
        sizes = Counter(row["group"] for row in self.rows).values()
        return _CARD.format(
            title=self.title,
            task=_wrapped(self.task),
            n_rows=f"{len(self.rows):,}",
            n_texts=f"{len({row['text'] for row in self.rows}):,}",
            n_groups=len(sizes),
            group_sizes=" to ".join(map(str, sorted({min(sizes), max(sizes)}))),
            labels="\n".join(
                f"| {label} | {n:,} | {n / len(self.rows):.1%} |"
                for label, n in sorted(labels.items())
            ),
            columns="\n".join(f"| {name} | {holds} |" for name, holds in self.columns.items()),
            construction=_wrapped(self.construction),
            cheats="\n".join(_wrapped(f"- {cheat}") for cheat in self.cheats),
            name=self.name,
        )


def _wrapped(paragraph: str) -> str:
    indent = "  " if paragraph.startswith("- ") else ""
    return textwrap.fill(paragraph, width=100, subsequent_indent=indent)


def shuffled(items: Iterable[Item], generator: random.Random) -> list[Item]:
    """Return the items in random order, the same in all versions of Python.

    Only `random()` is promised to stay as it is; `shuffle` and `sample` are not.

    >>> shuffled("abc", random.Random(1))
    ['a', 'c', 'b']
    """
    return sorted(items, key=lambda _: generator.random())
