"""Scores without the cues on a page."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number
from probekit.chosen.page import TESTED, Columns, Shown, estimate_words, sentence, written_table
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, PageSection, Paragraph, figure_json
from probekit.report.elements.style import SERIES_COLOURS, TEMPLATE
from probekit.report.sentences.answer import p_words
from probekit.results.table import metric_name

NOTE = (
    "The selected probe is not fitted again. It reads the test texts without their cues and, to "
    "compare, without as many random other words (mean of {n_draws} draws). {n_changed:,} of the "
    "{n_test:,} texts have cues; {n_left_out:,} more are left out, because a cue is at the probed "
    "token, the token would change, or there are too few other words. If the score is worse "
    "without the cues than without other words, it depends more on the cues."
)
COLUMNS: Columns = {
    "metric": "metric",
    "all words": "value",
    "without cues": "without_cues",
    "without others": "without_others",
    **TESTED,
}


def answers(run: Shown) -> Iterator[Paragraph]:
    """Yield the score that remains without the cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is None:
        return
    row, metric = rows.iloc[0], METRICS[str(rows["metric"].iloc[0])]
    whole, left, others = (fixed(row[name], 2) for name in list(COLUMNS.values())[1:4])
    test = "" if np.isnan(row["p"]) else f", {p_words(row['p'])}"
    ends = [metric.sign * row[f"difference_{end}"] for end in ("low", "high")]
    yield sentence(
        f"Without the cues, {metric.title} is {left} instead of {whole}; without as many other "
        f"words, {others} (difference {estimate_words(row, 'difference')}{test}).",
        is_useless=max(ends) < 0,
    )


def sections(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the scores with and without cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is not None:
        table = written_table("Table of scores without cues", COLUMNS, rows)
        note = Paragraph(NOTE.format(**rows.iloc[0]), "note")
        yield PageSection("Scores without the cues", [table, note])


def screen(run: Shown) -> Iterator[FigurePart]:
    """Yield the bars of the scores with and without cues, if there are any."""
    rows = run.rows("leakage.csv")
    if rows is not None:
        yield leakage_part(rows)


def leakage_part(rows: pd.DataFrame) -> FigurePart:
    """Return the bars of each score: all words, without cues, and without other words."""
    figure = go.Figure(layout={"template": TEMPLATE, "showlegend": True})
    metrics, names = list(map(metric_name, rows["metric"])), list(map(str, COLUMNS))[1:4]
    for name, colour in zip(names, SERIES_COLOURS, strict=False):
        values = rows[COLUMNS[name]].tolist()
        texts = list(map(format_number, values))
        look = {"marker": {"color": colour, "line": {"width": 0}}, "name": name}
        figure.add_bar(x=metrics, y=values, hovertext=texts, hoverinfo="text", **look)
    figure.update_yaxes(title_text="score", rangemode="tozero")
    words = [
        f"{metric}: {', '.join(f'{name} {format_number(row[COLUMNS[name]])}' for name in names)}"
        for metric, (_, row) in zip(metrics, rows.iterrows(), strict=True)
    ]
    caption = (
        "The selected probe on all words of the test texts, without the cues, and without as many "
        "random other words."
    )
    title = "Scores with and without the cues"
    return FigurePart(title, figure_json(figure), caption, f"{'; '.join(words)}.", height=20)
