"""Heat maps side by side in one row, on one colour scale."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from probekit.report.figures.style import SMALL, STACKS, TEMPLATE, TITLE_MARGIN, plotly_text

GAP = 0.025  # between maps, as a share of the row


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
    for number, (title, width) in enumerate(zip(maps, widths, strict=True), start=1):
        end = start + unit * width
        _place(figure, maps[title], number, (start, min(end, 1.0)))
        write_above(figure, title, f"x{number if number > 1 else ''}")
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


def _place(figure: go.Figure, one: go.Figure, number: int, domain: tuple[float, float]) -> None:
    """Copy traces, axes and frames of a map into a part of the figure."""
    suffix = str(number) if number > 1 else ""
    axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
    for trace in one.data:
        if trace.type == "heatmap":
            trace.showscale = number == 1
        figure.add_trace(trace.update(**axes))
    x_axis, y_axis = one.layout.xaxis, one.layout.yaxis
    x_axis.update(domain=domain, anchor=axes["yaxis"])
    y_axis.update(anchor=axes["xaxis"])
    if number > 1:
        y_axis.update(title_text=None, showticklabels=False)
    figure.update_layout({f"xaxis{suffix}": x_axis, f"yaxis{suffix}": y_axis})
    if one.layout.plot_bgcolor:
        figure.update_layout(plot_bgcolor=one.layout.plot_bgcolor)
    for shape in one.layout.shapes:
        figure.add_shape(shape.update(xref=axes["xaxis"], yref=axes["yaxis"]))
