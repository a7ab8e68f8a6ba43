"""SVG elements of a Plotly figure's traces: lines, bands, markers, bars, texts and cells.

Points and cells with hover text are followed by a tip that the style sheet shows while the pointer
is on them, so that a picture needs no script.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import plotly.colors

from probekit.report.figures.style import GREY, SMALL
from probekit.report.notebooks.axes import Axis

TIP_WIDTH, TIP_LINE = 6.6, 15  # pixels of a character and of a line of a tip
MOST_TIPS = 200  # of a trace; more would make the picture several times as large
_DASHES = {"dash": "9 6", "dot": "2 5", "dashdot": "9 5 2 5", "longdash": "14 7"}
_DASHES["longdashdot"] = "14 6 2 6"
_SHAPES = {
    "square": "M-1-1H1V1H-1Z",
    "diamond": "M0-1.3L1.3 0 0 1.3-1.3 0Z",
    "triangle-up": "M0-1.2L1.2 1H-1.2Z",
    "pentagon": "M0-1.2L1.15-.37.7 1H-.7L-1.15-.37Z",
    "star": "M0-1.3L.4-.4 1.3-.4.6.2.9 1.2 0 .6-.9 1.2-.6.2-1.3-.4-.4-.4Z",
    "hexagon": "M-1.1 0L-.55-1H.55L1.1 0 .55 1H-.55Z",
}


@dataclass
class Marks:
    """Elements of a picture: those of the traces, and the tips drawn above all of them.

    Attributes:
        width: width of the picture.
        drawn: elements of the traces.
        tips: targets of the pointer, each with its tip.
    """

    width: float
    drawn: list[str] = field(default_factory=list)
    tips: list[str] = field(default_factory=list)

    def add_trace(self, trace: Mapping[str, Any], x: Axis, y: Axis) -> None:
        """Draw a trace on its axes."""
        draw = {"scatter": self._scatter, "bar": self._bars, "heatmap": self._cells}
        draw[trace["type"]](trace, x, y)

    def clip(self, x: Axis, y: Axis) -> str:
        """Return the id of the area inside two axes; bands may reach beyond it."""
        sides = f'x="{x.start:.1f}" y="{y.end:.1f}" width="{x.end - x.start:.1f}" '
        sides += f'height="{y.start - y.end:.1f}"'
        # The same area has the same id, so that ids of several pictures on a page may be equal.
        name = "pk-" + re.sub(r"[^0-9]+", "-", sides).strip("-")
        area = f'<clipPath id="{name}"><rect {sides}/></clipPath>'
        if area not in self.drawn:
            self.drawn.append(area)
        return name

    def _scatter(self, trace: Mapping[str, Any], x: Axis, y: Axis) -> None:
        points = [
            (x.at(x.number(a)), y.at(y.number(b)))
            for a, b in zip(trace["x"], trace["y"], strict=True)
        ]
        mode, opacity = trace.get("mode") or "lines+markers", trace.get("opacity", 1)
        line = trace.get("line") or {}
        if trace.get("fill"):
            fill = f'fill="{trace.get("fillcolor") or GREY}" fill-opacity="{opacity}"'
            inside = f'clip-path="url(#{self.clip(x, y)})"'
            self.drawn.append(f'<path d="{path(points)}Z" {fill} {inside}/>')
        elif "lines" in mode and line.get("width", 2):
            self.drawn.append(
                f'<path d="{path(points)}" fill="none" opacity="{opacity}" {stroke(line)}/>'
            )
        self._error_bars(trace, x, y)
        if "markers" in mode:
            self._markers(trace, points)
        if "text" in mode:
            self._texts(trace, points)
        self._tips(trace, points)

    def _error_bars(self, trace: Mapping[str, Any], x: Axis, y: Axis) -> None:
        style = stroke({"color": _colour(trace), "width": 1})
        for own, error in ((x, trace.get("error_x")), (y, trace.get("error_y"))):
            if not error or error.get("array") is None:
                continue
            above, below = error["array"], error.get("arrayminus") or error["array"]
            for a, b, up, down in zip(trace["x"], trace["y"], above, below, strict=True):
                ends = [
                    (x.at(x.number(a + d)), y.at(y.number(b)))
                    if own is x
                    else (x.at(x.number(a)), y.at(y.number(b + d)))
                    for d in (-(down or 0), up or 0)
                ]
                self.drawn.append(f'<path d="{path(ends)}" {style}/>')

    def _markers(self, trace: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> None:
        marker = trace.get("marker") or {}
        radius = (marker.get("size") or 6) / 2
        symbol, opacity = marker.get("symbol") or "circle", marker.get("opacity", 1)
        colours = _each(marker.get("color") or _colour(trace), len(points))
        for (cx, cy), colour in zip(points, colours, strict=True):
            if not math.isfinite(cx + cy):
                continue
            at, look = f"{cx:.1f} {cy:.1f}", f'fill="{colour}" opacity="{opacity}"'
            if symbol.endswith("-open"):
                look = f'fill="none" {stroke({"color": colour, **(marker.get("line") or {})})}'
            shape = _SHAPES.get(symbol.removesuffix("-open"))
            if shape:
                scaled = f'transform="translate({at}) scale({radius:g})"'
                self.drawn.append(f'<path d="{shape}" {scaled} {look}/>')
            else:
                self.drawn.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{radius:g}" {look}/>')

    def _texts(self, trace: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> None:
        font = trace.get("textfont") or {}
        colours = _each(font.get("color") or "currentColor", len(points))
        size = font.get("size") or SMALL
        for (cx, cy), text, colour in zip(points, trace["text"], colours, strict=True):
            if text:
                self.drawn.append(
                    words(text, cx, cy + 0.35 * size, size=size, anchor="middle", colour=colour)
                )

    def _tips(self, trace: Mapping[str, Any], points: Sequence[tuple[float, float]]) -> None:
        texts = trace.get("hovertext")
        if not texts or trace.get("hoverinfo") == "skip" or len(points) > MOST_TIPS:
            return
        for (cx, cy), text in zip(points, _each(texts, len(points)), strict=True):
            if text and math.isfinite(cx + cy):
                target = f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="9"/>'
                self._tip(target, text, cx, cy - 12)

    def _tip(self, target: str, text: str, x: float, y: float) -> None:
        """Add a transparent target and the tip above it, inside the picture."""
        lines = plain_lines(text)
        wide = TIP_WIDTH * max(map(len, lines)) + 12
        high = TIP_LINE * len(lines) + 6
        left = min(max(x - wide / 2, 0), max(self.width - wide, 0))
        top = y - high if y > high else y + 24
        box = f'<rect x="{left:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high}" rx="3"/>'
        spans = words("<br>".join(map(html.escape, lines)), left + 6, top + 14, size=SMALL)
        self.tips.append(f'<g class="pk-point">{target}<g class="pk-tip">{box}{spans}</g></g>')

    def _bars(self, trace: Mapping[str, Any], x: Axis, y: Axis) -> None:
        at = [x.at(x.number(value)) for value in trace["x"]]
        gaps = [abs(b - a) for a, b in pairwise(at) if b != a]
        wide = 0.7 * min(gaps, default=abs(x.end - x.start) / 4)
        colours = _each((trace.get("marker") or {}).get("color") or GREY, len(at))
        ends = [(y.at(y.number(value)), y.at(max(y.low, 0))) for value in trace["y"]]
        texts = _each(trace.get("hovertext") or "", len(at))
        for cx, (top, floor), colour, text in zip(at, ends, colours, texts, strict=True):
            low, high = sorted((top, floor))
            box = f'x="{cx - wide / 2:.1f}" y="{low:.1f}" width="{wide:.1f}" '
            box += f'height="{high - low:.1f}"'
            look = f'fill="{colour}" opacity="{trace.get("opacity", 1)}"'
            self.drawn.append(f"<rect {box} {look}/>")
            if text:
                self._tip(f"<rect {box}/>", text, cx, low - 2)

    def _cells(self, trace: Mapping[str, Any], x: Axis, y: Axis) -> None:
        rows = trace["z"]
        known = [value for row in rows for value in row if value is not None]
        low, high = trace.get("zmin"), trace.get("zmax")
        low = min(known, default=0) if low is None else low
        high = max(known, default=1) if high is None else high
        across = _places(trace.get("x"), len(rows[0]) if rows else 0, x)
        down = _places(trace.get("y"), len(rows), y)
        wide, tall = abs(x.at(1) - x.at(0)), abs(y.at(1) - y.at(0))
        texts = trace.get("hovertext") if len(rows) * len(across) <= MOST_TIPS else None
        for n_row, row in enumerate(rows):
            shares = [None if v is None else (v - low) / ((high - low) or 1) for v in row]
            for n_column, colour in enumerate(sample_colours(trace["colorscale"], shares)):
                if colour is None:
                    continue
                cx, cy = across[n_column], down[n_row]
                box = f'x="{cx - wide / 2 + 0.5:.1f}" y="{cy - tall / 2 + 0.5:.1f}" '
                box += f'width="{max(wide - 1, 0.5):.1f}" height="{max(tall - 1, 0.5):.1f}"'
                self.drawn.append(f'<rect {box} fill="{colour}"/>')
                if texts and texts[n_row][n_column]:
                    self._tip(f"<rect {box}/>", texts[n_row][n_column], cx, cy - tall / 2 - 2)


def _places(values: Sequence[Any] | None, n: int, axis: Axis) -> list[float]:
    """Return the coordinates of the columns or rows of a map; by default they are numbered."""
    return [axis.at(axis.number(v)) for v in (values if values is not None else range(n))]


def sample_colours(
    scale: Sequence[Sequence[Any]], shares: Iterable[float | None]
) -> list[str | None]:
    """Return the colour at each share (0 to 1) of a colour scale; None for None.

    >>> sample_colours([(0.0, "#000000"), (1.0, "#ffffff")], [0.5, None, 2.0])
    ['rgb(128, 128, 128)', None, 'rgb(255, 255, 255)']
    """
    known = [None if share is None else min(max(share, 0.0), 1.0) for share in shares]
    stops = [list(stop) for stop in scale]
    found = iter(plotly.colors.sample_colorscale(stops, [s for s in known if s is not None]))
    return [None if share is None else next(found) for share in known]


def path(points: Iterable[tuple[float, float]]) -> str:
    """Return the commands of a path through points, interrupted where a point is not finite.

    >>> path([(0, 0), (1.25, 2), (math.nan, 3), (4, 5)])
    'M0.0 0.0L1.2 2.0M4.0 5.0'
    """
    commands, command = [], "M"
    for x, y in points:
        if math.isfinite(x + y):
            commands.append(f"{command}{x:.1f} {y:.1f}")
        command = "L" if math.isfinite(x + y) else "M"
    return "".join(commands)


def stroke(line: Mapping[str, Any]) -> str:
    """Return the SVG attributes of a line style of Plotly.

    >>> stroke({"color": "#0072B2", "dash": "6px,2px"})
    'stroke="#0072B2" stroke-width="2" stroke-dasharray="6 2"'
    """
    dash = line.get("dash") or "solid"
    dashes = _DASHES.get(dash, dash.replace("px", "").replace(",", " "))
    dashed = "" if dash == "solid" else f' stroke-dasharray="{dashes}"'
    return f'stroke="{line.get("color") or GREY}" stroke-width="{line.get("width", 2):g}"{dashed}'


def words(
    text: str, x: float, y: float, *, size: float, anchor: str = "start", colour: str = ""
) -> str:
    """Return the lines of an escaped text as an SVG element; the first one is at `y`."""
    lines = plain_lines(text)
    spans = "".join(
        f'<tspan x="{x:.1f}" dy="{1.3 * size if n else 0:.1f}">{html.escape(line)}</tspan>'
        for n, line in enumerate(lines)
    )
    look = f' style="fill:{colour}"' if colour else ""
    return f'<text y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"{look}>{spans}</text>'


def plain_lines(text: str) -> list[str]:
    """Return the lines of a text of Plotly, without tags and with its characters unescaped.

    >>> plain_lines("<b>a &lt; b</b><br>95&#37;")
    ['a < b', '95%']
    """
    lines = re.split(r"<br ?/?>", str(text))
    return [html.unescape(re.sub(r"</?[a-z]+>", "", line)) for line in lines]


def _colour(trace: Mapping[str, Any]) -> str:
    found = (trace.get("line") or {}).get("color") or (trace.get("marker") or {}).get("color")
    return found if isinstance(found, str) else GREY


def _each(value: Any, n: int) -> Iterator[Any]:
    """Yield the values of a list, or `n` times a single value."""
    yield from ([value] * n if isinstance(value, str) else value)
