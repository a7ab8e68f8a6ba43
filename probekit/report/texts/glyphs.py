"""Visible labels of tokens: whitespace as glyphs, invisible characters as code points."""

from __future__ import annotations

import unicodedata

GLYPHS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
# Zero-width joiners are kept: replacing them would change how emoji and Indic letters render.
LONGEST_LABEL = 40  # characters
JOINERS = "\u200c\u200d"


def token_label(token: str) -> str:
    r"""Return a token with whitespace as glyphs and invisible characters as code points.

    >>> token_label(" the"), token_label("\n\t"), token_label("\u202e")
    ('␣the', '⏎⇥', '<U+202E>')
    """
    return "".join(GLYPHS.get(character, _visible(character)) for character in token)


def line_label(text: str) -> str:
    r"""Return a text as one line: spaces are kept, other invisible characters are made visible.

    This also makes control sequences harmless in a terminal.

    >>> line_label("two\nlines \x1b[2J")
    'two⏎lines <U+001B>[2J'
    """
    return "".join(letter if letter == " " else token_label(letter) for letter in text)


def class_label(label: str) -> str:
    r"""Return a class label for a figure or table: as one line of limited length.

    >>> class_label("plural"), class_label("a\u202eb")
    ('plural', 'a<U+202E>b')
    >>> class_label("x" * 200 + "end")
    'xxxxxxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxend'
    """
    text = line_label(label)
    if len(text) <= LONGEST_LABEL:
        return text
    end = (LONGEST_LABEL - 1) * 2 // 5
    return f"{text[: LONGEST_LABEL - 1 - end]}…{text[-end:]}"


def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
    return f"<U+{ord(character):04X}>" if hidden and character not in JOINERS else character
