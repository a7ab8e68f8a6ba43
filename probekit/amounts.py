"""Counts in messages, and the significance level of all tests."""

from __future__ import annotations

from collections.abc import Sequence

LEVEL = 0.05  # an effect is significant if its adjusted p-value is below this level
# Fewest groups for p-values of sign patterns: with 5, none is below 2 / 2**5, which exceeds LEVEL.
FEWEST_UNITS = 6


def counted(n: int, name: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    Args:
        n: the count.
        name: a noun whose plural ends in s.

    >>> counted(1, "shard"), counted(0, "shard"), counted(4320, "row")
    ('1 shard', '0 shards', '4,320 rows')
    """
    return f"{n:,} {name}{'' if n == 1 else 's'}"


def joined_names(names: Sequence[str]) -> str:
    """Return names joined by commas and a final "and".

    >>> joined_names(["a", "b", "c"]), joined_names(["a"])
    ('a, b and c', 'a')
    """
    parts = [", ".join(names[:-1]), *names[-1:]]  # all names but the last; then the last
    return " and ".join(part for part in parts if part)


def size_in_words(n_bytes: float) -> str:
    """Return a size in bytes with a unit, such as MB.

    >>> size_in_words(999), size_in_words(25_300_000), size_in_words(999_990)
    ('999 B', '25.3 MB', '1.0 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if round(n_bytes, 1) < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
