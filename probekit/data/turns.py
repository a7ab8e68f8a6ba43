"""Conversations: one text with the turns of user and assistant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Turns = tuple[tuple[int, int], ...]

BETWEEN = "\n\n"


def join_turns(parts: Sequence[str]) -> tuple[str, Turns]:
    r"""Return a text of all turns, and the first and one past the last character of each.

    >>> join_turns(["Is it far?", "No."])
    ('Is it far?\n\nNo.', ((0, 10), (12, 15)))
    """
    starts = accumulate((len(part) + len(BETWEEN) for part in parts[:-1]), initial=0)
    turns = tuple((start, start + len(part)) for start, part in zip(starts, parts, strict=True))
    return BETWEEN.join(parts), turns
