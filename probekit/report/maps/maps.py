"""Maps from table rows: layers by heads, and layers by positions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.errors import DataError
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.report.figures.layer_curve import measured_rows
from probekit.report.figures.style import format_number, plotly_text
from probekit.report.figures.views import position_offset
from probekit.report.maps.text_map import Colours, cell_text, text_map
from probekit.results.metrics import metric_name
from probekit.results.selection import main_metric, ranked_rows, selection
from probekit.results.table import SAME_FEATURES, figure_rows, n_blocks, only, placed, tick

LEAST_RANGE = 0.05  # so that colours do not blow up what is nothing

# What the hover of a cell says beside its own value.
BESIDE = {name: TARGETS[name].title for name in ("control", "random_weights")}


def head_map(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the figure of a metric on the test rows for each layer (down) and head (across).

    Of the heads drawn, the one of the highest cross-validated score is framed.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
        DataError: No row is of a head, or two are of the same.
    """
    cells = map_cells(table, metric)
    cells = cells[cells["head"].notna()]
    return _draw(table, cells, metric, "head", [f"{head:.0f}" for head in _steps(cells["head"])])


def position_map(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the figure of a metric on the test rows for each layer (down) and offset (across).

    Of the cells drawn, the one of the highest cross-validated score is framed.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
        DataError: No row is of a position counted from a span, or two are of the same.
    """
    cells = map_cells(table, metric)
    cells = cells[cells["offset"].notna()]
    labels = [offset_label(offset) for offset in _steps(cells["offset"])]
    return _draw(table, cells, metric, "offset", labels)


def step_map(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the figure of a metric on the test rows for each layer (down) and step (across).

    The column `step` says after how many steps of training a row's model was kept. Of the cells
    drawn, the one of the highest cross-validated score is framed.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
        DataError: Two rows are of the same layer and step.
    """
    cells = map_cells(table, metric)
    labels = [f"{step:,.0f}" for step in _steps(cells["step"])]
    return _draw(table, cells, metric, "step", labels)


def offset_label(offset: float) -> str:
    """Return an offset as the axis names it.

    >>> offset_label(-1), offset_label(0), offset_label(2)
    ('−1', 'span', '+2')
    """
    return f"{offset:+.0f}".replace("-", "−") if offset else "span"


# What the columns of a map are, by the column of the table.
_TITLES = {"head": "head", "offset": "tokens from the span", "step": "step of training"}


def map_cells(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the task's placed test rows of a metric, with the `offset` of their positions."""
    rows = only(placed(measured_rows(table, metric)), target="task")
    return rows.assign(offset=position_offset(rows["position"]))


def colours(values: Sequence[float], metric: str, chance: float) -> Colours:
    """Return the colours for a metric's values: from chance, or for a difference from 0, upwards.

    Where less is better the scale is turned round, so that bright stays good.

    >>> shown = colours([-0.2, 0.1], "selectivity", chance=0.0)
    >>> shown.low, shown.high, shown.is_diverging
    (-0.2, 0.2, True)
    """
    least, most = float(np.min(values)), float(np.max(values))
    is_difference = METRICS[metric].kind == "difference"
    if is_difference and least < 0:
        reach = max(-least, most, LEAST_RANGE)
        return Colours(-reach, reach, plotly.colors.diverging.PuOr_r, is_diverging=True)
    if METRICS[metric].lower_is_better:
        return Colours(
            least, max(most, least + LEAST_RANGE), plotly.colors.sequential.Viridis_r, False
        )
    low = 0.0 if is_difference or np.isnan(chance) else chance
    return Colours(low, max(most, low + LEAST_RANGE), plotly.colors.sequential.Viridis, False)


def map_colours(cells: pd.DataFrame, metric: str) -> Colours:
    """Return the colours of a map of these cells."""
    return colours(cells["value"].tolist(), metric, cells["chance"].min())


def _steps(column: pd.Series[float]) -> list[float]:
    return sorted(column.unique())


def _draw(
    table: pd.DataFrame, cells: pd.DataFrame, metric: str, across: str, labels: list[str]
) -> go.Figure:
    """Return the map of the cells, by depth and the column `across`."""
    _check_cells(cells, across)
    columns = {step: place for place, step in enumerate(_steps(cells[across]))}
    rows = {depth: place for place, depth in enumerate(_steps(cells["depth"]))}
    at = (cells["depth"].map(rows).to_numpy(), cells[across].map(columns).to_numpy())
    values = np.full((len(rows), len(columns)), np.nan)
    values[at] = cells["value"]
    hover = np.full(values.shape, "", dtype=object)
    hover[at] = _hover(table, cells, metric)

    figure = text_map(
        values,
        [cell_text(value) for value in values.ravel()],
        hover.ravel().tolist(),
        map_colours(cells, metric),
        across=labels,
        down=[tick(int(depth), n_blocks(placed(table))) for depth in rows],
        title=_TITLES[across],
    )
    framed = chosen_cell(table, cells)
    if framed is not None:
        _frame(figure, columns[framed[across]], rows[framed["depth"]])
    return figure


def _check_cells(cells: pd.DataFrame, across: str) -> None:
    if cells.empty:
        raise DataError(
            f"No row has a{'' if across == 'head' else 'n'} {across}, so there is no map to draw. "
            "Draw layer_curve instead."
        )
    twice = cells[cells.duplicated(["depth", across])]
    if not twice.empty:
        first = selection(twice["site"].iloc[0], twice["head"].iloc[0])
        raise DataError(
            f"{len(twice)} cells of the map have two rows, first {first}. Give the rows of one "
            "part of the blocks, in one run."
        )


def _hover(table: pd.DataFrame, cells: pd.DataFrame, metric: str) -> list[str]:
    """Return for each cell its site, its value with interval, and what was measured beside it."""
    test = placed(figure_rows(table))
    values: dict[Hashable, dict[tuple[str, str], float]] = {}
    for key, target, name, value in zip(
        _features(test), test["target"], test["metric"], test["value"], strict=True
    ):
        values.setdefault(key, {})[target, name] = value
    main = main_metric(test)
    where = {
        metric_name(main): ("task", main),
        "selectivity": ("task", "selectivity"),
        **{name: (target, main) for target, name in BESIDE.items()},
    }
    texts = []
    for key, (_, cell) in zip(_features(cells), cells.iterrows(), strict=True):
        site = plotly_text(selection(cell["site"], cell["head"]))
        value = format_number(cell["value"], cell["ci_low"], cell["ci_high"])
        beside = [
            f"{name}: {format_number(values[key][what])}"
            for name, what in where.items()
            if what in values[key] and what != ("task", metric)
        ]
        place = f"<b>{site}</b> at {plotly_text(cell['position'])}"
        texts.append("<br>".join([place, f"{metric_name(metric)}: {value}", *beside]))
    return texts


def _features(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return for each placed row what it was measured on."""
    return list(rows[list(SAME_FEATURES)].itertuples(index=False, name=None))


def chosen_cell(table: pd.DataFrame, cells: pd.DataFrame) -> pd.Series | None:
    """Return, of the cells drawn, the one of the highest cross-validated score."""
    by_features = {
        key: cell for key, (_, cell) in zip(_features(cells), cells.iterrows(), strict=True)
    }
    ranked = _features(ranked_rows(table))
    return next((by_features[key] for key in ranked if key in by_features), None)


def _frame(figure: go.Figure, column: int, row: int) -> None:
    """Frame a cell, such that it shows on every colour, and say what the frame means."""
    corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    for width, colour in ((5, "#ffffff"), (2.5, "#D55E00")):
        figure.add_shape(type="rect", **corners, line={"width": width, "color": colour})
    figure.add_annotation(
        text="framed: best by cross-validation",
        x=0,
        xref="paper",
        xanchor="left",
        y=1,
        yref="paper",
        yanchor="bottom",
        showarrow=False,
        font={"size": 11},
    )
