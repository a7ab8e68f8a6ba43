"""Figures for a paper: PNG, SVG and PDF files, one or two columns wide, and attention heads.

`probekit.report.elements.static` draws them from the figures of the pages.
"""

import html
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.files import write_atomic
from probekit.report.elements.page import FigurePart, Page, figure_json
from probekit.report.elements.style import INK, MAGNITUDES, plotly_text
from probekit.report.elements.tokens import short_label
from probekit.report.figures.line_labels import LABEL, LONGEST_LINE, place_labels
from probekit.results.network import AttentionPrompt

FORMATS = ("png", "svg", "pdf")
# Figures are drawn with texts of 12 and 13 pixels, and scaled so that these are 7 and 7.6 points.
POINTS = 7 / 12  # per pixel
INCH = 72 / POINTS  # pixels
WIDTHS = {1: 8.5, 2: 18.0}  # centimetres, by number of columns
HEIGHTS = {1: 6.0, 2: 9.0}  # centimetres; in two columns, at least the height of the part
CSS_POINTS, CSS_PIXELS = 72 / 96, 96 / 2.54  # per pixel; per centimetre
REM = 16  # pixels per rem, the unit of `FigurePart.height`
# Figures of attention heads, in CSS pixels, so that `write_image` writes a PDF or SVG file in the
# printed size.
WIDTH, HEIGHT = CSS_PIXELS * WIDTHS[1], CSS_PIXELS * HEIGHTS[1]  # of one row
SMALL, LARGE = 7 * 96 / 72, 8 * 96 / 72  # text: tokens and ticks, everything else
TITLE, BAR = 1.4 * LARGE, 54  # height of a title; width of the colour bar with its texts
GAP = 7  # between maps
LEAST_TOKEN = 0.85 * SMALL  # in smaller cells only some tokens are labelled
MOST_TOKENS = 100
MOST_IN_A_ROW = 3
TICKS = (0, 0.01, 0.1, 0.25, 0.5, 1)  # weights at the colour bar, as on the page


@dataclass(frozen=True)
class Paper:
    """How figures are drawn for a paper.

    Attributes:
        columns: width in columns of the paper, 1 or 2.
        width: width in inches; None for that of `columns`.
        height: height in inches; None for that of `columns`.
        font: family of the texts; "" for the first sans-serif one that is installed.
        names: texts to replace in names of lines, panels and axes, with their replacements.
    """

    columns: int = 2
    width: float | None = None
    height: float | None = None
    font: str = ""
    names: tuple[tuple[str, str], ...] = ()

    def size(self, part: FigurePart) -> tuple[float, float]:
        """Return width and height of a figure in pixels."""
        width, height = (own[self.columns] / 2.54 * INCH for own in (WIDTHS, HEIGHTS))
        if self.columns > 1 and part.height is not None:
            height = max(height, REM * part.height)
        if self.width is not None:
            width, height = self.width * INCH, min(height, 0.75 * self.width * INCH)
        return width, height if self.height is None else self.height * INCH


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
            near = nearest(name, FORMATS)
            raise UnknownNameError(f"--figures: unknown format {name!r}. {near}")
    return formats


def figures_of(page: Page) -> list[FigurePart]:
    """Return all figures of a page, open and folded, each followed by those that can replace it."""
    found, items = [], [*page.details, *page.sections]
    while items:
        one = items.pop(0)
        if isinstance(one, FigurePart):
            found += [one, *one.others]
        items[:0] = getattr(one, "items", ())
    return found


def write_figures(
    parts: Sequence[FigurePart], folder: Path, formats: Sequence[str], paper: Paper
) -> list[Path]:
    """Write each figure in each format into a folder and return the paths.

    Args:
        parts: Figures; file names are derived from their titles.
        folder: Output folder, created if it does not exist.
        formats: One or more of `FORMATS`.
        paper: How figures are drawn.

    Raises:
        UnknownNameError: The font is not installed, or no figure has a name to be replaced.
        StoreError: A file cannot be written.
    """
    names = file_names([part.title for part in parts])
    paths = [[folder / f"{name}.{kind}" for kind in formats] for name in names]
    return _write(list(zip(parts, paths, strict=True)), paper)


def write_pictures(parts: Sequence[FigurePart], path: Path, paper: Paper) -> list[Path]:
    """Write the first figure to a path, others next to it with their names, and return the paths.

    Raises:
        DataError: There is no figure.
        UnknownNameError: The font is not installed, or no figure has a name to be replaced.
        StoreError: A file cannot be written.
    """
    if not parts:
        raise DataError(f"--out {path}: the page has no figure. Write the page (.html).")
    names = file_names([part.title for part in parts[1:]])
    paths = [path, *(path.with_stem(f"{path.stem}-{name}") for name in names)]
    return _write([(part, [one]) for part, one in zip(parts, paths, strict=True)], paper)


def _write(parts: Sequence[tuple[FigurePart, list[Path]]], paper: Paper) -> list[Path]:
    """Write each figure to its paths; their suffix is the format."""
    from probekit.report.elements import static  # imports matplotlib

    names = [old for old, _ in paper.names]
    texts = [one for part, _ in parts for one in named_texts(go.Figure(part.figure))]
    if unknown := [old for old in names if not any(old in as_line(*one) for one in texts)]:
        known = sorted({as_line(*one) for one in texts})
        near = nearest(unknown[0], known)
        raise UnknownNameError(f"--rename: no figure has the text {unknown[0]!r}. {near}")
    every = [path for _, paths in parts for path in paths]
    drawn = (
        (figure, path.suffix[1:], paper.size(part))
        for part, paths in parts
        for figure in (on_paper(part, paper),)
        for path in paths
    )
    contents = static.pictures(drawn, scale=POINTS, font=paper.font)
    for path, content in zip(every, contents, strict=True):
        write_atomic(path, content)
    return every


def on_paper(part: FigurePart, paper: Paper) -> dict[str, Any]:
    """Return a figure with the names of a paper, and labels of lines placed for its height."""
    from probekit.report.elements import static  # imports matplotlib

    figure = go.Figure(part.figure)
    for owner, attribute in named_texts(figure):
        text = as_line(owner, attribute)
        for old, new in paper.names:
            text = text.replace(old, new)
        if text != as_line(owner, attribute):
            is_broken = "<br>" in owner[attribute]
            lines = textwrap.wrap(text, LONGEST_LINE) if is_broken else [text]
            owner[attribute] = "<br>".join(map(plotly_text, lines))
    if any(note.name == LABEL for note in figure.layout.annotations):
        for _ in range(2):  # labels above the plot leave less height for it
            place_labels(figure, static.plot_height(figure_json(figure), paper.size(part), POINTS))
    return figure_json(figure)


def named_texts(figure: go.Figure) -> list[tuple[Any, str]]:
    """Return the names of lines, panels and axes, each as an object and its attribute."""
    axes = [*figure.select_xaxes(), *figure.select_yaxes()]
    titles = [(axis.title, "text") for axis in axes if axis.title.text]
    notes = [(note, "text") for note in figure.layout.annotations if note.text]
    return [*((one, "name") for one in figure.data if one.name), *notes, *titles]


def as_line(owner: Any, attribute: str) -> str:
    """Return a text of a figure as one line, without entities."""
    return html.unescape(owner[attribute]).replace("<br>", " ").replace("\u00a0", " ")


class SavedFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A figure that writes PNG, SVG and PDF files without a browser."""

    def write_image(
        self,
        file: Path | str,
        format: str | None = None,
        scale: float = 1,
        width: float | None = None,
        height: float | None = None,
    ) -> None:
        """Write a picture; arguments are those of Plotly.

        Args:
            file: path of the file.
            format: `png`, `svg` or `pdf`; by default the suffix of the file.
            scale: factor of the number of pixels of a PNG file.
            width: width in pixels; by default that of the layout, or 700.
            height: height in pixels; by default that of the layout, or 500.

        Raises:
            UnknownNameError: The format is unknown.
            StoreError: The file cannot be written.
        """
        kind = format or Path(file).suffix.removeprefix(".")
        write_atomic(Path(file), self.to_image(kind, scale, width, height))

    def to_image(
        self,
        format: str = "png",
        scale: float = 1,
        width: float | None = None,
        height: float | None = None,
    ) -> bytes:
        """Return a picture as bytes; see `write_image`.

        Raises:
            UnknownNameError: The format is unknown.
        """
        if format not in FORMATS:
            near = nearest(format, FORMATS)
            raise UnknownNameError(f"Unknown format {format!r} of a figure. {near}")
        from probekit.report.elements import static  # imports matplotlib

        size = (width or self.layout.width or 700, height or self.layout.height or 500)
        drawn = [(figure_json(self), format, size)]
        return static.pictures(drawn, scale=CSS_POINTS, dpi=96 * scale)[0]


def file_names(titles: Sequence[str]) -> list[str]:
    """Return a unique, portable file name (without suffix) for each title.

    >>> file_names(["Accuracy by layer", "R² · a/b", "R² · a b", "R² · a b 3", "R² · a b"])
    ['accuracy-by-layer', 'r2-a-b', 'r2-a-b-2', 'r2-a-b-3', 'r2-a-b-4']
    >>> file_names([79 * "a" + " b"]) == [79 * "a"]  # of at most 80 characters
    True
    """
    names: list[str] = []
    for title in titles:
        plain = re.sub(r"[^a-z0-9]+", "-", title.lower().replace("²", "2"))
        plain = plain.strip("-")[:80].rstrip("-") or "figure"
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
    for number, (layer, head) in enumerate(heads):
        row, column = divmod(number, n_columns)
        place = {"row": row + 1, "col": column + 1}
        pattern = prompt.patterns[prompt.layers.index(layer), prompt.heads.index(head)]
        z = np.where(np.tri(n, dtype=bool), np.sqrt(pattern), np.nan).tolist()
        cells = {"coloraxis": "coloraxis", "xgap": 0.5, "ygap": 0.5, "hoverinfo": "skip"}
        figure.add_heatmap(z=z, **cells, **place)
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
        **{"ticks": "outside", "ticklen": 2, "outlinewidth": 0.5, "tickfont_size": SMALL},
        **{"lenmode": "pixels", "len": min(height, HEIGHT - TITLE - margin), "thickness": 7},
        **{"x": 1 + 5 / width, "xpad": 0, "ypad": 0},
    }
    size: dict[str, Any] = {"width": WIDTH, "height": TITLE + height + margin}
    size["margin"] = {"l": left, "r": WIDTH - left - width, "t": TITLE, "b": margin, "pad": 0}
    size["margin"]["autoexpand"] = False
    look: dict[str, Any] = {"paper_bgcolor": "white", "plot_bgcolor": "white", "showlegend": False}
    look["coloraxis"] = {"colorscale": MAGNITUDES, "cmin": 0, "cmax": 1, "colorbar": bar}
    look["font"] = {"family": "Arial, Helvetica, sans-serif", "size": SMALL, "color": INK}
    return SavedFigure(figure.update_layout(size | look))
