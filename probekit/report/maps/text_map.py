"""Heat map with text in its cells, and several of them in a row on one colour scale."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go
from numpy.typing import NDArray

from probekit.report.figures.style import SMALL, STACKS, TEMPLATE, TITLE_MARGIN, fixed, plotly_text

MOST_TEXTS = 200  # cells; with more, numbers in cells are too small to read
MOST_TICKS = 150  # tokens labelled along the axis
MASKED = "#d9dde2"  # colour of a cell without a value
GAP = 0.025  # between maps of a row, as a share of the row
# Luminance of a background on which black and white text have equal contrast (4.6).
_SPLIT = 0.179


@dataclass(frozen=True)
class Colours:
    """Colour scale of a map, from the value `low` to the value `high`.

    It is diverging, with 0 in the middle, only for a metric that is a difference and has negative
    values.
    """

    low: float
    high: float
    scale: list[str]
    is_diverging: bool


def diverging(values: Any, least: float = 0.0) -> Colours:
    """Return the scale with 0 in the middle that ends at the largest absolute value, or `least`.

    >>> diverging(np.array([0.5, -1.0, np.nan])).low
    -1.0
    """
    reach = max(least, float(np.nanmax(np.abs(values), initial=0.0)))
    return Colours(-reach, reach, plotly.colors.diverging.PuOr_r, is_diverging=True)


def text_map(
    values: NDArray[np.float64],
    hover: Sequence[str],
    shown: Colours,
    *,
    texts: Sequence[str] | None = None,
    across: list[str],
    down: list[str],
    title: str,
    most_texts: int = MOST_TEXTS,
    down_title: str = "layer",
) -> go.Figure:
    """Return a heat map; texts are written in its cells unless there are too many.

    Args:
        values: Values shown as colours, shape (n_rows, n_columns); NaN for an empty cell.
        hover: Hover texts of the cells, row by row, already escaped.
        shown: Colour scale.
        texts: Texts of the cells, row by row, already escaped; by default the values.
        across: Labels of the columns.
        down: Labels of the rows.
        title: Title of the horizontal axis.
        most_texts: Number of cells up to which texts are drawn.
        down_title: Title of the vertical axis.
    """
    figure = go.Figure(layout={"template": TEMPLATE})
    if np.isnan(values).any():
        figure.update_layout(plot_bgcolor=MASKED)
    lines = np.array(hover, dtype=object).reshape(values.shape).tolist()
    figure.add_heatmap(
        z=values.tolist(),
        hovertext=lines,
        hoverinfo="text",
        hoverongaps=False,
        zmin=shown.low,
        zmax=shown.high,
        colorscale=shown.scale,
        xgap=1,
        ygap=1,
        colorbar={"thickness": 12, "outlinewidth": 0, "tickformat": ".2f", "nticks": 6},
    )
    if values.size <= most_texts:
        y, x = np.indices(values.shape).reshape(2, -1).tolist()
        shown_texts = list(map(cell_text, values.ravel()) if texts is None else texts)
        font = {"size": SMALL, "color": inks(values.ravel(), shown)}
        figure.add_scatter(x=x, y=y, text=shown_texts, mode="text", textfont=font, hoverinfo="skip")
    # Columns and rows are labelled by index, because labels such as tokens may occur twice. Without
    # a range, the text trace would add a margin around the map.
    axis = {"tickmode": "array", "showgrid": False, "showline": False, "ticks": ""}
    (left, right), (top, bottom) = ((-0.5, len(labels) - 0.5) for labels in (across, down))
    at = [list(range(len(labels))) for labels in (across, down)]
    figure.update_xaxes(
        **axis, title_text=title, tickvals=at[0], ticktext=across, range=[left, right]
    )
    figure.update_yaxes(**axis, tickvals=at[1], ticktext=down, range=[bottom, top])
    figure.update_yaxes(title_text=down_title)
    return figure


def cell_map(
    cells: pd.DataFrame,
    shown: Colours,
    *,
    down: tuple[str, Mapping[Any, str]],
    across: tuple[str, Mapping[Any, str]],
    title: str,
) -> go.Figure:
    """Return the map of cells that are given in any order; missing ones are empty.

    Args:
        cells: rows with `value` and `hover`, and the columns of `down` and `across`.
        shown: Colour scale.
        down: Column that places a cell vertically, and the label of each of its values, in order.
        across: The same for the horizontal place.
        title: Title of the horizontal axis.
    """
    at = tuple(
        cells[column].map({key: number for number, key in enumerate(labels)}).to_numpy()
        for column, labels in (down, across)
    )
    values = np.full((len(down[1]), len(across[1])), np.nan)
    hover = np.full(values.shape, "", dtype=object)
    values[at], hover[at] = cells["value"], cells["hover"]
    names = list(across[1].values()), list(down[1].values())
    hovers = hover.ravel().tolist()
    return text_map(values, hovers, shown, across=names[0], down=names[1], title=title)


def thin_ticks(figure: go.Figure) -> go.Figure:
    """Label only every n-th column of a map with more than `MOST_TICKS`, and return the map.

    A browser needs half a minute for a thousand tick labels; the hover text has all tokens.
    """
    axis = figure.layout.xaxis
    if (n := len(axis.ticktext)) > MOST_TICKS:
        step = n // MOST_TICKS + 1
        axis.update(tickvals=axis.tickvals[::step], ticktext=axis.ticktext[::step])
    return figure


def name_colours(figure: go.Figure, title: str) -> go.Figure:
    """Write the meaning of the colours next to the colour bar of a map, and return the map."""
    colorbar = {"title": {"text": title, "side": "right"}}
    return figure.update_traces(colorbar=colorbar, selector={"type": "heatmap"})


def frame_cell(figure: go.Figure, column: int, row: int) -> None:
    """Frame a cell of a map with two nested outlines, visible on every colour."""
    corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    for width, colour in ((5, "#ffffff"), (2.5, "#D55E00")):
        figure.add_shape(type="rect", **corners, line={"width": width, "color": colour})


def cell_text(value: float) -> str:
    """Return a value as short text: two decimals, without a leading 0.

    >>> cell_text(0.968), cell_text(-0.25), cell_text(1.0), cell_text(0.996), cell_text(-0.001)
    ('.97', '−.25', '1.00', '1.00', '.00')
    >>> cell_text(10.25), cell_text(-20.5)
    ('10.25', '−20.50')
    """
    if np.isnan(value):
        return ""
    return re.sub(r"^(−?)0\.", r"\1.", fixed(value, 2))


def inks(values: NDArray[np.float64], shown: Colours) -> list[str]:
    """Return the text colour of each value's cell: black or white, whichever has more contrast.

    >>> dark_to_light = Colours(0.0, 1.0, ["#000000", "#ffffff"], is_diverging=False)
    >>> inks(np.array([0.0, 1.0, np.nan]), dark_to_light)
    ['#ffffff', '#000000', '#000000']
    """
    share = ((values - shown.low) / (shown.high - shown.low)).clip(0, 1)
    colours = plotly.colors.sample_colorscale(shown.scale, np.nan_to_num(share), colortype="tuple")
    is_light = (luminance(np.array(colours)) > _SPLIT) | np.isnan(values)
    text_colours: list[str] = np.where(is_light, "#000000", "#ffffff").tolist()
    return text_colours


def luminance(colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relative luminance of each RGB colour.

    Args:
        colours: red, green and blue in [0, 1], shape (n, 3).

    Source: WCAG 2.2, "relative luminance".

    >>> luminance(np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])).round(3).tolist()
    [0.0, 1.0]
    """
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ np.array([0.2126, 0.7152, 0.0722]))


def map_row(maps: Mapping[str, go.Figure]) -> go.Figure:
    """Return the maps in one row, each below its title, with rows labelled at the left only.

    Widths are proportional to the numbers of columns.

    Args:
        maps: Maps by title, all with the same rows and the same colour scale.
    """
    figure = go.Figure(layout={"template": TEMPLATE, "showlegend": False, "meta": STACKS})
    widths = [len(one.data[0].z[0]) for one in maps.values()]
    unit = (1 - GAP * (len(maps) - 1)) / sum(widths)
    start = 0.0
    for number, ((title, one), width) in enumerate(zip(maps.items(), widths, strict=True)):
        end = start + unit * width
        suffix = str(number + 1) if number else ""
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        for trace in one.data:
            if trace.type == "heatmap":
                trace.showscale = not number
            figure.add_trace(trace.update(**axes))
        x_axis, y_axis = one.layout.xaxis, one.layout.yaxis
        x_axis.update(domain=(start, min(end, 1.0)), anchor=axes["yaxis"])
        y_axis.update(anchor=axes["xaxis"])
        if number:
            y_axis.update(title_text=None, showticklabels=False)
        figure.update_layout({f"xaxis{suffix}": x_axis, f"yaxis{suffix}": y_axis})
        if one.layout.plot_bgcolor:
            figure.update_layout(plot_bgcolor=one.layout.plot_bgcolor)
        for shape in one.layout.shapes:
            figure.add_shape(shape.update(xref=axes["xaxis"], yref=axes["yaxis"]))
        write_above(figure, title, axes["xaxis"])
        start = end + GAP
    return figure


def write_above(figure: go.Figure, text: str, axis: str = "x") -> None:
    """Add a text above a map, given by its x axis."""
    figure.add_annotation(
        text=plotly_text(text),
        x=0,
        xref=f"{axis} domain",
        xanchor="left",
        y=1,
        yref=f"{axis.replace('x', 'y')} domain",
        yanchor="bottom",
        showarrow=False,
        font={"size": SMALL},
    )
    figure.update_layout(margin_t=TITLE_MARGIN)
