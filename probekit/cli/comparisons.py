"""What comparisons found, on stdout: which differences of two runs hold."""

from __future__ import annotations

import sys

import click
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from probekit.report.comparison import Comparison, both_places
from probekit.report.glyphs import line_label
from probekit.report.style import format_number

MOST_SETTINGS = 20  # shown in the terminal


def show_comparison(comparison: Comparison) -> None:
    """Print what differs between the runs, then a line for each comparison, then the verdict."""
    click.echo(f"a: {line_label(comparison.a)}\nb: {line_label(comparison.b)}")
    for setting in comparison.settings[:MOST_SETTINGS]:
        click.echo(f"  {setting.name}: {line_label(setting.a)} | {line_label(setting.b)}")
    if len(comparison.settings) > MOST_SETTINGS:
        click.echo(f"  and {len(comparison.settings) - MOST_SETTINGS} more settings")
    if not comparison.settings:
        click.echo("  no setting, digest or version differs")
    _print(_table(comparison))
    for note in comparison.notes:
        click.echo(note)
    click.echo(comparison.verdict)


def _table(comparison: Comparison) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column(f"{comparison.metric}, a - b")
    for name in ("a", "b", "difference", "p", "p_holm", "n", ""):
        shown.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for _, row in comparison.rows.iterrows():
        place = both_places(row) + (" *" if row["what"] == "chosen" else "")
        n = " | ".join(dict.fromkeys(f"{row[side]:,}" for side in ("n_a", "n_b")))
        shown.add_row(
            Text(line_label(place)),
            format_number(row["value_a"]),
            format_number(row["value_b"]),
            format_number(row["difference"], row["ci_low"], row["ci_high"]),
            _p(row["p"]),
            _p(row["p_holm"]),
            n,
            "holds" if row["holds"] else "does not hold",
        )
    return shown


def _p(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2g}" if value < 0.001 else f"{value:.3f}"


def _print(table: Table) -> None:
    # A pipe or a file has no width: nothing may be cut there.
    Console(width=None if sys.stdout.isatty() else 400, highlight=False).print(table)
