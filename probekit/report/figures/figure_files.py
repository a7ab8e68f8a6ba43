"""Figures as files for a paper: PNG, SVG and PDF, as wide as one column or two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go

from probekit.errors import ConfigError, MissingError, UnknownNameError, nearest
from probekit.provenance import write_atomic
from probekit.report.pages.parts import FigurePart

FORMATS = ("png", "svg", "pdf")
# Pixels of the drawing. Printed 89 and 183 mm wide, as journals have them, the text is of 7.5 pt.
WIDTHS = {1: 440, 2: 905}
HEIGHT = 430  # of which some 300 are the plot, as the names of lines count on
PNG_SCALE = 3  # 377 dots an inch in print
REM = 16  # pixels, in which parts say their height


def read_formats(text: str) -> tuple[str, ...]:
    """Return the formats that a text lists with commas between them.

    Raises:
        ConfigError: There are none.
        UnknownNameError: One is not known.

    >>> read_formats("png, PDF")
    ('png', 'pdf')
    """
    formats = tuple(dict.fromkeys(filter(None, re.split(r"[\s,]+", text.lower()))))
    if not formats:
        raise ConfigError(f"--figures {text!r} names no format. Give some of {','.join(FORMATS)}.")
    for name in formats:
        if name not in FORMATS:
            raise UnknownNameError(
                f"--figures: there is no format {name!r}. {nearest(name, FORMATS)}"
            )
    return formats


def check_engine() -> None:
    """Return nothing if figures can be drawn here; known before any work.

    Raises:
        MissingError: kaleido or a Chromium is not installed; the text says how to install it.
    """
    if find_spec("kaleido") is None:
        raise MissingError(
            "Figures are drawn by kaleido, which is not installed: pip install 'probekit[png]'."
        )
    from choreographer.browsers.chromium import Chromium

    if not Chromium.find_browser(skip_local=False):
        raise MissingError(
            "Figures are drawn by a Chromium or Chrome, and none is found. Install one (on Debian "
            "`apt install chromium`, anywhere `kaleido_get_chrome`), or set BROWSER_PATH to one."
        )


def write_figures(
    parts: Sequence[FigurePart], folder: Path, formats: Sequence[str], columns: int = 2
) -> list[Path]:
    """Write each figure in each format into a folder and return the paths.

    Args:
        parts: the figures; their titles name the files.
        folder: is made if it is not there.
        formats: some of `FORMATS`.
        columns: of the paper that a figure is wide, 1 or 2.

    Raises:
        MissingError: What draws figures is not installed.
        StoreError: A file cannot be written.
    """
    check_engine()
    import kaleido

    # Its formulas would be fetched from a network.
    kaleido.start_sync_server(mathjax=False)
    try:
        written = []
        for name, part in zip(file_names([part.title for part in parts]), parts, strict=True):
            for kind in formats:
                path = folder / f"{name}.{kind}"
                drawing, size = on_paper(part, columns)
                options = {**size, "format": kind, "scale": PNG_SCALE if kind == "png" else 1}
                write_atomic(path, kaleido.calc_fig_sync(drawing.to_dict(), opts=options))
                written.append(path)
        return written
    finally:
        kaleido.stop_sync_server()


def on_paper(part: FigurePart, columns: int) -> tuple[go.Figure, dict[str, int]]:
    """Return a figure on white ground, and its width and height in pixels."""
    figure = go.Figure(part.figure)
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white", margin_t=24)
    height = HEIGHT if part.height is None else round(REM * part.height)
    return figure, {"width": WIDTHS[columns], "height": height}


def file_names(titles: Sequence[str]) -> list[str]:
    """Return a name for each title that any file system takes, no two alike.

    >>> file_names(["Accuracy by layer", "R² · a/b", "R² · a b"])
    ['accuracy-by-layer', 'r2-a-b', 'r2-a-b-2']
    """
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9]+", "-", title.lower().replace("²", "2")).strip("-")[:80]
        name = plain = plain or "figure"
        while name in names:
            name = f"{plain}-{sum(n.startswith(plain) for n in names) + 1}"
        names.append(name)
    return names
