"""Further figures of a run's page: scores by k, by share of a reply, by training rows and by name.

Then confidence and accuracy, and norms of the residual stream with its massive activations.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from textwrap import wrap
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.amounts import LEVEL, fixed, format_difference, format_number
from probekit.probes.targets import BASELINES, TARGETS
from probekit.report.elements import page, style
from probekit.report.elements.texts import capitalised
from probekit.report.figures import maps
from probekit.report.figures.layer_curve import band, end_labels, finish_curve, point_hover, scatter
from probekit.report.figures.line_labels import draw_levels, levels, name_lines, name_traces
from probekit.report.figures.views import at_shown_position, position_share, position_words
from probekit.report.sentences.captions import main_name, spread
from probekit.results import table
from probekit.results.record import Norms
from probekit.results.scores import Scores, site_with_head
from probekit.results.verdict import Choice, Verdict

SPACE = 0.12  # smallest distance of two ticks of training rows, as a share of the axis
SIZE = r"^k_sparse:(?P<k>\d+)$"  # kind of probe that uses k features
LEAST_SIZES = 3  # values of k; fewer make no curve
MOST_SITES = 3  # lines of a curve by k
SITE = ["line", "site", "position"]  # columns that identify a site in the curve by k
# Vertical domains: row counts on their own axis below accuracy curves.
COUNTS, CURVES = (0.0, 0.2), (0.28, 1.0)
# Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers if that gives
# more than MOST_LOG_TICKS.
POWERS = [10.0**power for power in range(-3, 8)]
LOG_TICKS = [power * step for power in POWERS for step in (1, 2, 5)]
MOST_LOG_TICKS = 8
LONGEST_NAME = 22  # characters in a line

Estimate = Sequence[float]  # a value with the limits of its interval
Line = tuple[str, style.LineStyle, int, pd.DataFrame]  # name, style, number of its series, points


def sparse_rows(scores: Scores) -> pd.DataFrame:
    """Return the test rows of k-sparse probes at the best sites, best site first, with column `k`.

    There are at most `MOST_SITES` sites, ranked by their best cross-validated score over all k. The
    result is empty if there are fewer than `LEAST_SIZES` values of k.
    """
    at_position = at_shown_position(scores)
    rows = table.only(at_position.sited, split="test")
    rows = rows.assign(k=rows["probe"].str.extract(SIZE)["k"].astype(float)).dropna(subset="k")
    if rows["k"].nunique() < LEAST_SIZES:
        return rows.iloc[:0]
    ranked = at_position.ranked
    ranked = ranked[ranked["probe"].str.fullmatch(SIZE) & ranked["site"].isin(rows["site"])]
    best = ranked[SITE].drop_duplicates().head(MOST_SITES)
    best = best.assign(rank=range(len(best)))
    return rows.merge(best, on=SITE).sort_values(["rank", "k"], kind="stable")


def sparse_part(scores: Scores, v: Verdict) -> Iterator[page.FigurePart]:
    """Yield the figure of the main metric by k, for the best sites, if there are `sparse_rows`.

    For the best site it also shows the interval (a band) and the control task. Horizontal lines
    show the baselines and the best probe of another kind, which uses all features of that site.
    """
    rows = sparse_rows(scores)
    if rows.empty:
        return
    of_all_metrics, metric, lines = rows, Scores(rows).metric, list[Line]()
    rows = table.only(rows, metric=metric)
    for number, (_, points) in enumerate(rows.groupby("rank")):
        name = site_with_head(points["site"].iloc[0], points["head"].iloc[0])
        lines.append((name, style.LINES["task"], number, table.only(points, target="task")))
        control = table.only(points, target="control")
        if number == 0 and not control.empty:
            look = style.LINES["control"]
            lines.append((f"{look.label} at the best site", look, number, control))
    figure = _draw(lines, "k", lambda _, row: f"k = {row['k']:,.0f}")
    # The baselines, and the best other probe on all features of the best site.
    measured = at_shown_position(scores).where(metric=metric, split="test")
    baselines = levels(measured.where(site=""))
    best = {column: rows[column].iloc[0] for column in SITE}
    ranked = scores.ranked
    others = table.only(ranked[~ranked["probe"].str.fullmatch(SIZE)], **best)
    full = table.only(measured.sited, target="task", **best)
    full = full[full["probe"].isin(others["probe"].head(1))].dropna(subset="value")
    references = baselines + [("all_features", row) for _, row in full.head(1).iterrows()]
    sizes = sorted(rows["k"].unique())
    _finish(figure, rows, references, "features, k", sizes, sizes, margin=1.3)
    title = f"{main_name(v)} by number of features"
    yield page.FigurePart(
        title,
        page.figure_json(figure),
        f"{main_name(v)} of logistic probes on the k features that separate the classes best "
        "on the training rows; features are selected and probes fitted separately for each k. The "
        "sites with the best cross-validated scores are drawn; the best one with its 95 % "
        "interval as a band and its control task. All features: the best other probe at that site."
        f"{pooled_ranking(v)} Measured on {spread(of_all_metrics, 'n_test')} held-out rows in "
        f"{spread(of_all_metrics, 'n_groups')} groups.",
        _lines_in_words(
            title,
            [(name, points) for name, look, _, points in lines if look is style.LINES["task"]],
            lambda row: f"{row['k']:,.0f} {format_number(row['value'])}",
        ),
    )


def _learning_lines(scores: Scores, chosen: pd.Series) -> list[Line]:
    """Return the learning curves, in ascending order of training rows.

    The order is: the selected probe at the selected site, the other kinds at that site, the
    selected kind at the embedding. Lines without rows and `hidden_kinds` are left out.
    """
    rows = table.only(scores.sited, split="learning")
    rows = rows[~rows["probe"].isin(scores.hidden_kinds)].sort_values("n_train", kind="stable")
    kind, site = str(chosen["probe"]), [name for name in table.SAME_FEATURES if name != "probe"]
    lines = [(kind, table.same_features(rows, chosen))]
    others = table.only(rows, **chosen[site]).groupby("probe", sort=False)
    lines += [(str(probe), at_site) for probe, at_site in others if probe != kind]
    if chosen["depth"] != table.EMBED_DEPTH:
        embedding = table.only(rows, **chosen[["line", "position", "probe"]])
        embedding = embedding[embedding["depth"].eq(table.EMBED_DEPTH)]
        lines.append((f"{kind} at the embedding", embedding))
    known = [(name, points) for name, points in lines if not points.empty]
    return [
        (name, style.LINES["task"], number, points) for number, (name, points) in enumerate(known)
    ]


def learning_part(scores: Scores, v: Verdict) -> Iterator[page.FigurePart]:
    """Yield the figure of test score by number of training rows, if there are several.

    The first line shows its interval as a band. Baselines, fitted on all training rows, are
    horizontal lines.
    """
    lines = [] if scores.chosen is None else _learning_lines(scores, scores.chosen)
    if not lines or v.best is None:
        return
    figure = _draw(lines, "n_train", lambda name, row: f"{name}, {row['n_train']:,.0f} rows")
    first = lines[0][-1]
    # The baselines at the selected position, and those that have no position.
    is_at_position = scores.rows["position"].isin(["", first["position"].iloc[0]])
    metric = Scores(first).metric
    sizes = sorted({n for *_, points in lines for n in points["n_train"]})
    baselines = scores.where(is_at_position, metric=metric, split="test", site="")
    _finish(figure, first, levels(baselines), "training rows", sizes, spaced(sizes), margin=1.15)
    title = f"{main_name(v)} by number of training rows"
    yield page.FigurePart(
        title,
        page.figure_json(figure),
        f"{main_name(v)} at {v.best.name} on {spread(first, 'n_test')} held-out rows in "
        f"{spread(first, 'n_groups')} groups, by number of training rows. Training samples consist "
        "of whole groups and are nested; the penalty is that chosen on all training rows. The band "
        "is the 95 % interval of the chosen probe. Baselines are fitted on all training rows."
        f"{pooled_ranking(v)}",
        _lines_in_words(
            title,
            [(name, points) for name, *_, points in lines],
            lambda row: f"{row['n_train']:,.0f} rows {format_number(row['value'])}",
        ),
    )


def share_lines(scores: Scores) -> list[tuple[str, pd.DataFrame]]:
    """Return name and test rows of each line of the curve by share, in ascending order of share.

    The name is a key of `LINES` or `LEVELS`. The order is: the selected probe at the selected site,
    the same with random weights, and the baselines; at each share, they read no more of a reply
    than the network. Empty without several shares of replies, or without a selected site. The
    column `p` of the selected probe is adjusted for all sites and shares; NaN without p-values.
    """
    chosen, tests = scores.chosen, table.only(scores.rows, split="test")
    tests = tests.assign(share=position_share(tests["position"])).dropna(subset="share")
    if chosen is None or tests["share"].nunique() < LEAST_SIZES:
        return []
    tests = tests.sort_values("share", kind="stable")
    site = {column: chosen[column] for column in table.SAME_FEATURES if column != "position"}
    sited = table.only(table.by_depth(tests), **site)
    p = table.only(sited, metric="p_holm", target="task").set_index("position")["value"]
    tests, sited = (table.only(rows, metric=chosen["metric"]) for rows in (tests, sited))
    sited = sited.assign(p=sited["position"].map(p))
    lines = [(name, table.only(sited, target=name)) for name in ("task", "random_weights")]
    lines += [(name, table.only(tests, target=name)) for name in BASELINES]
    return [(name, rows) for name, rows in lines if not rows.empty]


def decodable_from(scores: Scores) -> tuple[str, bool]:
    """Return from which share of a reply on the score is above chance, and whether from none.

    The sentence is "" without shares, or without a p-value of each.
    """
    scored = share_lines(scores)
    if not scored or scored[0][1]["p"].isna().any():
        return "", False
    later = scored[0][1].iloc[::-1]
    above = later["share"][later["p"].lt(LEVEL).cummin()]
    if not len(above):
        text = "At the last share the score is not above that with exchanged labels (p ≥ "
    else:
        since = f"From {100 * above.min():g} % of the reply on"
        text = f"{since}, the score is above that with exchanged labels (each p < "
    return f"{text}{LEVEL:g}, adjusted for all sites and shares).", not len(above)


def share_parts(scores: Scores, v: Verdict) -> Iterator[page.FigurePart]:
    """Yield curve and map of test scores by share of the reply, if there are `share_lines`."""
    scored = share_lines(scores)
    if not scored:
        return
    lines = list[Line]()
    for number, (name, points) in enumerate(scored):
        look = style.LINES.get(name) or replace(style.LEVELS[name], marker_size=6)
        lines.append((look.label, look, number, points.assign(percent=100 * points["share"])))
    figure = _draw(lines, "percent", lambda name, row: f"{name}, {position_words(row['position'])}")
    figure.update_xaxes(title_text="share of the reply (%)", range=[-4, 104])
    _, rows = scored[0]
    finish_curve(figure, Scores(rows).metric, rows["chance"].min(), [])
    first = rows.iloc[0]
    yield page.FigurePart(
        f"{main_name(v)} by share of the reply",
        page.figure_json(figure),
        f"{first['probe']} at {site_with_head(first['site'], first['head'])}, the site "
        "selected over all shares, read at the token at each share of a reply; 0 % is the last "
        "token before it. At each share the baselines read the prompt and the reply up to that "
        "token, and length alone is that of the reply up to it. Band: 95 % intervals over groups, "
        "which are prompts unless the data assign others; at each share alone, not adjusted for "
        "the number of shares.",
        _lines_in_words(
            "Score by share of the reply",
            [(TARGETS[name].title, points) for name, points in scored],
            lambda row: f"{100 * row['share']:g} % {format_number(row['value'])}",
        ),
    )
    yield from share_map(scores)


def share_map(scores: Scores) -> Iterator[page.FigurePart]:
    """Yield the map of the scores of the selected kind of probe by layer and share of the reply."""
    chosen = scores.chosen
    assert chosen is not None, "`share_lines` has checked it"
    same = {column: chosen[column] for column in ("line", "probe", "view", "metric")}
    cells = table.only(scores.sited, split="test", target="task", **same)
    cells = cells.assign(percent=100 * position_share(cells["position"])).dropna(subset="percent")
    depths = sorted(cells["depth"].unique())
    if len(depths) < 2:
        return
    blocks, shares = table.n_blocks(cells["site"].unique()), sorted(cells["percent"].unique())
    hover = [
        f"<b>{style.plotly_text(row['site'])}</b>, {row['percent']:g} % of the reply<br>"
        f"{format_number(row['value'], row['ci_low'], row['ci_high'])}"
        for _, row in cells.iterrows()
    ]
    metric = table.metric_name(str(chosen["metric"]))
    figure = maps.cell_map(
        cells.assign(hover=hover),
        maps.map_colours(cells),
        down=("depth", {depth: table.tick(int(depth), blocks) for depth in depths}),
        across=("percent", {share: f"{share:g}" for share in shares}),
        title="share of the reply (%)",
    )
    at = 100 * position_share(pd.Series([chosen["position"]])).iloc[0]
    maps.frame_cell(figure, shares.index(at), depths.index(chosen["depth"]))
    yield page.FigurePart(
        f"{metric[:1].upper()}{metric[1:]} by layer and share of the reply",
        page.figure_json(figure),
        f"Test {metric} of {chosen['probe']} probes, each fitted at its layer and share. Framed: "
        f"the site and share selected by cross-validation. {maps.colour_words(cells)}",
        maps.map_description(cells),
        height=max(24, 7 + 1.75 * len(depths)),
    )


def _draw(lines: Sequence[Line], across: str, words: Callable[[str, pd.Series], str]) -> go.Figure:
    """Return the figure of lines by a column of their points; the first one has a band.

    The band is that of its intervals. `words` name a point in its hover text, given the name of the
    line and the row of the point.
    """
    figure = go.Figure(layout={"template": style.TEMPLATE})
    for place, (name, look, number, points) in enumerate(lines):
        hover = [point_hover(words(name, row), row) for _, row in points.iterrows()]
        hover = [text.removeprefix("<b></b><br>") for text in hover]  # baselines have no site
        line = scatter(points[across], points["value"], look, number, name, hover)
        if place == 0:
            figure.add_traces(band(points[across], points, line))
        figure.add_trace(line)
    return figure


def _finish(
    figure: go.Figure,
    rows: pd.DataFrame,
    references: Sequence[tuple[str, pd.Series]],
    title: str,
    sizes: Sequence[float],
    ticks: Sequence[float],
    *,
    margin: float,
) -> None:
    """Draw horizontal lines and a logarithmic axis of sizes, with equal margins at both ends."""
    ends = [sizes[0] / margin, sizes[-1] * margin]
    labels = draw_levels(figure, references, ends)
    figure.update_xaxes(
        title_text=title,
        type="log",
        tickmode="array",
        tickvals=list(ticks),
        ticktext=[f"{size:,.0f}" for size in ticks],
        range=[math.log10(end) for end in ends],
    )
    finish_curve(figure, Scores(rows).metric, rows["chance"].min(), labels)


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


def reliability_part(bins: pd.DataFrame, scores: Scores, v: Verdict) -> page.FigurePart:
    """Return the reliability diagram: accuracy by confidence for each kind of probe.

    Of a kind with many sizes only the best size is shown, as in the layer curves.
    """
    bins = bins[~bins["probe"].isin(scores.hidden_kinds)]
    return page.FigurePart(
        "Confidence and accuracy",
        page.figure_json(reliability_figure(bins)),
        reliability_caption(bins, scores, v),
        _lines_in_words(
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
    test, errors = table.only(scores.rows, target="task", split="test"), []
    titles = {"brier": "Brier score", "ece": "calibration error"}
    for _, of_probe in bins.groupby("probe", sort=False):
        first = of_probe.iloc[0]
        rows = table.only(test, **first[["probe", "site", "position"]])
        # Sites without heads have NaN, which equals nothing.
        is_head = rows["head"].isna() if pd.isna(first["head"]) else rows["head"] == first["head"]
        known = [
            f"{title} {format_number(row['value'], row['ci_low'], row['ci_high'])}"
            for metric, title in titles.items()
            for _, row in table.only(rows[is_head], metric=metric).head(1).iterrows()
        ]
        errors += [f"{first['probe']} at {first['site']}: {', '.join(known)}"] if known else []
    return (
        "Accuracy by confidence of the predictions, in bins of equal width, with 95 % intervals "
        "for new test groups (jackknife). Each kind of probe is shown at the site of its best "
        f"cross-validated {table.metric_name(v.metric)}. On the dashed line the probe is "
        f"calibrated; below it, overconfident. Lower is better: {'; '.join(errors)}. "
        "Chance differences do not count in the calibration error, so that 0 is calibrated and a "
        f"value may be negative; compare probes by the Brier score.{pooled_ranking(v)}"
    )


def reliability_figure(bins: pd.DataFrame) -> go.Figure:
    """Return the reliability diagram, with bars for the number of rows in each bin.

    A calibrated probe lies on the dashed diagonal; below it, the probe is overconfident.

    Args:
        bins: One row for each non-empty bin: `probe`, edges `low` and `high`, `n_rows`, mean
            `confidence`, `accuracy`, and its interval `ci_low` and `ci_high`.

    >>> figure = reliability_figure(pd.DataFrame([dict(low=0.5, high=0.6, n_rows=9, confidence=0.55,
    ...     accuracy=0.4, ci_low=0.3, ci_high=0.5, probe="all")]))
    >>> [trace.name for trace in figure.data]
    ['perfectly calibrated', 'all', 'rows: all']
    """
    figure, line = go.Figure(layout={"template": style.TEMPLATE}), style.CHANCE_LINE
    figure.add_trace(style.plain_line([0, 1], [0, 1], line, name="perfectly calibrated"))
    lines = bins.groupby("probe", sort=False)
    for number, (name, of_probe) in enumerate(lines):
        label = style.plotly_text(name)
        points = of_probe.sort_values("confidence")
        # Accuracy by confidence with intervals as error bars, and bars of row counts.
        marker = style.series_marker(number + 1, 8)
        shared = {
            "legendgroup": label,
            "hovertext": [
                f"<b>confidence above {row['low']:.2f} to {row['high']:.2f}</b><br>"
                f"mean confidence: {format_number(row['confidence'])}<br>accuracy: "
                f"{format_number(row['accuracy'], row['ci_low'], row['ci_high'])}<br>"
                f"test rows: {row['n_rows']:,.0f}"
                for _, row in points.iterrows()
            ],
            "hoverinfo": "text",
        }
        figure.add_scatter(
            x=points["confidence"].tolist(),
            y=points["accuracy"].tolist(),
            error_y=style.error_bars(points, "accuracy", 1),
            name=label,
            mode="lines+markers",
            line={"color": marker["color"], "width": 2},
            marker={"symbol": marker["symbol"], "size": 8},
            **shared,
        )
        figure.add_bar(
            x=((points["low"] + points["high"]) / 2).tolist(),
            y=points["n_rows"].tolist(),
            yaxis="y2",
            name=f"rows: {label}",
            showlegend=False,
            marker={"color": marker["color"], "line": {"width": 0}},
            opacity=0.6,
            **shared,
        )
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


def norms_part(norms: list[Norms]) -> page.FigurePart:
    """Return the figure that compares activation norms at position 0 with those elsewhere."""
    rows = pd.DataFrame([norm.model_dump() for norm in norms])
    ratios = rows["first_position_norm"] / rows["other_norm"]
    return page.FigurePart(
        "Norm of position 0",
        page.figure_json(norm_curve(rows)),
        "Median norm of the activations at position 0 and at all other positions. Models may use "
        "the first position as an attention sink, and later tokens too: if their norms are much "
        "larger, means and scalers that include them do not represent the other tokens.",
        "Ratio of the norm at position 0 to that at other positions. "
        + ", ".join(f"{site} {r:.1f}" for site, r in zip(rows["site"], ratios, strict=True)),
    )


def massive_words(norms: Norms) -> str:
    """Return where the massive activations of a site are; "" if there are none.

    >>> facts = {"n_texts": 64, "massive": [("", 64, 0, 0), (" the", 45, 2, 12)]}
    >>> massive_words(Norms(site="x", layer=2, first_position_norm=9, other_norm=1, **facts))
    "any token at position 0 in 64 of 64 texts; ' the' at positions 2 to 12 in 45 of 64 texts"
    """
    return "; ".join(
        f"{repr(token) if token else 'any token'} at position{'s' * (low < high)} {low}"
        f"{f' to {high}' * (low < high)} in {n:,} of {norms.n_texts:,} texts"
        for token, n, low, high in norms.massive
    )


def norm_curve(norms: pd.DataFrame) -> go.Figure:
    """Return the figure of median norms by layer, at position 0 and at all other positions.

    Each component (residual stream, attn_out, ...) has its own two lines.

    Args:
        norms: Columns `site`, `first_position_norm` and `other_norm`.
    """
    rows = table.by_depth(norms.assign(head=math.nan))
    rows["ratio"] = rows["first_position_norm"] / rows["other_norm"]
    figure = go.Figure(layout={"template": style.TEMPLATE})
    lines = rows.groupby("line", sort=False)
    for number, ((name, points), (column, look)) in enumerate(product(lines, style.NORMS.items())):
        label = look.label if len(lines) == 1 else f"{look.label} · {name}"
        hover = [
            f"<b>{style.plotly_text(row['site'])}</b><br>{look.label}: {row[column]:,.1f}"
            f"<br>position 0 / others: {row['ratio']:,.1f}"
            for _, row in points.iterrows()
        ]
        figure.add_trace(scatter(points["depth"], points[column], look, number, label, hover))
    style.layer_axis(figure, table.ticks(rows))
    figure.update_yaxes(
        title_text="median norm", **log_axis(rows.melt(value_vars=list(style.NORMS))["value"])
    )
    name_lines(figure, end_labels(figure.data))
    return figure


def at_site(scores: Scores, metric: str, site: Choice) -> dict[str, pd.Series]:
    """Return the test row of each kind of probe at a chosen site, by kind."""
    rows = table.only(scores.sited, target="task", split="test", metric=metric, view=site.view)
    named = rows.assign(name=[*map(site_with_head, rows["site"], rows["head"])])
    of_site = table.only(named, name=site.name, position=site.position)
    return {str(row["probe"]): row for _, row in of_site.iterrows()}


def scores_part(
    metric: str,
    of: str,
    scores: Mapping[str, Estimate],
    differences: Mapping[str, Estimate],
    caption: str,
    chance: float = math.nan,
    unit: str = "difference",
    filled: Sequence[str] = (),
) -> page.FigurePart:
    """Return the figure of named scores, and of differences below, with their 95 % intervals.

    Args:
        metric: the metric of the scores.
        of: what they are of, after the name of the metric in the title.
        scores: score, lower and upper limit by name.
        differences: the same of differences, which are paired if there are scores.
        caption: describes the scores.
        chance: the chance level; NaN for none.
        unit: title of the axis of the differences.
        filled: names with filled blue markers, by default the first score; others are grey.
    """
    panels = [(scores, style.axis_title(metric), chance), (differences, unit, 0.0)]
    panels = [panel for panel in panels if panel[0]]
    heights, words = [len(rows) + 0.4 for rows, *_ in panels], []
    figure = make_subplots(
        len(panels), 1, row_heights=heights, vertical_spacing=4.5 / (9 + 3 * sum(heights))
    )
    figure.update_layout(template=style.TEMPLATE, showlegend=False)
    for panel, (rows, axis, level) in enumerate(panels, 1):
        place = {"row": panel, "col": 1}
        for number, (name, estimate) in enumerate(rows.items()):
            text = format_number(*estimate) if rows is scores else format_difference(*estimate)
            words.append(f"{name} {text}")
            points = pd.DataFrame([estimate], columns=["value", "ci_low", "ci_high"])
            blue = name in (filled or [*scores][:1])
            figure.add_scatter(
                x=[estimate[0]],
                y=[number],
                name=style.plotly_text(name),
                mode="markers+text",
                text=[fixed(estimate[0], 2) if rows is scores else text.partition(" ")[0]],
                textposition="top center",
                error_x={**style.error_bars(points, "value", 1.5), "symmetric": False},
                marker={"color": style.SERIES_COLOURS[0] if blue else style.GREY, "size": 9},
                marker_symbol="circle" if blue else "circle-open",
                hovertext=[style.plotly_text(words[-1])],
                hoverinfo="text",
                **place,
            )
        last = len(rows) - 0.5
        if not math.isnan(level):
            figure.add_vline(x=level, line={"color": style.GREY, "width": 1}, **place)
        if rows is scores and not math.isnan(level):
            text, side = f"chance {fixed(level, 2)}", {"xanchor": "left", "xshift": 3}
            figure.add_annotation(text=text, x=level, y=last, showarrow=False, **side, **place)
        ends = style.with_margin(*style.finite_ends([*chain(*rows.values()), level]))
        figure.update_xaxes(title_text=axis, range=ends, **place)
        names = ["<br>".join(map(style.plotly_text, wrap(name, LONGEST_NAME))) for name in rows]
        ticks = {"tickmode": "array", "tickvals": [*range(len(rows))], "ticktext": names}
        figure.update_yaxes(**ticks, range=[last + 0.2, -0.7], showgrid=False, **place)
    figure.update_traces(textfont_size=style.SMALL).update_annotations(font_size=style.SMALL)
    title, drawn = f"{capitalised(table.metric_name(metric))} {of}", page.figure_json(figure)
    paired = "; differences are paired" if scores and differences else ""
    caption += f" Bars: 95 % intervals over groups{paired}."
    described = f"{title}: {'; '.join(words)}."
    return page.FigurePart(title, drawn, caption, described, height=9 + 2.6 * sum(heights))


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


def _lines_in_words(
    title: str, lines: Iterable[tuple[Any, pd.DataFrame]], words: Callable[[pd.Series], str]
) -> str:
    """Return the text alternative of lines, given by name and points, with words for a point."""
    parts = [f"{name}: {', '.join(words(row) for _, row in of.iterrows())}" for name, of in lines]
    return f"{title}. {'; '.join(parts)}."


def pooled_ranking(v: Verdict) -> str:
    """Return the caveat that follows a ranking of sites by validation scores of all outer folds.

    It starts with a space, and is "" if the run is not nested.
    """
    text = (
        " The cross-validated scores of all outer folds were used, and every test row is a "
        "validation row of other folds: test scores at the best sites are therefore biased upwards."
    )
    return text if v.is_nested else ""
