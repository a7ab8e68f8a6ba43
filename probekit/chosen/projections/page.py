"""The direction of the selected probe on a page: its tokens, and rows projected on it by layer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.amounts import fixed, format_number, joined_names
from probekit.chosen.page import Shown
from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.elements.style import (
    GREY,
    LEVELS,
    SERIES_COLOURS,
    STACKS,
    TEMPLATE,
    TITLE_MARGIN,
    above_left,
    error_bars,
    layer_axis,
    plain_line,
    plotly_text,
    series_marker,
    short_tick,
)
from probekit.report.elements.texts import class_label, quote, token_label
from probekit.report.figures.layer_curve import band
from probekit.results.table import metric_name, only
from probekit.results.verdict import Choice

DASHED = {"color": GREY, "dash": LEVELS["chance"].dash, "width": LEVELS["chance"].width}
UNINFORMED = {"auroc": 0.5, "spearman": 0.0}  # of a direction that is unrelated to the label
NO_NULL = "No probes were fitted on permuted labels to compare with."
OF_A_SPLIT = "The probe was fitted at this site alone, and the site selected, on other rows."
OF_FOLDS = (
    "Each outer fold is projected on the direction of a probe that was fitted at this site alone, "
    "without its rows; the site was selected by validation scores that include them."
)


def figures(run: Shown) -> Iterator[FigurePart]:
    """Yield the tokens of the direction and the projections on it, if the run has them."""
    tokens, projections = run.rows("tokens_of_direction.csv"), run.rows("projections.csv")
    best, is_nested = run.verdict.best, run.verdict.is_nested
    assert best is not None or (tokens is None and projections is None)
    if tokens is not None and best is not None:
        yield token_part(tokens, best, is_nested=is_nested)
    if projections is not None and best is not None:
        place = {"probe": best.probe, "position": best.position, "target": "task", "split": "test"}
        sited = run.scores.of_all_folds.sited
        rows = projections.merge(sited[["site", "depth"]].drop_duplicates())
        own = only(sited, metric=rows["metric"].iloc[0], **place)
        own = own[own["site"].isin(rows["site"])]
        yield projection_part(rows, own, run.scores.layers, best, is_nested=is_nested)


def token_part(rows: pd.DataFrame, best: Choice, *, is_nested: bool) -> FigurePart:
    """Return the tokens at both ends of each direction, with the bounds of permuted labels."""
    names, words, bounds = [*rows["direction"].unique()], [], rows["null_high"].dropna()
    which = "the direction" if len(names) == 1 else "the directions of the most frequent labels"
    figure = make_subplots(1, len(names), horizontal_spacing=0.4 / (len(names) + 1))
    most = 1.1 * max([*rows["cosine"].abs(), *bounds])
    for col, name in enumerate(names, 1):
        own, place = only(rows, direction=name), {"row": 1, "col": col}
        tokens = own["token"].map(quote)
        is_beyond, y = own["cosine"].abs() > own["null_high"], np.arange(len(own))
        for colour, some in ((SERIES_COLOURS[0], is_beyond), (GREY, ~is_beyond)):
            x, texts = own["cosine"][some], tokens[some]
            bars: dict[str, Any] = {"type": "data", "color": colour, "thickness": 6, "width": 0}
            bars |= {"array": (-x).clip(lower=0).tolist(), "arrayminus": x.clip(lower=0).tolist()}
            look: dict[str, Any] = {
                "mode": "markers",
                "marker": {"color": colour, "size": 9},
                "hoverinfo": "text",
            }
            hover = [f"{token} {fixed(at, 3)}" for token, at in zip(texts, x, strict=True)]
            look |= {"error_x": bars, "hovertext": list(map(plotly_text, hover))}
            figure.add_scatter(x=x.tolist(), y=y[some].tolist(), **look, **place)
        for bound in own["null_high"].dropna()[:1]:
            for x in (-bound, bound):
                figure.add_vline(x=x, line=DASHED, **place)
        labels = [short_tick(token_label(token)) for token in own["token"]]
        figure.update_yaxes(tickvals=y.tolist(), ticktext=labels, autorange="reversed", **place)
        figure.update_xaxes(title_text="cosine similarity", range=[-most, most], **place)
        at = above_left("x" if col == 1 else f"x{col}")
        figure.add_annotation(text=f"towards {plotly_text(class_label(name))}", **at)
        if found := joined_names([*tokens[is_beyond]]):
            words.append(f"{class_label(name)}: {found}" if len(names) > 1 else found)
    look = {"template": TEMPLATE, "showlegend": False, "meta": STACKS, "margin_t": TITLE_MARGIN}
    figure.update_layout(**look)
    null = NO_NULL
    if len(bounds):
        low, high = fixed(bounds.min(), 2), fixed(bounds.max(), 2)
        null = (
            "Any direction has nearest tokens: of probes fitted on permuted labels (whole groups "
            "are permuted, or rows within groups that have several labels; same penalty), 95 % "
            f"have no absolute cosine above {low if low == high else f'{low} to {high}'} (dashed). "
            f"Tokens beyond it: {'; '.join(words) or 'none of these'}."
        )
    return FigurePart(
        "Tokens of the probe's direction",
        figure_json(figure),
        "The tokens with the highest and the lowest cosine between their unembedding (minus the "
        f"mean of all tokens) and {which} of the {best.probe} probe at {best.name}"
        f"{', fitted on all rows' * is_nested} (times the gain of the final norm). They describe "
        f"its direct effect on the logits; later blocks may read it otherwise. {null}",
        "Highest cosines: "
        + "; ".join(
            f"{token_label(row['token'])} {fixed(row['cosine'], 2)}"
            for _, row in rows[rows["cosine"] > 0].iterrows()
        ),
        is_open=False,
        height=28,
    )


def projection_part(
    rows: pd.DataFrame, own: pd.DataFrame, layers: dict[int, str], best: Choice, *, is_nested: bool
) -> FigurePart:
    """Return projections by label and layer, and the score of the direction at each layer.

    Args:
        rows: the projections, with the `depth` of their sites.
        own: test scores of the probes that were fitted at these sites.
        layers: labels of the layer axis, by depth.
        best: the selected probe.
        is_nested: whether there are several outer folds.
    """
    rows, metric = rows.sort_values("depth", kind="stable"), str(rows["metric"].iloc[0])
    of_directions = rows.drop_duplicates(["direction", "site"])
    is_single = len(rows["direction"].unique()) == 1
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    for number, (label, points) in enumerate(rows.groupby("label", sort=False), 1):
        line = _line(str(label), points, "mean", number)
        limits = points.assign(ci_low=points["low"], ci_high=points["high"])
        figure.add_traces([*band(points["depth"], limits, line), line], rows=1, cols=1)
    for number, (name, points) in enumerate(of_directions.groupby("direction", sort=False), 1):
        line = _line(str(name), points, "value", number, showlegend=False)
        if is_single:
            line = _line("this direction", points, "value", 0)
        figure.add_trace(line, row=1, col=2)
    if is_single and len(own):
        line = _line("probe of each site", own, "value", 0)
        look = {"color": GREY, "dash": "dot"}
        line.update(line=look, marker={"color": GREY, "symbol": "square-open"})
        figure.add_trace(line, row=1, col=2)
    ends = [min(layers), max(layers)]
    figure.add_trace(plain_line(ends, [0, 0], DASHED), row=1, col=1)
    figure.add_trace(plain_line(ends, [UNINFORMED[metric]] * 2, DASHED), row=1, col=2)
    figure.add_vline(x=rows["depth"][rows["is_selected"]].iloc[0], line=DASHED | {"dash": "dot"})
    layer_axis(figure, layers, most=10)
    figure.update_yaxes(title_text="projection (standard deviations)", row=1, col=1)
    figure.update_yaxes(title_text=metric_name(metric), row=1, col=2)
    figure.update_layout(template=TEMPLATE, showlegend=True, meta=STACKS)
    of_labels, of_score = "each label", "this one direction"
    if not is_single:
        of_labels, of_score = "frequent labels, each on its own direction", "each of them"
    others = " Dotted: probes fitted at each site." * (is_single and len(own) > 0)
    held_out = OF_FOLDS if is_nested else OF_A_SPLIT
    return FigurePart(
        "Projections on the probe's direction by layer",
        figure_json(figure),
        f"Held-out rows at each site, projected on the direction of the {best.probe} probe at "
        f"{best.name} (vertical). Left: mean of {of_labels}, with a band from the 10 % to the "
        "90 % quantile, in standard deviations of the training rows at the same site around "
        f"their mean, as activations grow over layers. Right: {metric_name(metric)} of "
        f"{of_score}, with 95 % intervals over groups.{others} Dashed: no information. {held_out}",
        f"{metric_name(metric)} of the direction: "
        + "; ".join(
            f"{row['direction']} at {row['site']} "
            f"{format_number(row['value'], row['ci_low'], row['ci_high'])}"
            for _, row in of_directions.iterrows()
        ),
        is_open=False,
    )


def _line(name: str, points: pd.DataFrame, column: str, number: int, **settings: Any) -> go.Scatter:
    """Return the line of a column over depth, with its intervals if it is a score."""
    marker, shown = series_marker(number, 7), plotly_text(class_label(name))
    bars = {"error_y": error_bars(points, column, 1.2)} if column == "value" else {}
    return go.Scatter(
        x=points["depth"].tolist(),
        y=points[column].tolist(),
        mode="lines+markers",
        name=shown,
        legendgroup=shown,
        marker=marker,
        line={"color": marker["color"], "width": 2},
        hovertext=[
            f"<b>{shown}</b><br>{row['site']}<br>{format_number(row[column])}"
            for _, row in points.iterrows()
        ],
        hoverinfo="text",
        **bars,
        **settings,
    )
