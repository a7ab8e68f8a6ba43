"""Axes of a static picture: range, ticks and place of each axis of a Plotly figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MARGIN_OF_RANGE = 0.06  # of an axis without a range, on both sides of its data


@dataclass(frozen=True)
class Axis:
    """An axis of a picture.

    Attributes:
        layout: Settings of the axis in the figure's layout.
        low: Value at the left or lower end; on a logarithmic axis the decimal logarithm.
        high: Value at the other end.
        start: Coordinate of `low` in the picture.
        end: Coordinate of `high` in the picture.
        names: Categories, drawn at 0, 1, 2, ...
    """

    layout: Mapping[str, Any]
    low: float
    high: float
    start: float
    end: float
    names: Sequence[str] = ()

    @property
    def is_log(self) -> bool:
        """Whether the scale is logarithmic."""
        return self.layout.get("type") == "log"

    def number(self, value: Any) -> float:
        """Return a value of the data as a number on the axis; NaN if it cannot be drawn."""
        if value is None:
            return math.nan
        if isinstance(value, str):
            return float(self.names.index(value)) if value in self.names else math.nan
        if self.is_log:
            return math.log10(value) if value > 0 else math.nan
        return float(value)

    def at(self, number: float) -> float:
        """Return the coordinate of a number on the axis.

        >>> Axis({}, low=0, high=10, start=100, end=200).at(5)
        150.0
        """
        return self.start + (number - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the coordinate and text of each tick.

        >>> [text for _, text in Axis({}, low=0, high=1, start=0, end=99).ticks()]
        ['0.0', '0.2', '0.4', '0.6', '0.8', '1.0']
        """
        if self.names:
            labelled = [(float(n), name) for n, name in enumerate(self.names)]
        elif self.layout.get("tickvals") is not None:
            values = [self.number(value) for value in self.layout["tickvals"]]
            texts = self.layout.get("ticktext") or [f"{v:g}" for v in self.layout["tickvals"]]
            labelled = list(zip(values, texts, strict=True))
        elif self.is_log:
            powers = range(math.ceil(self.low), math.floor(self.high) + 1)
            labelled = [(float(power), f"{10.0**power:g}") for power in powers]
        else:
            labelled = _round_ticks(self.low, self.high, self.layout.get("nticks") or 6)
        ends = sorted((self.start, self.end))
        drawn = [(self.at(value), str(text)) for value, text in labelled]
        return [(at, text) for at, text in drawn if ends[0] - 0.5 <= at <= ends[1] + 0.5]


def make_axis(
    layout: Mapping[str, Any], values: Iterable[Any], start: float, end: float, *, has_bars: bool
) -> Axis:
    """Return an axis with the range of its layout, or one that contains the values.

    Args:
        layout: Settings of the axis.
        values: Values of all traces on the axis; texts are categories.
        start: Coordinate of the left or lower end.
        end: Coordinate of the other end.
        has_bars: Whether bars are drawn, which begin at 0.
    """
    known = [value for value in values if value is not None]
    names = list(dict.fromkeys(value for value in known if isinstance(value, str)))
    plain = Axis(layout, 0.0, 1.0, start, end, names)
    if layout.get("range") is not None:
        low, high = (float(value) for value in layout["range"])
    else:
        numbers = [n for n in map(plain.number, known) if math.isfinite(n)] or [0.0, 1.0]
        starts_at_zero = has_bars or layout.get("rangemode") == "tozero"
        low, high = min(numbers), max(numbers)
        margin = MARGIN_OF_RANGE * (high - low) or 0.5
        low, high = (0.0 if starts_at_zero and low >= 0 else low - margin), high + margin
        if names:
            low, high = -0.5, len(names) - 0.5
        if layout.get("autorange") == "reversed":
            low, high = high, low
    return Axis(layout, low, high if high != low else low + 1, start, end, names)


def _round_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return at most about `most` ticks at round numbers between the ends."""
    low, high = min(low, high), max(low, high)
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    numbers = [n * step for n in range(first, last + 1)]
    return [(number, f"{number + 0.0:,.{places}f}".replace("-", "−")) for number in numbers]
