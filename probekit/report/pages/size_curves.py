"""Curves by features k, share of a reply and training rows, each with its caption and text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import LEVEL, format_number
from probekit.probes.targets import BASELINES, TARGETS
from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.elements.style import LEVELS, LINES, TEMPLATE
from probekit.report.figures.layer_curve import band, finish_curve, point_hover, scatter
from probekit.report.figures.line_labels import draw_levels, levels
from probekit.report.figures.views import at_shown_position, position_share, position_words
from probekit.report.sentences.answer import pooled_ranking
from probekit.report.sentences.captions import lines_in_words, main_name, spread
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import EMBED_DEPTH, SAME_FEATURES, by_depth, only, same_features
from probekit.results.verdict import Verdict

SPACE = 0.12  # smallest distance of two ticks of training rows, as a share of the axis
SIZE = r"^k_sparse:(?P<k>\d+)$"  # kind of probe that uses k features
LEAST_SIZES = 3  # values of k; fewer make no curve
MOST_SITES = 3  # lines of a curve by k
SITE = ["line", "site", "position"]  # columns that identify a site in the curve by k


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


def sparse_part(scores: Scores, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figure of the main metric by k, for the best sites, if there are `sparse_rows`.

    For the best site it also shows the interval (a band) and the control task. Horizontal lines
    show the baselines and the best probe of another kind, which uses all features of that site.
    """
    rows = sparse_rows(scores)
    if rows.empty:
        return
    of_all_metrics, metric, lines = rows, Scores(rows).metric, []
    rows = only(rows, metric=metric)
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (_, points) in enumerate(rows.groupby("rank")):
        name = site_with_head(points["site"].iloc[0], points["head"].iloc[0])
        lines.append((name, only(points, target="task")))
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
    finish_curve(figure, metric, rows["chance"].min(), labels)
    title = f"{main_name(v)} by number of features"
    yield FigurePart(
        title,
        figure_json(figure),
        f"{main_name(v)} of logistic probes on the k features that separate the classes best "
        "on the training rows; features are selected and probes fitted separately for each k. The "
        "sites with the best cross-validated scores are drawn; the best one with its 95 % "
        "interval as a band and its control task. All features: the best other probe at that site."
        f"{pooled_ranking(v)} Measured on {spread(of_all_metrics, 'n_test')} held-out rows in "
        f"{spread(of_all_metrics, 'n_groups')} groups.",
        lines_in_words(title, lines, lambda row: f"{row['k']:,.0f} {format_number(row['value'])}"),
    )


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


def learning_part(scores: Scores, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figure of test score by number of training rows, if there are several.

    The first line shows its interval as a band. Baselines, fitted on all training rows, are
    horizontal lines.
    """
    lines = list(learning_curve_lines(scores))
    if not lines or v.best is None:
        return
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
    finish_curve(figure, metric, first["chance"].min(), labels)
    title = f"{main_name(v)} by number of training rows"
    yield FigurePart(
        title,
        figure_json(figure),
        f"{main_name(v)} at {v.best.name} on {spread(first, 'n_test')} held-out rows in "
        f"{spread(first, 'n_groups')} groups, by number of training rows. Training samples consist "
        "of whole groups and are nested; the penalty is that chosen on all training rows. The band "
        "is the 95 % interval of the chosen probe. Baselines are fitted on all training rows."
        f"{pooled_ranking(v)}",
        lines_in_words(
            title, lines, lambda row: f"{row['n_train']:,.0f} rows {format_number(row['value'])}"
        ),
    )


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


def share_part(scores: Scores, v: Verdict) -> Iterator[FigurePart]:
    """Yield the figure of test score by share of the reply, if there are `share_lines`."""
    lines, described = share_lines(scores), []
    if not lines:
        return
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
        values = (
            f"{100 * row['share']:g} % {format_number(row['value'])}"
            for _, row in points.iterrows()
        )
        described.append(f"{TARGETS[name].title}: {', '.join(values)}")
    figure.update_xaxes(title_text="share of the reply (%)", range=[-4, 104])
    _, task = lines[0]
    finish_curve(figure, Scores(task).metric, task["chance"].min(), [])
    yield FigurePart(
        f"{main_name(v)} by share of the reply",
        figure_json(figure),
        share_caption(task),
        f"Score by share of the reply. {'; '.join(described)}.",
    )


def share_caption(rows: pd.DataFrame) -> str:
    """Return the caption of the curve by share of the reply, given the rows of its first line."""
    first, answer = rows.iloc[0], ""
    if rows["p"].notna().all():
        later = rows.iloc[::-1]
        above = later["share"][later["p"].lt(LEVEL).cummin()]
        answer = "At the last share the score is not above that with exchanged labels (p ≥ "
        if len(above):
            since = f"{100 * above.min():g} %"
            answer = f"From {since} on, the score is above that with exchanged labels (each p < "
        answer += f"{LEVEL:g}, adjusted for all sites and shares). "
    return (
        f"{answer}{first['probe']} at {site_with_head(first['site'], first['head'])}, the site "
        "selected over all shares, read at the token at each share of a reply; 0 % is the last "
        "token before it. At each share the baselines read the prompt and the reply up to that "
        "token, and length alone is that of the reply up to it. Band: 95 % intervals over groups, "
        "which are prompts unless the data assign others; at each share alone, not adjusted for "
        "the number of shares."
    )


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
