"""The direction of the selected probe on a page: its tokens, and rows projected on it by layer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.amounts import fixed, format_number, joined_names
from probekit.chosen.page import Shown
from probekit.report.elements import style
from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.elements.style import CHANCE_LINE, LineStyle, plain_line, plotly_text
from probekit.report.elements.texts import class_label, quote, token_label
from probekit.report.figures.layer_curve import band, scatter
from probekit.results.table import metric_name, only
from probekit.results.verdict import Choice

SOLID, OTHER = LineStyle("", "solid"), LineStyle("", "dot", style.GREY)
UNINFORMED = {"auroc": 0.5, "spearman": 0.0}  # of a direction that is unrelated to the label
BOUND = (
    "Any direction has nearest tokens: of probes fitted on permuted labels (whole groups are "
    "permuted, or rows within groups that have several labels; same penalty), 95 % have no "
    "absolute cosine above {bound} (dashed). Of these tokens, beyond it: {tokens}."
)
NO_BOUND = "No probes were fitted on permuted labels to compare with."
OF_A_SPLIT = "The probe was fitted at this site alone, and the site selected, on other rows."
OF_FOLDS = (
    "Each outer fold is projected on the direction of a probe that was fitted at this site alone, "
    "without its rows; the site was selected by validation scores that include them."
)


def figures(run: Shown) -> Iterator[FigurePart]:
    """Yield the tokens of the direction and the projections on it, if the run has them."""
    tokens, projections = run.rows("tokens_of_direction.csv"), run.rows("projections.csv")
    best, is_nested = run.verdict.best, run.verdict.is_nested
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
    figure = make_subplots(1, len(names), horizontal_spacing=0.4 / (len(names) + 1))
    most = 1.1 * max([*rows["cosine"].abs(), *bounds])
    for col, name in enumerate(names, 1):
        own, at = only(rows, direction=name), {"row": 1, "col": col}
        tokens, is_beyond = own["token"].map(quote), own["cosine"].abs() > own["null_high"]
        for colour, some in ((style.SERIES_COLOURS[0], is_beyond), (style.GREY, ~is_beyond)):
            x, y = own["cosine"][some], np.flatnonzero(some).tolist()
            bars: dict[str, Any] = {"type": "data", "color": colour, "thickness": 6, "width": 0}
            bars |= {"array": (-x).clip(lower=0).tolist(), "arrayminus": x.clip(lower=0).tolist()}
            pairs = zip(tokens[some], x, strict=True)
            hover = [plotly_text(f"{token} {fixed(cosine, 3)}") for token, cosine in pairs]
            look = {"marker": {"color": colour, "size": 9}, "error_x": bars, "hovertext": hover}
            figure.add_scatter(x=x.tolist(), y=y, mode="markers", hoverinfo="text", **look, **at)
        for bound in own["null_high"].dropna()[:1]:
            for x in (-bound, bound):
                figure.add_vline(x=x, line=CHANCE_LINE, **at)
        labels = [style.short_tick(token_label(token)) for token in own["token"]]
        ticks = {"tickvals": list(range(len(own))), "ticktext": labels, "autorange": "reversed"}
        figure.update_yaxes(**ticks, **at)
        figure.update_xaxes(title_text="cosine similarity", range=[-most, most], **at)
        # Above the right end, to which the direction leads.
        place = style.above_left("x" if col == 1 else f"x{col}") | {"x": 1, "xanchor": "right"}
        figure.add_annotation(text=f"towards {plotly_text(class_label(name))} →", **place)
        if found := joined_names([*tokens[is_beyond]]):
            words.append(f"{class_label(name)}: {found}" if len(names) > 1 else found)
    figure.update_layout(template=style.TEMPLATE, showlegend=False, meta=style.STACKS)
    figure.update_layout(margin_t=style.TITLE_MARGIN)
    null, of = NO_BOUND, "s of the most frequent labels" * (len(names) > 1)
    if len(bounds):
        low, high = (fixed(bounds.agg(end), 2) for end in ("min", "max"))
        bound = low if low == high else f"{low} to {high}, depending on the direction"
        null = BOUND.format(bound=bound, tokens="; ".join(words) or "none")
    ends = [f"{token_label(row['token'])} {fixed(row['cosine'], 2)}" for _, row in rows.iterrows()]
    return FigurePart(
        "Tokens of the probe's direction",
        figure_json(figure),
        "The tokens with the highest and the lowest cosine between their unembedding (minus the "
        f"mean of all tokens) and the direction{of} of the {best.probe} probe at {best.name}"
        f"{', fitted on all rows' * is_nested} (times the gain of the final norm). They describe "
        f"its direct effect on the logits, without that of later blocks. {null}",
        f"Cosines: {'; '.join(ends)}",
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
    scores, title = rows.drop_duplicates(["direction", "site"]), metric_name(metric)
    is_single = len(rows["direction"].unique()) == 1
    figure, left, right = make_subplots(1, 2, horizontal_spacing=0.12), (1, 1), (1, 2)
    for number, (label, points) in enumerate(rows.groupby("label", sort=False), 1):
        line = _line(str(label), points, "mean", number)
        limits = points.assign(ci_low=points["low"], ci_high=points["high"])
        figure.add_traces([*band(points["depth"], limits, line), line], *left)
    if is_single:
        lines = [_line("this direction", scores, "value", 0)]
        lines.append(_line("probe of each site", own, "value", 1, OTHER))
    else:
        named = enumerate(scores.groupby("direction", sort=False), 1)
        lines = [_line(str(name), points, "value", n) for n, (name, points) in named]
        lines = [line.update(showlegend=False) for line in lines]
    figure.add_traces(lines, *right)
    for level, at in ((0.0, left), (UNINFORMED[metric], right)):
        figure.add_trace(plain_line([min(layers), max(layers)], [level] * 2, CHANCE_LINE), *at)
    selected = scores["depth"][scores["is_selected"]].iloc[0]
    figure.add_vline(x=selected, line=CHANCE_LINE | {"dash": "dot"})
    style.layer_axis(figure, layers, most=10)
    figure.update_yaxes(title_text="projection (standard deviations)", row=1, col=1)
    figure.update_yaxes(title_text=title, row=1, col=2)
    figure.update_layout(template=style.TEMPLATE, showlegend=True, meta=style.STACKS)
    of_labels, of_scores = "frequent labels, each on its own direction", "each direction"
    if is_single:
        of_labels = "each label" if metric == "auroc" else "each third of the true values"
        of_scores = "this direction and (dotted) the probe of each site"
    known = scores[scores["value"].notna()].to_dict("records")
    return FigurePart(
        "Projections on the probe's direction by layer",
        figure_json(figure),
        f"Held-out rows at each site, projected on the direction of the {best.probe} probe at "
        f"{best.name} (vertical line). Left: mean of {of_labels}, with a band from the 10 % to the "
        "90 % quantile. The unit is the standard deviation of the training rows at the same site "
        f"(0: their mean), because activations grow over layers. Right: {title} of {of_scores}, "
        "with 95 % intervals over groups. Dashed: no information. "
        f"{OF_FOLDS if is_nested else OF_A_SPLIT}",
        f"{title} of the direction: "
        + "; ".join(
            f"{class_label(row['direction'])} at {row['site']} "
            f"{format_number(row['value'], row['ci_low'], row['ci_high'])}"
            for row in known
        ),
        is_open=False,
    )


def _line(
    name: str, points: pd.DataFrame, column: str, number: int, look: LineStyle = SOLID
) -> go.Scatter:
    """Return the line of a column over depth, with its intervals if it is a score."""
    shown = plotly_text(class_label(name))
    hover = [f"<b>{shown}</b><br>{site}" for site in points["site"]]
    line = scatter(points["depth"], points[column], look, number, shown, hover)
    bars = style.error_bars(points, column, 1.2) if column == "value" else None
    return line.update(error_y=bars)
