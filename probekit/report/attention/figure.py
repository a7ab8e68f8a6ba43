"""Figure of attention patterns for a paper: squares as vectors, one colour scale, printed size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.errors import DataError
from probekit.report.elements.style import INK, MAGNITUDES, plotly_text
from probekit.report.elements.texts import short_label
from probekit.report.figures.figure_files import (
    CSS_PIXELS,
    HEIGHTS,
    WIDTHS,
    SavedFigure,
    write_drawings,
)
from probekit.results.network import AttentionPrompt

# In CSS pixels, so that `write_image` writes a PDF or SVG file in the printed size.
WIDTH, HEIGHT = CSS_PIXELS * WIDTHS[1], CSS_PIXELS * HEIGHTS[1]  # of one row
SMALL, LARGE = 7 * 96 / 72, 8 * 96 / 72  # text: tokens and ticks, everything else
TITLE, BAR = 1.4 * LARGE, 44  # height of a title; width of the colour bar with its texts
GAP = 7  # between maps
LEAST_CELL = 0.85 * SMALL  # in smaller cells only some tokens are labelled
MOST_TOKENS = 100
MOST_IN_A_ROW = 3
TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)  # weights at the colour bar, as on the page


def draw_heads(prompt: AttentionPrompt, heads: Sequence[tuple[int, int]]) -> go.Figure:
    """Return the attention patterns of heads of a prompt, up to three maps in a row.

    The figure is one column of a paper wide, and one row is at most 6 cm high. Colours are
    proportional to the square root of a weight, as on the page.

    Args:
        prompt: patterns that include those of the heads.
        heads: layer and head of each map.

    Raises:
        DataError: The text has too many tokens for a figure.
    """
    n = len(prompt.tokens)
    if n > MOST_TOKENS:
        raise DataError(
            f"The text has {n} tokens. A figure shows at most {MOST_TOKENS}: shorten the text, or "
            "write a page (.html)."
        )
    # Without the space at the start of most tokens, and without the end of long ones.
    texts = [short_label(token.removeprefix(" ") or token) for token in prompt.tokens]
    labels = list(map(plotly_text, texts))
    # Room for the labels and the title of an axis; wide characters have several bytes.
    margin = 0.52 * SMALL * max(len(label.encode()) for label in texts) + 6 + TITLE
    n_rows = math.ceil(len(heads) / MOST_IN_A_ROW)
    n_columns = math.ceil(len(heads) / n_rows)  # of four maps, two and two
    room = WIDTH - margin - BAR
    side = min((room + GAP) / n_columns - GAP, HEIGHT - margin - TITLE)  # of a map
    width, height = n_columns * (side + GAP) - GAP, n_rows * (side + TITLE) - TITLE
    left = margin + (room - width) / 2
    spaces = {"horizontal_spacing": GAP / width, "vertical_spacing": TITLE / height}
    titles: dict[str, Any] = {"x_title": "key token", "y_title": "query token"}
    titles["subplot_titles"] = [f"L{layer}H{head}" for layer, head in heads]
    figure = make_subplots(n_rows, n_columns, **spaces, **titles)
    figure.update_annotations(font_size=LARGE)
    figure.update_annotations({"yshift": -margin, "yanchor": "bottom"}, {"text": "key token"})
    figure.update_annotations({"xshift": -margin, "xanchor": "left"}, {"text": "query token"})
    # Squares, because a heat map would be a bitmap.
    queries, keys = np.tril_indices(n)
    marker: dict[str, Any] = {"symbol": "square", "size": side / n, "opacity": 1}
    marker |= {"coloraxis": "coloraxis", "line": {"width": 0.25, "color": "#c9cdd3"}}
    for number, (layer, head) in enumerate(heads):
        row, column = divmod(number, n_columns)
        place = {"row": row + 1, "col": column + 1}
        pattern = prompt.patterns[prompt.layers.index(layer), prompt.heads.index(head)]
        marker["color"] = np.sqrt(pattern[queries, keys]).tolist()
        cells = {"x": keys.tolist(), "y": queries.tolist(), "marker": marker, "mode": "markers"}
        figure.add_scatter(**cells, cliponaxis=False, hoverinfo="skip", **place)
        figure.update_xaxes(showticklabels=number + n_columns >= len(heads), **place)
        figure.update_yaxes(showticklabels=column == 0, **place)
    step = math.ceil(n * LEAST_CELL / side)
    axis = {
        **{"tickvals": list(range(n))[::step], "ticktext": labels[::step], "ticklen": 2},
        **{"ticks": "outside", "showgrid": False, "zeroline": False, "showline": True},
        **{"mirror": True, "linewidth": 0.5, "linecolor": "#9aa1ab"},
    }
    figure.update_xaxes(axis, range=[-0.5, n - 0.5], tickangle=-90)
    figure.update_yaxes(axis, range=[n - 0.5, -0.5])
    bar = {
        **{"title": {"text": "attention weight", "side": "right", "font_size": LARGE}},
        **{"tickvals": np.sqrt(TICKS).tolist(), "ticktext": [f"{share:g}" for share in TICKS]},
        **{"ticks": "outside", "ticklen": 2, "outlinewidth": 0.5},
        **{"lenmode": "pixels", "len": min(height, HEIGHT - TITLE - margin), "thickness": 7},
        **{"x": 1 + 5 / width, "xpad": 0, "ypad": 0},
    }
    size: dict[str, Any] = {"width": WIDTH, "height": TITLE + height + margin}
    size["margin"] = {"l": left, "r": WIDTH - left - width, "t": TITLE, "b": margin, "pad": 0}
    look: dict[str, Any] = {"paper_bgcolor": "white", "plot_bgcolor": "white", "showlegend": False}
    look["coloraxis"] = {"colorscale": MAGNITUDES, "cmin": 0, "cmax": 1, "colorbar": bar}
    look["font"] = {"family": "Arial, Helvetica, sans-serif", "size": SMALL, "color": INK}
    return SavedFigure(figure.update_layout(size | look))


def save_figure(figure: go.Figure, path: Path) -> None:
    """Write a figure of heads in its printed size; the extension of the file sets the format.

    Raises:
        MissingError: kaleido or Chromium is not installed.
        StoreError: The file cannot be written.
    """
    write_drawings([(path, figure)], CSS_PIXELS)
