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


def last_turn(text: str, turns: Turns, role: int) -> tuple[int, int] | None:
    """Return the first and one past the last character of the last turn of a role.

    Args:
        text: the text of all turns.
        turns: the turns; none means that all of the text is the user's.
        role: 0 for the user, 1 for the assistant; None is returned if it has no turn.

    >>> last_turn("Is it far?", (), 0), last_turn("Is it far?", (), 1)
    ((0, 10), None)
    """
    own = (turns or ((0, len(text)),))[role::2]
    return own[-1] if own else None
