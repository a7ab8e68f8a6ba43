"""Text as it can be seen: whitespace as glyphs, invisible characters by number."""

from __future__ import annotations

import unicodedata

GLYPHS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
# Joiners hold emoji and Indic letters together; without them a token would show as other text.
JOINERS = "\u200c\u200d"


def token_label(token: str) -> str:
    r"""Return a token with its whitespace as glyphs and invisible characters by number.

    >>> token_label(" the"), token_label("\n\t"), token_label("\u202e")
    ('␣the', '⏎⇥', '<U+202E>')
    """
    return "".join(GLYPHS.get(character, _visible(character)) for character in token)


def line_label(text: str) -> str:
    r"""Return a text on one line: spaces stay, whatever else cannot be seen is shown.

    A terminal obeys what it cannot show, such as the escape character.

    >>> line_label("two\nlines \x1b[2J")
    'two⏎lines <U+001B>[2J'
    """
    return "".join(letter if letter == " " else token_label(letter) for letter in text)


def _visible(character: str) -> str:
    hidden = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
    return f"<U+{ord(character):04X}>" if hidden and character not in JOINERS else character
