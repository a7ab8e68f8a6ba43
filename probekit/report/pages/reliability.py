"""The reliability diagram: accuracy by confidence, and the number of rows in each bin."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import format_number
from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.elements.style import (
    LEVELS,
    TEMPLATE,
    error_bars,
    plain_line,
    plotly_text,
    series_marker,
)
from probekit.report.figures.line_labels import name_traces
from probekit.report.sentences.answer import pooled_ranking
from probekit.report.sentences.captions import lines_in_words
from probekit.results.scores import Scores
from probekit.results.table import metric_name, only
from probekit.results.verdict import Verdict

# Vertical domains: row counts on their own axis below accuracy curves.
COUNTS, CURVES = (0.0, 0.2), (0.28, 1.0)


def reliability_part(bins: pd.DataFrame, scores: Scores, v: Verdict) -> FigurePart:
    """Return the reliability diagram: accuracy by confidence for each kind of probe.

    Of a kind with many sizes only the best size is shown, as in the layer curves.
    """
    bins = bins[~bins["probe"].isin(scores.hidden_kinds)]
    return FigurePart(
        "Confidence and accuracy",
        figure_json(reliability_figure(bins)),
        reliability_caption(bins, scores, v),
        lines_in_words(
            "Accuracy against confidence",
            bins.groupby("probe", sort=False),
            lambda row: (
                f"confidence {row['confidence']:.2f} accuracy {row['accuracy']:.2f} "
                f"({row['n_rows']:,.0f} rows)"
            ),
        ),
        is_open=False,
    )


def reliability_caption(bins: pd.DataFrame, scores: Scores, v: Verdict) -> str:
    """Return the caption of the reliability diagram, with Brier score and calibration error."""
    test = only(scores.rows, target="task", split="test")
    errors = [_scores(of_probe, test) for _, of_probe in bins.groupby("probe", sort=False)]
    return (
        "Accuracy by confidence of the predictions, in bins of equal width, with 95 % intervals "
        "for new test groups (jackknife). Each kind of probe is shown at the site of its best "
        f"cross-validated {metric_name(v.metric)}. On the dashed line the probe is "
        f"calibrated; below it, overconfident. Lower is better: {'; '.join(filter(None, errors))}. "
        "Chance differences do not count in the calibration error, so that 0 is calibrated and a "
        f"value may be negative; compare probes by the Brier score.{pooled_ranking(v)}"
    )


def _scores(bins: pd.DataFrame, test: pd.DataFrame) -> str:
    """Return Brier score and calibration error of the probe with these bins; "" without any."""
    first = bins.iloc[0]
    key = {name: str(first[name]) for name in ("probe", "site", "position")}
    rows = only(test, **key)
    # Sites without heads have NaN, which equals nothing.
    is_head = rows["head"].isna() if pd.isna(first["head"]) else rows["head"] == first["head"]
    titles = {"brier": "Brier score", "ece": "calibration error"}
    scores = [
        f"{title} {format_number(row['value'], row['ci_low'], row['ci_high'])}"
        for metric, title in titles.items()
        for _, row in only(rows[is_head], metric=metric).head(1).iterrows()
    ]
    return f"{key['probe']} at {key['site']}: {', '.join(scores)}" if scores else ""


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
