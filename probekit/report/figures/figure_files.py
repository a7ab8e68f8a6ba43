"""Figures for a paper: PNG, SVG and PDF files, one or two columns wide, and attention heads."""

import math
import re
import struct
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.errors import ConfigError, DataError, MissingError, UnknownNameError, nearest
from probekit.files import write_atomic
from probekit.provenance import install_command
from probekit.report.elements.page import FigurePart
from probekit.report.elements.style import INK, MAGNITUDES, plotly_text
from probekit.report.elements.tokens import short_label
from probekit.report.figures.line_labels import place_labels
from probekit.results.network import AttentionPrompt

FORMATS = ("png", "svg", "pdf")
# Figures are drawn with texts of 12 and 13 pixels, and scaled so that these are 7 and 7.6 points.
POINT = 12 / 7  # pixels
CENTIMETRE = 72 / 2.54 * POINT  # pixels
WIDTHS = {1: 8.5, 2: 18.0}  # centimetres, by number of columns
HEIGHTS = {1: 6.0, 2: 9.0}  # centimetres; in two columns, at least the height of the part
CSS_PIXELS, DOTS = 96 / 2.54, 600 / 2.54  # per centimetre: of SVG and PDF, and of PNG
TOP = 24  # pixels above the plot, for titles of panels and notes of maps
BOTTOM = 52  # pixels below the plot, for ticks and title of the layer axis
LEAST_CELL = (26, 14)  # pixels; in smaller cells of a map, numbers cannot be read
REM = 16  # pixels per rem, the unit of `FigurePart.height`
# Figures of attention heads, in CSS pixels, so that `write_image` writes a PDF or SVG file in the
# printed size.
WIDTH, HEIGHT = CSS_PIXELS * WIDTHS[1], CSS_PIXELS * HEIGHTS[1]  # of one row
SMALL, LARGE = 7 * 96 / 72, 8 * 96 / 72  # text: tokens and ticks, everything else
TITLE, BAR = 1.4 * LARGE, 44  # height of a title; width of the colour bar with its texts
GAP = 7  # between maps
LEAST_TOKEN = 0.85 * SMALL  # in smaller cells only some tokens are labelled
MOST_TOKENS = 100
MOST_IN_A_ROW = 3
TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)  # weights at the colour bar, as on the page


def read_formats(text: str) -> tuple[str, ...]:
    """Return the distinct formats of a list separated by commas or spaces, in lower case.

    Raises:
        ConfigError: The list is empty.
        UnknownNameError: A format is unknown.

    >>> read_formats("png, PDF")
    ('png', 'pdf')
    """
    formats = tuple(dict.fromkeys(filter(None, re.split(r"[\s,]+", text.lower()))))
    if not formats:
        raise ConfigError(
            f"--figures {text!r} names no format. Give one or more of {','.join(FORMATS)}."
        )
    for name in formats:
        if name not in FORMATS:
            raise UnknownNameError(f"--figures: unknown format {name!r}. {nearest(name, FORMATS)}")
    return formats


def check_engine() -> None:
    """Raise MissingError if figures cannot be exported on this machine.

    Raises:
        MissingError: kaleido or Chromium is not installed; the message explains how to install it.
    """
    if find_spec("kaleido") is None:
        raise MissingError(
            "Exporting figures requires kaleido, which is not installed. Run "
            f"{install_command('png')}."
        )
    from choreographer.browsers.chromium import Chromium

    if not Chromium.find_browser(skip_local=False):
        raise MissingError(
            "Exporting figures requires Chromium or Chrome, and neither was found. Install one (on "
            "Debian `apt install chromium`, elsewhere `kaleido_get_chrome`), or set BROWSER_PATH "
            "to the executable."
        )


def write_figures(
    parts: Sequence[FigurePart], folder: Path, formats: Sequence[str], columns: int = 2
) -> list[Path]:
    """Write each figure in each format into a folder and return the paths.

    Args:
        parts: Figures; file names are derived from their titles.
        folder: Output folder, created if it does not exist.
        formats: One or more of `FORMATS`.
        columns: Figure width in columns of the paper, 1 or 2.

    Raises:
        MissingError: kaleido or Chromium is not installed.
        StoreError: A file cannot be written.
    """
    drawings = []
    for name, part in zip(file_names([part.title for part in parts]), parts, strict=True):
        drawing, size = on_paper(part, columns)
        drawing.update_layout(size)
        drawings += [(folder / f"{name}.{kind}", drawing) for kind in formats]
    write_drawings(drawings, CENTIMETRE)
    return [path for path, _ in drawings]


class SavedFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A figure whose PDF files are whole: Plotly's own would lose 0.2 inches of each side."""

    def write_image(self, file: Any, *args: Any, **kwargs: Any) -> None:
        """Write a picture as Plotly does; the format is the suffix of the file.

        Raises:
            MissingError: kaleido or Chromium is not installed; the message explains how to
                install it.
            StoreError: The PDF file cannot be written.
        """
        check_engine()
        if args or kwargs or not str(file).endswith(".pdf"):
            super().write_image(file, *args, **kwargs)
            return
        size = {"width": self.layout.width or 700, "height": self.layout.height or 500}
        write_drawings([(Path(file), go.Figure(self).update_layout(size))], CSS_PIXELS)


def write_drawings(drawings: Sequence[tuple[Path, go.Figure]], centimetre: float) -> None:
    """Write drawings that have this many pixels in a centimetre of the paper.

    Raises:
        MissingError: kaleido or Chromium is not installed.
        StoreError: A file cannot be written.
    """
    check_engine()
    import kaleido

    # kaleido would load MathJax from a CDN, and print a PDF with margins of 0.1 inches, which cut
    # off as much at the right and at the bottom.
    pages = kaleido.PageGenerator(mathjax=False)
    pages.header += "<style>@page { margin: 0; }</style>"
    kaleido.start_sync_server(page_generator=pages)
    try:
        for path, drawing in drawings:
            kind = path.suffix.removeprefix(".")
            scale = (DOTS if kind == "png" else CSS_PIXELS) / centimetre
            size = {"width": drawing.layout.width, "height": drawing.layout.height}
            options = {**size, "format": kind, "scale": scale}
            content = kaleido.calc_fig_sync(drawing.to_dict(), opts=options)
            if kind == "png":
                # The resolution, so that programs place the picture in its printed size. Source:
                # PNG specification, section 11.3.4.3, pHYs: pixels per metre, which is unit 1.
                chunk = b"pHYs" + struct.pack(">IIB", *[round(100 * DOTS)] * 2, 1)
                phys = struct.pack(">I", 9) + chunk + struct.pack(">I", zlib.crc32(chunk))
                header = 8 + 25  # signature and IHDR
                content = content[:header] + phys + content[header:]
            write_atomic(path, content)
    finally:
        kaleido.stop_sync_server()


def on_paper(part: FigurePart, columns: int) -> tuple[go.Figure, dict[str, int]]:
    """Return the figure on a white background, and its width and height in pixels.

    Labels of lines are placed for that height. In maps with small cells, numbers and some labels of
    rows and columns are left out.
    """
    figure = go.Figure(part.figure)
    width, height = (math.floor(CENTIMETRE * size[columns]) for size in (WIDTHS, HEIGHTS))
    if columns > 1 and part.height is not None:
        height = max(height, round(REM * part.height))
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white", margin_t=TOP)
    place_labels(figure, height - TOP - BOTTOM)
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    if maps:
        # Remove numbers that are wider or higher than their cells, and labels that would overlap.
        n_rows, n_columns = len(maps[0].z), sum(len(trace.z[0]) for trace in maps)
        # Labels of rows and the colour bar take about 120 pixels.
        cell_width, cell_height = (width - 120) / n_columns, (height - TOP - BOTTOM) / n_rows
        least_width, least_height = LEAST_CELL
        if cell_width < least_width or cell_height < least_height:
            figure.data = [
                trace for trace in figure.data if trace.type == "heatmap" or trace.mode != "text"
            ]
        for axes, size, room in (
            (figure.select_yaxes(), cell_height, least_height),
            (figure.select_xaxes(), cell_width, least_width),
        ):
            for axis in axes:
                # Labels that may be vertical are as wide as a line is high.
                turns = axis.plotly_name.startswith("x") and axis.autotickangles
                step = math.ceil((least_height if turns else room) / size)
                texts = ["" if n % step else text for n, text in enumerate(axis.ticktext or ())]
                axis.ticktext = texts
    return figure, {"width": width, "height": height}


def file_names(titles: Sequence[str]) -> list[str]:
    """Return a unique, portable file name (without suffix) for each title.

    >>> file_names(["Accuracy by layer", "R² · a/b", "R² · a b", "R² · a b 3", "R² · a b"])
    ['accuracy-by-layer', 'r2-a-b', 'r2-a-b-2', 'r2-a-b-3', 'r2-a-b-4']
    """
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9]+", "-", title.lower().replace("²", "2")).strip("-")[:80]
        plain = plain or "figure"
        # The number starts after the count of names that begin alike, and rises until it is free.
        name, number = plain, sum(other.startswith(plain) for other in names)
        while name in names:
            number += 1
            name = f"{plain}-{number}"
        names.append(name)
    return names


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
    step = math.ceil(n * LEAST_TOKEN / side)
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
