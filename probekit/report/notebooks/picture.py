"""Static SVG pictures of Plotly figures, with tips at points, for places where no script runs.

They are drawn from the figures that the pages show, without a browser. HTML that nbconvert writes,
and notebook viewers that have no Plotly, show them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probekit.report.figures.style import GREY, LARGE, SMALL
from probekit.report.notebooks.axes import Axis, make_axis
from probekit.report.notebooks.marks import Marks, sample_colours, stroke, words

WIDTH, HEIGHT = 760, 400  # pixels
LEFT, RIGHT, TOP, BOTTOM = 62, 24, 32, 52  # margins around the plots
TICK_CHARACTER = 6.4  # pixels
STYLE = (
    ".pk-svg{max-width:100%;height:auto;color:inherit;font-family:system-ui,sans-serif}"
    ".pk-svg text{fill:currentColor}"
    ".pk-svg .pk-point{fill:transparent}.pk-svg .pk-tip{visibility:hidden;pointer-events:none}"
    ".pk-svg .pk-point:hover .pk-tip{visibility:visible}"
    ".pk-svg .pk-tip rect{fill:#1c2430}.pk-svg .pk-tip text{fill:#fff}"
)


def figure_svg(figure: Mapping[str, Any], label: str, *, height: float = HEIGHT) -> str:
    """Return a figure as an SVG element.

    Args:
        figure: Plotly figure as plain JSON values: scatter, bar and heat map traces.
        label: text alternative.
        height: height in pixels.
    """
    layout = figure["layout"]
    traces = [trace for trace in figure["data"] if trace.get("visible", True) is True]
    pairs = [(trace.get("xaxis") or "x", trace.get("yaxis") or "y") for trace in traces]
    has_legend = _has_legend(layout, traces)
    box = _Box(layout, traces, height, has_legend)
    axes = {name: box.axis(name, traces) for name in dict.fromkeys(sum(pairs, ()))}
    marks = Marks(WIDTH)
    for trace, (x, y) in zip(traces, pairs, strict=True):
        marks.add_trace(trace, axes[x], axes[y])
    drawn = [
        *(part for pair in dict.fromkeys(pairs) for part in _frame(axes, *pair)),
        *marks.drawn,
        *(_shape(shape, axes) for shape in layout.get("shapes") or []),
        *(part for note in layout.get("annotations") or [] for part in _note(note, axes, box)),
        *(_legend(traces, height) if has_legend else []),
        *(part for trace in traces for part in _scale(trace, box)),
        *marks.tips,
    ]
    return (
        f'<svg class="pk-svg" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        f'width="{WIDTH}" height="{height:g}" role="img" aria-label="{html.escape(label)}">'
        f"<style>{STYLE}</style>{''.join(drawn)}</svg>"
    )


class _Box:
    """The area inside the margins, and the axes in it."""

    def __init__(
        self, layout: Mapping[str, Any], traces: list[Any], height: float, has_legend: bool
    ) -> None:
        margin = layout.get("margin") or {}
        self.layout = layout
        has_scale = any(t["type"] == "heatmap" and t.get("showscale", True) for t in traces)
        left = max(LEFT, margin.get("l") or 0, 40 + TICK_CHARACTER * _longest_tick(layout))
        self.left = min(left, WIDTH / 3)
        self.right = WIDTH - max(RIGHT, margin.get("r") or 0, 70 * has_scale)
        self.top = TOP
        self.bottom = height - BOTTOM - 24 * has_legend

    def x(self, share: float) -> float:
        """Return the coordinate of a share of the width."""
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        """Return the coordinate of a share of the height, from below."""
        return self.bottom - share * (self.bottom - self.top)

    def axis(self, name: str, traces: Iterable[Mapping[str, Any]]) -> Axis:
        """Return an axis such as `x` or `y2` with the values of the traces on it."""
        letter = name[0]
        layout = self.settings(name)
        own = [trace for trace in traces if (trace.get(f"{letter}axis") or letter) == name]
        low, high = layout.get("domain") or (0, 1)
        at = self.x if letter == "x" else self.y
        values = [value for trace in own for value in trace.get(letter) or []]
        has_bars = letter == "y" and any(trace["type"] == "bar" for trace in own)
        return make_axis(layout, values, at(low), at(high), has_bars=has_bars)

    def settings(self, name: str) -> Mapping[str, Any]:
        """Return the settings of an axis, with those of an axis whose range it shares."""
        own: Mapping[str, Any] = self.layout.get(f"{name[0]}axis{name[1:]}") or {}
        matched = own.get("matches")
        if matched and own.get("range") is None:
            shared = self.settings(matched)
            own = {**own, "range": shared.get("range"), "type": shared.get("type")}
        return own


def _longest_tick(layout: Mapping[str, Any]) -> int:
    own = (value for name, value in layout.items() if name.startswith("yaxis"))
    return max((len(str(text)) for axis in own for text in axis.get("ticktext") or []), default=0)


def _frame(axes: Mapping[str, Axis], x: str, y: str) -> Iterator[str]:
    """Yield grid, lines, ticks and titles of a pair of axes."""
    across, down = axes[x], axes[y]
    line = 'stroke="currentColor" stroke-opacity="0.45"'
    is_map = down.layout.get("showline") is False
    if not is_map:
        for at, _ in down.ticks():
            yield (
                f'<path d="M{across.start:.1f} {at:.1f}H{across.end:.1f}" '
                'stroke="currentColor" stroke-opacity="0.13"/>'
            )
        yield (
            f'<path d="M{across.start:.1f} {down.end:.1f}V{down.start:.1f}H{across.end:.1f}" '
            f'fill="none" {line}/>'
        )
    is_own = (across.layout.get("anchor") or y) == y  # panels one above the other share an axis
    if is_own and across.layout.get("showticklabels") is not False:
        for at, text in across.ticks():
            yield words(text, at, down.start + 18, size=SMALL, anchor="middle")
    if down.layout.get("showticklabels") is not False:
        for at, text in down.ticks():
            yield words(text, across.start - 8, at + 4, size=SMALL, anchor="end")
    middle = (across.start + across.end) / 2
    below = down.start + BOTTOM - 12
    if is_own:
        yield words(_title(across), middle, below, size=LARGE, anchor="middle")
    side = f'transform="translate(16 {(down.start + down.end) / 2:.1f}) rotate(-90)"'
    yield f"<g {side}>{words(_title(down), 0, 0, size=LARGE, anchor='middle')}</g>"


def _title(axis: Axis) -> str:
    return (axis.layout.get("title") or {}).get("text") or ""


def _shape(shape: Mapping[str, Any], axes: Mapping[str, Axis]) -> str:
    """Return a rectangle or line; references to the domain of an axis are shares of it."""
    x0, x1 = (_at(shape[key], shape.get("xref") or "x", axes) for key in ("x0", "x1"))
    y0, y1 = (_at(shape[key], shape.get("yref") or "y", axes) for key in ("y0", "y1"))
    look = stroke(shape.get("line") or {})
    if shape["type"] == "line":
        return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" {look}/>'
    return f'<path d="M{x0:.1f} {y0:.1f}H{x1:.1f}V{y1:.1f}H{x0:.1f}Z" fill="none" {look}/>'


def _at(value: Any, ref: str, axes: Mapping[str, Axis]) -> float:
    """Return the coordinate of a value on an axis such as `x`, or of a share of `x domain`."""
    name, _, domain = ref.partition(" ")
    axis = axes.get(name) or axes[min(n for n in axes if n[0] == name[0])]
    if domain:
        return axis.start + float(value) * (axis.end - axis.start)
    number = axis.number(value) if isinstance(value, str) else float(value)
    return axis.at(number)


def _note(note: Mapping[str, Any], axes: Mapping[str, Axis], box: _Box) -> Iterator[str]:
    """Yield the text of an annotation, and its leader."""
    xref, yref = note.get("xref") or "x", note.get("yref") or "y"
    x = box.x(note["x"]) if xref == "paper" else _at(note["x"], xref, axes)
    y = box.y(note["y"]) if yref == "paper" else _at(note["y"], yref, axes)
    font = note.get("font") or {}
    size = font.get("size") or SMALL
    lines = str(note["text"]).count("<br>") + 1
    arrow = note.get("arrowcolor")
    anchor = {"left": "start", "right": "end"}.get(note.get("xanchor") or "", "middle")
    if note.get("showarrow", True):
        end = x + (note.get("ax") or 0), y + (note.get("ay") or 0)
        width = note.get("arrowwidth") or 1
        yield (
            f'<path d="M{x:.1f} {y:.1f}L{end[0]:.1f} {end[1]:.1f}" '
            f"{stroke({'color': arrow, 'width': width})}/>"
        )
        x, y = end[0] + (3 if anchor == "start" else 0), end[1]
    below = {"bottom": -4.0 - 1.3 * size * (lines - 1), "top": size}
    middle = 0.35 * size - 0.65 * size * (lines - 1)
    shift = below.get(note.get("yanchor") or "", middle)
    if note.get("showarrow", True) and anchor == "middle":
        shift = -4.0 if (note.get("ay") or 0) < 0 else size
    text = words(note["text"], x, y + shift, size=size, anchor=anchor)
    if note.get("textangle"):
        turned = f'transform="rotate({note["textangle"]} {16 if x < box.left else x:.1f} {y:.1f})"'
        yield f"<g {turned}>{words(note['text'], 16, y, size=size, anchor='middle')}</g>"
        return
    # Lines need less contrast than text: their colour is mixed with that of the text around.
    mixed = f' style="fill:color-mix(in srgb,{arrow} 60%,currentColor)"' if arrow else ""
    yield text.replace("<text", f"<text{mixed}", 1)


def _has_legend(layout: Mapping[str, Any], traces: list[Any]) -> bool:
    """Return whether Plotly would show a legend."""
    if layout.get("showlegend") is not None:
        return bool(layout["showlegend"])
    shown = [t for t in traces if t["type"] != "heatmap" and t.get("showlegend", True)]
    return len(shown) > 1


def _legend(traces: list[Any], height: float) -> Iterator[str]:
    """Yield a row of names with their symbols at the bottom."""
    named: dict[str, Any] = {}
    for trace in traces:
        if trace.get("name") and trace.get("showlegend", True):
            named.setdefault(trace.get("legendgroup") or trace["name"], trace)
    x = float(LEFT)
    for trace in named.values():
        symbol = Marks(WIDTH)
        flat = Axis({}, 0, 1, x, x + 24), Axis({}, 0, 1, height - 12, height - 13)
        short = {**trace, "hovertext": None, "error_y": None, "error_x": None, "type": "scatter"}
        points = {"x": [0.5], "y": [0]} if trace.get("mode") == "markers" else {}
        colour = (trace.get("marker") or {}).get("color") or (trace.get("line") or {}).get("color")
        line = {"color": colour if isinstance(colour, str) else GREY, **(trace.get("line") or {})}
        symbol.add_trace({**short, "line": line, "x": [0, 1], "y": [0, 0]} | points, *flat)
        yield from symbol.drawn
        yield words(trace["name"], x + 30, height - 8, size=SMALL)
        x += 48 + TICK_CHARACTER * len(html.unescape(trace["name"]))


def _scale(trace: Mapping[str, Any], box: _Box) -> Iterator[str]:
    """Yield the colour bar of a map, if it shows one."""
    if trace["type"] != "heatmap" or not trace.get("showscale", True):
        return
    low, high = trace.get("zmin"), trace.get("zmax")
    if low is None or high is None or not math.isfinite(low + high):
        return
    n, x = 40, box.right + 14
    tall = (box.bottom - box.top) / n
    for step, colour in enumerate(
        sample_colours(trace["colorscale"], [s / (n - 1) for s in range(n)])
    ):
        y = box.bottom - (step + 1) * tall
        size = f'width="12" height="{tall + 0.5:.1f}"'
        yield f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>'
    axis = Axis({"nticks": 5}, low, high, box.bottom, box.top)
    for at, text in axis.ticks():
        yield words(text, x + 16, at + 4, size=SMALL)
