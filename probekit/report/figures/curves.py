"""Curves of scores by training rows, features k and share of a reply; norms; reliability."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import format_number
from probekit.probes.targets import BASELINES
from probekit.report.figures.layer_curve import band, end_labels, finish_curve, point_hover, scatter
from probekit.report.figures.levels import draw_levels, levels
from probekit.report.figures.line_labels import name_lines, name_traces
from probekit.report.figures.style import (
    LEVELS,
    LINES,
    NORMS,
    TEMPLATE,
    error_bars,
    layer_axis,
    plain_line,
    plotly_text,
    series_marker,
)
from probekit.report.figures.views import at_shown_position, position_share, position_words
from probekit.results.selection import (
    chosen_row,
    hidden_kinds,
    main_metric,
    ranked_rows,
    site_with_head,
)
from probekit.results.table import EMBED_DEPTH, SAME_FEATURES, only, placed, same_features, ticks

SPACE = 0.12  # smallest distance of two ticks of training rows, as a share of the axis
# Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers if that gives
# more than MOST_LOG_TICKS.
POWERS = [10.0**power for power in range(-3, 8)]
LOG_TICKS = [power * step for power in POWERS for step in (1, 2, 5)]
MOST_LOG_TICKS = 8
SIZE = r"^k_sparse:(?P<k>\d+)$"  # kind of probe that uses k features
LEAST_SIZES = 3  # values of k; fewer make no curve
MOST_SITES = 3  # lines of a curve by k
# Vertical domains of a reliability diagram: row counts on their own axis below accuracy curves.
COUNTS, CURVES = (0.0, 0.2), (0.28, 1.0)
SITE = ["line", "site", "position"]  # columns that identify a site in the curve by k


def learning_curve_lines(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each learning curve, in ascending order of training rows.

    The order is: the selected probe at the selected site, the other kinds at that site, the
    selected kind at the embedding. Lines without rows and `hidden_kinds` are left out; without a
    selected site there is none.
    """
    rows, chosen = placed(only(table, split="learning")), chosen_row(table)
    if chosen is None:
        return
    rows = rows[~rows["probe"].isin(hidden_kinds(table))].sort_values("n_train", kind="stable")
    site = {column: chosen[column] for column in SAME_FEATURES if column != "probe"}
    of_chosen = same_features(rows, chosen)
    if not of_chosen.empty:
        yield str(chosen["probe"]), of_chosen
    for probe, at_site in only(rows, **site).groupby("probe", sort=False):
        if probe != chosen["probe"]:
            yield str(probe), at_site
    embedding = only(rows, line=chosen["line"], position=chosen["position"], probe=chosen["probe"])
    embedding = embedding[embedding["depth"].eq(EMBED_DEPTH)]
    if chosen["depth"] != EMBED_DEPTH and not embedding.empty:
        yield f"{chosen['probe']} at the embedding", embedding


def learning_curve(table: pd.DataFrame) -> go.Figure:
    """Return the figure of test score by number of training rows.

    The first line shows its interval as a band. Baselines, fitted on all training rows, are
    horizontal lines. The table must have at least one of `learning_curve_lines`.
    """
    lines = list(learning_curve_lines(table))
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (name, points) in enumerate(lines):
        hover = [
            point_hover(f"{name}, {row['n_train']:,.0f} rows", row) for _, row in points.iterrows()
        ]
        line = scatter(points["n_train"], points["value"], LINES["task"], number, name, hover)
        if number == 0:
            figure.add_traces(band(points["n_train"], points, line))
        figure.add_trace(line)
    sizes = sorted({n for _, points in lines for n in points["n_train"]})
    ends = [sizes[0] / 1.15, sizes[-1] * 1.15]  # with equal margins on the logarithmic axis
    _, first = lines[0]
    metric = main_metric(first)
    # The baselines at the selected position, and those that have no position.
    baselines = only(table, metric=metric, split="test", site="")
    baselines = baselines[baselines["position"].isin(["", first["position"].iloc[0]])]
    labels = draw_levels(figure, levels(baselines), ends)
    _log_ticks(figure, "training rows", {n: f"{n:,.0f}" for n in spaced(sizes)}, ends)
    return finish_curve(figure, metric, first["chance"].min(), labels)


def share_lines(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return name and test rows of each line of the curve by share, in ascending order of share.

    The name is a key of `LINES` or `LEVELS`. The order is: the selected probe at the selected site,
    the same with random weights, and the baselines; at each share, they read no more of a reply
    than the network. Empty without several shares of replies, or without a selected site. The
    column `p` of the selected probe is adjusted for all sites and shares; NaN without p-values.
    """
    chosen, tests = chosen_row(table), only(table, split="test")
    tests = tests.assign(share=position_share(tests["position"])).dropna(subset="share")
    if chosen is None or tests["share"].nunique() < LEAST_SIZES:
        return []
    tests = tests.sort_values("share", kind="stable")
    site = {column: chosen[column] for column in SAME_FEATURES if column != "position"}
    sited = only(placed(tests), **site)
    p = only(sited, metric="p_holm", target="task").set_index("position")["value"]
    tests, sited = (only(rows, metric=chosen["metric"]) for rows in (tests, sited))
    sited = sited.assign(p=sited["position"].map(p))
    lines = [(name, only(sited, target=name)) for name in ("task", "random_weights")]
    lines += [(name, only(tests, target=name)) for name in BASELINES]
    return [(name, rows) for name, rows in lines if not rows.empty]


def share_curve(lines: Sequence[tuple[str, pd.DataFrame]]) -> go.Figure:
    """Return the figure of test score by share of the reply, given its `share_lines`."""
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (name, points) in enumerate(lines):
        style = LINES.get(name) or replace(LEVELS[name], marker_size=6)
        hover = [
            point_hover(f"{style.label}, {position_words(row['position'])}", row)
            for _, row in points.iterrows()
        ]
        hover = [text.removeprefix("<b></b><br>") for text in hover]  # baselines have no site
        line = scatter(100 * points["share"], points["value"], style, number, style.label, hover)
        if name == "task":
            figure.add_traces(band(100 * points["share"], points, line))
        figure.add_trace(line)
    figure.update_xaxes(title_text="share of the reply (%)", range=[-4, 104])
    _, task = lines[0]
    return finish_curve(figure, main_metric(task), task["chance"].min(), [])


def _log_ticks(
    figure: go.Figure, title: str, ticks: dict[float, str], ends: Sequence[float]
) -> None:
    """Set a logarithmic horizontal axis with ticks (text by value), from one end to the other."""
    figure.update_xaxes(
        title_text=title,
        type="log",
        tickmode="array",
        tickvals=list(ticks),
        ticktext=list(ticks.values()),
        range=[math.log10(end) for end in ends],
    )


def spaced(sizes: Sequence[float]) -> list[float]:
    """Return those of the ascending sizes whose ticks do not overlap on a logarithmic axis.

    The largest is always among them.

    >>> spaced([10, 11, 40, 150, 160])
    [11, 40, 160]
    """
    apart = SPACE * math.log(sizes[-1] / sizes[0])
    descending = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if math.log(descending[-1] / size) >= apart:
            descending.append(size)
    return descending[::-1]


def norm_curve(norms: pd.DataFrame) -> go.Figure:
    """Return the figure of median norms by layer, at position 0 and at all other positions.

    Each component (residual stream, attn_out, ...) has its own two lines.

    Args:
        norms: Columns `site`, `first_position_norm` and `other_norm`.
    """
    rows = placed(norms.assign(head=math.nan))
    rows["ratio"] = rows["first_position_norm"] / rows["other_norm"]
    figure = go.Figure(layout={"template": TEMPLATE})
    lines = rows.groupby("line", sort=False)
    for number, ((name, points), (column, style)) in enumerate(product(lines, NORMS.items())):
        label = style.label if len(lines) == 1 else f"{style.label} · {name}"
        hover = [
            f"<b>{plotly_text(row['site'])}</b><br>{style.label}: {row[column]:,.1f}"
            f"<br>position 0 / others: {row['ratio']:,.1f}"
            for _, row in points.iterrows()
        ]
        figure.add_trace(scatter(points["depth"], points[column], style, number, label, hover))
    layer_axis(figure, ticks(rows))
    figure.update_yaxes(
        title_text="median norm", **log_axis(rows.melt(value_vars=list(NORMS))["value"])
    )
    name_lines(figure, end_labels(figure.data))
    return figure


def log_axis(values: pd.Series[float]) -> dict[str, Any]:
    """Return the settings of a logarithmic axis with at least two ticks around positive values.

    By default plotly labels only powers of ten, and a range may contain only one of them. Without
    positive values, the ticks are those of plotly. The axis has no room for values beyond the first
    and the last of `LOG_TICKS`.

    >>> log_axis(pd.Series([60.0, 300.0]))["ticktext"]
    ['50', '100', '200', '500']
    """
    positive = values[values > 0]
    if positive.empty:
        return {"type": "log"}
    # From the tick at or below all values (-1 if there is none) to the one at or above them.
    first = bisect_right(LOG_TICKS, positive.min()) - 1
    last = max(bisect_left(LOG_TICKS, positive.max()), first + 1)
    around = LOG_TICKS[max(first, 0) : last + 1]
    powers = [tick for tick in around if tick in POWERS]
    shown = around if len(around) <= MOST_LOG_TICKS else powers
    return {
        "type": "log",
        "tickvals": shown,
        "ticktext": [f"{tick:,g}" for tick in shown],
        "range": [math.log10(around[0]) - 0.03, math.log10(around[-1]) + 0.03],
    }


def sparse_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the test rows of k-sparse probes at the best sites, best site first, with column `k`.

    There are at most `MOST_SITES` sites, ranked by their best cross-validated score over all k. The
    result is empty if there are fewer than `LEAST_SIZES` values of k.
    """
    rows = placed(only(at_shown_position(table), split="test"))
    rows = rows.assign(k=rows["probe"].str.extract(SIZE)["k"].astype(float)).dropna(subset="k")
    if rows["k"].nunique() < LEAST_SIZES:
        return rows.iloc[:0]
    ranked = ranked_rows(at_shown_position(table))
    ranked = ranked[ranked["probe"].str.fullmatch(SIZE) & ranked["site"].isin(rows["site"])]
    best = ranked[SITE].drop_duplicates().head(MOST_SITES)
    best = best.assign(rank=range(len(best)))
    return rows.merge(best, on=SITE).sort_values(["rank", "k"], kind="stable")


def sparse_curve(table: pd.DataFrame) -> go.Figure:
    """Return the figure of the main metric by k, for the best sites.

    For the best site it also shows the interval (a band) and the control task. Horizontal lines
    show the baselines and the best probe of another kind, which uses all features of that site.
    The table must have `sparse_rows`.
    """
    rows = sparse_rows(table)
    metric = main_metric(rows)
    rows = only(rows, metric=metric)
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (_, points) in enumerate(rows.groupby("rank")):
        name = site_with_head(points["site"].iloc[0], points["head"].iloc[0])
        # The line of a site; for the best one also its band and its control task.
        is_best = number == 0
        for target in ("task", "control") if is_best else ("task",):
            scores = only(points, target=target)
            label = name if target == "task" else f"{LINES[target].label} at the best site"
            hover = [point_hover(f"k = {row['k']:,.0f}", row) for _, row in scores.iterrows()]
            line = scatter(scores["k"], scores["value"], LINES[target], number, label, hover)
            if target == "task" and is_best:
                figure.add_traces(band(scores["k"], scores, line))
            if not scores.empty:
                figure.add_trace(line)
    sizes = sorted(rows["k"].unique())
    ends = [sizes[0] / 1.3, sizes[-1] * 1.3]  # with equal margins on the logarithmic axis
    # The baselines, and the best other probe on all features of the best site.
    measured = only(at_shown_position(table), metric=metric, split="test")
    baselines = levels(measured[measured["site"] == ""])
    best = {column: rows[column].iloc[0] for column in SITE}
    ranked = ranked_rows(table)
    others = only(ranked[~ranked["probe"].str.fullmatch(SIZE)], **best)
    full = only(placed(measured), target="task", **best)
    full = full[full["probe"].isin(others["probe"].head(1))].dropna(subset="value")
    references = baselines + [("all_features", row) for _, row in full.head(1).iterrows()]
    labels = draw_levels(figure, references, ends)
    _log_ticks(figure, "features, k", {k: f"{k:,.0f}" for k in sizes}, ends)
    return finish_curve(figure, metric, rows["chance"].min(), labels)


def reliability_figure(bins: pd.DataFrame) -> go.Figure:
    """Return the reliability diagram, with bars for the number of rows in each bin.

    A calibrated probe lies on the dashed diagonal; below it, the probe is overconfident.

    Args:
        bins: One row for each non-empty bin: edges `low` and `high`, `n_rows`, mean `confidence`,
            `accuracy`, and its interval `ci_low` and `ci_high`. An optional column `probe` names
            the lines.

    >>> figure = reliability_figure(pd.DataFrame([dict(low=0.5, high=0.6, n_rows=9, confidence=0.55,
    ...     accuracy=0.4, ci_low=0.3, ci_high=0.5)]))
    >>> [trace.name for trace in figure.data]
    ['perfectly calibrated', 'all', 'rows: all']
    """
    style = LEVELS["chance"]
    figure = go.Figure(layout={"template": TEMPLATE})
    line = {"color": style.colour, "dash": style.dash, "width": style.width}
    figure.add_trace(plain_line([0, 1], [0, 1], line, name="perfectly calibrated"))
    names = bins["probe"] if "probe" in bins.columns else pd.Series("all", index=bins.index)
    lines = bins.groupby(names, sort=False)
    for number, (name, of_probe) in enumerate(lines):
        label = plotly_text(name)
        points = of_probe.sort_values("confidence")
        # Accuracy by confidence with intervals as error bars, and bars of row counts.
        marker = series_marker(number + 1, 8)
        shared = {
            "legendgroup": label,
            "hovertext": [_bin_hover(row) for _, row in points.iterrows()],
            "hoverinfo": "text",
        }
        line = go.Scatter(
            x=points["confidence"].tolist(),
            y=points["accuracy"].tolist(),
            error_y=error_bars(points, "accuracy", 1),
            name=label,
            mode="lines+markers",
            line={"color": marker["color"], "width": 2},
            marker={"symbol": marker["symbol"], "size": 8},
            **shared,
        )
        counts = go.Bar(
            x=((points["low"] + points["high"]) / 2).tolist(),
            y=points["n_rows"].tolist(),
            yaxis="y2",
            name=f"rows: {label}",
            showlegend=False,
            marker={"color": marker["color"], "line": {"width": 0}},
            opacity=0.6,
            **shared,
        )
        figure.add_traces([line, counts])
    figure.update_layout(
        showlegend=False,
        barmode="group",
        xaxis={"title_text": "confidence in the prediction", "range": [0, 1.02], "anchor": "y2"},
        yaxis={"title_text": "accuracy", "range": [0, 1.04], "domain": CURVES},
        yaxis2={"title_text": "rows", "domain": COUNTS, "rangemode": "tozero", "nticks": 3},
    )
    if len(lines) > 1:
        name_traces(figure)
    return figure


def _bin_hover(row: pd.Series) -> str:
    accuracy = format_number(row["accuracy"], row["ci_low"], row["ci_high"])
    return (
        f"<b>confidence above {row['low']:.2f} to {row['high']:.2f}</b><br>"
        f"mean confidence: {format_number(row['confidence'])}<br>accuracy: {accuracy}<br>"
        f"test rows: {row['n_rows']:,.0f}"
    )
