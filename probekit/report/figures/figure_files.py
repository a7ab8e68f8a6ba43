"""Export of figures for a paper: PNG, SVG and PDF files, one or two columns wide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import plotly.graph_objects as go

from probekit.drafts import write_atomic
from probekit.errors import ConfigError, MissingError, UnknownNameError, nearest
from probekit.report.pages.parts import FigurePart

FORMATS = ("png", "svg", "pdf")
# Width in pixels by number of columns. Printed at 89 and 183 mm (usual journal columns), text has
# 7.5 pt.
WIDTHS = {1: 440, 2: 905}
HEIGHT = 430  # pixels; the plot area takes about 300, enough to keep level labels apart
PNG_SCALE = 3  # 377 dpi at the printed width
REM = 16  # pixels per rem, the unit of `FigurePart.height`


def read_formats(text: str) -> tuple[str, ...]:
    """Return the distinct formats of a comma-separated list.

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
            "pip install 'probekit[png]'."
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
    check_engine()
    import kaleido

    # kaleido would load MathJax from a CDN.
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
    """Return the figure on a white background, and its width and height in pixels."""
    figure = go.Figure(part.figure)
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white", margin_t=24)
    height = HEIGHT if part.height is None else round(REM * part.height)
    return figure, {"width": WIDTHS[columns], "height": height}


def file_names(titles: Sequence[str]) -> list[str]:
    """Return a unique, portable file name (without suffix) for each title.

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
