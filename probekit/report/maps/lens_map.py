"""Figures of a logit lens: predictions by layer and token, and their agreement by layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.errors import DataError, UnknownNameError, nearest
from probekit.model.sites.catalogue import component_of, layer_of
from probekit.report.figures.line_labels import label_at_end, label_lines
from probekit.report.figures.style import SERIES_COLOURS, TEMPLATE, format_number, plotly_text
from probekit.report.maps.text_map import Colours, text_map
from probekit.report.texts import token_label

MOST_TEXTS = 2_000  # cells; with more, a browser draws their texts slowly
MOST_TICKS = 150  # tokens labelled along the axis
LONGEST_TEXT = 9  # characters of a token that fit into a cell

_SEQUENTIAL = plotly.colors.sequential.Viridis
_REVERSED = plotly.colors.sequential.Viridis_r  # for lower is better, so that bright means good
_POWERS = [*range(7)]


@dataclass(frozen=True)
class Measure:
    """Quantity that the colour of a cell shows.

    Attributes:
        title: Title of the colour bar.
        column: Column of the lens rows.
        scale: Colour scale, from low to high.
        transform: Function from values of the column to values on the colour scale.
        colorbar: Settings of the colour bar; None for the default ticks.
    """

    title: str
    column: str
    scale: list[str]
    transform: Callable[[Any], Any] = np.asarray
    colorbar: dict[str, Any] | None = None


MEASURES = {
    "probability": Measure("probability of the token in the cell", "probability_1", _SEQUENTIAL),
    "rank": Measure(
        "rank of the token that follows in the text",
        "next_rank",
        _REVERSED,
        np.log10,
        {"tickvals": _POWERS, "ticktext": [f"{10**power:,}" for power in _POWERS]},
    ),
    "entropy": Measure("entropy, nats", "entropy", _REVERSED),
    "kl": Measure("KL divergence from the output, nats", "kl", _REVERSED),
}


def lens_map(rows: pd.DataFrame, measure: str = "probability") -> go.Figure:
    """Return the map of a logit lens: sites down, tokens across, most probable next token in cells.

    A token is bold if it is the one that follows in the text.

    Args:
        rows: Rows of one text, from `probekit.analysis.logits.lens_rows`.
        measure: A key of `MEASURES`, shown as colour.

    Raises:
        UnknownNameError: The measure is unknown.
        DataError: The rows belong to more than one text.
    """
    if measure not in MEASURES:
        raise UnknownNameError(f"Unknown measure {measure!r}. {nearest(measure, MEASURES)}")
    if rows.duplicated(["site", "position"]).any():
        raise DataError(
            "A site and position occur more than once, so the rows belong to several texts. Give "
            "the rows of a single text, e.g. rows[rows['prompt'] == 1]."
        )
    shown = MEASURES[measure]
    sites, tokens = site_labels(rows), rows.drop_duplicates("position")["token"]
    values = shown.transform(rows[shown.column].to_numpy(dtype=float, na_value=np.nan))
    # The order matters: nanmax of all-NaN values is NaN, and max(1.0, nan) is 1.0.
    high = 1.0 if measure == "probability" else max(1.0, np.nanmax(values, initial=0.0))
    figure = text_map(
        values.reshape(len(sites), len(tokens)),
        [_cell(row) for row in rows.to_dict("records")],
        [_hover(row) for row in rows.to_dict("records")],
        Colours(0.0, high, shown.scale, is_diverging=False),
        across=[plotly_text(short_label(token)) for token in tokens],
        down=sites,
        title="",  # plotly would draw a title over the cells, because the colour bar is above
        most_texts=MOST_TEXTS,
    )
    # At the top left, so that it stays visible when a long text is scrolled.
    colorbar = {
        "title": {"text": shown.title, "side": "top"},
        "orientation": "h",
        "lenmode": "pixels",
        "len": 320,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        **(shown.colorbar or {}),
    }
    return thin_ticks(figure.update_traces(colorbar=colorbar, selector={"type": "heatmap"}))


def thin_ticks(figure: go.Figure) -> go.Figure:
    """Label only every n-th column of a map with more than `MOST_TICKS`, and return the map.

    A browser needs half a minute for a thousand tick labels; the hover text has all tokens.
    """
    axis = figure.layout.xaxis
    if (n := len(axis.ticktext)) > MOST_TICKS:
        step = n // MOST_TICKS + 1
        axis.update(tickvals=axis.tickvals[::step], ticktext=axis.ticktext[::step])
    return figure


def site_labels(rows: pd.DataFrame) -> list[str]:
    """Return the axis labels of the sites.

    >>> sites = ["blocks.0.hook_resid_pre", "blocks.0.hook_attn_out", "blocks.0.hook_resid_post"]
    >>> site_labels(pd.DataFrame({"site": sites}))
    ['embed', '0 attn_out', '0']
    """
    return [_site_label(site) for site in rows["site"].unique()]


def _site_label(site: str) -> str:
    layer, component = layer_of(site), component_of(site)
    if component == "resid_post":
        return str(layer)
    if (layer, component) == (0, "resid_pre"):
        return "embed"
    return component if layer is None else f"{layer} {component}"


def short_label(token: str) -> str:
    """Return a token in visible characters, truncated to fit into a cell.

    >>> short_label(" the"), short_label(" incomprehensible")
    ('␣the', '␣incompr…')
    """
    label = token_label(token)
    return label if len(label) <= LONGEST_TEXT else f"{label[: LONGEST_TEXT - 1]}…"


def _cell(row: dict[Hashable, Any]) -> str:
    text = plotly_text(short_label(row["token_1"]))
    return f"<b>{text}</b>" if row["next_rank"] == 1 else text


def _hover(row: dict[Hashable, Any]) -> str:
    lines = [f"<b>{_site_label(row['site'])}</b> at [{row['position']}] {_escaped(row['token'])}"]
    rank = 1
    while f"token_{rank}" in row:
        probability = _probability(row[f"probability_{rank}"])
        lines.append(f"{rank}. {_escaped(row[f'token_{rank}'])} {probability}")
        rank += 1
    if not pd.isna(row["next_rank"]):
        probability = _probability(row["next_probability"])
        lines.append(
            f"follows: {_escaped(row['next_token'])} {probability}, rank {row['next_rank']:,}"
        )
    lines.append(f"entropy {row['entropy']:.2f} nats, KL from the output {row['kl']:.2f} nats")
    return "<br>".join(lines)


def _probability(value: float) -> str:
    """Return a probability as text, in scientific notation below 0.001."""
    return format_number(value) if value >= 0.001 else f"{value:.1e}"


def _escaped(token: str) -> str:
    return plotly_text(token_label(token))


# Column of the summary -> label of the line, column of its number of positions, and dash.
_LINES = {
    "as_output": ("equals the final prediction", "n", "solid"),
    "right": ("equals the next token of the text", "n_next", "dot"),
}


def lens_curve(summary: pd.DataFrame) -> go.Figure:
    """Return the curve of `lens_summary`: shares of positions by layer, labelled at their ends."""
    figure = go.Figure(layout={"template": TEMPLATE})
    shares = {name: summary[name] / summary[n] for name, (_, n, _) in _LINES.items()}
    for (name, (label, n, dash)), colour in zip(_LINES.items(), SERIES_COLOURS, strict=False):
        figure.add_scatter(
            x=list(range(len(summary))),
            y=shares[name].tolist(),
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            hovertext=[
                f"<b>{row['layer']}</b><br>{label} at {row[name]} of {row[n]} positions"
                for _, row in summary.iterrows()
            ],
            hoverinfo="text",
        )
    figure.update_xaxes(
        title_text="layer",
        tickvals=list(range(len(summary))),
        ticktext=[text if text.isdigit() else f"<br>{text}" for text in summary["layer"]],
        tickangle=0,
        range=[-0.3, len(summary) - 0.9],
    )
    figure.update_yaxes(title_text="share of positions", range=[-0.03, 1.05], tickformat=".0%")
    names = (label for label, _, _ in _LINES.values())
    ends = [
        label
        for line, name in zip(figure.data, names, strict=True)
        for label in label_at_end(line, name, line.line.color)
    ]
    label_lines(figure, ends)
    return figure
