"""Figures about selected probes: confusion, scatter plot, directions, neurons, reliability."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.amounts import format_number
from probekit.probes.targets import WITHIN
from probekit.report.figures.line_labels import name_traces
from probekit.report.figures.style import (
    GREY,
    LEVELS,
    LINES,
    MAGNITUDES,
    SERIES_COLOURS,
    TEMPLATE,
    axis_title,
    error_bars,
    plain_line,
    plotly_text,
    series_marker,
    short_tick,
)
from probekit.report.maps.maps import Colours, diverging, text_map
from probekit.report.texts import class_label
from probekit.results.selection import main_metric, ranked_rows
from probekit.results.table import figure_rows, only, placed, ticks
from probekit.results.verdict import SourceScores

MOST_TEXTS = 20  # classes per side; with more, numbers in cells are too small to read
MOST_NAMED = 10  # labels in a scatter plot; rarer labels are merged into `OTHERS`
MOST_NEURONS = 30
LEAST_NEURONS = 5  # fewer neurons are drawn as lines in the layer curve
OTHERS = "other labels"
# Vertical domains of a reliability diagram: row counts on their own axis below accuracy curves.
COUNTS, CURVES = (0.0, 0.2), (0.28, 1.0)


def confusion_matrix(rows: pd.DataFrame) -> go.Figure:
    """Return the confusion matrix: true labels down, predicted labels across, rows sum to 1.

    The row of a label without test rows is empty.

    Args:
        rows: true label `truth`, predicted label `guess` and count `n` for every pair of labels.

    >>> figure = confusion_matrix(pd.DataFrame(
    ...     [("a", "a", 3), ("a", "b", 1), ("b", "a", 0), ("b", "b", 2)],
    ...     columns=["truth", "guess", "n"]))
    >>> figure.data[0].z
    ([0.75, 0.25], [0.0, 1.0])
    """
    counts = confusion_counts(rows)
    labels = [plotly_text(class_label(label)) for label in counts.index]
    shares = confusion_shares(counts).to_numpy()
    hover = [
        f"<b>{truth}</b> predicted as <b>{guess}</b><br>{n:,} of {row.sum():,} rows"
        for truth, row in zip(labels, counts.to_numpy(), strict=True)
        for guess, n in zip(labels, row, strict=True)
    ]
    return text_map(
        shares,
        hover,
        Colours(0.0, 1.0, MAGNITUDES, is_diverging=False),
        across=labels,
        down=labels,
        title="predicted",
        most_texts=MOST_TEXTS**2,
        down_title="true",
    )


def confusion_counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the counts with true labels down and predicted labels across, both sorted.

    The count of a pair without a row is 0.
    """
    counts = rows.pivot_table("n", "truth", "guess", aggfunc="sum")
    labels = sorted({*counts.index, *counts.columns})
    return counts.reindex(index=labels, columns=labels, fill_value=0).fillna(0).astype(int)


def confusion_shares(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the counts divided by their row sums; NaN for a label without test rows."""
    return counts.div(counts.sum(axis=1).replace(0, np.nan), axis=0)


def scatter_plane(rows: pd.DataFrame, method: str) -> go.Figure:
    """Return the scatter plot of the test rows in a PCA or LDA plane, coloured by label.

    Args:
        rows: `method`, coordinates `x` and `y`, `label`, and axis titles `axis_x` and `axis_y`.
        method: `PCA` or `LDA`.
    """
    rows = only(rows, method=method)
    frequent = list(rows["label"].value_counts().index)
    # If labels are merged, `OTHERS` takes the place of one.
    named = sorted(frequent if len(frequent) <= MOST_NAMED else frequent[: MOST_NAMED - 1])
    shown_labels = rows["label"].where(rows["label"].isin(named), OTHERS)
    figure = go.Figure(layout={"template": TEMPLATE})
    # The named labels in order, then `OTHERS` if any label is merged.
    for number, label in enumerate(dict.fromkeys([*named, *sorted(shown_labels)])):
        points = rows[shown_labels == label]
        figure.add_scatter(
            x=points["x"].tolist(),
            y=points["y"].tolist(),
            mode="markers",
            name=plotly_text(class_label(label)),
            marker={**series_marker(number + 1, 7), "opacity": 0.75},
            hovertext=[plotly_text(class_label(text)) for text in points["label"]],
            hoverinfo="text",
        )
    figure.update_xaxes(title_text=rows["axis_x"].iloc[0])
    figure.update_yaxes(title_text=rows["axis_y"].iloc[0])
    return figure


def flagged_curves(rows: pd.DataFrame) -> go.Figure:
    """Return median score (above) and share of flagged texts (below) by number of tokens read.

    Args:
        rows: `label`, `tokens`, `score`, `share` and `n_texts` for each label and number of tokens.
    """
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.06)
    for number, (label, points) in enumerate(rows.groupby("label", sort=False)):
        name, n = plotly_text(class_label(str(label))), points["n_texts"].iloc[0]
        line = {"color": series_marker(number + 1, 8)["color"], "width": 2, "shape": "hv"}
        shared: dict[str, Any] = {
            "x": points["tokens"].tolist(),
            "name": f"{name} (n = {n:,})",
            "line": line,
        }
        shared |= {"mode": "lines", "legendgroup": name, "col": 1}
        for row, column in enumerate(("score", "share"), 1):
            figure.add_scatter(y=points[column].tolist(), row=row, showlegend=row == 1, **shared)
    style = LEVELS["chance"]
    line = {"color": style.colour, "dash": style.dash, "width": style.width}
    figure.add_hline(y=0, line=line, row=1)
    figure.update_xaxes(title_text="tokens read", row=2)
    figure.update_yaxes(title_text="median score", row=1)
    figure.update_yaxes(title_text="share flagged", range=[0, 1.04], row=2)
    return figure.update_layout(template=TEMPLATE)


def direction_map(rows: pd.DataFrame) -> go.Figure:
    """Return the map of cosine similarities between probe directions at each pair of sites.

    Args:
        rows: `site_a`, `site_b` and `cosine` for every pair of sites of one component; optionally
            `null_high`, the 95 % quantile of absolute cosines on permuted labels, or NaN.
    """
    order = placed(pd.DataFrame({"site": rows["site_a"].unique(), "head": np.nan}))
    sites, labels = list(order["site"]), ticks(order)
    values = rows.pivot_table("cosine", "site_a", "site_b").loc[sites, sites]
    bounds = rows["null_high"] if "null_high" in rows else [np.nan] * len(rows)
    null_lines = {
        (a, b): "" if np.isnan(bound) else f"<br>95 % of permuted labels: ±{format_number(bound)}"
        for a, b, bound in zip(rows["site_a"], rows["site_b"], bounds, strict=True)
    }
    hover = [
        f"<b>{a}</b><br><b>{b}</b><br>cosine {format_number(values.loc[a, b])}{null_lines[a, b]}"
        for a in sites
        for b in sites
    ]
    names = [labels[int(depth)] for depth in order["depth"]]
    return text_map(
        values.to_numpy(),
        hover,
        diverging(1.0),
        across=names,
        down=names,
        title="layer",
        most_texts=MOST_TEXTS**2,
    )


def ranked_neurons(table: pd.DataFrame) -> pd.DataFrame:
    """Return the test rows of single neurons, best cross-validated score first.

    Each neuron has the row of its best probe and position. The result has at most `MOST_NEURONS`
    rows, and none if fewer than `LEAST_NEURONS` neurons were probed.
    """
    metric = main_metric(table)
    ranked = ranked_rows(table)
    ranked = ranked[ranked["site"].str.contains("[neuron=", regex=False)]
    ranked = ranked.drop_duplicates("site").head(MOST_NEURONS)
    if len(ranked) < LEAST_NEURONS:
        return ranked.iloc[:0]
    test = only(placed(figure_rows(table)), target="task", metric=metric, split="test")
    keys = ["site", "probe", "position"]
    return ranked[keys].merge(test, on=keys)


def neuron_ranking(table: pd.DataFrame) -> go.Figure:
    """Return the figure of test scores of single neurons, ordered by cross-validated score.

    The table must have `ranked_neurons`.
    """
    rows = ranked_neurons(table)
    # Layer and neuron, such as "3 · 17" of blocks.3.mlp.hook_post[neuron=17].
    names = rows["site"].str.replace(r"^\w+\.(\d+)\..*=(\d+)\]$", r"\1 · \2", regex=True).tolist()
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_scatter(
        x=rows["value"].tolist(),
        y=list(range(len(rows))),
        mode="markers",
        error_x={**error_bars(rows, "value", 1.5), "symmetric": False},
        marker={"color": SERIES_COLOURS[0], "size": 8},
        hovertext=[
            f"<b>{row['site']}</b><br>{format_number(row['value'], row['ci_low'], row['ci_high'])}"
            for _, row in rows.iterrows()
        ],
        hoverinfo="text",
    )
    figure.add_vline(x=rows["chance"].min(), line={"color": GREY, "dash": "longdash", "width": 1.5})
    figure.update_xaxes(title_text=axis_title(str(rows["metric"].iloc[0])))
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(rows))), ticktext=names, autorange="reversed"
    )
    return figure


def source_figure(rows: pd.DataFrame, v: SourceScores) -> go.Figure:
    """Return the figure of the scores of sources left out whole and inside the sources.

    The mean over sources is a line, with its interval as a band.

    Args:
        rows: rows of sources.csv.
        v: the means.
    """
    places = np.arange(len(rows))
    names = [
        plotly_text(short_tick(source) + (f" ({why})" if why else ""))
        for source, why in zip(rows["source"], rows["left_out"], strict=True)
    ]
    inside = rows.assign(ci_low=rows["within_low"], ci_high=rows["within_high"])
    figure = go.Figure(layout={"template": TEMPLATE})
    # Name, rows, column, style, symbol and vertical offset of each series.
    for name, points, column, style, symbol, offset in (
        ("left out whole", rows, "value", LINES["task"], "circle", -0.12),
        (LINES[WITHIN].label, inside, "within", LINES[WITHIN], "circle-open", 0.12),
    ):
        figure.add_scatter(
            x=points[column].tolist(),
            y=(places + offset).tolist(),
            name=name,
            mode="markers",
            error_x={**error_bars(points, column, 1.5), "symmetric": False},
            marker={"color": style.colour or SERIES_COLOURS[0], "size": 9, "symbol": symbol},
            hovertext=[
                f"<b>{plotly_text(row['source'])}</b>, {name}<br>"
                f"{format_number(row[column], row['ci_low'], row['ci_high'])}"
                for _, row in points.iterrows()
            ],
            hoverinfo="text",
        )
    mean, low, high = v.mean
    if not np.isnan(mean):
        figure.add_vline(x=mean, line={"color": SERIES_COLOURS[0], "width": 1.5})
    if not np.isnan(low):
        band = {"fillcolor": SERIES_COLOURS[0], "opacity": 0.1, "line_width": 0}
        figure.add_vrect(x0=low, x1=high, **band)
    levels = rows["chance"].dropna().unique()
    if len(levels) == 1:
        chance = {"color": GREY, "dash": "longdash", "width": 1.5}
        figure.add_vline(x=float(levels[0]), line=chance)
    figure.update_xaxes(title_text=axis_title(v.metric))
    figure.update_yaxes(
        tickmode="array", tickvals=places.tolist(), ticktext=names, autorange="reversed"
    )
    return figure


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
