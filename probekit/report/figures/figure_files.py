"""Export of figures for a paper: PNG, SVG and PDF files, one or two columns wide."""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from probekit.errors import ConfigError, MissingError, UnknownNameError, nearest
from probekit.files import write_atomic
from probekit.provenance import install_command
from probekit.report.elements.page import FigurePart
from probekit.report.figures.line_labels import place_labels

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
            write_atomic(path, with_resolution(content) if kind == "png" else content)
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


def with_resolution(png: bytes) -> bytes:
    """Return a PNG file with its resolution, so that programs place it in its printed size.

    Source: PNG specification, section 11.3.4.3, pHYs: pixels per metre.
    """
    per_metre = round(100 * DOTS)
    # The last 1 means that the unit is the metre; the content of the chunk has 9 bytes.
    chunk = b"pHYs" + struct.pack(">IIB", per_metre, per_metre, 1)
    header = 8 + 25  # signature and IHDR
    phys = struct.pack(">I", 9) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png[:header] + phys + png[header:]


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
