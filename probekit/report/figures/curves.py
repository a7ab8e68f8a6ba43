"""Curves of scores by training rows, features k and share of a reply, and of norms by layer."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from probekit.probes.targets import BASELINES
from probekit.report.elements.style import LEVELS, LINES, NORMS, TEMPLATE, layer_axis, plotly_text
from probekit.report.figures.layer_curve import band, end_labels, finish_curve, point_hover, scatter
from probekit.report.figures.levels import draw_levels, levels
from probekit.report.figures.line_labels import name_lines
from probekit.report.figures.views import at_shown_position, position_share, position_words
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import (
    EMBED_DEPTH,
    SAME_FEATURES,
    by_depth,
    only,
    same_features,
    ticks,
)

SPACE = 0.12  # smallest distance of two ticks of training rows, as a share of the axis
# Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers if that gives
# more than MOST_LOG_TICKS.
POWERS = [10.0**power for power in range(-3, 8)]
LOG_TICKS = [power * step for power in POWERS for step in (1, 2, 5)]
MOST_LOG_TICKS = 8
SIZE = r"^k_sparse:(?P<k>\d+)$"  # kind of probe that uses k features
LEAST_SIZES = 3  # values of k; fewer make no curve
MOST_SITES = 3  # lines of a curve by k
SITE = ["line", "site", "position"]  # columns that identify a site in the curve by k


def learning_curve_lines(scores: Scores) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each learning curve, in ascending order of training rows.

    The order is: the selected probe at the selected site, the other kinds at that site, the
    selected kind at the embedding. Lines without rows and `hidden_kinds` are left out; without a
    selected site there is none.
    """
    rows, chosen = only(scores.sited, split="learning"), scores.chosen
    if chosen is None:
        return
    rows = rows[~rows["probe"].isin(scores.hidden_kinds)].sort_values("n_train", kind="stable")
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


def learning_curve(scores: Scores) -> go.Figure:
    """Return the figure of test score by number of training rows.

    The first line shows its interval as a band. Baselines, fitted on all training rows, are
    horizontal lines. There must be at least one of `learning_curve_lines`.
    """
    lines = list(learning_curve_lines(scores))
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
    metric = Scores(first).metric
    # The baselines at the selected position, and those that have no position.
    is_at_position = scores.rows["position"].isin(["", first["position"].iloc[0]])
    baselines = scores.where(is_at_position, metric=metric, split="test", site="")
    labels = draw_levels(figure, levels(baselines), ends)
    _log_ticks(figure, "training rows", {n: f"{n:,.0f}" for n in spaced(sizes)}, ends)
    return finish_curve(figure, metric, first["chance"].min(), labels)


def share_lines(scores: Scores) -> list[tuple[str, pd.DataFrame]]:
    """Return name and test rows of each line of the curve by share, in ascending order of share.

    The name is a key of `LINES` or `LEVELS`. The order is: the selected probe at the selected site,
    the same with random weights, and the baselines; at each share, they read no more of a reply
    than the network. Empty without several shares of replies, or without a selected site. The
    column `p` of the selected probe is adjusted for all sites and shares; NaN without p-values.
    """
    chosen, tests = scores.chosen, only(scores.rows, split="test")
    tests = tests.assign(share=position_share(tests["position"])).dropna(subset="share")
    if chosen is None or tests["share"].nunique() < LEAST_SIZES:
        return []
    tests = tests.sort_values("share", kind="stable")
    site = {column: chosen[column] for column in SAME_FEATURES if column != "position"}
    sited = only(by_depth(tests), **site)
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
    return finish_curve(figure, Scores(task).metric, task["chance"].min(), [])


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
    rows = by_depth(norms.assign(head=math.nan))
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


def sparse_rows(scores: Scores) -> pd.DataFrame:
    """Return the test rows of k-sparse probes at the best sites, best site first, with column `k`.

    There are at most `MOST_SITES` sites, ranked by their best cross-validated score over all k. The
    result is empty if there are fewer than `LEAST_SIZES` values of k.
    """
    at_position = at_shown_position(scores)
    rows = only(at_position.sited, split="test")
    rows = rows.assign(k=rows["probe"].str.extract(SIZE)["k"].astype(float)).dropna(subset="k")
    if rows["k"].nunique() < LEAST_SIZES:
        return rows.iloc[:0]
    ranked = at_position.ranked
    ranked = ranked[ranked["probe"].str.fullmatch(SIZE) & ranked["site"].isin(rows["site"])]
    best = ranked[SITE].drop_duplicates().head(MOST_SITES)
    best = best.assign(rank=range(len(best)))
    return rows.merge(best, on=SITE).sort_values(["rank", "k"], kind="stable")


def sparse_curve(scores: Scores) -> go.Figure:
    """Return the figure of the main metric by k, for the best sites.

    For the best site it also shows the interval (a band) and the control task. Horizontal lines
    show the baselines and the best probe of another kind, which uses all features of that site.
    There must be `sparse_rows`.
    """
    rows = sparse_rows(scores)
    metric = Scores(rows).metric
    rows = only(rows, metric=metric)
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (_, points) in enumerate(rows.groupby("rank")):
        name = site_with_head(points["site"].iloc[0], points["head"].iloc[0])
        # The line of a site; for the best one also its band and its control task.
        is_best = number == 0
        for target in ("task", "control") if is_best else ("task",):
            of_target = only(points, target=target)
            label = name if target == "task" else f"{LINES[target].label} at the best site"
            hover = [point_hover(f"k = {row['k']:,.0f}", row) for _, row in of_target.iterrows()]
            line = scatter(of_target["k"], of_target["value"], LINES[target], number, label, hover)
            if target == "task" and is_best:
                figure.add_traces(band(of_target["k"], of_target, line))
            if not of_target.empty:
                figure.add_trace(line)
    sizes = sorted(rows["k"].unique())
    ends = [sizes[0] / 1.3, sizes[-1] * 1.3]  # with equal margins on the logarithmic axis
    # The baselines, and the best other probe on all features of the best site.
    measured = at_shown_position(scores).where(metric=metric, split="test")
    baselines = levels(measured.where(site=""))
    best = {column: rows[column].iloc[0] for column in SITE}
    ranked = scores.ranked
    others = only(ranked[~ranked["probe"].str.fullmatch(SIZE)], **best)
    full = only(measured.sited, target="task", **best)
    full = full[full["probe"].isin(others["probe"].head(1))].dropna(subset="value")
    references = baselines + [("all_features", row) for _, row in full.head(1).iterrows()]
    labels = draw_levels(figure, references, ends)
    _log_ticks(figure, "features, k", {k: f"{k:,.0f}" for k in sizes}, ends)
    return finish_curve(figure, metric, rows["chance"].min(), labels)
