"""Plotly's figures drawn by matplotlib: files for papers, and pictures that need no script.

A figure is read as the page has it, so that none exists twice. `picture` draws what figures of this
package consist of: lines, markers, texts, bands, error bars, bars, waterfalls, maps, shapes,
annotations and legends, in one panel or several. Cells are vector graphics, and texts stay texts.
Lengths are Plotly's pixels; margins are as small as the texts around the plot allow.
"""

from __future__ import annotations

import base64
import html
import math
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from itertools import groupby, pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager, ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import Bbox, Transform, blended_transform_factory

from probekit.errors import UnknownNameError, nearest

SANS_SERIF = ("Arial", "Helvetica", "Liberation Sans", "DejaVu Sans")
# For characters of tokens that these fonts lack, if they are installed.
FALLBACKS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Emoji", "Noto Sans Hebrew")
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "probekit",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "axes.unicode_minus": True,
    "lines.scale_dashes": False,
    "hatch.linewidth": 0.4,
}
# No date or version: equal figures give equal bytes.
METADATA: Mapping[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": dict.fromkeys(("Creator", "Producer", "CreationDate")),
    "png": {"Software": None},
}
MARKERS = {
    **{"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "pentagon": "p"},
    **{"star": "*", "hexagon": "h", "cross": "P", "x": "X"},
}
# Lengths of dashes and gaps in widths of the line, of which the least is 3. Source: plotly.js,
# components/drawing, dashStyle.
DASHES = {"dot": (1, 1), "dash": (3, 3), "longdash": (5, 5), "dashdot": (3, 1, 1, 1)}
DASHES["longdashdot"] = (5, 1, 1, 1)
STEPS = {"hv": "steps-post", "vh": "steps-pre"}
COLORWAY = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2")
MOST_VECTOR_CELLS = 50_000  # cells of larger maps are smaller than a dot of ink: one picture
MOST_CELLS_OF_PAGE = 400
PAD = 3  # pixels around everything
# Of the pictures on pages, whose texts and grid have the colours of the page.
STILL_WIDTH, REM, CSS_POINTS = 720, 16, 0.75  # pixels; pixels per rem; points per pixel
SHORTER = (
    (r" ?(font-family|stroke-dashoffset|stroke-linecap|stroke-linejoin):[^;\"]*;?", ""),
    (r' transform="rotate\(-0 [^"]*"|(?<=<g) id="[^"]*"', ""),
    (r"(?<=[;:]) | (?=/>)", ""),
    (r" ?\b([MLCQz]) (?=[-\d\"MLCQz])", r"\1"),
)
OF_PAGE = {"#1c2430": "currentColor", "#dfe3e8": "var(--grid)", "#9aa1ab": "var(--line)"}
TICKS = 6  # about as many on an axis without a number of them


def picture(
    figure: Mapping[str, Any],
    kind: str,
    size: tuple[float, float],
    *,
    scale: float,
    font: str = "",
    ground: str = "white",
    dpi: float = 600,
    most_cells: int = MOST_VECTOR_CELLS,
) -> bytes:
    """Return a figure as a file: an image of the format `kind`.

    Args:
        figure: Plotly's figure as JSON values.
        kind: `png`, `svg` or `pdf`.
        size: Width and height in pixels.
        scale: Points of the file per pixel of the figure.
        font: Family of the texts; "" for the first of `SANS_SERIF` that is installed.
        ground: Colour of the background; `none` for a transparent one.
        dpi: Dots per inch of a PNG file.
        most_cells: Number of cells up to which a map is drawn as vector graphics.

    Raises:
        UnknownNameError: The font is not installed.
    """
    stream, how = BytesIO(), SETTINGS | {"font.family": families(font)}
    with mpl.rc_context(how), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # no font has it: an empty box
        drawn = Drawing(figure, size, scale, most_cells).figure
        look: dict[str, Any] = {"facecolor": ground, "metadata": METADATA[kind], "dpi": dpi}
        drawn.savefig(stream, format=kind, **look)
    return stream.getvalue()


def still(figure: Mapping[str, Any], height: float | None) -> str:
    """Return a figure as an <svg> element for a page, with few digits and the page's colours.

    Args:
        figure: Plotly's figure as JSON values.
        height: Height in rem; None for that of a figure without one.
    """
    size = (STILL_WIDTH, REM * (height or 27.0))
    how: dict[str, Any] = {"ground": "none", "dpi": 96, "most_cells": MOST_CELLS_OF_PAGE}
    svg = picture(figure, "svg", size, scale=CSS_POINTS, **how).decode()
    start, svg = svg[: svg.index("<g")], svg[svg.index("<g") :]
    view = re.findall(r'viewBox="[^"]*"', start)[0]
    # The style sheet would be one of the whole page.
    svg = re.sub("<!--.*?-->|<style.*?</style>|\n *", "", svg, flags=re.DOTALL)
    svg = re.sub("<[^>]*>", lambda tag: _shorter(tag[0]), svg)
    while (flat := re.sub(r"<g>((?:(?!</?g[ >]).)*)</g>", r"\1", svg)) != svg:
        svg = flat  # groups without a setting
    return f'<svg class="still" aria-hidden="true" {view}>{svg}'


def _shorter(tag: str) -> str:
    """Return a tag of SVG with numbers of one digit, without what a page does not need."""
    tag = re.sub(r"-?\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", tag)
    for pattern, short in SHORTER:
        tag = re.sub(pattern, short, tag)
    for colour, of_page in OF_PAGE.items():
        tag = tag.replace(colour, of_page)
    return tag


def plot_height(figure: Mapping[str, Any], size: tuple[float, float], scale: float) -> float:
    """Return the height in pixels of which each panel has at least the share of its domain."""
    with mpl.rc_context(SETTINGS | {"font.family": families("")}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        drawn = Drawing(figure, size, scale)
    heights = {y: axes.get_position().height for (_, y), axes in drawn.panels.items()}
    shares = {y: np.ptp(drawn.settings(y).get("domain", (0, 1))) for y in heights}
    return float(min(drawn.height * heights[y] / shares[y] for y in heights))


@cache
def _installed() -> frozenset[str]:
    return frozenset(font_manager.get_font_names())


def families(font: str) -> list[str]:
    """Return the families of fonts, of which the first that has a character draws it.

    Raises:
        UnknownNameError: The font is not installed.
    """
    if font and font not in _installed():
        near = nearest(font, sorted(_installed()))
        raise UnknownNameError(f"--font: {font!r} is not installed on this machine. {near}")
    first = [font] if font else [name for name in SANS_SERIF if name in _installed()][:1]
    return [*first, *(name for name in FALLBACKS if name in _installed() and name not in first)]


def plain_text(text: Any) -> str:
    r"""Return a text of Plotly with its lines, without tags and entities.

    >>> plain_text("95&#37;<br><b>band</b>")
    '95%\nband'
    """
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<br ?/?>", "\n", str(text))))


def numbers(values: Any) -> Any:
    """Return the values of a property, decoded if plotly.py has written them as bytes."""
    if isinstance(values, Mapping) and "bdata" in values:
        array = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
        shape = str(values.get("shape", "-1"))
        return array.reshape([int(n) for n in shape.split(",")])
    return values


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both, where they differ those of the second."""
    both = dict(first)
    for name, value in second.items():
        is_nested = isinstance(value, Mapping) and isinstance(both.get(name), Mapping)
        both[name] = merged(both[name], value) if is_nested else value
    return both


def rgba(colour: str, opacity: float = 1.0) -> tuple[float, ...]:
    """Return a colour as matplotlib has it, given as a name, as #rrggbb or as rgb(…).

    >>> rgba("rgb(255, 0, 51)")
    (1.0, 0.0, 0.2, 1.0)
    """
    channels = re.findall(r"[\d.]+", colour) if colour.startswith("rgb") else []
    if channels:
        red, green, blue, *alpha = map(float, channels)
        return (red / 255, green / 255, blue / 255, (alpha or [1.0])[0] * opacity)
    return tuple(to_rgba(colour, to_rgba(colour)[3] * opacity))


def each(value: Any, n: int) -> list[Any]:
    """Return a property of each of n points, which may be given once for all."""
    value = numbers(value)
    return list(value) if isinstance(value, list | tuple | np.ndarray) else [value] * n


class Drawing:
    """A figure of matplotlib, and where its panels are.

    Attributes:
        figure: the figure.
        plot: left end, lower end, width and height of all panels together in pixels.
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        size: tuple[float, float],
        scale: float,
        most_cells: int = MOST_VECTOR_CELLS,
    ) -> None:
        self.width, self.height, self.scale, self.most_cells = *size, scale, most_cells
        given = source["layout"]
        self.layout = merged(given.get("template", {}).get("layout", {}), given)
        self.text = {"size": 12, "color": "#444444"} | self.layout.get("font", {})
        inches = (self.width * scale / 72, self.height * scale / 72)
        self.figure = Figure(figsize=inches, dpi=72)
        self.renderer = FigureCanvasAgg(self.figure).get_renderer()
        traces = [one for one in source["data"] if one.get("visible", True) is True]
        self.categories: dict[str, list[str]] = {}  # by axis
        self.panels: dict[tuple[str, str], Axes] = {}
        self.bars: list[tuple[Axes, Mapping[str, Any]]] = []  # a colour bar, and its settings
        self.titles: list[tuple[Any, Axes, str]] = []  # text above a panel
        self.labelled: list[Axes] = []  # panels with labels to their right
        self.texts: list[tuple[Axes, list[Any]]] = []  # texts at points of a panel
        pairs = dict.fromkeys((one.get("xaxis", "x"), one.get("yaxis", "y")) for one in traces)
        for pair in pairs or [("x", "y")]:
            self._add_panel(*pair)
        self.paper = self.figure.add_axes((0, 0, 1, 1), zorder=10)  # for annotations of all panels
        self.paper.set_axis_off()
        for number, trace in enumerate(traces):
            axes = self.panels[trace.get("xaxis", "x"), trace.get("yaxis", "y")]
            self._add_trace(axes, trace, COLORWAY[number % len(COLORWAY)], traces)
        for (x, y), axes in self.panels.items():
            self._set_axis(axes, x, y)
            self._set_axis(axes, y, x)
        for shape in self.layout.get("shapes", ()):
            self._add_shape(shape)
        for note in self.layout.get("annotations", ()):
            self._add_note(note)
        self._add_legend(traces)
        self._fit()

    def settings(self, axis: str) -> dict[str, Any]:
        """Return the settings of an axis such as x2, with those of the template."""
        template = self.layout.get("template", {}).get("layout", {})
        own = self.layout.get(f"{axis[0]}axis{axis[1:]}", {})
        return merged(template.get(f"{axis[0]}axis", {}), own)

    def points(self, pixels: float) -> float:
        """Return a length in points."""
        return pixels * self.scale

    def font(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return size and colour of a text, those of the figure unless `given` has its own."""
        own = self.text | dict(given or {})
        return {"fontsize": self.points(own["size"]), "color": rgba(own["color"])}

    def _add_panel(self, x: str, y: str) -> None:
        axes = self.figure.add_axes((0, 0, 1, 1), label=f"{x} {y}")
        for (other_x, other_y), other in self.panels.items():
            if x == other_x and axes._sharex is None:  # type: ignore[attr-defined]
                axes.sharex(other)
            same = self.settings(y).get("matches", y) == self.settings(other_y).get(
                "matches", other_y
            )
            if same and axes._sharey is None:  # type: ignore[attr-defined]
                axes.sharey(other)
        axes.set_facecolor(rgba(self.layout.get("plot_bgcolor", "white")))
        for name, setting in (("x", self.settings(x)), ("y", self.settings(y))):
            if setting.get("type") == "log":
                axes.set(**{f"{name}scale": "log"})
        self.panels[x, y] = axes

    def _places(self, axis: str, values: Any) -> list[float]:
        """Return the places of values on an axis: categories are numbered as they appear."""
        given = list(numbers(values))
        if not any(isinstance(value, str) for value in given):
            return [math.nan if value is None else float(value) for value in given]
        known = self.categories.setdefault(axis, [])
        known += [value for value in dict.fromkeys(given) if value not in known]
        return [float(known.index(value)) for value in given]

    def _add_trace(
        self, axes: Axes, trace: Mapping[str, Any], colour: str, traces: Sequence[Any]
    ) -> None:
        if trace["type"] == "heatmap":
            self._add_map(axes, trace)
            return
        y = self._places(trace.get("yaxis", "y"), trace["y"])
        first, step = trace.get("x0", 0), trace.get("dx", 1)
        counted = [first + step * n for n in range(len(y))]
        x = self._places(trace.get("xaxis", "x"), trace.get("x", counted))
        if trace["type"] == "waterfall":
            self._add_waterfall(axes, trace, x, y)
        elif trace["type"] == "bar":
            self._add_bars(axes, trace, x, y, colour, traces)
        elif trace.get("fill") == "toself":
            self._add_band(axes, trace, x, y)
        else:
            self._add_line(axes, trace, x, y, colour)

    def _line(self, line: Mapping[str, Any], colour: str) -> dict[str, Any]:
        """Return the look of a line."""
        width, dash = line.get("width", 2), str(line.get("dash", "solid"))
        least = max(width, 3)
        lengths = [least * n for n in DASHES.get(dash, ())]
        if "px" in dash:
            lengths = [float(one.removesuffix("px")) for one in re.split(r"[, ]+", dash)]
        shown: dict[str, Any] = {"linewidth": self.points(width)}
        shown["linestyle"] = (0, [self.points(one) for one in lengths]) if lengths else "-"
        return shown | {"color": rgba(line.get("color", colour))}

    def _add_line(
        self, axes: Axes, trace: Mapping[str, Any], x: list[float], y: list[float], colour: str
    ) -> None:
        mode = trace.get("mode", "lines+markers" if len(x) < 20 else "lines")
        colour = trace.get("line", {}).get("color") or colour
        opacity, clip = trace.get("opacity", 1), trace.get("cliponaxis", True)
        if "lines" in mode:
            look = self._line(trace.get("line", {}), colour)
            look["drawstyle"] = STEPS.get(trace.get("line", {}).get("shape"), "default")
            axes.plot(x, y, alpha=opacity, clip_on=clip, solid_capstyle="butt", **look)
        marker = trace.get("marker", {})
        for name, error in (("xerr", trace.get("error_x")), ("yerr", trace.get("error_y"))):
            if error:
                upper = numbers(error["array"])
                both = [numbers(error.get("arrayminus", upper)), upper]
                own = marker.get("color", colour)
                first = own if isinstance(own, str) else colour
                look = {"elinewidth": self.points(error.get("thickness", 2)), "fmt": "none"}
                look |= {"capsize": self.points(error.get("width", 4)), "ecolor": rgba(first)}
                look |= {"capthick": look["elinewidth"], "alpha": opacity}
                axes.errorbar(x, y, **{name: np.nan_to_num(np.array(both, float))}, **look)
        if "markers" in mode:
            self._add_markers(axes, trace, x, y, colour)
        if "text" in mode:
            self._add_texts(axes, trace, x, y)

    def _add_markers(
        self, axes: Axes, trace: Mapping[str, Any], x: list[float], y: list[float], colour: str
    ) -> None:
        """Draw markers, those with one look together."""
        marker, n = trace.get("marker", {}), len(x)
        sizes, symbols = each(marker.get("size", 6), n), each(marker.get("symbol", "circle"), n)
        colours = each(marker.get("color", colour), n)
        looks = list(zip(symbols, sizes, colours, strict=True))
        opacity = trace.get("opacity", 1) * marker.get("opacity", 1)
        edge = marker.get("line", {})
        for look in dict.fromkeys(looks):
            symbol, size, own = look
            own_points = [n for n, other in enumerate(looks) if other == look]
            name, is_open = symbol.removesuffix("-open"), symbol.endswith("-open")
            ink = rgba(own, opacity)
            axes.plot(
                [x[n] for n in own_points],
                [y[n] for n in own_points],
                linestyle="",
                marker=MARKERS[name],
                markersize=self.points(size),
                markerfacecolor="none" if is_open else ink,
                markeredgecolor=ink if is_open else rgba(edge.get("color", own), opacity),
                markeredgewidth=self.points(edge.get("width", 1 if is_open else 0)),
                clip_on=trace.get("cliponaxis", True),
            )

    def _add_texts(
        self, axes: Axes, trace: Mapping[str, Any], x: list[float], y: list[float]
    ) -> None:
        """Write texts at points: in their middle, or at a side of them."""
        font, n = trace.get("textfont", {}), len(x)
        place = trace.get("textposition", "middle center")
        down, across = place.split()
        sides = {"left": ("right", -1), "center": ("center", 0), "right": ("left", 1)}
        heights = {"top": ("bottom", 1), "middle": ("center", 0), "bottom": ("top", -1)}
        (ha, dx), (va, dy) = sides[across], heights[down]
        shift = (dx * self.points(6), dy * self.points(5))
        colours = each(font.get("color", self.text["color"]), n)
        looks = zip(each(trace["text"], n), colours, strict=True)
        how = {"textcoords": "offset points", "ha": ha, "va": va, "clip_on": False}
        how |= {"annotation_clip": False}
        written = []
        for at, (text, colour) in zip(zip(x, y, strict=True), looks, strict=True):
            own = self.font({"size": font.get("size", self.text["size"]), "color": colour})
            if text:
                written.append(axes.annotate(plain_text(text), at, shift, **how, **own))
        self.texts.append((axes, written))

    def _add_band(
        self, axes: Axes, trace: Mapping[str, Any], x: list[float], y: list[float]
    ) -> None:
        """Fill polygons, which undefined points separate."""
        colour, opacity = trace["fillcolor"], trace.get("opacity", 1)
        look: dict[str, Any] = {"facecolor": rgba(colour, opacity), "linewidth": 0}
        if pattern := trace.get("fillpattern"):
            look = {"facecolor": "none", "linewidth": 0, "hatch": "/////"}
            look["edgecolor"] = rgba(pattern["fgcolor"], opacity)
        for known, corners in groupby(zip(x, y, strict=True), lambda at: not math.isnan(sum(at))):
            if known:
                axes.fill(*zip(*corners, strict=True), **look)

    def _add_bars(
        self,
        axes: Axes,
        trace: Mapping[str, Any],
        x: list[float],
        y: list[float],
        colour: str,
        traces: Sequence[Any],
    ) -> None:
        """Draw bars; those of several traces on the same axes are next to each other."""
        is_flat = trace.get("orientation") == "h"
        places, lengths = (y, x) if is_flat else (x, y)
        same = [
            one
            for one in traces
            if one["type"] == "bar"
            and all(one.get(f"{name}axis", name) == trace.get(f"{name}axis", name) for name in "xy")
        ]
        is_group = self.layout.get("barmode", "group") == "group"
        n, number = (len(same), same.index(trace)) if is_group else (1, 0)
        distinct = sorted(set(places))
        gaps = [b - a for a, b in pairwise(distinct)]
        whole = (1 - self.layout.get("bargap", 0.2)) * min(gaps, default=1.0)
        widths = each(trace.get("width"), len(places))
        widths = [whole / n if width is None else width for width in widths]
        middle = [at + whole / n * (number - (n - 1) / 2) for at in places]
        marker = trace.get("marker", {})
        opacity = trace.get("opacity", 1) * marker.get("opacity", 1)
        fills = [rgba(one, opacity) for one in each(marker.get("color", colour), len(places))]
        edge = marker.get("line", {})
        look: dict[str, Any] = {"color": fills, "linewidth": self.points(edge.get("width", 0))}
        look["edgecolor"] = rgba(edge.get("color", "#444444"))
        draw = axes.barh if is_flat else axes.bar
        draw(middle, lengths, widths, **look)
        for name, error in (("xerr", trace.get("error_x")), ("yerr", trace.get("error_y"))):
            if error:
                upper = numbers(error["array"])
                both = np.array([numbers(error.get("arrayminus", upper)), upper], float)
                at = (lengths, middle) if is_flat else (middle, lengths)
                thin = {"elinewidth": self.points(error.get("thickness", 2)), "fmt": "none"}
                thin |= {"capsize": self.points(error.get("width", 4))}
                axes.errorbar(*at, **{name: np.nan_to_num(both)}, **thin, ecolor=self.text["color"])

    def _add_waterfall(
        self, axes: Axes, trace: Mapping[str, Any], x: list[float], y: list[float]
    ) -> None:
        """Draw a bar for each step, from the sum of all before it, and one for the total."""
        total, ends = 0.0, []
        for at, step, measure in zip(x, y, trace["measure"], strict=True):
            is_total = measure == "total"
            kind = "totals" if is_total else "increasing" if step >= 0 else "decreasing"
            fill = rgba(trace[kind]["marker"]["color"])
            drawn = axes.bar(at, total if is_total else step, 0.8, 0 if is_total else total)
            drawn[0].set_facecolor(fill)
            drawn[0].sticky_edges.y.clear()  # room beyond the last bar
            total += 0 if is_total else step
            ends.append(total)
        look = self._line(trace["connector"]["line"], "#444444")
        for at, end in zip(x[:-1], ends, strict=False):
            axes.plot([at + 0.4, at + 0.6], [end, end], **look)

    def _add_map(self, axes: Axes, trace: Mapping[str, Any]) -> None:
        """Draw the cells of a map, and its colour bar."""
        z = np.array(numbers(trace["z"]), float)
        scale: Any = trace.get("colorscale")
        low, high = trace.get("zmin"), trace.get("zmax")
        shared = self.layout.get(trace.get("coloraxis", ""), {})
        scale, low, high = (
            shared.get(name, own)
            for name, own in (("colorscale", scale), ("cmin", low), ("cmax", high))
        )
        if isinstance(scale[0], str):
            scale = list(zip(np.linspace(0, 1, len(scale)), scale, strict=True))
        cells = LinearSegmentedColormap.from_list("", [(at, rgba(one)) for at, one in scale])
        edges = [self._edges(trace, name, n) for name, n in (("x", z.shape[1]), ("y", z.shape[0]))]
        look: dict[str, Any] = {"cmap": cells, "norm": Normalize(low, high)}
        if z.size > self.most_cells:
            look |= {"rasterized": True}
        elif trace.get("xgap"):
            look |= {"edgecolors": "white", "linewidth": self.points(trace["xgap"])}
        else:  # no seams between cells
            look |= {"edgecolors": "face", "linewidth": 0.1}
        shown = axes.pcolormesh(*edges, np.ma.masked_invalid(z), **look)
        bar = shared.get("colorbar", trace.get("colorbar", {}))
        if trace.get("showscale", True) and not (shared and self.bars):
            self._add_colour_bar(shown, bar)

    def _edges(self, trace: Mapping[str, Any], axis: str, n: int) -> Any:
        """Return the n + 1 edges of the cells of a map along an axis."""
        if axis not in trace:
            return np.arange(n + 1) - 0.5
        middle = np.array(self._places(trace.get(f"{axis}axis", axis), trace[axis]))
        between = (middle[1:] + middle[:-1]) / 2
        first = between[0] - middle[0] if n > 1 else 0.5
        last = middle[-1] - between[-1] if n > 1 else 0.5
        return np.array([middle[0] - first, *between, middle[-1] + last])

    def _add_colour_bar(self, cells: ScalarMappable, bar: Mapping[str, Any]) -> None:
        axes, is_flat = self.figure.add_axes((0, 0, 1, 1)), bar.get("orientation") == "h"
        side = "horizontal" if is_flat else "vertical"
        drawn = self.figure.colorbar(cells, cax=axes, orientation=side)
        drawn.solids.set(rasterized=self.most_cells < MOST_VECTOR_CELLS, edgecolor="face")
        drawn.outline.set_linewidth(self.points(bar.get("outlinewidth", 0)))  # type: ignore[operator]
        font = self.font({"size": 12} | bar.get("tickfont", {}))
        length, width = self.points(bar.get("ticklen", 4)), self.points(1)
        axes.tick_params(labelsize=font["fontsize"], labelcolor=font["color"], length=length)
        axes.tick_params(width=width, color="#9aa1ab")
        if "tickvals" in bar:
            drawn.set_ticks(bar["tickvals"], labels=list(map(plain_text, bar["ticktext"])))
        else:
            drawn.locator = ticker.MaxNLocator(bar.get("nticks", TICKS), steps=[1, 2, 5, 10])
            drawn.formatter = ticker.FuncFormatter(_formatted(bar))
            drawn.update_ticks()
        if title := bar.get("title", {}).get("text"):
            own = self.font({"size": 12} | bar["title"].get("font", {}))
            if is_flat:
                axes.set_title(plain_text(title), **own, loc="left", pad=self.points(4))
            else:
                axes.set_ylabel(plain_text(title), **own, rotation=270, va="bottom")
        self.bars.append((axes, bar))

    def _set_axis(self, axes: Axes, name: str, other: str) -> None:
        """Set range, ticks, labels, title and lines of one axis of a panel."""
        setting, is_x = self.settings(name), name[0] == "x"
        axis = axes.xaxis if is_x else axes.yaxis
        limits = setting.get("range")
        if limits is None and name in self.categories and is_x:
            limits = [-0.5, len(self.categories[name]) - 0.5]
        if limits is not None:
            ends = [10.0**end for end in limits] if setting.get("type") == "log" else limits
            (axes.set_xlim if is_x else axes.set_ylim)(*ends)
        elif setting.get("autorange") == "reversed" and not axis.get_inverted():
            axis.set_inverted(True)
        if limits is None and setting.get("rangemode") == "tozero":
            axes.set_ylim(bottom=0)
        self._set_ticks(axis, name, setting)
        anchor = setting.get("anchor") or {"x": "y", "y": "x"}[name[0]]
        is_own = anchor == other or anchor not in {one["xy".index(other[0])] for one in self.panels}
        shows = setting.get("showticklabels", True) and is_own
        side = setting.get("side", "bottom" if is_x else "left")
        font, ticks = self.font(setting.get("tickfont")), setting.get("ticks", "")
        look: dict[str, Any] = {f"label{one}": False for one in self._sides(is_x)}
        look |= dict.fromkeys(self._sides(is_x), False) | {side: ticks == "outside" and is_own}
        look |= {f"label{side}": shows, "labelsize": font["fontsize"]}
        look |= {"labelcolor": font["color"], "length": self.points(setting.get("ticklen", 5))}
        look |= {"color": setting.get("tickcolor", "#444444"), "width": self.points(1)}
        axis.set_tick_params(**look, pad=self.points(3))
        axis.set_label_position(side)
        if setting.get("showgrid", True):
            axis.grid(visible=True, color=setting.get("gridcolor", "#eeeeee"))
            axis.grid(linewidth=self.points(1))
        axes.set_axisbelow(True)
        for one in self._sides(is_x):
            mirror = setting.get("mirror", False) or one == side
            axes.spines[one].set_visible(bool(setting.get("showline", False) and mirror))
            axes.spines[one].set_color(setting.get("linecolor", "#444444"))
            axes.spines[one].set_linewidth(self.points(setting.get("linewidth", 1)))
        title = setting.get("title", {})
        if title.get("text") and is_own:
            text, pad = plain_text(title["text"]), self.points(title.get("standoff", 8))
            axis.set_label_text(text, **self.font(title.get("font")))
            axis.labelpad = pad / 2

    @staticmethod
    def _sides(is_x: bool) -> tuple[str, str]:
        return ("bottom", "top") if is_x else ("left", "right")

    def _set_ticks(self, axis: Any, name: str, setting: Mapping[str, Any]) -> None:
        """Set where an axis has ticks, and their labels."""
        values, texts = numbers(setting.get("tickvals")), setting.get("ticktext")
        if values is None and name in self.categories:
            texts = self.categories[name]
            values = range(len(texts))
        axis.set_minor_locator(ticker.NullLocator())
        if values is not None:
            labels = [plain_text(one) for one in (texts or map(_formatted(setting), values))]
            axis.set_major_locator(ticker.FixedLocator(list(values)))
            axis.set_major_formatter(ticker.FixedFormatter(labels))
        elif setting.get("type") == "log":
            axis.set_major_formatter(ticker.FuncFormatter(_formatted(setting)))
        else:
            nice = ticker.MaxNLocator(setting.get("nticks", TICKS), steps=[1, 2, 5, 10])
            step = setting.get("dtick")
            axis.set_major_locator(ticker.MultipleLocator(step) if step else nice)
            axis.set_major_formatter(ticker.FuncFormatter(_formatted(setting)))
        angle = setting.get("tickangle") or 0
        if angle:
            is_steep = abs(angle) == 90
            for label in axis.get_ticklabels():
                label.set(rotation=-angle, rotation_mode="anchor")
                label.set(ha="right", va="center" if is_steep else "top")

    def _where(self, name: str, other: str) -> Transform:
        """Return the transform of a reference such as x2, `y domain` or paper."""
        axis, _, domain = name.partition(" ")
        if axis == "paper":
            return self.paper.transAxes
        index, beside = "xy".index(axis[0]), other.partition(" ")[0]
        fitting = [pair for pair in self.panels if pair[index] == axis]
        best = [pair for pair in fitting if pair[1 - index] == beside] or fitting
        axes = self.panels[best[0]] if best else self.paper
        return axes.transAxes if domain else axes.transData

    def _refs(self, one: Mapping[str, Any]) -> tuple[Axes, Transform, Transform]:
        """Return the panel of a shape or annotation, and the transforms of its places."""
        x, y = one.get("xref", "x"), one.get("yref", "y")
        found = [
            axes
            for (own_x, own_y), axes in self.panels.items()
            if x.partition(" ")[0] in (own_x, "paper") and y.partition(" ")[0] in (own_y, "paper")
        ]
        return (found or [self.paper])[0], self._where(x, y), self._where(y, x)

    def _add_shape(self, shape: Mapping[str, Any]) -> None:
        axes, to_x, to_y = self._refs(shape)
        place, line = blended_transform_factory(to_x, to_y), shape.get("line", {})
        over = 0.6 if shape.get("layer") == "below" else 3
        x, y = ([shape[f"{name}0"], shape[f"{name}1"]] for name in "xy")
        if shape["type"] == "line":
            look = self._line(line, "#444444")
            axes.add_artist(Line2D(x, y, transform=place, zorder=min(over, 1.9), **look))
            return
        look = {"linewidth": self.points(line.get("width", 2)), "zorder": over, "transform": place}
        fill = shape.get("fillcolor")
        look["facecolor"] = rgba(fill, shape.get("opacity", 1)) if fill else "none"
        look["edgecolor"] = rgba(line.get("color", "#444444")) if look["linewidth"] else "none"
        axes.add_artist(Rectangle((x[0], y[0]), x[1] - x[0], y[1] - y[0], clip_on=False, **look))

    def _add_note(self, note: Mapping[str, Any]) -> None:
        """Write an annotation, with the line to its point if it has one."""
        axes, to_x, to_y = self._refs(note)
        x, y, has_arrow = note["x"], note["y"], note.get("showarrow", True)
        for name in ("x", "y"):
            axis = note.get(f"{name}ref", name)
            if " " not in axis and axis != "paper" and self.settings(axis).get("type") == "log":
                x, y = (10.0**x, y) if name == "x" else (x, 10.0**y)
        ha, va = note.get("xanchor", "auto"), note.get("yanchor", "auto")
        if ha == "auto":
            is_middle = has_arrow or note.get("xref") != "paper" or 1 / 3 <= x <= 2 / 3
            ha = "center" if is_middle else "left" if x < 1 / 3 else "right"
        if va == "auto":
            is_middle = has_arrow or note.get("yref") != "paper" or 1 / 3 <= y <= 2 / 3
            va = "middle" if is_middle else "bottom" if y < 1 / 3 else "top"
        shift = (note.get("xshift", 0), note.get("yshift", 0))
        look: dict[str, Any] = {"ha": ha, "va": {"middle": "center"}.get(va, va)}
        if has_arrow:
            if ha == "left":
                self.labelled.append(axes)
            gap = 3 if ha == "left" else 0  # between the line and its text
            shift = (shift[0] + note.get("ax", -10) + gap, shift[1] - note.get("ay", -30))
            below = 0.5 if not note.get("ay", -30) else float(note.get("ay", -30) > 0)
            arrow = {
                "arrowstyle": "-",
                "shrinkA": 0,
                "linewidth": self.points(note.get("arrowwidth", 1)),
            }
            arrow |= {"color": note.get("arrowcolor", self.text["color"])}
            arrow |= {"shrinkB": self.points(note.get("standoff", 0))}
            arrow["relpos"] = (0, 0.5) if ha == "left" else (0.5, below)
            look["arrowprops"] = arrow
        if angle := note.get("textangle"):
            look["rotation"] = -angle
        text = plain_text(note.get("text", ""))
        written = self.paper.annotate(
            text,
            (x, y),
            (self.points(shift[0]), self.points(shift[1])),
            xycoords=(to_x, to_y),
            textcoords="offset points",
            annotation_clip=False,
            multialignment=note.get("align", "center"),
            linespacing=1.15,
            **self.font(note.get("font")),
            **look,
        )
        if not has_arrow and note.get("xref", "x").endswith(" domain") and ha == "left":
            self.titles.append((written, axes, text))

    def _add_legend(self, traces: Sequence[Mapping[str, Any]]) -> None:
        """Write the legend below the panels, in as few rows as possible."""
        named = [one for one in traces if one.get("showlegend", True) and one.get("name")]
        named = [one for one in named if one["type"] not in ("heatmap", "waterfall")]
        self.legend: Any = None
        if not self.layout.get("showlegend", len(traces) > 1) or not named:
            return
        named.sort(key=lambda one: one.get("legendrank", 1000))
        groups = {one.get("legendgroup") or one["name"]: one for one in reversed(named)}
        shown = [one for one in named if any(one is first for first in groups.values())]
        handles: list[Any] = []
        for one in shown:
            marker, line = one.get("marker", {}), one.get("line", {})
            first = each(marker.get("color", line.get("color", COLORWAY[0])), 1)[0]
            if one["type"] == "bar" or one.get("fill"):
                handles.append(
                    Patch(color=rgba(one.get("fillcolor", first), one.get("opacity", 1)))
                )
                continue
            look = self._line(line, first)
            mode = one.get("mode", "lines+markers")
            if "lines" not in mode:
                look["linestyle"] = ""
            if "markers" in mode:
                symbol = each(marker.get("symbol", "circle"), 1)[0]
                ink = rgba(first)
                look |= {"marker": MARKERS[symbol.removesuffix("-open")]}
                look |= {"markersize": self.points(min(8, each(marker.get("size", 6), 1)[0]))}
                look |= {"markeredgecolor": ink}
                look |= {"markerfacecolor": "none" if symbol.endswith("-open") else ink}
            handles.append(Line2D([], [], **look))
        font = self.font({"size": 12} | self.layout.get("legend", {}).get("font", {}))
        texts = [plain_text(one["name"]) for one in shown]
        for n_columns in range(len(texts), 0, -1):
            self.legend = self.figure.legend(
                handles,
                texts,
                loc="lower left",
                bbox_to_anchor=(0, 0),
                ncols=n_columns,
                frameon=False,
                fontsize=font["fontsize"],
                labelcolor=[font["color"]] * len(texts),
                borderaxespad=0.2,
                handlelength=2.4,
                columnspacing=1.2,
                borderpad=0.2,
            )
            if self.legend.get_window_extent(self.renderer).width <= self.points(self.width):
                return
            if n_columns > 1:
                self.legend.remove()

    def _place(self, margins: Sequence[float]) -> None:
        """Set the places of panels and colour bars, given left, right, top and bottom margin."""
        left, right, top, bottom = margins
        width = max(self.width - left - right, 20)
        height = max(self.height - top - bottom, 20)
        self.plot = (left, bottom, width, height)

        def put(axes: Axes, x: float, y: float, w: float, h: float) -> None:
            axes.set_position((x / self.width, y / self.height, w / self.width, h / self.height))

        def ends(axis: str, whole: float) -> tuple[float, float]:
            """Return the ends of a panel; columns and rows are `more` pixels further apart."""
            low, high = self.settings(axis).get("domain", (0, 1))
            index = "xy".index(axis[0])
            starts = {self.settings(pair[index]).get("domain", (0, 1))[0] for pair in self.panels}
            more, n = self.more[index], len(starts)
            before = sum(start < low for start in starts)
            first = low * whole + before * more / n
            return first, max((high - low) * whole - more * (n - 1) / n, 5)

        put(self.paper, *self.plot)
        for (x, y), axes in self.panels.items():
            (x0, w), (y0, h) = ends(x, width), ends(y, height)
            put(axes, left + x0, bottom + y0, w, h)
        for axes, bar in self.bars:
            is_flat, thick = bar.get("orientation") == "h", bar.get("thickness", 30)
            whole = width if is_flat else height
            length = bar.get("len", 1) * (1 if bar.get("lenmode") == "pixels" else whole)
            length = min(length, whole)
            if is_flat:
                put(axes, left, bottom + height + 24, length, thick)
            else:
                at = left + width * bar.get("x", 1.02) + bar.get("xpad", 10) / 2
                put(axes, at, bottom + height - length, thick, length)

    def _fit(self) -> None:
        """Make the margins just as large as the texts around the panels need."""
        margin = self.layout.get("margin", {})
        margins = [float(margin.get(side, 60)) for side in "lrtb"]
        self.more = [0.0, 0.0]  # pixels between columns and rows, beyond those of the figure
        if not margin.get("autoexpand", True):  # the figure has computed its margins
            self._place(margins)
            return
        for step in range(4):
            self._place(margins)
            if step:
                for pair, axes in self.panels.items():
                    for name, axis in zip(pair, (axes.xaxis, axes.yaxis), strict=True):
                        self._thin(axis, self.settings(name))
                self._break_titles()
                self._spread()
            around = [*self.panels.values(), self.paper, *(axes for axes, _ in self.bars)]
            boxes = [box for axes in around if (box := axes.get_tightbbox(self.renderer))]
            below = 0.0
            if self.legend is not None:
                below = self.legend.get_window_extent(self.renderer).height + self.points(PAD)
            beyond = (
                *(-min(box.x0 for box in boxes), max(box.x1 for box in boxes)),
                *(max(box.y1 for box in boxes), below - min(box.y0 for box in boxes)),
            )
            sizes = (0, self.width, self.height, 0)
            margins = [
                one + over / self.scale - size + PAD
                for one, over, size in zip(margins, beyond, sizes, strict=True)
            ]
        self._place(margins)
        self._drop_texts()

    def _thin(self, axis: Any, setting: Mapping[str, Any]) -> None:
        """Turn labels of ticks that overlap if they may turn, and show every n-th that fits."""
        is_x = axis.axis_name == "x"
        # Labels that begin with a line break are below the others, and do not overlap them.
        lines: dict[bool, list[Any]] = {True: [], False: []}
        for label in axis.get_ticklabels():
            if label.get_text():
                lines[label.get_text().startswith("\n")].append(label)
        high = 1.15 * self.points(self.text["size"])
        for labels in lines.values():
            boxes = [label.get_window_extent(self.renderer) for label in labels]
            places = [one.get_transform().transform(one.get_position()) for one in labels]
            at = [place[0 if is_x else 1] for place in places]
            gaps = [abs(b - a) or 1e-9 for a, b in pairwise(at)]
            sizes = [box.width + high / 3 if is_x else 0.9 * box.height for box in boxes]
            turn = abs(setting.get("tickangle") or (labels and labels[0].get_rotation()) or 0)
            if is_x and turn:
                sizes = [high / math.sin(math.radians(turn))] * len(labels)
            needs = [(a + b) / 2 for a, b in pairwise(sizes)]
            every = max((math.ceil(n / gap) for n, gap in zip(needs, gaps, strict=True)), default=1)
            if every > 1 and is_x and not turn and "tickangle" not in setting:
                turn = 90 if "autotickangles" in setting else 40
                for label in labels:
                    label.set(rotation=turn, rotation_mode="anchor", ha="right")
                    label.set(va="center" if turn == 90 else "top")
                every = max(math.ceil(high / gap) for gap in gaps)
            for number, label in enumerate(labels):
                label.set_alpha(float(number % every == 0))

    def _break_titles(self) -> None:
        """Break titles that would reach the next column of panels into lines."""
        for note, axes, text in self.titles:
            own = axes.get_position()
            beside = [one.get_position().x0 for one in self.panels.values()]
            beside = [x0 for x0 in beside if x0 > own.x0 + 0.01]
            end = own.x1 if axes in self.labelled else 1.0
            room = (min(beside, default=end) - own.x0) * self.points(self.width) - self.points(6)
            note.set_text(text)
            wide = note.get_window_extent(self.renderer).width
            if wide > room > 0:
                longest = max(map(len, text.split("\n")))
                joined = text.replace("\n", " ")
                note.set_text("\n".join(textwrap.wrap(joined, max(4, int(longest * room / wide)))))

    def _spread(self) -> None:
        """Add space between rows and columns of panels whose texts would overlap."""
        boxes = []
        for axes in self.panels.values():
            own = [note for note, of, _ in self.titles if of is axes]
            parts = [axes.get_tightbbox(self.renderer)]
            parts += [note.get_window_extent(self.renderer) for note in own]
            boxes.append(
                (
                    axes.get_window_extent(self.renderer),
                    Bbox.union([part for part in parts if part]),
                )
            )
        for index in (0, 1):
            most, across = 0.0, 1 - index
            for panel, whole in boxes:
                for other, other_whole in boxes:
                    is_after = other.min[index] >= panel.max[index] - 1
                    overlaps = other.min[across] < panel.max[across] - 1
                    if is_after and overlaps and other.max[across] > panel.min[across] + 1:
                        most = max(most, whole.max[index] - other_whole.min[index])
            self.more[index] += (most / self.scale + PAD) if most else 0

    def _drop_texts(self) -> None:
        """Leave out the texts of a map in whose cells they have no room."""
        for axes, texts in self.texts:
            if not any(isinstance(one, QuadMesh) for one in axes.collections):
                continue
            (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
            boxes = [text.get_window_extent(self.renderer) for text in texts]
            wide = max((box.width for box in boxes), default=0)
            high = max((box.height for box in boxes), default=0)
            if wide > abs(x1 - x0) or high > abs(y1 - y0):
                for text in texts:
                    text.remove()


def _formatted(setting: Mapping[str, Any]) -> Any:
    """Return a function that writes a number of an axis."""
    form, after = setting.get("tickformat", ""), setting.get("ticksuffix", "")

    def written(value: float, _place: Any = None) -> str:
        text = format(value, form.replace("~", "")) if form else f"{round(value, 10):,.10g}"
        return text.replace("-", "\N{MINUS SIGN}") + after

    return written
