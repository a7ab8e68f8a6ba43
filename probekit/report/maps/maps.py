"""Maps of a metric by layer and head, by layer and position, and by layer and training step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sequential

from probekit.errors import DataError
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.report.figures.layer_curve import measured_rows
from probekit.report.figures.style import finite_ends, format_number, plotly_text
from probekit.report.figures.views import position_offset
from probekit.report.maps.text_map import (
    Colours,
    cell_map,
    diverging,
    frame_cell,
    map_row,
    write_above,
)
from probekit.results.selection import is_nested, main_metric, ranked_rows, site_with_head
from probekit.results.table import (
    SAME_FEATURES,
    figure_rows,
    metric_name,
    n_blocks,
    only,
    placed,
    tick,
)

LEAST_RANGE = 0.05  # smallest range of a colour scale, so that noise does not look like an effect

# Targets whose score the hover text of a cell also shows.
COMPARED = {name: TARGETS[name].title for name in ("control", "random_weights")}


def score_map(table: pd.DataFrame, metric: str = "accuracy", across: str = "head") -> go.Figure:
    """Return the map of a test metric by layer (down) and head, offset or training step (across).

    The cell with the best cross-validated score among those drawn is framed.

    Args:
        table: Rows of results.csv; for training steps with a column `step`.
        metric: A metric that was measured on test rows.
        across: `head`, `offset` from the span, or `step` of training.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
        DataError: Two rows have the same cell.
    """
    return _draw(table, map_cells(table, metric, across), metric, across)


def head_maps(tables: Mapping[str, pd.DataFrame], metric: str = "accuracy") -> go.Figure:
    """Return the maps of a test metric by layer and head in a row, on one colour scale.

    The head with the best cross-validated score among all that are drawn is framed.

    Args:
        tables: Rows of each map, by title.
        metric: A metric that was measured on test rows.
    """
    table = pd.concat(tables.values())
    if len(tables) == 1:
        return score_map(table, metric)
    whole = map_cells(table, metric, "head")
    return map_row(
        {
            title: _draw(table, map_cells(rows, metric, "head"), metric, "head", whole)
            for title, rows in tables.items()
        }
    )


def offset_label(offset: float) -> str:
    """Return the axis label of an offset.

    >>> offset_label(-1), offset_label(0), offset_label(2)
    ('−1', 'span', '+2')
    """
    return f"{offset:+.0f}".replace("-", "−") if offset else "span"


# Axis title and labels, by column of the cells.
_AXES: dict[str, tuple[str, Callable[[float], str]]] = {
    "head": ("head", "{:.0f}".format),
    "offset": ("tokens from the span", offset_label),
    "step": ("step of training", "{:,.0f}".format),
}


def map_cells(table: pd.DataFrame, metric: str, across: str = "") -> pd.DataFrame:
    """Return the task's placed test rows of a metric, with the column `offset` from the span.

    Rows without a value of the column `across`, if it is given, are left out.
    """
    rows = only(placed(measured_rows(table, metric)), target="task")
    rows = rows.assign(offset=position_offset(rows["position"]))
    return rows[rows[across].notna()] if across else rows


def colours(values: Sequence[float], metric: str, chance: float) -> Colours:
    """Return the colour scale for values of a metric, on which bright means good.

    It starts at chance, or at 0 for differences such as selectivity. If differences are negative,
    it is diverging. If lower is better, it is reversed. Undefined values are ignored.

    >>> shown = colours([-0.2, 0.1], "selectivity", chance=0.0)
    >>> shown.low, shown.high, shown.is_diverging
    (-0.2, 0.2, True)
    """
    least, most = finite_ends(values)
    is_difference = METRICS[metric].kind == "difference"
    if is_difference and least < 0:
        return diverging([least, most], LEAST_RANGE)
    low, scale = 0.0 if is_difference or np.isnan(chance) else chance, sequential.Viridis
    if METRICS[metric].lower_is_better:
        low, scale = least, sequential.Viridis_r
    return Colours(low, max(most, low + LEAST_RANGE), scale, is_diverging=False)


def map_colours(cells: pd.DataFrame, metric: str) -> Colours:
    """Return the colour scale of a map of these cells."""
    return colours(cells["value"].tolist(), metric, cells["chance"].min())


def _draw(
    table: pd.DataFrame,
    cells: pd.DataFrame,
    metric: str,
    across: str,
    whole: pd.DataFrame | None = None,
) -> go.Figure:
    """Return the map of the cells, with depth on one axis and the column `across` on the other.

    `whole` has the cells of all maps with which this one shares layers, colours and the frame.
    """
    twice = cells[cells.duplicated(["depth", across])]
    if not twice.empty:
        first = site_with_head(twice["site"].iloc[0], twice["head"].iloc[0])
        raise DataError(
            f"{len(twice)} cells of the map have two rows, the first at {first}. Give the rows of "
            "one component in one run."
        )
    whole = cells if whole is None else whole
    title, label = _AXES[across]
    columns, rows = sorted(cells[across].unique()), sorted(whole["depth"].unique())
    figure = cell_map(
        cells.assign(hover=_hover(table, cells, metric)),
        map_colours(whole, metric),
        down=("depth", {depth: tick(int(depth), n_blocks(placed(table))) for depth in rows}),
        across=(across, {column: label(column) for column in columns}),
        title=title,
    )
    framed = chosen_cell(table, whole)
    if framed is not None and framed.name in cells.index:
        frame_cell(figure, columns.index(framed[across]), rows.index(framed["depth"]))
        scores = _ranked_cells(table, whole)["value"]
        n_best = int((scores == scores.iloc[0]).sum())
        ties = f" (1 of {n_best})" if n_best > 1 else ""
        write_above(figure, f"framed: best by cross-validation{ties}")
    return figure


def _hover(table: pd.DataFrame, cells: pd.DataFrame, metric: str) -> list[str]:
    """Return the hover text of each cell: site, value with interval, and related scores."""
    test = placed(figure_rows(table))
    values: dict[Hashable, dict[tuple[str, str], float]] = {}
    for key, target, name, value in zip(
        _features(test), test["target"], test["metric"], test["value"], strict=True
    ):
        values.setdefault(key, {})[target, name] = value
    main = main_metric(test)
    related = {
        metric_name(main): ("task", main),
        "selectivity": ("task", "selectivity"),
        **{name: (target, main) for target, name in COMPARED.items()},
    }
    texts = []
    for key, (_, cell) in zip(_features(cells), cells.iterrows(), strict=True):
        site = plotly_text(site_with_head(cell["site"], cell["head"]))
        value = format_number(cell["value"], cell["ci_low"], cell["ci_high"])
        others = [
            f"{name}: {format_number(values[key][score])}"
            for name, score in related.items()
            if score in values[key] and score != ("task", metric)
        ]
        header = f"<b>{site}</b> at {plotly_text(cell['position'])}"
        texts.append("<br>".join([header, f"{metric_name(metric)}: {value}", *others]))
    return texts


def _features(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the values of `SAME_FEATURES` of each placed row as tuples."""
    return list(rows[list(SAME_FEATURES)].itertuples(index=False, name=None))


def chosen_cell(table: pd.DataFrame, cells: pd.DataFrame) -> pd.Series | None:
    """Return the cell with the best cross-validated score; None if no cell has one.

    Also None for a nested cross-validation, in which each fold chooses a cell of its own.
    """
    if is_nested(table):
        return None
    by_features = {
        key: cell for key, (_, cell) in zip(_features(cells), cells.iterrows(), strict=True)
    }
    ranked = _features(_ranked_cells(table, cells))
    return by_features[ranked[0]] if ranked else None


def _ranked_cells(table: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
    """Return the validation rows of the cells, best cross-validated score first."""
    ranked, drawn = ranked_rows(table), set(_features(cells))
    return ranked.loc[[key in drawn for key in _features(ranked)]]
