"""Score of k-sparse probes by number of features k."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from probekit.errors import DataError
from probekit.report.figures.layer_curve import band, end_labels, point_hover, scatter
from probekit.report.figures.levels import LevelLine, draw_levels, levels, value_range
from probekit.report.figures.line_labels import name_lines
from probekit.report.figures.style import LINES, TEMPLATE, axis_title
from probekit.report.figures.views import at_shown_position
from probekit.results.selection import main_metric, ranked_rows, site_with_head
from probekit.results.table import only, placed

SIZE = r"^k_sparse:(?P<k>\d+)$"
LEAST_SIZES = 3
MOST_SITES = 3
SITE = ["line", "site", "position"]


def sparse_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the test rows of k-sparse probes at the best sites, best site first, with column `k`.

    Sites are ranked by their best cross-validated score over all k. The result is empty if
    there are fewer than `LEAST_SIZES` values of k.
    """
    rows = placed(only(at_shown_position(table), split="test"))
    rows = rows.assign(k=rows["probe"].str.extract(SIZE)["k"].astype(float)).dropna(subset="k")
    if rows["k"].nunique() < LEAST_SIZES:
        return rows.iloc[:0]
    ranked = ranked_rows(table)
    ranked = ranked[ranked["probe"].str.fullmatch(SIZE) & ranked["site"].isin(rows["site"])]
    best = ranked[SITE].drop_duplicates().head(MOST_SITES)
    best = best.assign(rank=range(len(best)))
    return rows.merge(best, on=SITE).sort_values(["rank", "k"], kind="stable")


def sparse_curve(table: pd.DataFrame) -> go.Figure:
    """Return the figure of the main metric by k, for the best sites.

    For the best site it also shows the interval (a band) and the control task. Horizontal lines
    show the baselines and the best probe of another kind, which uses all features of that site.

    Raises:
        DataError: There are fewer than `LEAST_SIZES` values of k, or none was cross-validated.
    """
    rows = sparse_rows(table)
    if rows.empty:
        raise DataError(
            f"A curve of k_sparse probes needs at least {LEAST_SIZES} values of k with "
            "cross-validated scores. Add values to `k`."
        )
    metric = main_metric(rows)
    rows = only(rows, metric=metric)
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (_, points) in enumerate(rows.groupby("rank")):
        name = site_with_head(points["site"].iloc[0], points["head"].iloc[0])
        figure.add_traces(_site_lines(points, name, number))
    sizes = sorted(rows["k"].unique())
    ends = [sizes[0] / 1.3, sizes[-1] * 1.3]
    labels = draw_levels(figure, _levels(table, rows, metric), ends)
    figure.update_xaxes(
        title_text="features, k",
        type="log",
        tickmode="array",
        tickvals=sizes,
        ticktext=[f"{size:.0f}" for size in sizes],
        range=[math.log10(end) for end in ends],
    )
    chance = rows["chance"].min()
    figure.update_yaxes(title_text=axis_title(metric), range=value_range(figure, metric, chance))
    name_lines(figure, [*labels, *end_labels(figure.data)])
    return figure


def _site_lines(points: pd.DataFrame, name: str, number: int) -> list[go.Scatter]:
    """Return the line of a site; for site number 0 also its band and its control task."""
    targets = ("task", "control") if number == 0 else ("task",)
    traces = []
    for target in targets:
        of_target = only(points, target=target)
        label = name if target == "task" else f"{LINES[target].label} at the best site"
        hover = [point_hover(f"k = {row['k']:.0f}", row) for _, row in of_target.iterrows()]
        line = scatter(of_target["k"], of_target["value"], LINES[target], number, label, hover)
        if target == "task" and number == 0:
            traces += band(of_target["k"], of_target, line)
        traces += [line] if len(of_target) else []
    return traces


def _levels(table: pd.DataFrame, rows: pd.DataFrame, metric: str) -> list[LevelLine]:
    """Return the baselines, and the best other probe on all features of the best site."""
    measured = only(at_shown_position(table), metric=metric, split="test")
    return [*levels(measured[measured["site"] == ""]), *_all_features(table, rows, measured)]


def _all_features(
    table: pd.DataFrame, rows: pd.DataFrame, measured: pd.DataFrame
) -> list[LevelLine]:
    best = rows.iloc[0]
    others = ranked_rows(table)
    others = others[~others["probe"].str.fullmatch(SIZE)]
    others = only(others, **{column: best[column] for column in SITE})
    if others.empty:
        return []
    full = only(placed(measured), target="task", probe=others["probe"].iloc[0])
    full = only(full, **{column: best[column] for column in SITE})
    return [("all_features", row) for _, row in full.dropna(subset="value").head(1).iterrows()]
