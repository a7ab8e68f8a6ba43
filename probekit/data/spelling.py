"""Detection of typos in labels and of span boundaries inside words."""

from __future__ import annotations

_MIN_LENGTH = 4  # short tags such as ADJ and ADV legitimately differ by one letter


def is_typo(label: str, other: str) -> bool:
    """Return whether two labels differ by one typo after the first letter.

    A typo is a letter dropped, added or replaced, or two adjacent letters swapped. A changed
    digit is not a typo.

    >>> is_typo("pats", "past"), is_typo("plurale", "plural"), is_typo("nsubj", "csubj")
    (True, True, False)
    """
    if min(len(label), len(other)) < _MIN_LENGTH or label[0] != other[0]:
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
    """Return whether the characters before and after a boundary are of the same word.

    Letters without case do not count, because Chinese and Japanese do not separate words by spaces.

    >>> [is_inside_word("The keys", at) for at in (0, 3, 4, 6, 8)]
    [False, False, False, True, False]
    """
    pair = text[at - 1 : at + 1] if at > 0 else ""
    return len(pair) == 2 and all(c.isdecimal() or c.lower() != c.upper() for c in pair)
