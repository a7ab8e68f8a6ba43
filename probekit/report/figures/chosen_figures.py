"""Figures about the selected probe: confusion matrix, scatter plot, direction cosines, neurons."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.errors import DataError
from probekit.report.figures.style import (
    SERIES_COLOURS,
    SERIES_MARKERS,
    TEMPLATE,
    axis_title,
    format_number,
    plotly_text,
)
from probekit.report.maps.text_map import Colours, cell_text, text_map
from probekit.report.texts.glyphs import class_label
from probekit.results.selection import main_metric, ranked_rows
from probekit.results.table import figure_rows, only, placed, ticks

MOST_TEXTS = 20  # classes per side; with more, numbers in cells are too small to read
MOST_NAMED = 10  # labels in a scatter plot; rarer labels are merged into `OTHERS`
MOST_NEURONS = 30
LEAST_NEURONS = 5  # fewer neurons are drawn as lines in the layer curve
OTHERS = "other labels"


def confusion_matrix(rows: pd.DataFrame) -> go.Figure:
    """Return the confusion matrix: true labels down, predicted labels across, rows sum to 1.

    Args:
        rows: true label `truth`, predicted label `guess` and count `n` for every pair of labels.

    Raises:
        DataError: There are no rows.

    >>> figure = confusion_matrix(pd.DataFrame(
    ...     [("a", "a", 3), ("a", "b", 1), ("b", "a", 0), ("b", "b", 2)],
    ...     columns=["truth", "guess", "n"]))
    >>> figure.data[0].z
    ([0.75, 0.25], [0.0, 1.0])
    """
    counts = confusion_counts(rows)
    labels = [plotly_text(class_label(label)) for label in counts.index]
    shares = confusion_shares(counts).to_numpy()
    n_rows = counts.sum(axis=1)
    hover = [
        f"<b>{plotly_text(class_label(truth))}</b> predicted as "
        f"<b>{plotly_text(class_label(guess))}</b><br>"
        f"{counts.loc[truth, guess]:,} of {n_rows[truth]:,} rows"
        for truth in counts.index
        for guess in counts.columns
    ]
    return text_map(
        shares,
        [cell_text(share) for share in shares.ravel()],
        hover,
        Colours(0.0, 1.0, plotly.colors.sequential.Viridis, is_diverging=False),
        across=labels,
        down=labels,
        title="predicted",
        most_texts=MOST_TEXTS**2,
        down_title="true",
    )


def confusion_counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the counts with true labels down and predicted labels across, both sorted.

    Raises:
        DataError: There are no rows.
    """
    if rows.empty:
        raise DataError("There are no pairs of labels, so there is no matrix to draw.")
    counts = rows.pivot_table("n", "truth", "guess", aggfunc="sum")
    labels = sorted({*counts.index, *counts.columns})
    return counts.reindex(index=labels, columns=labels, fill_value=0).fillna(0).astype(int)


def confusion_shares(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the counts divided by their row sums; NaN for a label without test rows."""
    return counts.div(counts.sum(axis=1).replace(0, np.nan), axis=0)


def scatter_plane(rows: pd.DataFrame, method: str) -> go.Figure:
    """Return the scatter plot of the test rows in a PCA or LDA plane, coloured by label.

    Args:
        rows: `method`, coordinates `x` and `y`, `label`, and axis titles `axis_x` and `axis_y`.
        method: `PCA` or `LDA`.

    Raises:
        DataError: There are no rows of this method.
    """
    own = only(rows, method=method)
    if own.empty:
        raise DataError(f"There are no rows of {method!r}. There are: {set(rows['method'])}.")
    frequent = list(own["label"].value_counts().index)
    named = sorted(frequent if len(frequent) <= MOST_NAMED else frequent[: MOST_NAMED - 1])
    groups = own["label"].where(own["label"].isin(named), OTHERS)
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, label in enumerate(dict.fromkeys([*named, *sorted(groups)])):
        points = own[groups == label]
        figure.add_scatter(
            x=points["x"].tolist(),
            y=points["y"].tolist(),
            mode="markers",
            name=plotly_text(class_label(label)),
            marker={
                "color": SERIES_COLOURS[number % len(SERIES_COLOURS)],
                "symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)],
                "size": 7,
                "opacity": 0.75,
            },
            hovertext=[plotly_text(class_label(text)) for text in points["label"]],
            hoverinfo="text",
        )
    figure.update_xaxes(title_text=own["axis_x"].iloc[0])
    figure.update_yaxes(title_text=own["axis_y"].iloc[0])
    return figure


def direction_map(rows: pd.DataFrame) -> go.Figure:
    """Return the map of cosine similarities between probe directions at each pair of sites.

    Args:
        rows: `site_a`, `site_b` and `cosine` for every pair of sites of one component; optionally
            `null_high`, the 95 % quantile of absolute cosines on permuted labels.
    """
    order = placed(pd.DataFrame({"site": rows["site_a"].unique(), "head": np.nan}))
    sites, labels = list(order["site"]), ticks(order)
    values = rows.pivot_table("cosine", "site_a", "site_b").loc[sites, sites]
    bounds = rows["null_high"] if "null_high" in rows else [np.nan] * len(rows)
    null = {
        (a, b): "" if np.isnan(bound) else f"<br>95 % of permuted labels: ±{format_number(bound)}"
        for a, b, bound in zip(rows["site_a"], rows["site_b"], bounds, strict=True)
    }
    hover = [
        f"<b>{a}</b><br><b>{b}</b><br>cosine {format_number(values.loc[a, b])}{null[a, b]}"
        for a in sites
        for b in sites
    ]
    scale = plotly.colors.diverging.PuOr_r
    names = [labels[int(depth)] for depth in order["depth"]]
    return text_map(
        values.to_numpy(),
        [cell_text(value) for value in values.to_numpy().ravel()],
        hover,
        Colours(-1.0, 1.0, scale, is_diverging=True),
        across=names,
        down=names,
        title="layer",
        most_texts=MOST_TEXTS**2,
    )


def ranked_neurons(table: pd.DataFrame) -> pd.DataFrame:
    """Return the test rows of single neurons in descending order of cross-validated score.

    The result has at most `MOST_NEURONS` rows, and none if fewer than `LEAST_NEURONS` neurons
    were probed.
    """
    metric = main_metric(table)
    ranked = ranked_rows(table)
    ranked = ranked[ranked["site"].str.contains("[neuron=", regex=False)]
    ranked = ranked.drop_duplicates("site").head(MOST_NEURONS)
    if len(ranked) < LEAST_NEURONS:
        return ranked.iloc[:0]
    test = only(placed(figure_rows(table)), target="task", metric=metric, split="test")
    keys = ["site", "probe", "position"]
    return ranked[keys].merge(test, on=keys)


def neuron_ranking(table: pd.DataFrame) -> go.Figure:
    """Return the figure of test scores of single neurons, ordered by cross-validated score.

    Raises:
        DataError: Fewer than `LEAST_NEURONS` neurons were probed.
    """
    rows = ranked_neurons(table)
    if rows.empty:
        raise DataError(
            f"Fewer than {LEAST_NEURONS} single neurons were probed. Draw layer_curve instead."
        )
    names = [_neuron_name(site) for site in rows["site"]]
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_scatter(
        x=rows["value"].tolist(),
        y=list(range(len(rows))),
        mode="markers",
        error_x={
            "type": "data",
            "symmetric": False,
            "array": (rows["ci_high"] - rows["value"]).tolist(),
            "arrayminus": (rows["value"] - rows["ci_low"]).tolist(),
            "thickness": 1.5,
            "width": 3,
        },
        marker={"color": SERIES_COLOURS[0], "size": 8},
        hovertext=[
            f"<b>{row['site']}</b><br>{format_number(row['value'], row['ci_low'], row['ci_high'])}"
            for _, row in rows.iterrows()
        ],
        hoverinfo="text",
    )
    figure.add_vline(
        x=rows["chance"].min(), line={"color": "#7A7F87", "dash": "longdash", "width": 1.5}
    )
    figure.update_xaxes(title_text=axis_title(str(rows["metric"].iloc[0])))
    figure.update_yaxes(
        tickmode="array", tickvals=list(range(len(rows))), ticktext=names, autorange="reversed"
    )
    return figure


def _neuron_name(site: str) -> str:
    """Return layer and neuron of a site as an axis label.

    >>> _neuron_name("blocks.3.mlp.hook_post[neuron=17]")
    '3 · 17'
    """
    return f"{site.split('.')[1]} · {site.split('=')[1].rstrip(']')}"
