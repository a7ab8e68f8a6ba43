"""Dropping cues, the words or spans that may reveal the label of a text, or random other words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from probekit.data.text_files import read_text
from probekit.errors import DataError

Range = tuple[int, int]  # first character and one past the last

_WORD = re.compile(r"\w+")


def cue_pattern(path: Path) -> re.Pattern[str]:
    """Return the pattern of the words and phrases of a file, one in each line, in any case.

    Blank lines and lines that begin with # are ignored.

    Raises:
        MissingError: the file does not exist.
        DataError: the file has no words, or is not UTF-8.
    """
    lines = [line.split() for line in read_text(path).splitlines()]
    phrases = [line for line in lines if line and not line[0].startswith("#")]
    if not phrases:
        raise DataError(f"{path} has no words. Write one word or phrase in each line.")
    # Where one phrase begins with another, the longer one is dropped.
    longest_first = sorted((r"\s+".join(map(re.escape, one)) for one in phrases), key=len)[::-1]
    return re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", re.IGNORECASE)


def without(text: str, dropped: Sequence[Range], span: Range | None) -> tuple[str, Range | None]:
    """Return a text without some ranges, and its span, at the same characters as before.

    One space is dropped with each range: the one before it, or without one, the one after it.

    Args:
        text: the text.
        dropped: the ranges, which do not overlap each other or the span.
        span: the span; None without one.

    >>> without("It is not a key, never.", [(6, 9), (17, 22)], (12, 15))
    ('It is a key,.', (8, 11))
    """
    for start, end in sorted(dropped, reverse=True):  # so that the earlier ranges stay in place
        has_space = text.endswith(" ", 0, start)
        first, last = start - has_space, end + (not has_space and text.startswith(" ", end))
        text = text[:first] + text[last:]
        if span is not None:
            begin, stop = (one - min(max(one - first, 0), last - first) for one in span)
            span = begin, stop
    return text, span


def dropped_ranges(
    text: str, cues: Sequence[Range], read: Range | None, draws: int, random: np.random.Generator
) -> list[list[Range]]:
    """Return the ranges to drop from a text: its cues, then in each draw as many other words.

    Empty if a cue is in the characters that the probe reads, or if there are too few other words.

    Args:
        text: the text.
        cues: the ranges of its cues, at least one.
        read: characters that the probe reads, which stay in the text; None if it reads all of it.
        draws: number of draws.
        random: generator of the draws.
    """
    kept = [*cues] if read is None else [*cues, read]
    words = [match.span() for match in _WORD.finditer(text)]
    others = [word for word in words if not any(_overlap(word, one) for one in kept)]
    # A cue of several words counts as so many; one without letters and digits counts as a word.
    n_words = sum(max(1, len(_WORD.findall(text[start:end]))) for start, end in cues)
    if len(others) < n_words or (read is not None and any(_overlap(one, read) for one in cues)):
        return []
    picked = [random.choice(len(others), n_words, replace=False) for _ in range(draws)]
    return [[*cues], *([others[number] for number in draw] for draw in picked)]


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]
