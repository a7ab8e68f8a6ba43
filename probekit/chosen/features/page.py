"""Single features on a page: those of k-sparse probes, and a ranking of probed neurons."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import format_number
from probekit.chosen.page import Columns, written_table
from probekit.report.elements.page import (
    FigurePart,
    Fold,
    Item,
    PageSection,
    Paragraph,
    figure_json,
)
from probekit.report.elements.style import GREY, SERIES_COLOURS, TEMPLATE, axis_title, error_bars
from probekit.report.elements.table import Column
from probekit.report.pages.parts import Shown
from probekit.report.sentences.answer import pooled_ranking
from probekit.results.scores import Scores
from probekit.results.table import only

MOST_NEURONS = 30
LEAST_NEURONS = 5  # fewer neurons are drawn as lines in the layer curve
MOST_FEATURES = 20  # shown without unfolding the table
NOTE = (
    "At {site}, where k-sparse probes have their best cross-validated score{over_folds}; a probe "
    "of k features{on_all} uses the first k of this ranking. Share explained: share of a feature's "
    "variance over {rows} rows that is between labels. Highest mean for: the label with the "
    "highest mean. The model does not necessarily use a feature that separates the labels."
)
COLUMNS: Columns = {
    "rank": "rank",
    Column("feature", "site", "code"): "feature",
    "smallest k": "k",
    "share explained": "share",
    Column("highest mean for", "site"): "label",
}


def details(run: Shown) -> Iterator[PageSection]:
    """Yield the section with the features of k-sparse probes, best first, if there are any."""
    features, is_nested = run.rows("features.csv"), run.verdict.is_nested
    if features is None:
        return
    note = NOTE.format(
        site=features["site"].iloc[0],
        over_folds=" over all outer folds" if is_nested else "",
        on_all=", fitted on all rows," if is_nested else "",
        rows="all" if is_nested else "the training",
    )
    best, others = (
        written_table(f"Table of the {title} features", COLUMNS, shown, is_sortable=True, head=1)
        for title, shown in (("best", features[:MOST_FEATURES]), ("next", features[MOST_FEATURES:]))
    )
    items: list[Item] = [best, Paragraph(note, "note")]
    if n := len(others.rows):
        items.append(Fold(f"The next {'feature' if n == 1 else f'{n:,} features'}", [others]))
    yield PageSection("Features used by the k-sparse probes", items)


def figures(run: Shown) -> Iterator[FigurePart]:
    """Yield the ranking of single neurons, if enough of them were probed."""
    neurons = ranked_neurons(run.scores)
    if neurons.empty:
        return
    named = [f"{row['site']} {format_number(row['value'])}" for _, row in neurons.iterrows()]
    yield FigurePart(
        "Single neurons, ranked",
        figure_json(neuron_ranking(neurons)),
        "Neurons by layer and index, in descending order of the cross-validated score on "
        "training rows. Markers: scores on held-out rows, with 95 % intervals. Dashed line: "
        f"chance.{pooled_ranking(run.verdict)}",
        f"Neurons, best first: {'; '.join(named)}",
        is_open=False,
        height=8 + 1.2 * len(neurons),
    )


def ranked_neurons(scores: Scores) -> pd.DataFrame:
    """Return the test rows of single neurons, best cross-validated score first.

    Each neuron has the row of its best probe and position. The result has at most `MOST_NEURONS`
    rows, and none if fewer than `LEAST_NEURONS` neurons were probed.
    """
    ranked = scores.ranked
    ranked = ranked[ranked["site"].str.contains("[neuron=", regex=False)]
    ranked = ranked.drop_duplicates("site").head(MOST_NEURONS)
    if len(ranked) < LEAST_NEURONS:
        return ranked.iloc[:0]
    test = only(scores.sited, target="task", metric=scores.metric, split="test")
    keys = ["site", "probe", "position"]
    return ranked[keys].merge(test, on=keys)


def neuron_ranking(rows: pd.DataFrame) -> go.Figure:
    """Return the figure of test scores of single neurons, given `ranked_neurons`."""
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
