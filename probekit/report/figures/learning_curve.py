"""Learning curves: test score by number of training rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
import plotly.graph_objects as go

from probekit.errors import DataError
from probekit.report.figures.layer_curve import band, end_labels, point_hover, scatter
from probekit.report.figures.levels import draw_levels, levels, value_range
from probekit.report.figures.line_labels import name_lines
from probekit.report.figures.style import LINES, TEMPLATE, axis_title
from probekit.results.selection import chosen_row, hidden_kinds, main_metric
from probekit.results.table import EMBED_DEPTH, SAME_FEATURES, only, placed, same_features

# Ticks of the logarithmic row axis: 1, 2 and 5 times each power of ten.
SPACE = 0.12  # smallest distance of two ticks, as a share of the axis


def learning_curve_lines(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each learning curve, in ascending order of training rows.

    The order is: the selected probe at the selected site, the other kinds at that site, the
    selected kind at the embedding. Yields nothing if no site was selected.
    """
    rows, chosen = placed(only(table, split="learning")), chosen_row(table)
    if chosen is None:
        return
    rows = rows[~rows["probe"].isin(hidden_kinds(table))].sort_values("n_train", kind="stable")
    at_site = {column: chosen[column] for column in SAME_FEATURES if column != "probe"}
    own = same_features(rows, chosen)
    if not own.empty:
        yield str(chosen["probe"]), own
    for probe, others in only(rows, **at_site).groupby("probe", sort=False):
        if probe != chosen["probe"]:
            yield str(probe), others
    embedding = only(rows, line=chosen["line"], position=chosen["position"], probe=chosen["probe"])
    embedding = embedding[embedding["depth"].eq(EMBED_DEPTH)]
    if chosen["depth"] != EMBED_DEPTH and not embedding.empty:
        yield f"{chosen['probe']} at the embedding", embedding


def learning_curve(table: pd.DataFrame) -> go.Figure:
    """Return the figure of test score by number of training rows.

    The selected probe shows its interval as a band. Baselines, fitted on all training rows, are
    horizontal lines.

    Raises:
        DataError: The table has no learning curve, or no selected site.
    """
    lines = list(learning_curve_lines(table))
    if not lines:
        raise DataError(
            "The results contain no learning curve of a selected site. Set `probe.learning_steps`."
        )
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (name, points) in enumerate(lines):
        hover = [
            point_hover(f"{name}, {row['n_train']:,.0f} rows", row) for _, row in points.iterrows()
        ]
        line = scatter(points["n_train"], points["value"], LINES["task"], number, name, hover)
        figure.add_traces([*(band(points["n_train"], points, line) if number == 0 else []), line])
    least, most = (
        int(end(points["n_train"].agg(end) for _, points in lines)) for end in (min, max)
    )
    ends = [least / 1.15, most * 1.15]
    metric = main_metric(lines[0][1])
    labels = draw_levels(figure, levels(_baselines(table, metric)), ends)
    figure.update_xaxes(
        title_text="training rows",
        type="log",
        tickmode="array",
        tickvals=(sizes := spaced(sorted({n for _, own in lines for n in own["n_train"]}))),
        ticktext=[f"{size:,.0f}" for size in sizes],
        range=[math.log10(end) for end in ends],
    )
    chance = lines[0][1]["chance"].min()
    figure.update_yaxes(title_text=axis_title(metric), range=value_range(figure, metric, chance))
    name_lines(figure, [*labels, *end_labels(figure.data)])
    return figure


def spaced(sizes: Sequence[float]) -> list[float]:
    """Return the sizes, in ascending order, whose ticks do not overlap on a logarithmic axis.

    The largest is always among them.

    >>> spaced([10, 11, 40, 150, 160])
    [11, 40, 160]
    """
    apart = SPACE * math.log(sizes[-1] / sizes[0])
    kept = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if math.log(kept[-1] / size) >= apart:
            kept.append(size)
    return kept[::-1]


def _baselines(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the baselines at the selected position, and those that have no position."""
    rows, chosen = only(table, metric=metric, split="test", site=""), chosen_row(table)
    return rows if chosen is None else rows[rows["position"].isin(["", chosen["position"]])]
