"""Counts in messages, and the significance level of all tests."""

from __future__ import annotations

LEVEL = 0.05  # an effect is significant if its adjusted p-value is below this level


def counted(n: int, name: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1.

    Args:
        n: the count.
        name: a noun whose plural ends in s.

    >>> counted(1, "shard"), counted(0, "shard"), counted(4320, "row")
    ('1 shard', '0 shards', '4,320 rows')
    """
    return f"{n:,} {name}{'' if n == 1 else 's'}"
