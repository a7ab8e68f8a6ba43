"""Names of the columns of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a table that contain the fields of an example.

    Attributes:
        text: column of the text.
        label: column of the class.
        group: column of the group; None makes each row its own group.
        id: column of the id; None names the rows `row 1`, `row 2`, ...
        span: columns of the first character and one past the last; None means the whole text.
        split: column with "train" or "test"; None if the table assigns no split.
        counterfactual: column of the counterfactual text; None without one.
        values: columns whose cells the examples keep, as far as they exist.
        reply: column of the assistant's turn; None if the text is no conversation, or ends with
            the user's turn.
    """

    text: str = "text"
    label: str = "label"
    group: str | None = None
    id: str | None = None
    span: tuple[str, str] | None = None
    split: str | None = None
    counterfactual: str | None = None
    values: tuple[str, ...] = ()
    reply: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that must exist."""
        single = (self.text, self.label, self.group, self.id, self.split)
        return tuple(
            name
            for name in (*single, self.counterfactual, self.reply, *(self.span or ()))
            if name is not None
        )

    @property
    def defaults(self) -> tuple[str, ...]:
        """Names of the required columns for which the user chose no other name."""
        return tuple(key for key in ("text", "label") if getattr(self, key) == key)
