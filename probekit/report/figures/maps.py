"""Heat maps with text in their cells; maps of a metric by layer and head, position or step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go
from numpy.typing import NDArray

from probekit.amounts import fixed, format_number
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.report.elements import style
from probekit.report.elements.page import figure_json
from probekit.report.figures.views import of_heads, position_offset, shown_position
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import SAME_FEATURES, SERIES, differs, metric_name, n_blocks, only, tick

Axis = tuple[str, Mapping[Any, str]]  # a column, and the label of each of its values, in order
LEAST_RANGE = 0.05  # smallest range of a colour scale, so that noise does not look like an effect
# Targets whose score the hover text of a cell also shows.
COMPARED = {name: TARGETS[name].title for name in ("control", "random_weights")}
MOST_TEXTS = 200  # cells; with more, numbers in cells are too small to read
MOST_TICKS = 150  # tokens labelled along the axis
MOST_NAMES = 12  # cells listed in the description of a map
MASKED = "#d9dde2"  # colour of a cell without a value
ROWS_HEIGHT, LEAST_ROW, MOST_ROW = 29.0, 0.95, 1.9  # rem: of the rows of a first screen; of a row
PALE = 0.2  # opacity of columns at which a probe was not tested
GAP = 0.025  # between maps of a row, as a share of the row
# Luminance of a background on which black and white text have equal contrast (4.6).
_SPLIT = 0.179


def layer_maps(cells: pd.DataFrame, across: str = "head") -> go.Figure:
    """Return the maps of a test metric by layer and head or offset, in a row on one colour scale.

    The cells with the best cross-validated score of all maps are framed, unless each outer fold
    chose its own.

    Args:
        cells: Cells of `map_cells`; the column `title` names the map of each.
        across: see `layer_map`.
    """
    if not differs(cells["title"]):
        return layer_map(cells, across)
    maps = cells.groupby("title", sort=False)
    return map_row({str(title): layer_map(rows, across, cells) for title, rows in maps})


def offset_label(offset: float) -> str:
    """Return the axis label of an offset.

    >>> offset_label(-1), offset_label(0), offset_label(2)
    ('−1', 'span', '+2')
    """
    return f"{offset:+.0f}".replace("-", "−") if offset else "span"


# Column of the cells -> title of its axis, and format of its values as labels.
_AXES: dict[str, tuple[str, Callable[[float], str]]] = {
    "head": ("head", "{:.0f}".format),
    "offset": ("tokens from the span", offset_label),
    "step": ("step of training", "{:,.0f}".format),
}


def map_cells(scores: Scores, metric: str, across: str = "") -> pd.DataFrame:
    """Return the task's test rows of a metric by depth, with what a map shows of each.

    These are the columns of `with_depth`, and `offset` from the span; `rank`, 0 for the best
    cross-validated score, and `n_best`, the number of equally good cells (NaN and 0 without a
    validation score, and if each outer fold chose its own site); and as `shown_with` the lines with
    the other scores of these features: main metric, selectivity, control task, random weights.

    Args:
        scores: The scores; for training steps with a column `step`.
        metric: A metric that was measured on test rows.
        across: Rows without a value of this column are left out.
    """
    # One number for all rows on the same features, which is quicker to compare than their columns.
    sited = scores.sited
    of_features = sited.groupby(list(SAME_FEATURES), sort=False, dropna=False)
    scores = Scores(sited.assign(features=of_features.ngroup()))
    test = scores.drawn.sited
    cells = only(test, target="task", metric=metric)
    cells = cells.assign(offset=position_offset(cells["position"]))
    if across:
        cells = cells[cells[across].notna()]
    features = cells["features"]
    ranked = scores.ranked.dropna(subset="value")
    ranked = ranked[ranked["features"].isin(features) & (not scores.is_nested)]
    place_of = {number: place for place, number in enumerate(ranked["features"])}
    main = scores.drawn.metric
    others = {
        metric_name(main): ("task", main),
        "selectivity": ("task", "selectivity"),
        **{name: (target, main) for target, name in COMPARED.items()},
    }
    shown_with = pd.Series("", index=cells.index)
    for name, (target, other) in others.items():
        if (target, other) != ("task", metric):
            of_other = only(test, target=target, metric=other)
            lines = [f"<br>{name}: {format_number(value)}" for value in of_other["value"]]
            line_of = dict(zip(of_other["features"], lines, strict=True))
            shown_with += [line_of.get(number, "") for number in features]
    return cells.assign(
        rank=features.map(place_of),
        n_best=ranked["value"].isin(ranked["value"].head(1)).sum(),
        shown_with=shown_with,
    )


def map_colours(cells: pd.DataFrame) -> Colours:
    """Return the colour scale of a map of these cells; dark is high unless it is diverging.

    It starts at chance, or at 0 without a chance level and for differences such as selectivity. If
    differences are negative, it is diverging. If lower is better, it starts at the lowest value.
    Undefined values are ignored.

    >>> cells = pd.DataFrame({"value": [-0.2, 0.1], "metric": "selectivity", "chance": 0.0})
    >>> shown = map_colours(cells)
    >>> shown.low, shown.high, shown.is_diverging
    (-0.2, 0.2, True)
    """
    metric, chance = METRICS[cells["metric"].iloc[0]], cells["chance"].min()
    least, most = style.finite_ends(cells["value"])
    is_difference = metric.kind == "difference"
    if is_difference and least < 0:
        return diverging([least, most], LEAST_RANGE)
    low = 0.0 if is_difference or np.isnan(chance) else chance
    if metric.lower_is_better:
        low = least
    return Colours(low, max(most, low + LEAST_RANGE), style.MAGNITUDES, is_diverging=False)


def layer_map(
    cells: pd.DataFrame, across: str = "head", whole: pd.DataFrame | None = None
) -> go.Figure:
    """Return the map of a test metric by layer (down) and head, offset or training step (across).

    Cells with the best cross-validated score are framed, unless each outer fold chose its own.

    Args:
        cells: Cells of `map_cells`, which names their columns.
        across: `head`, `offset` from the span, or `step` of training.
        whole: Cells of all maps with which this one shares layers, colours and the frame; by
            default those of this map alone.
    """
    whole = cells if whole is None else whole
    title, label = _AXES[across]
    columns, depths = sorted(cells[across].unique()), sorted(whole["depth"].unique())
    blocks = n_blocks(whole["site"].unique())
    named = metric_name(cells["metric"].iloc[0])
    texts = []
    shown = ["site", "head", "position", "value", "ci_low", "ci_high", "shown_with"]
    for cell in cells[shown].to_dict("records"):
        site = style.plotly_text(site_with_head(cell["site"], cell["head"]))
        score = format_number(cell["value"], cell["ci_low"], cell["ci_high"])
        header = f"<b>{site}</b> at {style.plotly_text(cell['position'])}"
        texts.append(f"{header}<br>{named}: {score}{cell['shown_with']}")
    figure = cell_map(
        cells.assign(hover=texts),
        map_colours(whole),
        down=("depth", {depth: tick(int(depth), blocks) for depth in depths}),
        across=(across, {column: label(column) for column in columns}),
        title=title,
    )
    # The best cells of all maps may be in another one than this.
    n_best = whole["n_best"].max()
    best = cells[cells["rank"] < n_best]
    for _, cell in best.iterrows():
        frame_cell(figure, columns.index(cell[across]), depths.index(cell["depth"]))
    if len(best):
        ties = f" ({n_best} tied)" if n_best > 1 else ""
        write_above(figure, f"framed: best by cross-validation{ties}")
    return figure


def map_description(cells: pd.DataFrame) -> str:
    """Return the text alternative of a map of these `map_cells`: its range and highest cells."""
    cells = cells.sort_values("value", ascending=False, kind="stable")
    has_positions = differs(cells["position"])
    named = [
        site_with_head(cell["site"], cell["head"])
        + (f" at {cell['position']}" if has_positions else "")
        + f" {format_number(cell['value'])}"
        for _, cell in cells.head(MOST_NAMES).iterrows()
    ]
    across = "position" if has_positions else "head"
    name = metric_name(cells["metric"].iloc[0])
    low, high = format_number(cells["value"].min()), format_number(cells["value"].max())
    return (
        f"{name} by layer and {across}, {len(cells):,} cells from {low} to {high}. "
        f"Highest: {', '.join(named)}."
    )


def colour_words(cells: pd.DataFrame) -> str:
    """Return a sentence about the range of the colour scale of these cells."""
    shown, fact = map_colours(cells), METRICS[cells["metric"].iloc[0]]
    low, high = format_number(shown.low), format_number(shown.high)
    if shown.is_diverging:
        return f"Colours range from {low} to {high}, with 0 in the middle."
    if fact.lower_is_better:
        return f"Colours range from {high} to {low}; lower is better."
    least = f"no {fact.title}" if fact.kind == "difference" else style.LEVELS[fact.reference].label
    return f"Colours range from {low} ({least}) to {high}; lower values have the colour of {low}."


def head_tables(scores: Scores) -> Iterator[tuple[str, bool, pd.DataFrame]]:
    """Yield each map of heads: its name, whether it is at `shown_position`, its rows.

    All are at it without a sweep of positions.
    """
    sited = scores.sited
    heads = sited[of_heads(sited) & sited["head"].notna()]
    keys = ["part", *(column for column in SERIES if column != "line")]
    position = shown_position(scores)
    for name, rows in _named_groups(heads, keys):
        yield name, position in (None, rows["position"].iloc[0]), rows


def position_tables(scores: Scores) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each map of positions: one per line of the curve, none for heads."""
    sited = scores.sited
    sited = sited[~of_heads(sited) & position_offset(sited["position"]).notna()]
    keys = [column for column in SERIES if column != "position"]
    for name, rows in _named_groups(sited, keys):
        if differs(rows["position"]):
            yield name, rows


def step_tables(scores: Scores) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each map over training: one per line of the curve, none for heads.

    resid_pre of a block equals resid_post of the previous block, so only one of them is kept.

    Args:
        scores: rows of training.csv, which are all of the task.
    """
    sited = scores.sited
    sited = sited[~of_heads(sited)]
    keys = ["line", "position", "probe", "view"]
    sited = sited.drop_duplicates([*keys, "depth", "step", "split", "metric", "fold"])
    yield from _named_groups(sited, keys)


def _named_groups(rows: pd.DataFrame, keys: list[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each group with equal keys.

    A group is named by its part or line, and by the other keys in which groups differ.
    """
    differing = [key for key in keys if differs(rows[key]) or key in ("part", "line")]
    for _, group in rows.groupby(keys, sort=False, dropna=False):
        first = group.iloc[0]
        yield " · ".join(str(first[key]) for key in differing), group


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
    return Colours(-reach, reach, style.SIGNED, is_diverging=True)


def text_map(
    values: Any,
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
        values: Values shown as colours, row by row; NaN for an empty cell.
        hover: Hover texts of the cells, row by row, already escaped.
        shown: Colour scale.
        texts: Texts of the cells, row by row, already escaped; by default the values.
        across: Labels of the columns.
        down: Labels of the rows.
        title: Title of the horizontal axis.
        most_texts: Number of cells up to which texts are drawn.
        down_title: Title of the vertical axis.
    """
    values = np.asarray(values, dtype=float).reshape(len(down), len(across))
    figure = go.Figure(layout={"template": style.TEMPLATE})
    if np.isnan(values).any():
        figure.update_layout(plot_bgcolor=MASKED)
    lines = np.array(hover, dtype=object).reshape(values.shape).tolist()
    hovers = {"hovertext": lines, "hoverinfo": "text", "hoverongaps": False}
    colours = {"zmin": shown.low, "zmax": shown.high, "colorscale": shown.scale}
    bar = {"thickness": 12, "outlinewidth": 0, "tickformat": ".2f", "nticks": 6}
    figure.add_heatmap(z=values.tolist(), **hovers, **colours, xgap=1, ygap=1, colorbar=bar)
    if values.size <= most_texts:
        # The row and the column of each cell, in the order of the texts.
        y, x = np.indices(values.shape).reshape(2, -1).tolist()
        if texts is None:
            texts = ["" if np.isnan(value) else fixed(value, 2) for value in values.ravel()]
        font = {"size": style.SMALL, "color": inks(values.ravel(), shown)}
        figure.add_scatter(x=x, y=y, text=list(texts), mode="text", textfont=font, hoverinfo="skip")
    # Columns and rows are labelled by index, because labels such as tokens may occur twice. Without
    # a range, the text trace would add a margin around the map.
    axis = {"tickmode": "array", "showgrid": False, "showline": False, "ticks": ""}
    n_rows, n_columns = values.shape
    columns = {"tickvals": list(range(n_columns)), "ticktext": across}
    rows = {"tickvals": list(range(n_rows)), "ticktext": down}  # the first one at the top
    figure.update_xaxes(**axis, title_text=title, **columns, range=[-0.5, n_columns - 0.5])
    figure.update_yaxes(**axis, **rows, range=[n_rows - 0.5, -0.5])
    # In a call of its own, because the order of properties is part of the bytes of a page.
    return figure.update_yaxes(title_text=down_title)


def cell_map(
    cells: pd.DataFrame, shown: Colours, *, down: Axis, across: Axis, title: str
) -> go.Figure:
    """Return the map of cells that are given in any order; missing ones are empty.

    Args:
        cells: rows with `value` and `hover`, and the columns of `down` and `across`; at most one
            row for each cell of the map.
        shown: Colour scale.
        down: Column that places a cell vertically, and the label of each of its values, in order.
        across: The same for the horizontal place.
        title: Title of the horizontal axis.
    """
    row_labels, column_labels = (list(labels.values()) for _, labels in (down, across))
    # The row and the column of each cell in the map.
    rows, columns = (
        cells[column].map({key: number for number, key in enumerate(labels)}).to_numpy()
        for column, labels in (down, across)
    )
    values = np.full((len(row_labels), len(column_labels)), np.nan)
    hover = np.full(values.shape, "", dtype=object)
    values[rows, columns] = cells["value"]
    hover[rows, columns] = cells["hover"]
    hovers = hover.ravel().tolist()
    return text_map(values, hovers, shown, across=column_labels, down=row_labels, title=title)


def rows_height(n: int) -> float:
    """Return the height of n rows of a map in rem: if they fit, all are on the first screen.

    >>> rows_height(10), rows_height(30), rows_height(80)
    (19.0, 29.0, 76.0)
    """
    return n * min(max(ROWS_HEIGHT / n, LEAST_ROW), MOST_ROW)


def thin_ticks(figure: go.Figure) -> go.Figure:
    """Label only every n-th column of a map with more than `MOST_TICKS`, and return the map.

    A browser needs half a minute for a thousand tick labels; the hover text has all tokens.
    """
    axis = figure.layout.xaxis
    n_ticks = len(axis.ticktext)
    if n_ticks > MOST_TICKS:
        step = n_ticks // MOST_TICKS + 1
        axis.update(tickvals=axis.tickvals[::step], ticktext=axis.ticktext[::step])
    return figure


def name_colours(figure: go.Figure, title: str) -> go.Figure:
    """Write the meaning of the colours next to the colour bar of a map, and return the map."""
    colorbar = {"title": {"text": title, "side": "right"}}
    return figure.update_traces(colorbar=colorbar, selector={"type": "heatmap"})


def changes_of(views: Mapping[str, go.Figure]) -> dict[str, dict[str, Any]]:
    """Return the background of each view, and its trace properties that differ from the first's."""
    traces_of = {name: figure_json(view)["data"] for name, view in views.items()}
    first = next(iter(traces_of.values()))
    changes = {}
    for name, view in views.items():
        traces = [
            {key: value for key, value in trace.items() if value != of_first.get(key)}
            for trace, of_first in zip(traces_of[name], first, strict=True)
        ]
        ground = view.layout.plot_bgcolor or style.TEMPLATE.layout.plot_bgcolor
        changes[name] = {"traces": traces, "ground": ground}
    return changes


def frame_cell(figure: go.Figure, column: int, row: int) -> None:
    """Frame a cell of a map."""
    frame_cells(figure, (column, row), (column, row))


def frame_cells(figure: go.Figure, first: tuple[int, int], last: tuple[int, int]) -> None:
    """Frame the cells between two, given by column and row, visible on every colour."""
    corners = {"x0": first[0] - 0.5, "x1": last[0] + 0.5}
    corners |= {"y0": first[1] - 0.5, "y1": last[1] + 0.5}
    # Two nested outlines.
    for width, colour in ((5, "#ffffff"), (2.5, "#D55E00")):
        figure.add_shape(type="rect", **corners, line={"width": width, "color": colour})


def highlight_column(figure: go.Figure, column: int) -> None:
    """Frame a column of a map, and make the others pale."""
    whole = figure.data[0]
    own = [[row[column] if at == column else None for at in range(len(row))] for row in whole.z]
    figure.add_trace(whole).data[-1].update(z=own, hovertext=None, hoverinfo="skip")
    whole.update(opacity=PALE, showscale=False)
    figure.update_traces(cliponaxis=False, selector={"mode": "text"})
    frame_cells(figure, (column, 0), (column, len(own) - 1))


def inks(values: NDArray[np.float64], shown: Colours) -> list[str]:
    """Return the text colour of each value's cell: black or white, whichever has more contrast.

    >>> dark_to_light = Colours(0.0, 1.0, ["#000000", "#ffffff"], is_diverging=False)
    >>> inks(np.array([0.0, 1.0, np.nan]), dark_to_light)
    ['#ffffff', '#000000', '#000000']
    """
    share = ((values - shown.low) / (shown.high - shown.low)).clip(0, 1)
    fills = plotly.colors.sample_colorscale(shown.scale, np.nan_to_num(share), colortype="tuple")
    # Cells without a value are light grey.
    is_light = (luminance(np.array(fills)) > _SPLIT) | np.isnan(values)
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
    figure = go.Figure(
        layout={"template": style.TEMPLATE, "showlegend": False, "meta": style.STACKS}
    )
    widths = [len(single.data[0].z[0]) for single in maps.values()]
    unit = (1 - GAP * (len(maps) - 1)) / sum(widths)
    start = 0.0
    for number, ((title, single), width) in enumerate(zip(maps.items(), widths, strict=True)):
        end, is_first = start + unit * width, number == 0
        suffix = "" if is_first else str(number + 1)
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        for trace in single.data:
            if trace.type == "heatmap":
                trace.showscale = is_first
            figure.add_trace(trace.update(**axes))
        x_axis, y_axis = single.layout.xaxis, single.layout.yaxis
        # Rounding errors could move the last end above 1.
        x_axis.update(domain=(start, min(end, 1.0)), anchor=axes["yaxis"])
        y_axis.update(anchor=axes["xaxis"])
        if not is_first:
            y_axis.update(title_text=None, showticklabels=False)
        figure.update_layout({f"xaxis{suffix}": x_axis, f"yaxis{suffix}": y_axis})
        if single.layout.plot_bgcolor:
            figure.update_layout(plot_bgcolor=single.layout.plot_bgcolor)
        for shape in single.layout.shapes:
            figure.add_shape(shape.update(xref=axes["xaxis"], yref=axes["yaxis"]))
        write_above(figure, title, axes["xaxis"])
        start = end + GAP
    return figure


def write_above(figure: go.Figure, text: str, axis: str = "x") -> None:
    """Add a text above a map, given by its x axis."""
    figure.add_annotation(
        text=style.plotly_text(text), font={"size": style.SMALL}, **style.above_left(axis)
    )
    figure.update_layout(margin_t=style.TITLE_MARGIN)


def two_line_tick(label: str) -> str:
    """Return a name as a label of an axis: a long one in two lines, each as in `short_tick`.

    >>> two_line_tick("attractor_other"), two_line_tick("capitals")
    ('attractor_<br>other', 'capitals')
    >>> two_line_tick("all sets but quickstart")
    'all sets but <br>quickstart'
    """
    if len(label) <= style.LONGEST_TICK // 2:
        return style.plotly_text(label)
    middle = len(label) / 2
    # The first line ends after the character that is no letter or digit and is closest to the
    # middle, such as a dot; without one, in the middle.
    ends = [end for end in range(2, len(label)) if not label[end - 1].isalnum()]
    end = min(ends or [round(middle)], key=lambda end: abs(end - middle))
    return f"{style.short_tick(label[:end])}<br>{style.short_tick(label[end:])}"
