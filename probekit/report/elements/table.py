"""A table, which pages show as HTML and commands as text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Cell:
    """A cell of a table with more than a text.

    Attributes:
        text: main text.
        small: smaller texts after it, each with its class in the style sheet, or "".
        lead: word before the text, which is also its class.
        css: class of the cell in the style sheet.
        hint: text that is shown when pointing at the cell.
        is_strong: whether the text is bold.
        url: address that the text links to, "" for none.
    """

    text: str
    small: Sequence[tuple[str, str]] = ()
    lead: str = ""
    css: str = ""
    hint: str = ""
    is_strong: bool = False
    url: str = ""

    @classmethod
    def number(cls, text: str) -> Cell:
        """Return a cell with a number, "–" for NaN, and what follows it in a smaller text."""
        value, _, interval = text.partition(" ")
        return cls("–" if "nan" in value else value, [(interval, "")])

    @property
    def line(self) -> str:
        """The cell as a line of text."""
        return " ".join(filter(None, [self.lead, self.text, *(text for text, _ in self.small)]))


@dataclass(frozen=True)
class Column:
    """Heading of a column.

    Attributes:
        name: title of the column.
        css: class of its cells in the style sheet: `words` and `value` for texts, `site` for names,
            "" for numbers and for the names of the rows.
        form: `code` for names that may break after dots, `names` for other texts that may, `phrase`
            for texts whose values do not break; `title` if `name` is free text.
        unit: smaller text below the title.
    """

    name: str
    css: str = ""
    form: str = ""
    unit: str = ""


@dataclass(frozen=True)
class ResultTable:
    """A table, which a page and the terminal show.

    Attributes:
        title: name of the table.
        columns: headings; numbers are aligned to the right.
        rows: cells of each row, one per column.
        css: further classes in the style sheet.
        has_title: whether the page shows the title as a heading.
        is_sortable: whether a click on a heading sorts the rows.
        head: index of the column that names the rows.
        chosen: indices of highlighted rows.
        foot: rows of sums.
    """

    kind: ClassVar = "table"
    title: str
    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Cell | str]]
    css: str = ""
    has_title: bool = False
    is_sortable: bool = False
    head: int = 0
    chosen: Collection[int] = ()
    foot: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, title: str, columns: Mapping[Any, Any], **options: Any) -> ResultTable:
        """Return a table, given the cells of each column by its heading."""
        return cls(title, tuple(columns), list(zip(*columns.values(), strict=True)), **options)

    @property
    def headings(self) -> list[Column]:
        """A heading for each column, empty ones in a table without `columns`.

        Such a table must have a row. Columns given by name have no class, form or unit.
        """
        columns = self.columns or ("",) * len(self.rows[0])
        return [Column(column) if isinstance(column, str) else column for column in columns]
