"""Scores of sources on a page."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, fixed, format_number
from probekit.chosen.page import Shown, sentence
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import WITHIN
from probekit.report.elements import style
from probekit.report.elements.page import FigurePart, Paragraph, figure_json
from probekit.report.elements.style import LINES, SERIES_COLOURS, error_bars, plotly_text
from probekit.report.pages.parts import title
from probekit.report.sentences.caveats import Caveat
from probekit.report.sentences.comparisons import sources_sentence
from probekit.results.table import differs, metric_name
from probekit.results.verdict import SourceScores, Verdict


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield the mean score over sources and the worst one, if sources were left out."""
    if (sources := run.verdict.sources) is not None:
        yield sentence(sources_sentence(sources), is_useless=is_at_chance(sources))


def is_at_chance(sources: SourceScores) -> bool:
    """Return whether the score of the worst source is at or below chance."""
    sign = METRICS[sources.metric].sign
    return sign * sources.worst_value <= sign * sources.worst_chance


def doubts(v: Verdict) -> Iterator[Caveat]:
    """Yield a warning if the score of a source is at or below chance."""
    if v.sources is not None and v.score is not None and is_at_chance(v.sources):
        yield Caveat(
            "source-at-chance",
            f"The score is at or below chance for the {v.sources.column} {v.sources.worst}: the "
            "probe may read what the others have in common, instead of the label.",
        )


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the figure of the scores by source, if there are any."""
    rows, v = run.rows("sources.csv"), run.verdict
    if rows is None or v.sources is None:
        return
    listed = [
        f"{row['source']} {format_number(row['value'])} (inside {format_number(row['within'])})"
        for _, row in rows.iterrows()
    ]
    yield FigurePart(
        f"{title(v.metric)} by {v.sources.column}, each left out whole",
        figure_json(source_figure(rows, v.sources)),
        "Filled: score of all rows of a source, by probes whose fit, site, kind and penalty used "
        "the other sources only. Open: score of the same rows in a nested cross-validation whose "
        "folds mix the sources. Bars: 95 % intervals over groups. Line and band: mean over "
        f"{counted(v.sources.n, 'source')}, with its interval over sources if there are at least "
        "3. Nominally 95 %, it contained the expected score on a new source in 89 % of simulations "
        "or more where sources differ by degrees, but in as few as 47 % where one source in ten "
        "fails: then read the worst source, not the mean.",
        f"{metric_name(v.metric)} by source, worst first: {'; '.join(listed)}.",
        height=10 + 2.6 * max(len(rows), 3),
    )


def source_figure(rows: pd.DataFrame, v: SourceScores) -> go.Figure:
    """Return the figure of the scores of sources left out whole and inside the sources.

    The mean over sources is a line, with its interval as a band.

    Args:
        rows: rows of sources.csv.
        v: the means.
    """
    places = np.arange(len(rows))
    names = [
        plotly_text(style.short_tick(source) + (f" ({why})" if why else ""))
        for source, why in zip(rows["source"], rows["left_out"], strict=True)
    ]
    inside = rows.assign(ci_low=rows["within_low"], ci_high=rows["within_high"])
    figure = go.Figure(layout={"template": style.TEMPLATE})
    # Name, rows, column, style, symbol and vertical offset of each series.
    for name, points, column, line, symbol, offset in (
        ("unseen source (filled)", rows, "value", LINES["task"], "circle", -0.12),
        ("seen source (open)", inside, "within", LINES[WITHIN], "circle-open", 0.12),
    ):
        figure.add_scatter(
            x=points[column].tolist(),
            y=(places + offset).tolist(),
            name=name,
            mode="markers",
            error_x={**error_bars(points, column, 1.5), "symmetric": False},
            marker={"color": line.colour or SERIES_COLOURS[0], "size": 9, "symbol": symbol},
            hovertext=[
                f"<b>{plotly_text(row['source'])}</b>, {name}<br>"
                f"{format_number(row[column], row['ci_low'], row['ci_high'])}"
                for _, row in points.iterrows()
            ],
            hoverinfo="text",
        )
    mean, low, high = v.mean
    levels = rows["chance"].dropna()
    chance = np.nan if differs(levels) else levels.max()
    blue = {"color": SERIES_COLOURS[0], "width": 1.5}
    if not np.isnan(low):
        figure.add_vrect(x0=low, x1=high, fillcolor=SERIES_COLOURS[0], opacity=0.1, line_width=0)
    for name, at, look in (("mean", mean, blue), ("chance", chance, style.CHANCE_LINE)):
        if not np.isnan(at):
            note = {"text": f"{name} {fixed(at, 2)}", "yanchor": "bottom", "xanchor": "center"}
            figure.add_vline(x=at, line=look, annotation=note)
    drawn = [*rows.filter(regex="^(value|ci_|within|chance)").to_numpy().ravel(), low, high]
    figure.update_layout(margin_t=52)  # the buttons are above the labels
    figure.update_xaxes(range=style.with_margin(np.nanmin(drawn), np.nanmax(drawn)))
    figure.update_xaxes(title_text=style.axis_title(v.metric))
    figure.update_yaxes(
        tickmode="array", tickvals=places.tolist(), ticktext=names, autorange="reversed"
    )
    return figure
