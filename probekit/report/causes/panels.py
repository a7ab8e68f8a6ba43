"""Small multiples of directions: dose-response, and probes that are fitted again after erasure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.report.causes.curves import axis_labels, zero_line
from probekit.report.causes.edits import interval_in_words
from probekit.report.figures.facets import (
    FIGURE_HEIGHT,
    MARGIN_HEIGHT,
    MOST_PANELS,
    PANEL_HEIGHT,
    draw_in_panel,
    label_panels,
    n_columns,
    name_panel,
    panel_grid,
    panel_layers,
)
from probekit.report.figures.layer_curve import WIDTH, band, scatter
from probekit.report.figures.line_labels import LineLabel, label_at_end
from probekit.report.figures.style import (
    GREY,
    SERIES_COLOURS,
    STACKS,
    LineStyle,
    finite_ends,
    layer_ends,
    plotly_text,
)

PERMUTED = "95 % of permuted labels, tested"
MATCHED = "95 % of equal covariance, not tested"
DIRECTION = "direction, 95 % interval"
BEFORE, AFTER = "before erasure", "after erasure"
MOST_ROOM = 2.0  # of bands that are not tested, relative to the largest effect
BANDS = ("null_low", "null_high", "matched_low", "matched_high")
_LINES = {
    "before": LineStyle(BEFORE, "solid", SERIES_COLOURS[0], marker_size=6),
    "after": LineStyle(AFTER, "dash", "#D55E00", marker_size=6),
}


@dataclass(frozen=True, eq=False)
class Panel:
    """Rows of one direction with the title of their panel."""

    title: str
    rows: pd.DataFrame


def panels_height(n_panels: int) -> float | None:
    """Return the height of a figure of panels in rem; None for the usual one."""
    n_rows = math.ceil(n_panels / n_columns(n_panels))
    height = max(FIGURE_HEIGHT, MARGIN_HEIGHT + PANEL_HEIGHT * n_rows)
    return height if n_panels > 2 else None


def steepest(panels: Sequence[Panel]) -> list[Panel]:
    """Return at most `MOST_PANELS` dose-response curves, those with the largest effects."""
    reach = [float(panel.rows["effect"].abs().max()) for panel in panels]
    ranked = sorted(range(len(panels)), key=lambda n: -reach[n] if reach[n] == reach[n] else 0)
    return [panels[n] for n in sorted(ranked[:MOST_PANELS])]


def dose_figure(panels: Sequence[Panel]) -> go.Figure:
    """Return the dose-response curves of directions, one panel each, on one scale.

    The grey band has 95 % of the directions on permuted labels; dotted lines enclose 95 % of random
    directions with the covariance of the features. All pass through 0, where nothing is added.
    """
    unit = str(panels[0].rows["unit"].iloc[0])
    figure = _grid(panels, f"change ({unit})")
    curves = [_with_origin(panel.rows) for panel in panels]
    doses = sorted({dose for curve in curves for dose in curve["by"]})
    margin = 0.04 * (doses[-1] - doses[0]) or 0.5
    ends = [doses[0] - margin, doses[-1] + margin]
    low, high = _dose_range(curves)
    # Labels of the outermost doses would touch those of the next panel.
    inner = doses[1:-1] if len(doses) > 3 else doses
    names = {inner[0], 0.0, inner[-1]} if len(panels) > 1 else {*doses}
    texts = [f"{dose:g}".replace("-", "−") if dose in names else "" for dose in doses]
    figure.update_xaxes(range=ends, tickvals=doses, ticktext=texts, tickangle=0)
    labels = []
    for number, (panel, curve) in enumerate(zip(panels, curves, strict=True), start=1):
        lines = _dose_lines(curve, unit)
        _name_panel_of(figure, panel, number, len(panels))
        draw_in_panel(figure, [zero_line(ends), *lines], number)
        labels.append([_below(one, high, lines) for one in _dose_labels(lines)])
    _label_lowest(figure, len(panels), "dose (SD)")
    space = 0.06 * (high - low) or 0.1
    figure.update_yaxes(range=[low - space, high + space])
    label_panels(figure, labels, n_columns(len(panels)))
    return figure


def _dose_range(curves: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Return the range of effects and tested bands, and of the other bands as far as there is room.

    Random directions with the features' covariance may move the measure far more than others.
    """

    def ends(names: Sequence[str]) -> tuple[float, float]:
        return finite_ends(value for curve in curves for name in names for value in curve[name])

    low, high = ends(("effect", "low", "high", *BANDS[:2]))
    reach = MOST_ROOM * max(abs(low), abs(high))
    bottom, top = ends(BANDS[2:]) if any(c["matched_low"].notna().any() for c in curves) else (0, 0)
    return min(low, max(bottom, -reach)), max(high, min(top, reach))


def _with_origin(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the doses in order, with a dose of 0 that changes nothing."""
    at_zero = {"by": 0.0, "effect": 0.0, "low": 0.0, "high": 0.0, "other_loss": math.nan}
    at_zero |= {name: 0.0 for name in BANDS if rows[name].notna().any()}
    both = pd.concat([rows[rows["by"] != 0], rows.head(1).assign(**at_zero)])
    return both.sort_values("by", kind="stable").reset_index(drop=True)


def _dose_lines(curve: pd.DataFrame, unit: str) -> list[go.Scatter]:
    style = LineStyle(DIRECTION, "solid", SERIES_COLOURS[0], width=2.4, marker_size=6)
    hover = [_dose_hover(row, unit) for _, row in curve.iterrows()]
    line = scatter(curve["by"], curve["effect"], style, 0, DIRECTION, hover)
    named = {"low": "ci_low", "high": "ci_high"}
    permuted = go.Scatter(line={"color": GREY}, legendgroup=PERMUTED)
    null = curve.rename(columns={"null_low": "ci_low", "null_high": "ci_high"})
    traces = [trace.update(name=PERMUTED) for trace in band(curve["by"], null, permuted)]
    for name in ("matched_low", "matched_high"):
        if curve[name].notna().any():
            traces.append(_outline(curve["by"], curve[name]))
    return [*traces, *band(curve["by"], curve.rename(columns=named), line), line]


def _outline(x: pd.Series[float], y: pd.Series[float]) -> go.Scatter:
    return go.Scatter(
        x=x.tolist(),
        y=y.tolist(),
        mode="lines",
        name=MATCHED,
        legendgroup=MATCHED,
        line={"color": GREY, "width": 1.2, "dash": "dot"},
        hoverinfo="skip",
    )


def _dose_labels(lines: Sequence[go.Scatter]) -> list[LineLabel]:
    """Return the labels of the direction and of its bands, at their upper ends."""
    labels = {}
    for trace in lines:
        if trace.name == PERMUTED:
            labels[PERMUTED] = label_at_end(trace, PERMUTED, GREY, len(trace.y) // 2)
        elif trace.name:
            colour = GREY if trace.name == MATCHED else trace.line.color
            labels[trace.name] = label_at_end(trace, trace.name, colour)
    return [label for own in reversed(labels.values()) for label in own]


def _below(label: LineLabel, high: float, lines: Sequence[go.Scatter]) -> LineLabel:
    """Return a label whose line ends above the figure at the point where the line leaves it."""
    if label.value <= high:
        return label
    line = next(one for one in lines if one.name == label.text and one.y[-1] == label.value)
    after = next(n for n in range(len(line.y)) if min(line.y[n:]) > high)
    end = float(np.interp(high, line.y[after - 1 : after + 1], line.x[after - 1 : after + 1]))
    return replace(label, value=high, end=end)


def _dose_hover(row: pd.Series[Any], unit: str) -> str:
    if row["by"] == 0:
        return "<b>no edit</b>"
    lines = [
        f"<b>{row['by']:+g} standard deviations</b>",
        f"change: {interval_in_words(row['effect'], row['low'], row['high'])} {plotly_text(unit)}",
    ]
    for name, start in (("permuted labels", "null"), ("equal covariance", "matched")):
        low, high = row[f"{start}_low"], row[f"{start}_high"]
        if not math.isnan(low):
            lines.append(f"95 % of {name}: {low:.2f} to {high:.2f}")
    if not math.isnan(row["other_loss"]):
        loss = interval_in_words(row["other_loss"], row["other_low"], row["other_high"])
        lines.append(f"loss on other texts: {loss} nats per token")
    return "<br>".join(lines)


def refit_figure(panels: Sequence[Panel], layers: dict[int, str] | None = None) -> go.Figure:
    """Return the accuracy of probes at later sites before and after erasure, one panel per site.

    Args:
        panels: placed rows of downstream.csv for each erased site.
        layers: labels of the layer axis by depth; by default those of the refitted sites.
    """
    rows = pd.concat([panel.rows for panel in panels])
    axis = axis_labels(rows, layers)
    figure = _grid(panels, "balanced accuracy")
    labels = []
    for number, panel in enumerate(panels, start=1):
        chance = zero_line(layer_ends(axis))
        level = float(panel.rows["chance"].iloc[0])
        chance.update(y=[level] * 2, line_dash="longdash", name=f"chance {level:.2f}")
        lines = [trace for name in _LINES for trace in _refit_line(panel.rows, name)]
        _name_panel_of(figure, panel, number, len(panels))
        draw_in_panel(figure, [chance, *lines], number)
        named = [trace for trace in [*lines, chance] if trace.name and not trace.fill]
        labels.append([one for trace in named for one in _end_label(trace)])
    bounds = [f"{name}{end}" for name in _LINES for end in ("", "_low", "_high")]
    low, high = finite_ends([*rows[[*bounds, "chance"]].to_numpy().ravel().tolist(), 1.0])
    space = 0.04 * (high - low)
    across = n_columns(len(panels))
    panel_layers(figure, axis, [set(axis)] * len(panels), across)
    figure.update_yaxes(range=[low - space, high + space])
    label_panels(figure, labels, across)
    return figure


def _end_label(trace: go.Scatter) -> list[LineLabel]:
    return label_at_end(trace, trace.name, trace.line.color)


def _refit_line(rows: pd.DataFrame, name: str) -> list[go.Scatter]:
    style = _LINES[name]
    hover = [
        f"<b>{plotly_text(row['site'])}</b><br>{style.label}: "
        + interval_in_words(row[name], row[f"{name}_low"], row[f"{name}_high"])
        for _, row in rows.iterrows()
    ]
    number = list(_LINES).index(name)
    line = scatter(rows["depth"], rows[name], style, number, style.label, hover)
    ends = {f"{name}_low": "ci_low", f"{name}_high": "ci_high"}
    return [*band(rows["depth"], rows.rename(columns=ends), line, WIDTH), line]


def _grid(panels: Sequence[Panel], title: str) -> go.Figure:
    across = min(n_columns(len(panels)), len(panels))
    figure = panel_grid(len(panels), across, title)
    return figure.update_layout(meta=STACKS)


def _name_panel_of(figure: go.Figure, panel: Panel, number: int, n_panels: int) -> None:
    if n_panels > 1:
        name_panel(figure, panel.title, number)


def _label_lowest(figure: go.Figure, n_panels: int, title: str) -> None:
    """Set the title of the lowest panel of each column; other panels have no labels of ticks."""
    lowest = n_panels - n_columns(n_panels)
    for number in range(n_panels):
        axis = figure.layout[f"xaxis{number + 1 if number else ''}"]
        is_lowest = number >= lowest
        axis.update(title_text=title if is_lowest else None, showticklabels=is_lowest)
