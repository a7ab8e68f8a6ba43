"""Predictions of a saved probe on stdout: coloured on a terminal, otherwise a table."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.style import Style
from rich.text import Text

from probekit.probes.saved_probe import SavedProbe
from probekit.progress import Console
from probekit.report.figures.style import format_number
from probekit.report.texts import HIGH, LOW, NUMBER, Paint, Palette, line_label, token_label
from probekit.results.network import Per, TextReading, tidy_rows

# Free text is the last column.
_COLUMNS = ("number", "position", "label", "score", "token", "text")

_WITH_SHADES = ("256", "truecolor")  # with 16 colours, pale shades cannot be distinguished


def show_answers(readings: Sequence[TextReading], probe: SavedProbe, per: Per) -> None:
    """Print a label and a score for each text or token.

    On a terminal with at least 256 colours, tokens are coloured by their score. Otherwise the
    output is tab-separated columns with a header.
    """
    console = Console()
    has_shades = console.color_system in _WITH_SHADES and not console.no_color
    if not (console.is_terminal and has_shades):
        _print_columns(readings, probe, per)
        return
    palette = Palette.of(readings, probe.classes)
    for number, reading in enumerate(readings, start=1):
        line = Text().append(f"{number} ", "dim")
        line.append_text(_tokens(reading, palette) if per == "token" else _whole(reading, palette))
        console.print(line, overflow="fold")
    console.print(_legend(palette))


def _print_columns(readings: Sequence[TextReading], probe: SavedProbe, per: Per) -> None:
    rows = tidy_rows(readings, probe.classes, per)
    names = [name for name in _COLUMNS if name in rows[0]]
    click.echo("\t".join(names))
    for row in rows:
        click.echo("\t".join(_cell(name, row[name]) for name in names))


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name == "token":
        return token_label(str(value))
    return f"{value:.4f}" if isinstance(value, float) else line_label(str(value))


def _tokens(reading: TextReading, palette: Palette) -> Text:
    line = Text()
    for token, answer in zip(reading.tokens, reading.answers, strict=True):
        line.append(line_label(token), _style(palette.paint(answer)))
        if len(palette.classes) > 2:
            line.append(f"/{line_label(answer.label or '')}", "dim")
        if "\n" in token:
            line.append("\n")
    return line


def _whole(reading: TextReading, palette: Palette) -> Text:
    line = Text()
    if reading.answer is None:
        line.append("-")
    else:
        line.append(f" {line_label(reading.answer.text)} ", _style(palette.paint(reading.answer)))
    return line.append(f" {line_label(reading.text)}")


def _style(paint: Paint) -> Style:
    return Style(color="#000000", bgcolor=paint.on_white)


def _legend(palette: Palette) -> Text:
    """Return the legend of the colours."""
    line = Text()
    if not palette.classes:
        line.append(" number ", _style(Paint(NUMBER, 1.0)))
        return line.append(f" {format_number(palette.low)} to {format_number(palette.high)}", "dim")
    hues = (LOW, HIGH) if len(palette.classes) == 2 else map(palette.hue, palette.classes)
    for name, hue in zip(palette.classes, hues, strict=True):
        line.append(f" {line_label(name)} ", _style(Paint(hue, 1.0))).append(" ")
    if len(palette.classes) == 2:
        line.append(f"palest at score 0, strongest from ±{format_number(palette.high)}", "dim")
    return line
