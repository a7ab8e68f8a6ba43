"""Figures of interventions: effects by layer, token and head, dose-response, and erasure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number, format_p
from probekit.report.causes import cause_words
from probekit.report.elements import style
from probekit.report.elements.tokens import short_label
from probekit.report.figures import layer_curve, maps
from probekit.report.figures.line_labels import LineLabel, label_at_end, name_lines
from probekit.report.figures.views import MOST_NEURONS
from probekit.results.cause_verdict import RECOVERY, STREAM, Direction, EditSet, named_sites
from probekit.results.causes import CausesRecord, CauseTables
from probekit.results.table import n_blocks, only, tick, ticks

_LINE = style.LineStyle("", "solid", width=2.6, marker_size=8)
Panel = tuple[str, pd.DataFrame]  # the title and the rows of one direction
PERMUTED = "95 % of permuted labels, tested"
DIRECTION = "direction, 95 % interval"
# Columns with the ends of a band.
TESTED_BAND = ("null_low", "null_high")
UNTESTED_BAND = ("matched_low", "matched_high")
_LINES = {
    "before": style.LineStyle("before erasure", "solid", style.SERIES_COLOURS[0], marker_size=6),
    "after": style.LineStyle("after erasure", "dash", "#D55E00", marker_size=6),
}
# Question whose effect is a share -> the edit and what it is a share of.
SHARES = {
    "silences": "erased: share of the label's effect",
    "swap": "swapped: share of the counterfactual's effect",
}
USE_ROWS = (
    "this direction", "whole vector<br>(no interval)", "permuted labels:<br>central 95 %",
    "random directions,<br>equal covariance:<br>central 95 %",
)  # fmt: skip
MOST_HEADS = 20  # rows of a map of heads and tokens
STRONGEST = "framed: largest"


def edit_hover(edits: EditSet, row: pd.Series[Any], token: str = "") -> str:
    """Return the hover text of an edit: site, token, effects, p-values and number of texts."""
    at_token = f" at {style.plotly_text(token)}" if token else ""
    lines = [f"<b>{style.plotly_text(row['site'])}</b>{at_token}"]
    if edits.shown == RECOVERY:
        lines.append(f"recovery: {format_number(row['value'], row['ci_low'], row['ci_high'])}")
    effect = format_number(row["effect"], row["effect_low"], row["effect_high"])
    lines.append(f"change: {effect} {style.plotly_text(edits.unit)}")
    if not math.isnan(row["p"]):
        has_best = not math.isnan(row["p_best"])
        best = f", best of {edits.n_edits}: {format_p(row['p_best'])}" if has_best else ""
        lines.append(f"p: {format_p(row['p'])}{best}")
    return "<br>".join([*lines, cause_words.n_in_words(row)])


def curve_lines_of(edits: EditSet) -> pd.DataFrame:
    """Return the rows that a causal curve shows: all but heads and long lists of neurons."""
    rows = edits.rows[edits.rows["head"].isna()]
    is_neuron = rows["site"].str.contains("[neuron=", regex=False)
    if rows.loc[is_neuron, "line"].nunique() > MOST_NEURONS:
        rows = rows[~is_neuron]
    return rows


def cause_curve(
    edits: EditSet, layers: dict[int, str] | None = None, marked: str = ""
) -> go.Figure:
    """Return the figure of recovery or effect by layer, with a line for each kind of site.

    Intervals are bands, or error bars if there are more than `MOST_BANDS` lines.

    Args:
        edits: edits at the same tokens.
        layers: labels of the layer axis by depth; by default those of the edited sites.
        marked: site of the direction that the answer names, which gets a ring; "" for none.
    """
    rows = curve_lines_of(edits)
    axis = axis_labels(rows, layers)
    figure = go.Figure(layout={"template": style.TEMPLATE})
    figure.add_trace(zero_line(style.layer_ends(axis)))
    # The residual stream is first, so that its colour does not depend on the other lines.
    lines = sorted(rows.groupby("line", sort=False), key=lambda line: line[0] != STREAM)
    for number, (name, points) in enumerate(lines):
        hover = [edit_hover(edits, row) for _, row in points.iterrows()]
        line = layer_curve.scatter(
            points["depth"], points["value"], _LINE, number, str(name), hover
        )
        if len(lines) > layer_curve.MOST_BANDS:
            line.update(error_y=style.error_bars(points, "value", 1), marker_size=7)
        else:
            figure.add_traces(layer_curve.band(points["depth"], points, line, layer_curve.WIDTH))
        figure.add_trace(line)
    for _, row in rows[rows["site"].eq(marked)].iterrows():
        figure.add_trace(layer_curve.ring(row))
        place = {"x": row["depth"], "y": row["value"], "ax": 0, "ay": -48, "standoff": 9}
        leader = {"showarrow": True, "arrowhead": 0, "arrowcolor": style.GREY}
        figure.add_annotation(text="tested direction", font_size=style.SMALL, **place, **leader)
    style.layer_axis(figure, axis)
    # The axis contains all intervals and 0, and for recovery 1.
    bounds = [0.0, 1.0] if edits.shown == RECOVERY else [0.0]
    bounds += rows[["value", "ci_low", "ci_high"]].to_numpy().ravel().tolist()
    low, high = style.finite_ends(bounds)
    space = 0.04 * (high - low) or 0.05  # if both ends are equal
    title = edits.title if edits.shown == RECOVERY else f"{edits.title} ({edits.unit})"
    figure.update_yaxes(title_text=title, range=[low - space, high + space])
    name_lines(figure, layer_curve.end_labels(figure.data) if len(lines) > 1 else [])
    return figure


def axis_labels(rows: pd.DataFrame, layers: dict[int, str] | None) -> dict[int, str]:
    """Return the labels of the layer axis: those of the run's layer curve and of the rows.

    If they contradict each other, because the run probes no deeper block, only those of the rows.
    A depth between them that has no label gets its number.
    """
    of_rows = ticks(rows)
    if not layers or any(layers.get(depth, label) != label for depth, label in of_rows.items()):
        return of_rows
    both = {**of_rows, **layers}
    return {depth: both.get(depth, str(depth)) for depth in range(min(both), max(both) + 1)}


def zero_line(ends: list[float]) -> go.Scatter:
    """Return the horizontal line of no effect."""
    return style.plain_line(ends, [0, 0], {"color": style.GREY, "width": 1})


def use_figure(best: Direction) -> go.Figure | None:
    """Return the figure of the share of the effect that a direction and its controls carry.

    It has the point and interval of the direction, the effect of the whole vector there, and the
    central 95 % of both kinds of random directions. None if it was neither erased nor swapped.
    """
    figure = go.Figure(layout={"template": style.TEMPLATE})
    columns, drawn = ["effect", "low", "high", "whole", *TESTED_BAND, *UNTESTED_BAND], [0.0]
    for number, (question, name) in enumerate(SHARES.items()):
        if question not in best.asked or math.isnan(best.asked[question]["effect"]):
            continue
        effect, low, high, whole, *ends = 100 * best.asked[question][columns].astype(float)
        drawn += [effect, low, high, whole, *ends]
        bars = {"value": [effect, whole], "ci_low": [low, math.nan], "ci_high": [high, math.nan]}
        look, places = style.series_marker(number, 9), np.arange(4) + 0.4 * number - 0.2
        figure.add_scatter(
            x=[effect, whole], y=places[:2], mode="markers+text", name=name, marker=look,
            text=[f"{name.partition(':')[0]} {fixed(one, 0)} %" for one in (effect, whole)],
            textposition="top center", textfont_size=style.SMALL, cliponaxis=False,
            error_x=style.error_bars(pd.DataFrame(bars), "value", 1.5), hoverinfo="x",
        )  # fmt: skip
        band = {"color": look["color"], "width": 9}
        for place, limits in zip(places[2:], (ends[:2], ends[2:]), strict=True):
            figure.add_trace(style.plain_line(limits, [place] * 2, band, opacity=0.5))
    figure.add_vline(x=0, line={"color": style.GREY, "width": 1})
    figure.update_yaxes(tickvals=[*range(4)], ticktext=USE_ROWS, range=[3.4, -0.6], showgrid=False)
    # With room for the texts of the outermost points.
    shown = style.with_margin(*style.with_margin(*style.finite_ends(drawn)))
    figure.update_xaxes(title_text="share of the effect, %", range=shown)
    return figure if figure.data else None


def dose_panels(tables: CauseTables) -> Iterator[tuple[str, str, list[Panel]]]:
    """Yield each method and choice of tokens with its panels, one per site with a finite effect."""
    defined = tables.doses[np.isfinite(tables.doses["effect"]) & np.isfinite(tables.doses["by"])]
    for (along, at), of_method in named_sites(defined).groupby(["along", "at"], sort=False):
        panels = of_method.groupby(["short_place", "site"], sort=False)
        yield str(along), str(at), [(str(place), rows) for (place, _), rows in panels]


def refit_panels(tables: CauseTables) -> Iterator[tuple[str, str, list[Panel]]]:
    """Yield each method and choice of tokens with its panels.

    There is one panel for each erased site and kind of site at which probes were fitted again.
    """
    rows = named_sites(tables.downstream.assign(head=np.nan))
    for (along, at), of_method in rows.groupby(["along", "at"], sort=False):
        panels = []
        sites = pd.DataFrame({"site": of_method["erased"].unique(), "head": np.nan})
        for erased, place in named_sites(sites)[["site", "short_place"]].itertuples(index=False):
            lines = list(only(of_method, erased=erased).groupby("line", sort=False))
            for line, points in lines:
                kind = f", probes at {line}" if len(lines) > 1 else ""
                # resid_pre of a block and resid_post of the block before it have the same depth.
                panels.append((f"erased at {place}{kind}", points.drop_duplicates("depth")))
        yield str(along), str(at), panels


def steepest(panels: Sequence[Panel]) -> list[Panel]:
    """Return the dose-response curves with the largest effects, in the same order.

    There are at most `MOST_PANELS`. The effect of a curve is its largest absolute one.
    """
    largest = np.nan_to_num([float(rows["effect"].abs().max()) for _, rows in panels])
    ranked = np.argsort(-largest, kind="stable").tolist()
    return [panels[number] for number in sorted(ranked[: layer_curve.MOST_PANELS])]


def dose_figure(panels: Sequence[Panel]) -> go.Figure:
    """Return the dose-response curves of directions, one panel each, on one scale.

    The grey band has 95 % of the directions on permuted labels. All pass through 0, where nothing
    is added.
    """
    unit = str(panels[0][1]["unit"].iloc[0])
    figure = layer_curve.panel_grid([title for title, _ in panels], f"change ({unit})")
    figure.layout.annotations[0].xshift = -48  # its title is to the left of ticks such as −0.05
    curves = [_with_origin(rows) for _, rows in panels]
    doses = sorted({dose for curve in curves for dose in curve["by"]})
    margin = 0.04 * (doses[-1] - doses[0]) or 0.5  # if there is only one
    ends = [doses[0] - margin, doses[-1] + margin]

    shown = ["effect", "low", "high", *TESTED_BAND]
    low, high = style.finite_ends(pd.concat(curves)[shown].to_numpy().ravel())
    # Labels of the outermost doses would touch those of the next panel: of more than three doses,
    # the second, 0 and the last but one are labelled.
    is_narrow = len(panels) > 1 and len(doses) > 3
    labelled = {doses[1], 0.0, doses[-2]} if is_narrow else {*doses}
    texts = [f"{dose:g}".replace("-", "−") if dose in labelled else "" for dose in doses]
    figure.update_xaxes(range=ends, tickvals=doses, ticktext=texts, tickangle=0)
    labels = []
    for number, curve in enumerate(curves, start=1):
        look = style.LineStyle(
            DIRECTION, "solid", style.SERIES_COLOURS[1], width=2.4, marker_size=6
        )
        hover = [_dose_hover(row, unit) for _, row in curve.iterrows()]
        line = layer_curve.scatter(curve["by"], curve["effect"], look, 0, DIRECTION, hover)
        interval = curve.rename(columns={"low": "ci_low", "high": "ci_high"})
        null = curve.rename(columns={"null_low": "ci_low", "null_high": "ci_high"})
        grey = go.Scatter(line={"color": style.GREY}, legendgroup=PERMUTED)
        traces = layer_curve.band(curve["by"], null, grey)
        for trace in traces:
            trace.name = PERMUTED
        traces += [*layer_curve.band(curve["by"], interval, line), line]
        layer_curve.draw_in_panel(figure, [zero_line(ends), *traces], number)
        labels.append(_dose_labels(traces))
    # Only the lowest panel of each column has a title and labels of ticks.
    for number in range(len(panels)):
        axis = figure.layout[f"xaxis{number + 1 if number else ''}"]
        is_lowest = number >= len(panels) - layer_curve.n_columns(len(panels))
        axis.update(title_text="dose (SD)" if is_lowest else None, showticklabels=is_lowest)
    space = 0.06 * (high - low) or 0.1  # if both ends are equal
    figure.update_yaxes(range=[low - space, high + space])
    layer_curve.label_panels(figure, labels)
    return figure


def _with_origin(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the doses in order, with a dose of 0 that changes nothing."""
    at_zero = {"by": 0.0, "effect": 0.0, "low": 0.0, "high": 0.0, "other_loss": math.nan}
    # A band that no dose has is not drawn at 0, either.
    at_zero |= {name: 0.0 for name in TESTED_BAND if rows[name].notna().any()}
    both = pd.concat([rows[rows["by"] != 0], rows.head(1).assign(**at_zero)])
    return both.sort_values("by", kind="stable").reset_index(drop=True)


def _dose_labels(lines: Sequence[go.Scatter]) -> list[LineLabel]:
    """Return the labels of the direction, which is drawn last, and of the upper end of its band."""
    labels = label_at_end(lines[-1])
    for band in [line for line in lines if line.name == PERMUTED][:1]:
        # The first half of the points of a band is its upper end.
        labels += label_at_end(band, PERMUTED, style.GREY, n_points=len(band.y) // 2)
    return labels


def _dose_hover(row: pd.Series[Any], unit: str) -> str:
    """Return the hover text of a dose: its effect, the bands of the controls, and the loss."""
    if row["by"] == 0:
        return "<b>no edit</b>"
    effect = cause_words.interval_in_words(row["effect"], row["low"], row["high"])
    lines = [
        f"<b>{row['by']:+g} standard deviations</b>",
        f"change: {effect} {style.plotly_text(unit)}",
    ]
    for name, start in (("permuted labels", "null"), ("equal covariance", "matched")):
        low, high = row[f"{start}_low"], row[f"{start}_high"]
        if not math.isnan(low):
            lines.append(f"95 % of {name}: {low:.2f} to {high:.2f}")
    if not math.isnan(row["other_loss"]):
        loss = cause_words.interval_in_words(row["other_loss"], row["other_low"], row["other_high"])
        lines.append(f"loss on other texts: {loss} nats per token")
    return "<br>".join(lines)


def refit_figure(panels: Sequence[Panel], layers: dict[int, str] | None = None) -> go.Figure:
    """Return the balanced accuracy of probes at later sites before and after erasure, in panels.

    Args:
        panels: placed rows of downstream.csv for each erased site and kind of later sites.
        layers: labels of the layer axis by depth; by default those of the refitted sites.
    """
    rows = pd.concat([of_panel for _, of_panel in panels])
    axis = axis_labels(rows, layers)
    figure = layer_curve.panel_grid([title for title, _ in panels], "balanced accuracy")
    labels = []
    for number, (_, of_panel) in enumerate(panels, start=1):
        # The line of chance is that of 0, moved to the chance level.
        chance = zero_line(style.layer_ends(axis))
        level = float(of_panel["chance"].iloc[0])
        chance.update(y=[level] * 2, line_dash="longdash", name=f"chance {level:.2f}")
        lines: list[go.Scatter] = []
        # The lines before and after erasure, each after the band of its intervals.
        for place, (name, look) in enumerate(_LINES.items()):
            ends = [f"{name}_low", f"{name}_high"]
            hover = [
                f"<b>{style.plotly_text(row['site'])}</b><br>{look.label}: "
                + cause_words.interval_in_words(*row[[name, *ends]])
                for _, row in of_panel.iterrows()
            ]
            depths = of_panel["depth"]
            line = layer_curve.scatter(depths, of_panel[name], look, place, look.label, hover)
            points = of_panel.rename(columns=dict(zip(ends, ("ci_low", "ci_high"), strict=True)))
            lines += [*layer_curve.band(depths, points, line, layer_curve.WIDTH), line]
        layer_curve.draw_in_panel(figure, [chance, *lines], number)
        named = [trace for trace in [*lines, chance] if trace.name and not trace.fill]
        labels.append([label for trace in named for label in label_at_end(trace)])
    # The axis contains all values and intervals, chance, and the highest possible value.
    bounds = [f"{name}{end}" for name in _LINES for end in ("", "_low", "_high")]
    low, high = style.finite_ends([*rows[[*bounds, "chance"]].to_numpy().ravel().tolist(), 1.0])
    layer_curve.panel_layers(figure, axis, [set(axis)] * len(panels))
    figure.update_yaxes(range=style.with_margin(low, high))
    layer_curve.label_panels(figure, labels)
    return figure


def token_maps(
    edits: EditSet, record: CausesRecord
) -> Iterator[tuple[str, pd.DataFrame, go.Figure]]:
    """Yield name, rows and map of each kind of site that is edited at each token.

    The maps have one colour scale. Of attention heads only the `MOST_HEADS` with the largest
    absolute values have a row.
    """
    rows, blocks = edits.rows, n_blocks(edits.rows["site"].unique())
    scale = maps.diverging(rows["value"], maps.LEAST_RANGE)
    for line, cells in rows[rows["head"].isna()].groupby("line", sort=False):
        names = [tick(int(depth), blocks) for depth in cells["depth"]]
        yield str(line), cells, _token_map(edits, cells.assign(name=names), scale, record)
    head = ["depth", "head"]  # the columns that name a head
    for part, of_part in edits.of_heads.groupby("part", sort=False):
        largest = of_part.assign(value=of_part["value"].abs()).groupby(head)["value"].max()
        shown = largest.nlargest(MOST_HEADS).index
        is_shown = pd.MultiIndex.from_frame(of_part[head]).isin(shown)
        cells = of_part[is_shown].sort_values(head, kind="stable")
        names = [f"L{row['depth']}H{row['head']:.0f}" for _, row in cells.iterrows()]
        figure = _token_map(edits, cells.assign(name=names), scale, record)
        yield f"{part} heads", of_part, figure.update_yaxes(title_text="head")


def _token_map(
    edits: EditSet, cells: pd.DataFrame, scale: maps.Colours, record: CausesRecord
) -> go.Figure:
    """Return the map of cells by their `name` (down) and position (across)."""
    cells = cells.dropna(subset="position").astype({"position": int})
    hover = [
        edit_hover(edits, row, cause_words.position_label(row["position"], record))
        for _, row in cells.iterrows()
    ]
    positions = sorted({*cells["position"]})
    figure = maps.cell_map(
        cells.assign(hover=hover),
        scale,
        down=("name", {name: name for name in cells["name"]}),
        across=("position", {position: token_tick(position, record) for position in positions}),
        title="token" if record.tokens else "position",
    )
    if record.tokens:
        figure.update_xaxes(autotickangles=[0, -90])
    return maps.thin_ticks(_frame_largest(figure))


def token_tick(position: int, record: CausesRecord) -> str:
    """Return the label of a position: its token, in italics if the token differs between texts.

    It is the number of the position if the record has no token of it.
    """
    if position >= len(record.tokens):
        return str(position)
    token = style.plotly_text(short_label(record.tokens[position]))
    differs = position < len(record.same_tokens) and not record.same_tokens[position]
    return f"<i>{token}</i>" if differs else token


def head_map_of(edits: EditSet, part: str) -> go.Figure:
    """Return the map of the heads of one kind of site, with the largest value framed."""
    cells = edits.of_heads[edits.of_heads["part"] == part]
    figure = maps.cell_map(
        cells.assign(hover=[edit_hover(edits, row) for _, row in cells.iterrows()]),
        maps.diverging(edits.of_heads["value"], maps.LEAST_RANGE),
        down=("depth", {depth: str(depth) for depth in cells["depth"]}),
        across=("head", {head: f"{head:.0f}" for head in sorted(cells["head"].unique())}),
        title="head",
    )
    return _frame_largest(figure)


def _frame_largest(figure: go.Figure) -> go.Figure:
    """Frame the cell with the largest absolute value, unless the map has only one."""
    values = np.array(figure.data[0].z, dtype=np.float64)
    if values.size > 1:
        row, column = divmod(int(np.nanargmax(np.abs(values))), values.shape[1])
        maps.frame_cell(figure, column, row)
        maps.write_above(figure, STRONGEST)
    return figure
