"""Labels that look the same, typos in labels, and span boundaries inside words."""

from __future__ import annotations

import unicodedata

_MIN_LENGTH = 4  # short tags such as ADJ and ADV legitimately differ by one letter
_MIN_UPPER_LENGTH = 6  # of labels in capitals, which are mostly tags, such as PRON and PROPN

# Compatibility characters whose shape differs from that of their plain form, such as ² and 2.
_OTHER_SHAPES = ("<super>", "<sub>", "<fraction>", "<circle>", "<square>")

# Letters with the shape of a Latin letter: beginning of their Unicode names, and the rest of each
# name with that letter.
_SAME_SHAPES = (
    (
        "CYRILLIC CAPITAL LETTER",
        "A:A VE:B IE:E DZE:S BYELORUSSIAN-UKRAINIAN_I:I JE:J KA:K EM:M EN:H O:O ER:P ES:C TE:T U:Y "
        "HA:X",
    ),
    (
        "CYRILLIC SMALL LETTER",
        "A:a IE:e DZE:s BYELORUSSIAN-UKRAINIAN_I:i JE:j O:o ER:p ES:c U:y HA:x SHHA:h",
    ),
    (
        "GREEK CAPITAL LETTER",
        "ALPHA:A BETA:B EPSILON:E ZETA:Z ETA:H IOTA:I KAPPA:K MU:M NU:N OMICRON:O RHO:P TAU:T "
        "UPSILON:Y CHI:X",
    ),
    ("GREEK SMALL LETTER", "OMICRON:o"),
)
_LATIN = {
    ord(unicodedata.lookup(f"{start} {name.replace('_', ' ')}")): latin
    for start, pairs in _SAME_SHAPES
    for name, _, latin in (pair.partition(":") for pair in pairs.split())
}

_INVISIBLE = frozenset({0x034F, *range(0xFE00, 0xFE10)})  # joiner and variation selectors
_LAST_FORMAT = 0xFFFF  # later format characters are tags, which distinguish flags


def appearance(label: str) -> str:
    r"""Return a form that is equal for labels that differ only in case, spaces or encoding.

    The form is NFC, without invisible characters. Compatibility characters such as full-width
    letters, Cyrillic and Greek letters with the shape of a Latin one, and digits of other alphabets
    are replaced by plain ones.

    >>> appearance("Cafe\u0301 ") == appearance("caf\xe9"), appearance("p\u0430st\u200b")
    (True, 'past')
    >>> appearance("10\xb2") == appearance("102")
    False
    """
    plain = "".join(map(_plain, unicodedata.normalize("NFC", label)))
    folded = unicodedata.normalize("NFC", plain.translate(_LATIN).casefold())
    return " ".join(folded.split())


def _plain(character: str) -> str:
    """Return the plain form of a character, "" if it is invisible."""
    code = ord(character)
    if code in _INVISIBLE or (code <= _LAST_FORMAT and unicodedata.category(character) == "Cf"):
        return ""
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if unicodedata.decomposition(character).startswith(_OTHER_SHAPES):
        return character
    return unicodedata.normalize("NFKC", character)


def character_name(character: str) -> str:
    r"""Return code point and name of a character.

    >>> character_name("\u200b")
    'U+200B ZERO WIDTH SPACE'
    """
    return f"U+{ord(character):04X} {unicodedata.name(character, '')}".strip()


def is_typo(label: str, other: str) -> bool:
    """Return whether two labels differ by one typo after the first letter.

    A typo is a letter dropped, added or replaced, or two adjacent letters swapped. A changed
    digit is not a typo, and neither is another tag in capitals of fewer than six letters.

    >>> is_typo("pats", "past"), is_typo("plurale", "plural"), is_typo("nsubj", "csubj")
    (True, True, False)
    """
    is_tag = label.isupper() and other.isupper()
    shortest = _MIN_UPPER_LENGTH if is_tag else _MIN_LENGTH
    if min(len(label), len(other)) < shortest or label[0] != other[0]:
        return False
    start = _n_common(label, other)
    end = _n_common(label[start:][::-1], other[start:][::-1])
    part, other_part = label[start : len(label) - end], other[start : len(other) - end]
    if any(letter.isdecimal() for letter in part + other_part):
        return False
    return max(len(part), len(other_part)) == 1 or (len(part) == 2 and part == other_part[::-1])


def _n_common(a: str, b: str) -> int:
    """Return the length of the common prefix of two strings."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (one, two) in pairs if one != two), min(len(a), len(b)))


def is_inside_word(text: str, at: int) -> bool:
    r"""Return whether a boundary is between two characters of a word, or a letter and its accent.

    Letters without case do not count, because Chinese and Japanese do not separate words by spaces.

    >>> [is_inside_word("The keys", at) for at in (0, 3, 4, 6, 8)]
    [False, False, False, True, False]
    >>> is_inside_word("cafe\u0301", 4)
    True
    """
    pair = text[at - 1 : at + 1] if at > 0 else ""
    if len(pair) < 2:
        return False
    before, after = map(unicodedata.category, pair)
    if after[0] == "M":
        return before[0] in "LMN"
    return all(c.isdecimal() or c.lower() != c.upper() or unicodedata.combining(c) for c in pair)
