"""Typos in labels, and boundaries inside words."""

from __future__ import annotations

_SHORTEST = 4  # letters of a label; short tags such as ADJ and ADV differ by one letter


def is_slip(label: str, other: str) -> bool:
    """Return whether one letter, not the first, was dropped, added, replaced or swapped.

    >>> is_slip("pats", "past"), is_slip("plurale", "plural"), is_slip("nsubj", "csubj")
    (True, True, False)
    """
    if min(len(label), len(other)) < _SHORTEST or label[0] != other[0]:
        return False
    start = _n_common(label, other)
    end = _n_common(label[start:][::-1], other[start:][::-1])
    ours, theirs = label[start : len(label) - end], other[start : len(other) - end]
    if any(letter.isdecimal() for letter in ours + theirs):
        return False
    return max(len(ours), len(theirs)) == 1 or (len(ours) == 2 and ours == theirs[::-1])


def _n_common(a: str, b: str) -> int:
    """Return how many letters at the beginning are the same."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (one, two) in pairs if one != two), min(len(a), len(b)))


def is_inside_word(text: str, at: int) -> bool:
    """Return whether the characters before and after a boundary belong to one word.

    Letters without case do not count: Chinese and Japanese have no spaces between words.

    >>> [is_inside_word("The keys", at) for at in (0, 3, 4, 6, 8)]
    [False, False, False, True, False]
    """
    pair = text[at - 1 : at + 1] if at > 0 else ""
    return len(pair) == 2 and all(c.isdecimal() or c.lower() != c.upper() for c in pair)
