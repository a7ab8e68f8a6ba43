"""Numbers and settings as texts, the same everywhere they are shown; the level of all tests."""

import json
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from itertools import count
from statistics import NormalDist
from typing import Any

LEVEL = 0.05  # an effect is significant if its adjusted p-value is below this level
# Fewest groups for p-values of sign patterns: with 5, none is below 2 / 2**5, which exceeds LEVEL.
FEWEST_UNITS = 6


def widening_of(n_intervals: int) -> float:
    """Return the factor that widens 95 % intervals to hold for all at once (Bonferroni).

    >>> [round(widening_of(n), 3) for n in (0, 1, 10)]
    [1.0, 1.0, 1.432]
    """
    normal, tail = NormalDist(), LEVEL / 2
    # `max` avoids a division by 0 where there is no interval to widen.
    return normal.inv_cdf(1 - tail / max(n_intervals, 1)) / normal.inv_cdf(1 - tail)


def duration(seconds: float) -> str:
    """Return an estimated duration in words.

    >>> [duration(seconds) for seconds in (0.2, 95, 600, 9000)]
    ['less than a second', 'about 95 seconds', 'about 10 minutes', 'about 2.5 hours']
    """
    if round(seconds) == 0:
        return "less than a second"
    if seconds < 120:
        return f"about {counted(round(seconds), 'second')}"
    if seconds < 7200:
        return f"about {seconds / 60:.0f} minutes"
    return f"about {seconds / 3600:.1f} hours"


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
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def first_names(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and the number of the others.

    >>> first_names(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


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


def format_p(p: float) -> str:
    """Return a p-value as text; rounding never moves a value below 0.05 up to it.

    >>> format_p(0.0002), format_p(0.0419), format_p(0.3333), format_p(math.nan)
    ('<0.001', '0.042', '0.33', '–')
    >>> format_p(0.0496), format_p(0.04996), format_p(0.05), format_p(0.0504)
    ('0.0496', '0.04996', '0.050', '0.050')
    """
    if math.isnan(p):
        return "–"
    if p < 0.001:
        return "<0.001"
    if p >= 0.1:
        return f"{p:.2f}"
    texts = (f"{p:.{places}f}" for places in count(3))
    # A significant p rounded to 0.050 would contradict its verdict.
    return next(text for text in texts if (float(text) < LEVEL) == (p < LEVEL))


def format_number(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return the value with three decimals, followed by its interval unless `low` is NaN.

    >>> format_number(0.9312, 0.91, 0.9476)
    '0.931 [0.910, 0.948]'
    >>> format_number(-0.25)
    '−0.250'
    >>> format_number(-0.0001)
    '0.000'
    """
    text = fixed(value, 3)
    return text if math.isnan(low) else f"{text} [{fixed(low, 3)}, {fixed(high, 3)}]"


def format_difference(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return a difference with its sign, and its interval; see `format_number`.

    >>> format_difference(0.051, 0.014, 0.09), format_difference(-0.25)
    ('+0.051 [0.014, 0.090]', '−0.250')
    """
    return f"{'+' if value > 0 else ''}{format_number(value, low, high)}"


def fixed(value: float, places: int) -> str:
    """Return a number with this many decimals, with a minus sign; halves are rounded away from 0.

    The decimal number is rounded, not its binary approximation: percentages and fractions of the
    same number agree. Infinity is `inf`, and NaN is `nan`.

    >>> fixed(0.175, 2), fixed(17.5, 0), fixed(-0.25, 1), fixed(-0.001, 2)
    ('0.18', '18', '−0.3', '0.00')
    """
    if not math.isfinite(value):
        return str(float(value)).replace("-", "−")
    exact = Decimal(f"{value:.12g}").quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    return f"{exact if exact else abs(exact):f}".replace("-", "−")


def percent(share: float, places: int = 0) -> str:
    """Return a share as a percentage.

    >>> percent(0.93), percent(0.3102, 2), percent(-0.001)
    ('93 %', '31.02 %', '0 %')
    """
    return f"{fixed(100 * share, places)} %"


def signed(value: float) -> str:
    """Return a number with sign and two decimals; 0.00 has no sign, and NaN is "–".

    >>> signed(0.254), signed(-3.0), signed(-0.001), signed(float("nan"))
    ('+0.25', '−3.00', '0.00', '–')
    """
    if math.isnan(value):
        return "–"
    text = fixed(value, 2)
    return f"+{text}" if value > 0 and text != "0.00" else text


def decimals(numbers: Iterable[float], most: int) -> int:
    """Return the fewest decimals, at least 2, with which no number but 0 is written as 0.

    Args:
        numbers: the numbers; NaN is ignored.
        most: largest number of decimals, also if more would be needed.

    >>> decimals([0.25, -0.004, 0.0], most=4), decimals([0.00001], most=4)
    (3, 4)
    """
    least = min((abs(number) for number in numbers if abs(number) > 0), default=1.0)
    return next((n for n in range(2, most) if round(least, n) > 0), most)


def one_line(value: Any) -> str:
    """Return a value in the flow style of YAML, without keys that are null.

    Texts are not quoted, and their line breaks stay.
    """
    if isinstance(value, dict):
        pairs = [f"{key}: {one_line(inner)}" for key, inner in value.items() if inner is not None]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(one_line, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def date_text(created: str, time: str = "") -> str:
    """Return the date of a time in ISO 8601; other text unchanged.

    Args:
        created: the time.
        time: format of the time that follows the date; "" for the date alone.

    >>> date_text("2026-11-02T01:39:33+00:00"), date_text("2026-11-02T01:39:33+00:00", " %H:%M")
    ('2 Nov 2026', '2 Nov 2026 01:39')
    """
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%b %Y}{moment.strftime(time)}"
