"""Headings and sentences made of texts of any length."""

from __future__ import annotations

LONGEST_HEADING = 100  # characters of a text


def short_heading(text: str, *, keeps_end: bool = False) -> str:
    """Return a text of at most `LONGEST_HEADING` characters; a long text is cut at one end.

    Args:
        text: The text.
        keeps_end: Whether the end of a long text is kept instead of its beginning.

    >>> short = short_heading("a" * 100 + "b", keeps_end=True)
    >>> len(short), short[0], short[-2:]
    (100, '…', 'ab')
    """
    if len(text) <= LONGEST_HEADING:
        return text
    n = LONGEST_HEADING - 1
    return f"…{text[-n:]}" if keeps_end else f"{text[:n]}…"


def capitalised(text: str) -> str:
    """Return a text with a capital first letter; the other letters are unchanged.

    >>> capitalised("macro F1"), capitalised("")
    ('Macro F1', '')
    """
    return text[:1].upper() + text[1:]
