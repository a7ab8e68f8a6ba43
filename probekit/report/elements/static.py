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
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from itertools import groupby, pairwise, product
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.transforms import Bbox, blended_transform_factory

from probekit.amounts import first_names
from probekit.errors import UnknownNameError, nearest

SANS_SERIF = ("Arial", "Helvetica", "Liberation Sans", "DejaVu Sans")
# For characters of tokens that these fonts lack, if they are installed.
FALLBACKS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Emoji", "Noto Sans Hebrew")
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "probekit", "pdf.fonttype": 42}
SETTINGS |= {"text.parse_math": False, "lines.scale_dashes": False, "hatch.linewidth": 0.4}
SETTINGS |= {"lines.solid_capstyle": "butt"}
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
# Lengths of dashes and gaps, in widths of the line or in 3 pixels if it is thinner. Source:
# plotly.js, components/drawing, dashStyle.
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


def pictures(figures: Iterable[tuple[Mapping[str, Any], str, Any]], **how: Any) -> list[bytes]:
    """Return figures as files, each given by the first three arguments of `picture`.

    A warning names all characters that no installed font has.
    """
    contents, missing = [], set[str]()
    for figure, kind, size in figures:
        content, lacked = picture(figure, kind, size, **how)
        if others := _fonts_with(lacked):
            content, lacked = picture(figure, kind, size, others=others, **how)
        contents.append(content)
        missing |= lacked
    if missing:
        text = f"No installed font has {first_names(sorted(missing), 20)}: figures have empty boxes"
        warnings.warn(f"{text} instead. Install one, or name it with --font NAME.", stacklevel=2)
    return contents


def picture(
    figure: Mapping[str, Any],
    kind: str,
    size: tuple[float, float],
    *,
    scale: float,
    font: str = "",
    others: Sequence[str] = (),
    ground: str = "white",
    dpi: float = 600,
    most_cells: int = MOST_VECTOR_CELLS,
) -> tuple[bytes, set[str]]:
    """Return a figure as a file, an image of the format `kind`, and characters without a glyph.

    Args:
        figure: Plotly's figure as JSON values.
        kind: `png`, `svg` or `pdf`.
        size: Width and height in pixels.
        scale: Points of the file per pixel of the figure.
        font: Family of the texts; "" for the first of `SANS_SERIF` that is installed.
        others: Families for characters that this font and `FALLBACKS` lack.
        ground: Colour of the background; `none` for a transparent one.
        dpi: Dots per inch of a PNG file.
        most_cells: Number of cells up to which a map is drawn as vector graphics.

    Raises:
        UnknownNameError: The font is not installed.
    """
    stream = BytesIO()
    with _settings(font, others) as missing:
        drawn = Drawing(figure, size, scale, most_cells).figure
        look: dict[str, Any] = {"facecolor": ground, "metadata": METADATA[kind], "dpi": dpi}
        drawn.savefig(stream, format=kind, **look)
    return stream.getvalue(), missing


@contextmanager
def _settings(font: str = "", others: Sequence[str] = ()) -> Iterator[set[str]]:
    """Draw with `SETTINGS` and fonts in the block; at its end the set has what they lack."""
    missing, how = set[str](), SETTINGS | {"font.family": [*families(font), *others]}
    with mpl.rc_context(how), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Glyph .* missing")  # it is an empty box
        yield missing
    for one in caught:
        if lacked := re.match(r"Glyph (\d+) ", str(one.message)):
            missing.add(chr(int(lacked[1])))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _fonts_with(characters: Set[str]) -> list[str]:
    """Return installed families that have any of the characters."""
    codes = set(map(ord, characters))
    fonts = font_manager.fontManager.ttflist if codes else ()
    names = [one.name for one in fonts if codes & _codes(one.fname)]
    # The font of last resort has a box for each script.
    return [name for name in dict.fromkeys(names) if "Last Resort" not in name]


@cache
def _codes(path: str) -> Set[int]:
    return frozenset(FT2Font(path).get_charmap())


def still(figure: Mapping[str, Any], height: float | None) -> str:
    """Return a figure as an <svg> element for a page, with few digits and the page's colours.

    Args:
        figure: Plotly's figure as JSON values.
        height: Height in rem; None for that of a figure without one.
    """
    size = (STILL_WIDTH, REM * (height or 27.0))
    how: dict[str, Any] = {"ground": "none", "dpi": 96, "most_cells": MOST_CELLS_OF_PAGE}
    how["font"] = "DejaVu Sans"  # as wide as any font of a page, and part of matplotlib
    svg = picture(figure, "svg", size, scale=CSS_POINTS, **how)[0].decode()
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
    """Return a height in pixels: each panel has at least the share of it that its domain has."""
    with _settings():
        drawn = Drawing(figure, size, scale)
    heights = {y: axes.get_position().height for (_, y), axes in drawn.panels.items()}
    shares = {y: np.ptp(drawn.settings(y).get("domain", (0, 1))) for y in heights}
    return float(min(drawn.height * heights[y] / shares[y] for y in heights))


@cache
def _installed() -> frozenset[str]:
    return frozenset(font_manager.get_font_names())


def families(font: str) -> list[str]:
    """Return the families of fonts: the first that has a character draws it.

    Raises:
        UnknownNameError: The font is not installed.
    """
    if font and font not in _installed():
        near = nearest(font, sorted(_installed()))
        raise UnknownNameError(f"--font: {font!r} is not installed on this machine. {near}")
    first = [font] if font else [name for name in SANS_SERIF if name in _installed()][:1]
    return [*first, *(name for name in FALLBACKS if name in _installed() and name not in first)]


def unescaped(text: Any) -> str:
    r"""Return a text of Plotly with its lines, without tags and entities.

    >>> unescaped("95&#37;<br><b>band</b>")
    '95%\nband'
    """
    return html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<br ?/?>", "\n", str(text))))


def decoded(values: Any) -> Any:
    """Return the values of a property, decoded if plotly.py has written them as bytes."""
    if isinstance(values, Mapping) and "bdata" in values:
        array = np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])
        shape = str(values.get("shape", "-1"))
        return array.reshape([int(n) for n in shape.split(",")])
    return values


def overlaid(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of both, where they differ those of the second."""
    both = dict(first)
    for name, value in second.items():
        is_nested = isinstance(value, Mapping) and isinstance(both.get(name), Mapping)
        both[name] = overlaid(both[name], value) if is_nested else value
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
    value = decoded(value)
    return list(value) if isinstance(value, list | tuple | np.ndarray) else [value] * n


class Drawing:
    """A figure of matplotlib, and where its panels are.

    Attributes:
        figure: the figure.
        panels: the axes of each panel, by the names of its axes, such as x2 and y2.
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        size: tuple[float, float],
        scale: float,
        most_cells: int = MOST_VECTOR_CELLS,
    ) -> None:
        (self.width, self.height), self.scale, self.most_cells = size, scale, most_cells
        self.template = source["layout"].get("template", {}).get("layout", {})
        self.layout = overlaid(self.template, source["layout"])
        self.text = {"size": 12, "color": "#444444"} | self.layout.get("font", {})
        self.figure = Figure((self.width * scale / 72, self.height * scale / 72), dpi=72)
        self.renderer = FigureCanvasAgg(self.figure).get_renderer()
        self.traces = [one for one in source["data"] if one.get("visible", True) is True]
        self.categories: dict[str, list[str]] = {}  # by axis
        self.panels: dict[tuple[str, str], Any] = {}
        self.bars: list[tuple[Any, Mapping[str, Any]]] = []  # a colour bar, and its settings
        self.titles: list[tuple[Any, Any, str]] = []  # a text above a panel, the panel, the text
        self.labelled: list[Any] = []  # panels with labels to their right
        self.texts: list[tuple[Any, list[Any]]] = []  # texts at points of a panel
        pairs = dict.fromkeys(map(axes_of, self.traces))
        for pair in pairs or [("x", "y")]:
            self._add_panel(*pair)
        self.paper = self.figure.add_axes((0, 0, 1, 1), zorder=10)  # for annotations of all panels
        self.paper.set_axis_off()
        for number, trace in enumerate(self.traces):
            self._add_trace(trace, COLORWAY[number % len(COLORWAY)])
        for x, y in self.panels:
            self._set_axis((x, y), 0)
            self._set_axis((x, y), 1)
        for shape in self.layout.get("shapes", ()):
            self._add_shape(shape)
        for note in self.layout.get("annotations", ()):
            self._add_note(note)
        self.legend = self._legend()
        self._fit()

    def settings(self, axis: str) -> dict[str, Any]:
        """Return the settings of an axis such as x2, with those of the template."""
        own = self.layout.get(f"{axis[0]}axis{axis[1:]}", {})
        return overlaid(self.template.get(f"{axis[0]}axis", {}), own)

    def font(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return size and colour of a text, those of the figure unless `given` has its own."""
        own = self.text | dict(given or {})
        return {"fontsize": own["size"] * self.scale, "color": rgba(own["color"])}

    def _add_panel(self, x: str, y: str) -> None:
        axes = self.figure.add_axes((0, 0, 1, 1), label=f"{x} {y}")
        axes.set_facecolor(rgba(self.layout.get("plot_bgcolor", "white")))
        shared = [self.settings(one).get("matches", one) for one in (x, y)]
        for pair, other in self.panels.items():
            same = [self.settings(one).get("matches", one) for one in pair]
            if same[0] == shared[0] and axes._sharex is None:
                axes.sharex(other)
            if same[1] == shared[1] and axes._sharey is None:
                axes.sharey(other)
        for name in (x, y):
            if self.settings(name).get("type") == "log":
                axes.set(**{f"{name[0]}scale": "log"})
        self.panels[x, y] = axes

    def _places(self, axis: str, values: Any) -> list[float]:
        """Return the places of values on an axis: categories are numbered as they appear."""
        given = list(decoded(values))
        if not any(isinstance(value, str) for value in given):
            return [math.nan if value is None else float(value) for value in given]
        known = self.categories.setdefault(axis, [])
        known += [value for value in dict.fromkeys(given) if value not in known]
        return [float(known.index(value)) for value in given]

    def _add_trace(self, trace: Mapping[str, Any], colour: str) -> None:
        """Draw a trace in its own colour, or in `colour` if it has none."""
        names, kind = axes_of(trace), trace["type"]
        axes = self.panels[names]
        if kind == "heatmap":
            self._add_map(axes, trace)
            return
        y = self._places(names[1], trace["y"])
        x = self._places(names[0], trace.get("x", [trace.get("x0", 0) + n for n in range(len(y))]))
        if kind == "waterfall":
            self._add_waterfall(axes, trace, x)
        elif kind == "bar":
            self._add_bars(axes, trace, x, y, colour)
        elif trace.get("fill") == "toself":
            self._add_band(axes, trace, x, y)
        else:
            self._add_line(axes, trace, x, y, colour)

    def _line(self, line: Mapping[str, Any], colour: str) -> dict[str, Any]:
        """Return the look of a line."""
        width, dash = line.get("width", 2), str(line.get("dash", "solid"))
        lengths = [max(width, 3) * n for n in DASHES.get(dash, ())]
        if "px" in dash:
            lengths = [float(one.removesuffix("px")) for one in dash.split(",")]
        pattern = (0, [one * self.scale for one in lengths]) if lengths else "-"
        steps = STEPS.get(line.get("shape", ""), "default")
        look = {"linewidth": width * self.scale, "linestyle": pattern, "drawstyle": steps}
        return look | {"color": rgba(line.get("color", colour))}

    def _marker(self, marker: Mapping[str, Any], symbol: str, size: float, ink: Any) -> Any:
        """Return the look of markers of a colour, which are open if their symbol ends so."""
        line, is_open = marker.get("line", {}), symbol.endswith("-open")
        edge = rgba(line["color"]) if "color" in line and not is_open else ink
        look = {"marker": MARKERS[symbol.removesuffix("-open")], "markersize": size * self.scale}
        look |= {"markerfacecolor": "none" if is_open else ink, "markeredgecolor": edge}
        return look | {"markeredgewidth": line.get("width", int(is_open)) * self.scale}

    def _add_line(self, axes: Any, trace: Mapping[str, Any], x: Any, y: Any, colour: str) -> None:
        """Draw a line, its error bars, markers and texts, as far as the trace has them."""
        mode = trace.get("mode", "lines+markers")
        line, marker = trace.get("line", {}), trace.get("marker", {})
        opacity, clip = trace.get("opacity", 1), trace.get("cliponaxis", True)
        colour = line.get("color", colour)
        if "lines" in mode:
            axes.plot(x, y, alpha=opacity, clip_on=clip, **self._line(line, colour))
        n = len(x)
        colours = each(marker.get("color", colour), n)
        self._add_errors(axes, trace, x, y, rgba(colours[0], opacity) if n else colour)
        looks = [
            each(marker.get(name, usual), n) for name, usual in (("symbol", "circle"), ("size", 6))
        ]
        points = list(zip(*looks, colours, strict=True)) if "markers" in mode else []
        for look in dict.fromkeys(points):  # markers of one look together
            own = [number for number, other in enumerate(points) if other == look]
            ink = rgba(look[2], opacity * marker.get("opacity", 1))
            at = [[values[number] for number in own] for values in (x, y)]
            drawn = self._marker(marker, look[0], look[1], ink)
            axes.plot(*at, linestyle="", clip_on=clip, **drawn)
        if "text" in mode:
            self._add_texts(axes, trace, x, y)

    def _add_errors(self, axes: Any, trace: Mapping[str, Any], x: Any, y: Any, ink: Any) -> None:
        for name in "xy":
            if error := trace.get(f"error_{name}"):
                upper = decoded(error["array"])
                both = np.nan_to_num(np.array([decoded(error.get("arrayminus", upper)), upper]))
                thick, wide = (
                    error.get(one, usual) * self.scale
                    for one, usual in (("thickness", 2), ("width", 4))
                )
                look = {"fmt": "none", "ecolor": ink, "elinewidth": thick, "capthick": thick}
                axes.errorbar(x, y, **{f"{name}err": both.astype(float)}, **look, capsize=wide)

    def _add_texts(self, axes: Any, trace: Mapping[str, Any], x: Any, y: Any) -> None:
        """Write texts at points: in their middle, or at a side of them."""
        font = self.text | trace.get("textfont", {})
        down, across = trace.get("textposition", "middle center").split()
        ha, dx = {"left": ("right", -6), "center": ("center", 0), "right": ("left", 6)}[across]
        va, dy = {"top": ("bottom", 5), "middle": ("center", 0), "bottom": ("top", -5)}[down]
        how = {"textcoords": "offset points", "ha": ha, "va": va, "annotation_clip": False}
        shift, written = (dx * self.scale, dy * self.scale), []
        for at, text, ink in zip(
            zip(x, y, strict=True), trace["text"], each(font["color"], len(x)), strict=True
        ):
            if text:
                look = self.font({"size": font["size"], "color": ink})
                written.append(axes.annotate(unescaped(text), at, shift, **how, **look))
        self.texts.append((axes, written))

    def _add_band(self, axes: Any, trace: Mapping[str, Any], x: Any, y: Any) -> None:
        """Fill polygons, which undefined points separate."""
        colour, opacity = trace["fillcolor"], trace.get("opacity", 1)
        look: dict[str, Any] = {"facecolor": rgba(colour, opacity), "linewidth": 0}
        if pattern := trace.get("fillpattern"):
            look |= {"facecolor": "none", "hatch": "/////"}
            look["edgecolor"] = rgba(pattern["fgcolor"], opacity)
        for known, corners in groupby(zip(x, y, strict=True), lambda at: not math.isnan(sum(at))):
            if known:
                axes.fill(*zip(*corners, strict=True), **look)

    def _add_bars(self, axes: Any, trace: Mapping[str, Any], x: Any, y: Any, colour: str) -> None:
        """Draw bars; those of several traces in a panel are next to each other."""
        same = [one for one in self.traces if one["type"] == "bar"]
        same = [one for one in same if axes_of(one) == axes_of(trace)]
        n, marker = len(same), trace.get("marker", {})
        whole = 0.8 * min((b - a for a, b in pairwise(sorted(set(x)))), default=1.0)
        middle = [at + whole / n * (same.index(trace) - (n - 1) / 2) for at in x]
        fill = rgba(marker.get("color", colour), trace.get("opacity", 1))
        axes.bar(middle, y, whole / n, color=fill, linewidth=0)
        self._add_errors(axes, trace, middle, y, self.text["color"])

    def _add_waterfall(self, axes: Any, trace: Mapping[str, Any], x: Any) -> None:
        """Draw a bar for each step, from the sum of all before it, and one for the total."""
        total, ends = 0.0, []
        for at, step, measure in zip(x, trace["y"], trace["measure"], strict=True):
            kind = "increasing" if step >= 0 else "decreasing"
            start, length = total, step
            if measure == "total":
                kind, start, length = "totals", 0.0, total
            fill = rgba(trace[kind]["marker"]["color"])
            (drawn,) = axes.bar(at, length, 0.8, start, color=fill)
            drawn.sticky_edges.y.clear()  # room beyond the last bar
            total = start + length
            ends.append(total)
        look = self._line(trace["connector"]["line"], "#444444")
        for at, end in zip(x[:-1], ends, strict=False):
            axes.plot([at + 0.4, at + 0.6], [end, end], **look)

    def _add_map(self, axes: Any, trace: Mapping[str, Any]) -> None:
        """Draw the cells of a map, and its colour bar."""
        z = np.array(decoded(trace["z"]), float)
        shared = self.layout.get(trace.get("coloraxis", ""), {})
        low, high = shared.get("cmin", trace.get("zmin")), shared.get("cmax", trace.get("zmax"))
        scale = shared.get("colorscale", trace.get("colorscale"))
        if isinstance(scale[0], str):
            scale = list(zip(np.linspace(0, 1, len(scale)), scale, strict=True))
        colours = LinearSegmentedColormap.from_list("", [(at, rgba(one)) for at, one in scale])
        look: dict[str, Any] = {"cmap": colours, "vmin": low, "vmax": high}
        if z.size > self.most_cells:
            look["rasterized"] = True
        elif trace.get("xgap"):
            look |= {"edgecolors": "white", "linewidth": trace["xgap"] * self.scale}
        else:  # no seams between cells
            look |= {"edgecolors": "face", "linewidth": 0.1}
        x, y = (np.arange(n + 1) - 0.5 for n in z.shape[::-1])
        look["alpha"] = trace.get("opacity", 1)
        shown = axes.pcolormesh(x, y, np.ma.masked_invalid(z), **look)
        if trace.get("showscale", True) and not (shared and self.bars):
            self._add_colour_bar(shown, shared.get("colorbar", trace.get("colorbar", {})))

    def _add_colour_bar(self, cells: Any, bar: Mapping[str, Any]) -> None:
        axes, is_flat = self.figure.add_axes((0, 0, 1, 1)), bar.get("orientation") == "h"
        side = "horizontal" if is_flat else "vertical"
        drawn = self.figure.colorbar(cells, cax=axes, orientation=side)
        drawn.solids.set(rasterized=self.most_cells < MOST_VECTOR_CELLS, edgecolor="face")
        drawn.outline.set_linewidth(bar.get("outlinewidth", 0) * self.scale)
        font = self.font({"size": 12} | bar.get("tickfont", {}))
        look = {"labelsize": font["fontsize"], "labelcolor": font["color"], "color": "#9aa1ab"}
        axes.tick_params(**look, length=bar.get("ticklen", 4) * self.scale, width=self.scale)
        self._set_ticks(axes.xaxis if is_flat else axes.yaxis, "", {"nticks": TICKS} | dict(bar))
        if title := bar.get("title"):
            look, text = self.font({"size": 12} | title.get("font", {})), unescaped(title["text"])
            if is_flat:
                axes.set_title(text, **look, loc="left", pad=4 * self.scale)
            else:
                axes.set_ylabel(text, **look, rotation=270, va="bottom")
        self.bars.append((axes, bar))

    def _set_axis(self, pair: tuple[str, str], index: int) -> None:
        """Set range, ticks, labels, title and lines of one axis of a panel."""
        name, axes, setting = pair[index], self.panels[pair], self.settings(pair[index])
        axis, sides = ((axes.xaxis, ("bottom", "top")), (axes.yaxis, ("left", "right")))[index]
        limits = setting.get("range")
        if limits is None and name in self.categories:
            limits = [-0.5, len(self.categories[name]) - 0.5]
        if limits is not None:
            ends = [10.0**end for end in limits] if setting.get("type") == "log" else limits
            (axes.set_ylim if index else axes.set_xlim)(*ends)
        elif setting.get("autorange") == "reversed":
            axis.set_inverted(True)
        elif setting.get("rangemode") == "tozero":
            (axes.set_ylim if index else axes.set_xlim)(0)
        self._set_ticks(axis, name, setting)
        # Of panels that share an axis, one has its ticks and labels.
        anchor, beside = setting.get("anchor", "yx"[index]), {one[1 - index] for one in self.panels}
        is_own = anchor == pair[1 - index] or anchor not in beside
        side, font = setting.get("side", sides[0]), self.font(setting.get("tickfont"))
        look = {one: False for side in sides for one in (side, f"label{side}")}
        look |= {side: is_own and setting.get("ticks", "") == "outside"}
        look |= {f"label{side}": is_own and setting.get("showticklabels", True)}
        axis.set_tick_params(
            **{"labelsize": font["fontsize"], "labelcolor": font["color"], "pad": 3 * self.scale},
            **{"length": setting.get("ticklen", 5) * self.scale, "width": self.scale},
            **{"color": setting.get("tickcolor", "#444444"), **look},
        )
        axis.set_label_position(side)
        axes.set_axisbelow(True)
        if setting.get("showgrid", True):
            axis.grid(visible=True, color=setting.get("gridcolor", "#eeeeee"), linewidth=self.scale)
        for one in sides:
            is_drawn = setting.get("showline", False) and (one == side or "mirror" in setting)
            axes.spines[one].set(visible=is_drawn, color=setting.get("linecolor", "#444444"))
            axes.spines[one].set_linewidth(setting.get("linewidth", 1) * self.scale)
        title = setting.get("title", {})
        if title.get("text") and is_own:
            axis.set_label_text(unescaped(title["text"]), **self.font(title.get("font")))
            axis.labelpad = title.get("standoff", 8) * self.scale / 2

    def _set_ticks(self, axis: Any, name: str, setting: Mapping[str, Any]) -> None:
        """Set where an axis has ticks, and their labels."""
        values, texts = decoded(setting.get("tickvals")), setting.get("ticktext")
        if values is None and name in self.categories:
            texts = self.categories[name]
            values = range(len(texts))
        nice = ticker.MaxNLocator(setting.get("nticks", TICKS), steps=[1, 2, 5, 10])
        if values is not None:
            labels = list(map(unescaped, texts or map(_formatted(setting), values)))
            axis.set_major_locator(ticker.FixedLocator(list(values)))
            axis.set_major_formatter(ticker.FixedFormatter(labels))
        else:
            if setting.get("type") != "log":
                step = setting.get("dtick")
                axis.set_major_locator(ticker.MultipleLocator(step) if step else nice)
            axis.set_major_formatter(ticker.FuncFormatter(_formatted(setting)))
        axis.set_minor_locator(ticker.NullLocator())
        for label, text in zip(axis.get_ticklabels(), texts or (), strict=False):
            label.set_fontweight("bold" if str(text).startswith("<b>") else "normal")
        if angle := setting.get("tickangle"):
            _turn(axis.get_ticklabels(), -angle)

    def _refs(self, one: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return the panel of a shape or annotation, and the transforms of its places."""
        refs = [one.get("xref", "x"), one.get("yref", "y")]
        names = [ref.partition(" ")[0] for ref in refs]
        # The first of the panels that have most of its axes.
        axes = self.panels[max(self.panels, key=lambda own: sum(name in own for name in names))]
        places = [
            self.paper.transAxes if ref == "paper" else axes.transAxes if " " in ref else
            axes.transData for ref in refs
        ]  # fmt: skip
        return axes, *places

    def _add_shape(self, shape: Mapping[str, Any]) -> None:
        axes, *places = self._refs(shape)
        how = {"transform": blended_transform_factory(*places), "clip_on": False}
        x, y = ([shape[f"{name}0"], shape[f"{name}1"]] for name in "xy")
        line = self._line(shape.get("line", {}), "#444444")
        if shape["type"] == "line":
            axes.add_artist(Line2D(x, y, zorder=1.9, **how, **line))
            return
        fill = shape.get("fillcolor")
        look = {"edgecolor": line["color"] if line["linewidth"] else "none"}
        look |= {"facecolor": rgba(fill, shape.get("opacity", 1)) if fill else "none"}
        how |= {"linewidth": line["linewidth"], "zorder": 0.6 if fill else 3}
        axes.add_artist(Rectangle((x[0], y[0]), x[1] - x[0], y[1] - y[0], **how, **look))

    def _add_note(self, note: Mapping[str, Any]) -> None:
        """Write an annotation, with the line to its point if it has one."""
        axes, *places = self._refs(note)
        has_arrow, text, at, anchors = note.get("showarrow", True), unescaped(note["text"]), [], []
        ends = (("left", "center", "right"), ("bottom", "center", "top"))
        for name, sides in zip("xy", ends, strict=True):
            ref, value = note.get(f"{name}ref", name), note[name]
            is_log = " " not in ref and ref != "paper" and self.settings(ref).get("type") == "log"
            at.append(10.0**value if is_log else value)
            third = 1 if has_arrow or ref != "paper" else min(int(3 * value), 2)
            anchor = note.get(f"{name}anchor", "auto").replace("middle", "center")
            anchors.append(sides[third] if anchor == "auto" else anchor)
        shift = [note.get("xshift", 0), note.get("yshift", 0)]
        look: dict[str, Any] = {"ha": anchors[0], "va": anchors[1]}
        if has_arrow:
            is_label = anchors[0] == "left"
            self.labelled += [axes] * is_label
            up = -note.get("ay", -30)
            shift = [shift[0] + note.get("ax", -10) + 3 * is_label, shift[1] + up]
            look["arrowprops"] = {
                **{"arrowstyle": "-", "shrinkA": 3 * is_label * self.scale, "patchA": None},
                **{"shrinkB": note.get("standoff", 0) * self.scale},
                **{"linewidth": note.get("arrowwidth", 1) * self.scale},
                **{"color": note.get("arrowcolor", self.text["color"])},
                "relpos": (0, 0.5) if is_label else (0.5, float(up < 0)),
            }
        look |= {"rotation": -note.get("textangle", 0), "linespacing": 1.15}
        look |= {"multialignment": note.get("align", "center"), "annotation_clip": False}
        look |= {"xycoords": tuple(places), "textcoords": "offset points"}
        offset = [length * self.scale for length in shift]
        written = self.paper.annotate(text, at, offset, **self.font(note.get("font")), **look)
        if not has_arrow and note.get("xref", "x").endswith(" domain") and anchors[0] == "left":
            self.titles.append((written, axes, text))

    def _legend(self) -> Any:
        """Return the legend below the panels, in as few rows as possible; None without one."""
        named = [one for one in self.traces if one.get("showlegend", True) and one.get("name")]
        named = sorted(named, key=lambda one: one.get("legendrank", 1000))
        first = {one.get("legendgroup") or one["name"]: one for one in reversed(named)}
        shown = [one for one in named if first[one.get("legendgroup") or one["name"]] is one]
        if not shown or not self.layout.get("showlegend", len(self.traces) > 1):
            return None
        handles: list[Any] = []
        for one in shown:
            marker, line = one.get("marker", {}), one.get("line", {})
            colour = each(marker.get("color", line.get("color", COLORWAY[0])), 1)[0]
            if one["type"] == "bar" or one.get("fill"):
                fill = rgba(one.get("fillcolor", colour), one.get("opacity", 1))
                handles.append(Patch(facecolor=fill, linewidth=0))
                continue
            look, mode = self._line(line, colour), one.get("mode", "lines+markers")
            if "markers" in mode:
                symbol = each(marker.get("symbol", "circle"), 1)[0]
                look |= self._marker(marker, symbol, 7, rgba(colour))
            look |= {} if "lines" in mode else {"linestyle": ""}
            handles.append(Line2D([], [], **look))
        font = self.font({"size": 12} | self.layout.get("legend", {}).get("font", {}))
        how = {"loc": "lower left", "bbox_to_anchor": (0, 0), "frameon": False, "borderpad": 0.2}
        how |= {"fontsize": font["fontsize"], "labelcolor": [font["color"]] * len(shown)}
        how |= {"borderaxespad": 0.2, "handlelength": 2.4, "columnspacing": 1.2}
        texts = [unescaped(one["name"]) for one in shown]
        for n_columns in range(len(texts), 0, -1):
            legend = self.figure.legend(handles, texts, ncols=n_columns, **how)
            wide = legend.get_window_extent(self.renderer).width
            if wide <= self.width * self.scale or n_columns == 1:
                break
            legend.remove()
        return legend

    def _place(self, margins: Sequence[float]) -> None:
        """Set the places of panels and colour bars, given left, right, top and bottom margin."""
        left, right, top, bottom = margins
        width = max(self.width - left - right, 20)
        height = max(self.height - top - bottom, 20)

        def put(axes: Any, x: float, y: float, w: float, h: float) -> None:
            axes.set_position((x / self.width, y / self.height, w / self.width, h / self.height))

        put(self.paper, left, bottom, width, height)
        for pair, axes in self.panels.items():
            ends = []
            for index, whole in enumerate((width, height)):
                low, high = self.settings(pair[index]).get("domain", (0, 1))
                # Columns and rows are `more` pixels further apart than those of the figure.
                others = (self.settings(one[index]).get("domain", (0, 1)) for one in self.panels)
                starts, more = {other[0] for other in others}, self.more[index]
                before, n = sum(start < low for start in starts), len(starts)
                length = max((high - low) * whole - more * (n - 1) / n, 5)
                ends.append((low * whole + before * more / n, length))
            (x, w), (y, h) = ends
            put(axes, left + x, bottom + y, w, h)
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
        self.more = [0.0, 0.0]
        fits = margin.get("autoexpand", True)  # otherwise the figure has computed its margins
        for step in range(4 * fits):
            self._place(margins)
            if step:
                for pair, axes in self.panels.items():
                    self._thin(axes.xaxis, self.settings(pair[0]))
                    self._thin(axes.yaxis, self.settings(pair[1]))
                self._break_titles()
                self._spread()
            around = [*self.panels.values(), self.paper, *(axes for axes, _ in self.bars)]
            boxes = [box for axes in around if (box := axes.get_tightbbox(self.renderer))]
            whole, below = Bbox.union(boxes), 0.0
            if self.legend is not None:
                below = self.legend.get_window_extent(self.renderer).height + PAD * self.scale
            beyond = (-whole.x0, whole.x1, whole.y1, below - whole.y0)
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
        named = [label for label in axis.get_ticklabels() if label.get_text()]
        high = 1.15 * self.text["size"] * self.scale
        # Labels that begin with a line break are below the others, and do not overlap them.
        for is_below in (True, False):
            labels = [one for one in named if one.get_text().startswith("\n") == is_below]
            boxes = [label.get_window_extent(self.renderer) for label in labels]
            places = [one.get_transform().transform(one.get_position()) for one in labels]
            gaps = [abs(b - a)[0 if is_x else 1] or 1e-9 for a, b in pairwise(places)]
            sizes = [box.width + high / 3 if is_x else 0.9 * box.height for box in boxes]
            turn = abs(setting.get("tickangle") or (labels and labels[0].get_rotation()) or 0)
            if is_x and turn:
                sizes = [high / math.sin(math.radians(turn))] * len(labels)
            needs = [(a + b) / 2 for a, b in pairwise(sizes)]
            every = max((math.ceil(n / gap) for n, gap in zip(needs, gaps, strict=True)), default=1)
            if every > 1 and is_x and not turn and "tickangle" not in setting:
                _turn(labels, 90 if "autotickangles" in setting else 40)
                every = max(math.ceil(high / gap) for gap in gaps)
            for number, label in enumerate(labels):
                label.set_alpha(float(number % every == 0))

    def _break_titles(self) -> None:
        """Break titles that would reach the next column of panels into lines."""
        starts = [one.get_position().x0 for one in self.panels.values()]
        for note, axes, text in self.titles:
            own = axes.get_position()
            end = own.x1 if axes in self.labelled else 1.0
            end = min((x0 for x0 in starts if x0 > own.x0 + 0.01), default=end)
            room = ((end - own.x0) * self.width - 6) * self.scale
            note.set_text(text)
            wide = note.get_window_extent(self.renderer).width
            if wide > room > 0:
                most = max(4, int(max(map(len, text.split("\n"))) * room / wide))
                note.set_text("\n".join(textwrap.wrap(text.replace("\n", " "), most)))

    def _spread(self) -> None:
        """Add space between rows and columns of panels whose texts would overlap."""
        boxes = []
        for axes in self.panels.values():
            own = [note for note, of, _ in self.titles if of is axes]
            parts = [note.get_window_extent(self.renderer) for note in own]
            whole = Bbox.union([axes.get_tightbbox(self.renderer), *parts])
            boxes.append((axes.get_window_extent(self.renderer), whole))
        for index in (0, 1):
            across = 1 - index
            overlaps = [
                whole.max[index] - other_whole.min[index]
                for (panel, whole), (other, other_whole) in product(boxes, repeat=2)
                if other.min[index] >= panel.max[index] - 1
                and other.min[across] < panel.max[across] - 1
                and other.max[across] > panel.min[across] + 1
            ]
            most = max(overlaps, default=0)
            self.more[index] += most / self.scale + PAD if most > 0 else 0

    def _drop_texts(self) -> None:
        """Leave out the texts of a map that have no room in their cell; all if most have none."""
        for axes, texts in self.texts:
            (x0, y0), (x1, y1) = axes.transData.transform([(0, 0), (1, 1)])
            if any(isinstance(one, QuadMesh) for one in axes.collections):
                boxes = [text.get_window_extent(self.renderer) for text in texts]
                wide = [b.width > abs(x1 - x0) or b.height > abs(y1 - y0) for b in boxes]
                for text, has_no_room in zip(texts, wide, strict=True):
                    if has_no_room or sum(wide) > len(wide) / 2:
                        text.remove()


def axes_of(trace: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the axes of a trace."""
    return trace.get("xaxis", "x"), trace.get("yaxis", "y")


def _turn(labels: Sequence[Any], angle: float) -> None:
    """Turn labels of ticks, whose ends stay at the ticks."""
    for label in labels:
        label.set(rotation=angle, rotation_mode="anchor", ha="right")
        label.set(va="center" if abs(angle) == 90 else "top")


def _formatted(setting: Mapping[str, Any]) -> Any:
    """Return a function that writes a number of an axis."""
    form, after = setting.get("tickformat", ""), setting.get("ticksuffix", "")

    def written(value: float, _place: Any = None) -> str:
        text = format(value, form) if form else f"{round(value, 10):,.10g}"
        return f"{text}{after}".replace("-", "\N{MINUS SIGN}")

    return written
