"""Figure of attention patterns for a paper: vector squares, one colour scale, printed size."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any
from unicodedata import east_asian_width

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.report.attention.page import WEIGHTS
from probekit.report.figures.figure_files import CSS_PIXELS, HEIGHTS, WIDTHS
from probekit.report.figures.style import INK, plotly_text
from probekit.report.texts import token_label
from probekit.results.network import AttentionPrompt

# In CSS pixels, so that `write_image` writes a PDF or SVG file in the printed size.
WIDTH, HEIGHT = CSS_PIXELS * WIDTHS[1], CSS_PIXELS * HEIGHTS[1]  # of one row
POINT = 96 / 72
SMALL, LARGE = 7 * POINT, 8 * POINT  # text: tokens and ticks, everything else
CHARACTER = 0.52 * SMALL  # mean width of a character
LONGEST_TOKEN = 12  # characters
LEAST_CELL = (
    0.85 * SMALL
)  # height of lines of text that do not overlap; in smaller cells only some tokens are labelled
TITLE = 1.4 * LARGE  # height of a title
BAR = 44  # width of the colour bar with its ticks and title
GAP = 7  # between maps
FRAME, EDGE = "#9aa1ab", "#c9cdd3"  # colours around a map, and around a cell
MOST_IN_A_ROW, LEAST_IN_A_ROW = 4, 3
MOST_TOKENS = 100


def draw_heads(prompt: AttentionPrompt, heads: Sequence[tuple[int, int]]) -> go.Figure:
    """Return the attention patterns of heads of a prompt as a row of maps, or as several rows.

    The figure is one column of a paper wide, and one row is at most 6 cm high. Rows have up to
    three maps, or four if all tokens can be labelled.

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
    labels = [_token_text(token) for token in prompt.tokens]
    # Room for the labels of tokens, and for the title of the axis.
    margin = CHARACTER * max(map(_width, labels)) + 6 + TITLE
    room = WIDTH - margin - BAR
    n_columns = min(len(heads), MOST_IN_A_ROW)
    if n_columns > LEAST_IN_A_ROW and (room + GAP) / n_columns - GAP < n * LEAST_CELL:
        n_columns = LEAST_IN_A_ROW
    n_rows = math.ceil(len(heads) / n_columns)
    n_columns = math.ceil(len(heads) / n_rows)  # of five maps, three and two
    side = min((room + GAP) / n_columns - GAP, HEIGHT - margin - TITLE)
    width, height = n_columns * (side + GAP) - GAP, n_rows * (side + TITLE) - TITLE
    left = margin + (room - width) / 2
    figure = go.Figure(
        layout={
            "width": WIDTH,
            "height": TITLE + height + margin,
            "margin": {"l": left, "r": WIDTH - left - width, "t": TITLE, "b": margin, "pad": 0},
            "font": {"family": "Arial, Helvetica, sans-serif", "size": SMALL, "color": INK},
            "paper_bgcolor": "white",
            "plot_bgcolor": "white",
            "showlegend": False,
            "coloraxis": {
                "colorscale": WEIGHTS,
                "cmin": 0,
                "cmax": 1,
                "colorbar": {
                    "title": {"text": "attention weight", "side": "right", "font_size": LARGE},
                    "tickvals": [0, 0.5, 1],
                    "ticks": "outside",
                    "ticklen": 2,
                    "thickness": 7,
                    "len": min(height, HEIGHT - TITLE - margin),
                    "lenmode": "pixels",
                    "outlinewidth": 0.5,
                    "x": 1 + 5 / width,
                    "xpad": 0,
                    "ypad": 0,
                },
            },
        }
    )
    step = math.ceil(n * LEAST_CELL / side)
    axis = {
        **{"tickvals": list(range(n))[::step], "ticktext": labels[::step]},
        **{"ticks": "outside", "ticklen": 2, "showgrid": False, "zeroline": False},
        **{"showline": True, "mirror": True, "linewidth": 0.5, "linecolor": FRAME},
    }
    for number, (layer, head) in enumerate(heads):
        row, column = divmod(number, n_columns)
        suffix = str(number + 1) if number else ""
        pattern = prompt.patterns[prompt.layers.index(layer), prompt.heads.index(head)]
        cells = _cells(pattern, labels, side / n)
        figure.add_trace(cells.update(xaxis=f"x{suffix}", yaxis=f"y{suffix}"))
        # Rounding errors could move the ends beyond 0 and 1.
        start, top = column * (side + GAP) / width, 1 - row * (side + TITLE) / height
        x_axis: dict[str, Any] = {"domain": [start, min(start + side / width, 1)]}
        x_axis |= {"range": [-0.5, n - 0.5], "anchor": f"y{suffix}", "tickangle": -90}
        y_axis: dict[str, Any] = {"domain": [max(top - side / height, 0), top]}
        y_axis |= {"range": [n - 0.5, -0.5], "anchor": f"x{suffix}"}
        x_axis["showticklabels"] = number + n_columns >= len(heads)  # below the lowest map
        y_axis["showticklabels"] = column == 0
        figure.update_layout({f"xaxis{suffix}": axis | x_axis, f"yaxis{suffix}": axis | y_axis})
        _write(figure, f"L{layer}H{head}", x=start, y=top, yanchor="bottom", xanchor="left")
    _write(figure, "key token", x=0.5, y=0, yshift=-margin, yanchor="bottom")
    _write(figure, "query token", x=0, y=0.5, xshift=-margin, xanchor="left", textangle=-90)
    return figure


def _cells(pattern: NDArray[np.float32], labels: Sequence[str], size: float) -> go.Scatter:
    """Return the weights on and below the diagonal as squares; a heat map would be a bitmap."""
    queries, keys = (numbers.tolist() for numbers in np.tril_indices(len(pattern)))
    weights = pattern[queries, keys].tolist()
    hover = [
        f"{labels[query]} attends to {labels[key]}: {weight:.2f}"
        for query, key, weight in zip(queries, keys, weights, strict=True)
    ]
    marker = {"symbol": "square", "size": size, "color": weights, "coloraxis": "coloraxis"}
    marker |= {"opacity": 1, "line": {"width": 0.25, "color": EDGE}}
    where = {"x": keys, "y": queries, "cliponaxis": False}
    return go.Scatter(**where, mode="markers", marker=marker, hovertext=hover, hoverinfo="text")


def _write(figure: go.Figure, text: str, **place: object) -> None:
    """Add a text outside of the maps, whose place is given in shares of the area of all maps."""
    paper = {"xref": "paper", "yref": "paper", "showarrow": False, "borderpad": 0}
    paper["borderwidth"] = 0
    figure.add_annotation(text=text, font={"size": LARGE}, **paper, **place)


def _width(label: str) -> int:
    """Return the width of a label in characters; Chinese, Japanese and Korean ones count twice."""
    return sum(1 + (east_asian_width(character) in "WF") for character in html.unescape(label))


def _token_text(token: str) -> str:
    """Return the label of a token: without a space at its start, without the end if it is long.

    >>> _token_text(" keys"), _token_text(" "), _token_text("incomprehensible")
    ('keys', '␣', 'incomprehen…')
    """
    text = token_label(token.removeprefix(" ") or token)
    return plotly_text(text if len(text) <= LONGEST_TOKEN else f"{text[: LONGEST_TOKEN - 1]}…")
