"""Layer curves: a metric by layer, in one panel or in one panel for each series."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.amounts import fixed, format_number
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import HEADLINE
from probekit.report.elements import style
from probekit.report.elements.style import LineStyle
from probekit.report.figures import line_labels
from probekit.report.figures.views import position_words
from probekit.results.scores import Scores, answers_name
from probekit.results.table import SERIES, differs, only, same_features, ticks

WIDTH = 0.08  # of the band of a single layer, to both sides, in layers
NULL_WIDTH = 0.4  # of the band of the null at a single layer
MOST_BANDS = 2  # with more task lines, only those of `banded_series` have a band
MOST_PANELS = 9
# Series that differ only in these columns are compared in one panel, if they have enough colours.
COMPARED = {"run", "model", "dataset", "seed"}
UNITS = {"line": "kind of site", "probe": "kind of probe", "view": "scaling of rows"}
MOST_ROWS = 2  # rows of panels in a figure of the usual height
PANEL_HEIGHT, FIGURE_HEIGHT, MARGIN_HEIGHT = 11.0, 30.0, 7.5  # rem
TITLE_HEIGHT = 18  # pixels above each panel
TITLE = "panel title"  # name of the annotations
LONGEST_TITLE = 28  # characters in a line
OTHERS, RING = "others", " ○"
_MARKER = 5  # pixels


def layer_curve(scores: Scores, metric: str = "accuracy") -> go.Figure:
    """Return the figure of a test metric by layer, with control task and baselines.

    Selectivity is the score on the task minus the score on the control task (Hewitt & Liang 2019).
    Compression is measured on the training rows by online coding (Voita & Titov 2020).

    Lines are labelled at their right ends, or in the legend if labels do not fit. Task lines show
    their interval as a band; with more than `MOST_BANDS` lines only those of `banded_series` do.
    Control task and random weights are dashed and dotted; baselines and concatenated sites are
    horizontal lines. A ring marks the site selected by cross-validation, whichever metric is drawn.
    A nested cross-validation has no ring: its nested choice is a horizontal line.
    """
    measured = scores.measured(metric)
    rows = measured.sited
    figure = go.Figure(layout={"template": style.TEMPLATE})
    figure.add_traces(curve_lines(scores, rows))
    layers, has_runs = ticks(rows), differs(rows["run"])
    of_runs = [line_labels.levels(one, is_brief=has_runs) for one in measured.of_runs()]
    lines = list(chain.from_iterable(of_runs))
    # The colour of each run is that of its line, or of the first one of several.
    runs = [series["run"].iloc[0] for _, series in series_of(rows)] if has_runs else []
    colours = {run: series_colour(runs.index(run)) for run in runs}
    labels = line_labels.draw_levels(figure, lines, style.layer_ends(layers), colours)
    # Draw a ring around the task's value at the selected site of each run; of one run, label it.
    marked = chosen_points(scores, rows)
    figure.add_traces([ring(row) for row in marked])
    for row in [] if has_runs else marked:
        text = f"chosen {fixed(row['value'], 2)}"
        labels.append(line_labels.LineLabel(text, row["value"], style.GREY, row["depth"]))
    style.layer_axis(figure, layers)
    return finish_curve(figure, metric, rows["chance"].min(), labels)


def finish_curve(
    figure: go.Figure, metric: str, chance: float, labels: Sequence[line_labels.LineLabel]
) -> go.Figure:
    """Set the axis of a metric, label all lines at their ends, and return the figure.

    Args:
        figure: Figure with all lines.
        metric: Metric of the vertical axis.
        chance: Chance level, from which `value_range` follows; NaN without one.
        labels: Labels of the horizontal lines.
    """
    ends = line_labels.value_range(figure, metric, chance)
    figure.update_yaxes(title_text=style.axis_title(metric), range=ends)
    line_labels.name_lines(figure, [*labels, *end_labels(figure.data)])
    return figure


def curve_lines(scores: Scores, rows: pd.DataFrame) -> list[go.Scatter]:
    """Return the lines of task, control task and random weights, with bands of task and null.

    Args:
        scores: All scores of the run, from which the selected site is determined.
        rows: Rows of single sites to draw.
    """
    all_series = list(series_of(rows))
    banded = banded_series(scores, all_series)
    lines = null_band(scores, rows)
    for number, (series_name, series) in enumerate(all_series):
        for target, look in style.LINES.items():
            points = only(series, target=target)
            if points.empty:
                continue
            # Markers identify the series, so one legend entry serves the controls of all series.
            of_series = f" · {style.plotly_text(series_name)}" if series_name else ""
            name = f"{look.label}{of_series}"
            hover = [point_hover(name, row) for _, row in points.iterrows()]
            label = name if target == "task" else look.label
            line = scatter(points["depth"], points["value"], look, number, label, hover)
            if target == "task":
                # Names of the probes whose errors the page shows for these points.
                line.update(customdata=[answers_name(row) for _, row in points.iterrows()])
                if series_name in banded:
                    lines += band(points["depth"], points, line, WIDTH)
            lines.append(line)
    return lines


def null_band(scores: Scores, rows: pd.DataFrame) -> list[go.Scatter]:
    """Return the band with 95 % of the scores under exchanged labels; empty if there is none.

    The band replaces the control task in figures of the main metric that have none. Of several
    series it is that of the selected probe, or of the first one if none was selected. For several
    runs it contains the bands of all.

    Args:
        scores: All scores of the run.
        rows: Rows of single sites to draw.
    """
    if set(rows["metric"]) != {scores.metric} or (rows["target"] == "control").any():
        return []
    tested = only(scores.sited, metric="p_value", target="task").dropna(subset="null_low")
    all_series = [series for _, series in series_of(rows)]
    has_runs = differs(rows["run"])
    chosen = scores.chosen if len(all_series) > 1 and not has_runs else None
    if chosen is not None:
        all_series = [series for series in all_series if not same_features(series, chosen).empty]
    if tested.empty or not all_series:
        return []
    # The run determines the seed of the task.
    columns = [column for column in SERIES if column != "seed"]
    firsts = [series.iloc[0] for series in (all_series if has_runs else all_series[:1])]
    nulls = [only(tested, **{column: first[column] for column in columns}) for first in firsts]
    limits = {"ci_low": ("null_low", "min"), "ci_high": ("null_high", "max")}
    points = pd.concat(nulls).groupby("depth", as_index=False).agg(**limits)
    # Those of outer folds are widened, but no score is outside the range of its metric.
    points[[*limits]] = points[[*limits]].clip(*METRICS[rows["metric"].iloc[0]].range)
    grey = go.Scatter(line={"color": style.GREY}, legendgroup=line_labels.NULL_BAND)
    bands = band(points["depth"], points, grey, NULL_WIDTH)
    # Hatched, so that the band of the task stays visible where the two overlap.
    hatched = {"shape": "/", "fgcolor": style.GREY, "size": 5, "solidity": 0.2}
    settings = {"name": "95 % of the null", "fillpattern": hatched, "opacity": 0.6}
    return [trace.update(settings) for trace in bands]


def banded_series(
    scores: Scores, all_series: Sequence[tuple[str, pd.DataFrame]]
) -> tuple[str, ...]:
    """Return the names of the series with a band: all, or with many the selected one.

    Many are more than `MOST_BANDS`. Of many series, none has a band if they belong to several runs,
    and the first `MOST_BANDS` have one if no site was selected.
    """
    if len(all_series) > MOST_BANDS and differs(pd.concat(rows["run"] for _, rows in all_series)):
        return ()
    chosen = scores.chosen if len(all_series) > MOST_BANDS else None
    if chosen is None:
        return tuple(name for name, _ in all_series[:MOST_BANDS])
    return tuple(name for name, rows in all_series if not same_features(rows, chosen).empty)


def series_of(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each series, named by its values in the columns that differ.

    Args:
        rows: Rows with the columns of `with_depth`.
    """
    task = only(rows, target="task")
    differing = [column for column in SERIES if len(task[column].unique()) > 1]
    names = pd.Series("", index=rows.index)
    for column in differing:
        cells = rows[column].map("seed {:.0f}".format if column == "seed" else str)
        names = names.str.cat(cells, sep=" · " if column != differing[0] else "")
    for name, series in rows.groupby(names, sort=False):
        yield str(name), series


def scatter(
    x: Iterable[int], y: Iterable[float], look: LineStyle, number: int, name: str, hover: list[str]
) -> go.Scatter:
    """Return a line with markers in the colour of its style or, if that is empty, of its series.

    Series numbers beyond `SERIES_COLOURS` are grey.

    Args:
        x: Horizontal place of each point.
        y: Vertical place of each point.
        look: Style of the line.
        number: Number of the series, which gives its markers and, if need be, its colour.
        name: Name of the line.
        hover: Hover text of each point.
    """
    colour, symbols = look.colour or series_colour(number), style.SERIES_MARKERS
    line = {"color": colour, "dash": look.dash, "width": look.width}
    marker = {"symbol": symbols[number % len(symbols)], "size": look.marker_size}
    drawn = {"mode": "lines+markers", "line": line, "marker": marker, "cliponaxis": False}
    texts = {"name": name, "hovertext": hover, "hoverinfo": "text"}
    legend = {"legendgroup": name, "legendrank": look.legend_rank}
    return go.Scatter(x=list(x), y=list(y), **drawn, **texts, **legend)


def series_colour(number: int) -> str:
    """Return the colour of a series by its number; grey beyond `SERIES_COLOURS`."""
    return style.SERIES_COLOURS[number] if number < len(style.SERIES_COLOURS) else style.GREY


def end_labels(traces: Sequence[go.Scatter]) -> list[line_labels.LineLabel]:
    """Return a label for each line with markers and each band of the null, one for each name.

    Labels are at the last defined point of a line. That of a line with a band mentions the band.
    """
    banded = {trace.legendgroup for trace in traces if trace.fill}
    labels: dict[str, line_labels.LineLabel] = {}
    for trace in traces:
        text = html.unescape(trace.name or "").removeprefix(f"{style.LINES['task'].label} · ")
        text = text.replace("blocks.", "").replace("hook_", "")  # sites are long
        ends = []
        if trace.mode == "lines+markers":
            label_text = f"{text}, 95 % band" if trace.legendgroup in banded else text
            ends = line_labels.label_at_end(trace, label_text)
        elif trace.legendgroup == line_labels.NULL_BAND:
            # The band is drawn along its upper end, then back along the lower one.
            ends = line_labels.label_at_end(trace, text, style.GREY, n_points=len(trace.y) // 2)
        for label in ends:
            labels.setdefault(text, label)
    return list(labels.values())


def band(
    x: pd.Series[Any], points: pd.DataFrame, line: go.Scatter, width: float = 0.0
) -> list[go.Scatter]:
    """Return the filled band of the points' intervals as a list of one trace; [] without any.

    The band has the colour and the legend group of the line. Points without an interval are left
    out.

    Args:
        x: Horizontal place of each point, with the index of `points`.
        points: Points with `ci_low` and `ci_high`.
        line: The line of the points.
        width: Width to both sides of a band of a single point.
    """
    known = points.dropna(subset=["ci_low", "ci_high"])
    if known.empty:
        return []
    places, low, high = list(x[known.index]), list(known["ci_low"]), list(known["ci_high"])
    if len(places) == 1:
        # A rectangle: the same limits at its left and at its right side.
        places, low, high = [places[0] - width, places[0] + width], low * 2, high * 2
    look = {"fill": "toself", "fillcolor": line.line.color, "opacity": 0.2}
    look["legendgroup"] = line.legendgroup
    return [style.plain_line([*places, *places[::-1]], [*high, *low[::-1]], {"width": 0}, **look)]


def point_hover(name: str, row: pd.Series) -> str:
    """Return the hover text of a point: site, value, interval, test rows, test groups and C."""
    facts = {
        "test rows": f"{row['n_test']:,.0f}",
        "test groups": f"{row['n_groups']:,.0f}",
        "C": f"{row['C']:g}",
    }
    # A fact that is undefined is written as "nan", and left out.
    known = [f"{key}: {value}" for key, value in facts.items() if value != "nan"]
    value = format_number(row["value"], row["ci_low"], row["ci_high"])
    return "<br>".join([f"<b>{style.plotly_text(row['site'])}</b>", f"{name}: {value}", *known])


def chosen_points(scores: Scores, rows: pd.DataFrame) -> list[pd.Series]:
    """Return the task rows among `rows` at the selected site of each run.

    A run without a score there has none.
    Runs with a nested cross-validation are left out: their nested choice is at no single site.
    """
    tasks = only(rows.dropna(subset="value"), target="task")
    chosen = [one.chosen for one in scores.of_runs() if not one.is_nested]
    of_sites = (same_features(tasks, site) for site in chosen if site is not None)
    return [row for points in of_sites for _, row in points.iterrows()]


def ring(row: pd.Series) -> go.Scatter:
    """Return the ring that marks a selected site."""
    marker = {"symbol": "circle-open", "size": 17, "color": style.GREY, "line": {"width": 2}}
    look = {"mode": "markers", "marker": marker, "cliponaxis": False}
    quiet = {"showlegend": False, "hoverinfo": "skip"}
    return go.Scatter(x=[row["depth"]], y=[row["value"]], **look, **quiet)


def curve_figure(scores: Scores, metric: str = "accuracy") -> go.Figure:
    """Return the layer curve of a metric, as small multiples if there are several `panels`."""
    is_single = len(panels(scores.measured(metric).sited)) == 1
    return layer_curve(scores, metric) if is_single else curve_facets(scores, metric)


def panels(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return title and rows of each panel, or one panel without a title.

    >>> sites = ["blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"]
    >>> same = dict.fromkeys([name for name in SERIES if name != "line"], "")
    >>> rows = pd.DataFrame({"site": sites, "head": None, "target": "task"} | same, index=[0, 1])
    >>> [name for name, _ in panels(Scores.of(rows).sited)]
    ['attn_out', 'mlp_out']
    """
    columns = panel_columns(rows)
    if not columns:
        return [("", rows)]
    titled = []
    for values, of_panel in rows.groupby(columns, sort=False):
        names = dict(zip(columns, map(str, values), strict=True))
        if "position" in names:
            names["position"] = position_words(names["position"])
        titled.append((" · ".join(names.values()), of_panel))
    return titled


def panel_columns(rows: pd.DataFrame) -> list[str]:
    """Return the columns of `SERIES` by which series have panels of their own; [] for one panel.

    If there would be more than `MOST_PANELS`, series that differ in the last columns share panels;
    the first column is always kept, even if it alone gives more.
    """
    task = only(rows, target="task")
    columns = [name for name in SERIES if differs(task[name])]
    n_series = len(task[columns].drop_duplicates())
    if set(columns) <= COMPARED and n_series <= len(style.SERIES_COLOURS):
        return []
    while len(columns) > 1 and len(task[columns].drop_duplicates()) > MOST_PANELS:
        columns.pop()
    return columns


def panel_unit(rows: pd.DataFrame) -> str:
    """Return the name of the unit that has a panel, in the singular.

    >>> same = dict.fromkeys([*SERIES, "target"], "task")
    >>> panel_unit(pd.DataFrame([same | {"line": "attn_out"}, same | {"line": "mlp_out"}]))
    'kind of site'
    """
    return " and ".join(UNITS.get(column, column) for column in panel_columns(rows))


def n_columns(n_panels: int) -> int:
    """Return the number of columns in the grid of panels; 2 also for a single panel."""
    return 2 if n_panels <= 2 * MOST_ROWS else 3


def panels_height(n_panels: int) -> float:
    """Return the height of a figure of panels in rem."""
    n_rows = math.ceil(n_panels / n_columns(n_panels))
    return max(FIGURE_HEIGHT, MARGIN_HEIGHT + PANEL_HEIGHT * n_rows)


def facets_height(figure: go.Figure) -> float | None:
    """Return the total height of the panels of a layer curve in rem, or None for a single panel."""
    n_panels = len(list(figure.select_xaxes()))
    return panels_height(n_panels) if n_panels > 1 else None


def curve_facets(scores: Scores, metric: str = "accuracy") -> go.Figure:
    """Return the layer curve of a metric with one panel for each of `panels`, all on one scale.

    Each panel highlights one of its series, the selected one or else the first, with control task,
    random weights and bands; the task lines of all other series are grey. Of the baselines, every
    panel shows the majority and the best other one. A label is at the right of one panel, or in the
    legend. The panel of the selected site has a ring, also in its title.
    """
    measured = scores.measured(metric)
    table, rows = measured.rows, measured.sited
    titles, of_panels = zip(*panels(rows), strict=True)
    points = chosen_points(scores, rows)
    rings = [[row for row in points if row.name in of_panel.index] for of_panel in of_panels]
    ringed = [title + RING * bool(marked) for title, marked in zip(titles, rings, strict=True)]
    figure = panel_grid(ringed, style.axis_title(metric))
    ends, chosen = style.layer_ends(ticks(rows)), scores.chosen
    at_chosen = pd.Index([]) if chosen is None else same_features(rows, chosen).index
    # The task line of each series, by its values in the columns of `SERIES`.
    tasks = {
        tuple(task[list(SERIES)].iloc[0]): task for _, task in series_of(only(rows, target="task"))
    }
    labels = []
    for number, (of_panel, marked) in enumerate(zip(of_panels, rings, strict=True), start=1):
        # Highlight the selected series of the panel, or else the first.
        all_series = [series for _, series in series_of(of_panel)]
        selected = [series for series in all_series if series.index.isin(at_chosen).any()]
        highlighted = (selected or all_series)[0]
        lines = curve_lines(scores, highlighted)
        for line in lines:
            if line.mode == "lines+markers":
                line.marker.size = _MARKER
        # The grey task lines of all other series, and their labels.
        first, thin = highlighted.iloc[0], {"color": style.GREY, "width": 1}
        others = [
            style.plain_line(task["depth"], task["value"], thin, opacity=0.6)
            for key, task in tasks.items()
            if key != tuple(first[list(SERIES)])
        ]
        at_end = line_labels.label_at_end
        of_others = [label for line in others for label in at_end(line, OTHERS, style.GREY)]
        # The horizontal lines of a panel: those of its run, model, data set, position and kind of
        # probe. Baselines have no site.
        is_own = table["run"].eq(first["run"])
        for column in ("model", "dataset", "position"):
            is_own &= table[column].isin(["", first[column]]) | table["target"].eq(HEADLINE)
        is_own &= table["site"].eq("") | table["probe"].eq(first["probe"])
        references, own = go.Figure(), line_labels.levels(measured.where(is_own), is_brief=True)
        level_labels = line_labels.draw_levels(references, own, ends)
        drawn = [*others, *references.data, *lines, *(ring(row) for row in marked)]
        draw_in_panel(figure, drawn, number)
        named = [*end_labels(lines), *level_labels]
        # Only one of the others is labelled: that with the largest gap to the named lines, so that
        # its label clearly belongs to it.
        gaps = [min(abs(other.value - label.value) for label in named) for other in of_others]
        labels.append([*named, of_others[gaps.index(max(gaps))]] if gaps else named)
    panel_layers(figure, ticks(rows), [set(of_panel["depth"]) for of_panel in of_panels])
    figure.update_yaxes(range=line_labels.value_range(figure, metric, rows["chance"].min()))
    label_panels(figure, labels)
    return figure


def panel_grid(titles: Sequence[str], y_title: str) -> go.Figure:
    """Return a figure of empty panels in a grid, with titles if there are several.

    The panels of a row share their vertical scale; callers give all panels one range. Titles have
    the colour of the highlighted line.

    Args:
        titles: Title of each panel, row by row.
        y_title: Title of the vertical axes, written once for all.
    """
    n_panels = len(titles)
    across = min(n_columns(n_panels), n_panels)
    down = math.ceil(n_panels / across)
    cells: list[dict[str, str] | None] = [{}] * n_panels + [None] * (down * across - n_panels)
    specs = [cells[start : start + across] for start in range(0, len(cells), across)]
    spacing = {"horizontal_spacing": 0.1, "vertical_spacing": 0.12}
    figure = make_subplots(down, across, specs=specs, shared_yaxes=True, y_title=y_title, **spacing)
    margins = {"margin_l": 64, "margin_t": style.TITLE_MARGIN}
    figure.update_layout(template=style.TEMPLATE, **margins, showlegend=False, meta=style.STACKS)
    figure.update_annotations(font_size=style.LARGE)
    for number, title in enumerate(titles if n_panels > 1 else (), start=1):
        # A long title is broken before its last part, so that it does not reach the labels of the
        # lines; a ring at its end moves to the end of the first line.
        first, dot, last = title.rpartition(" · ")
        lines = [title]
        if dot and len(title) > LONGEST_TITLE // max(1, across - 1):
            lines = [first + RING * last.endswith(RING), last.removesuffix(RING)]
        text = "<br>".join(map(style.plotly_text, lines))
        place, colour = style.above_left(_axes(number)["xaxis"]), style.SERIES_COLOURS[0]
        # No arrow is drawn: the page's script mixes its colour and its own ink for the text.
        look: dict[str, Any] = {"arrowcolor": colour, "align": "left"}
        look["font"] = {"size": style.SMALL, "color": style.label_colour(colour)}
        figure.add_annotation(name=TITLE, text=text, **place, **look)
    return figure


def draw_in_panel(figure: go.Figure, traces: Sequence[go.Scatter], number: int) -> None:
    """Add traces to a panel, the first one being 1."""
    figure.add_traces([trace.update(showlegend=False, **_axes(number)) for trace in traces])


def _axes(number: int) -> dict[str, str]:
    """Return the axes of a panel, the first one being 1, whose axes have no number in Plotly."""
    suffix = str(number) if number > 1 else ""
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def panel_layers(figure: go.Figure, labels: dict[int, str], depths: Sequence[set[int]]) -> None:
    """Name the layers of each panel below the lowest panel of its column.

    Other panels name only layers that the lowest panel of their column does not have. The metadata
    of the figure contain all labels of each panel, which pages show in narrow windows.

    Args:
        figure: Figure of the panels.
        labels: Labels of all layers, by depth.
        depths: Depths of the layers of each panel.
    """
    across = n_columns(len(depths))
    lowest = range(max(0, len(depths) - across), len(depths))
    lowest_of_column = {number % across: number for number in lowest}
    in_narrow = {}
    for number, of_panel in enumerate(depths):
        axis = figure.layout[f"xaxis{number + 1 if number else ''}"]
        # The panels of a row have about as many labels as a single one.
        style.layer_axis(axis, labels, of_panel, most=16 // across)
        in_narrow[axis.plotly_name] = list(axis.ticktext)
        if number not in lowest:
            unnamed = of_panel - depths[lowest_of_column[number % across]]
            texts = [label if depth in unnamed else "" for depth, label in labels.items()]
            axis.update(title_text=None, ticktext=texts, showticklabels=any(texts))
        else:
            # The last name of a panel is close to the first of the next one: its lowered labels,
            # which begin with a line break, have one word a line.
            axis.ticktext = [
                text.replace(" ", "<br>") if text.startswith("<br>") else text
                for text in axis.ticktext
            ]
    figure.update_layout(meta={**style.STACKS, "ticktext": in_narrow})


def label_panels(figure: go.Figure, labels: Sequence[Sequence[line_labels.LineLabel]]) -> None:
    """Label each name once, in the panels at the right edge; the legend names other lines.

    Lines without a name, and levels that share a label in another panel, are not in the legend.
    """
    named: set[str] = set()
    across = n_columns(len(labels))
    down = math.ceil(len(labels) / across)
    # Panels with nothing to their right: the last one of each row.
    at_edge = dict.fromkeys([*range(across, len(labels) + 1, across), len(labels)])
    for number in at_edge:
        new = [label for label in labels[number - 1] if label.text not in named]
        fitting = line_labels.labels_that_fit(new, line_labels.LEAST_HEIGHT / down - TITLE_HEIGHT)
        line_labels.label_lines(figure, fitting, number)
        named |= {label.text for label in fitting}
    unnamed = [label.text for of_panel in labels for label in of_panel if label.text not in named]
    for trace in figure.data:
        # A label starts with the name of its line.
        name = html.unescape(trace.name or "")
        if name and name not in named and any(text.startswith(name) for text in unnamed):
            named.add(name)
            trace.showlegend = True
            figure.update_layout(showlegend=True)
