"""How amounts stand in a sentence, and below which one is small."""

from __future__ import annotations

LEVEL = 0.05  # below this p, adjusted, a difference holds


def counted(n: int, name: str) -> str:
    """Return how many there are of what has a plural in s, as in a sentence.

    >>> counted(1, "shard"), counted(0, "shard"), counted(4320, "row")
    ('1 shard', '0 shards', '4,320 rows')
    """
    return f"{n:,} {name}{'' if n == 1 else 's'}"
