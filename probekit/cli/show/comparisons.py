"""Results of run comparisons and transfer on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import click
import pandas as pd
from rich.table import Table
from rich.text import Text

from probekit.cli.show.tables import print_table
from probekit.report.figures.style import format_number, format_p
from probekit.report.sentences.comparisons import (
    comparison_answer,
    difference_words,
    result_words,
    transfer_answer,
)
from probekit.report.texts import line_label
from probekit.results.comparison import RunComparison, Transfer, both_places
from probekit.results.table import metric_name, only

MOST_SETTINGS = 20  # shown in the terminal


def show_comparison(comparison: RunComparison) -> None:
    """Print the settings that differ, a line for each comparison, and the verdict."""
    if comparison.experiment:
        click.echo(line_label(comparison.experiment))
    click.echo(f"a: {line_label(comparison.a)}\nb: {line_label(comparison.b)}")
    for name, values in islice(comparison.settings.items(), MOST_SETTINGS):
        click.echo(f"  {name}: {' | '.join(map(line_label, values))}")
    if len(comparison.settings) > MOST_SETTINGS:
        click.echo(f"  and {len(comparison.settings) - MOST_SETTINGS} more settings")
    if not comparison.settings:
        click.echo("  no setting, digest or version differs")
    print_table(_table(comparison))
    if comparison.rows["what"].eq("chosen").any():
        click.echo("*: the selected probes of both runs.")
    for note in comparison.notes:
        click.echo(note)
    click.echo(comparison.verdict)
    click.echo(line_label(comparison_answer(comparison)))


def _table(comparison: RunComparison) -> Table:
    shown = Table(box=None, pad_edge=False)
    shown.add_column(f"{comparison.metric}, a - b")
    for name in ("a", "b", "difference", "p", "p_adjusted", "n", ""):
        shown.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for _, row in comparison.rows.iterrows():
        place = both_places(row) + (" *" if row["what"] == "chosen" else "")
        n = " | ".join(dict.fromkeys(f"{row[side]:,}" for side in ("n_a", "n_b")))
        shown.add_row(
            Text(line_label(place)),
            format_number(row["value_a"]),
            format_number(row["value_b"]),
            difference_words(row),
            format_p(row["p"]),
            format_p(row["p_adjusted"]),
            n,
            result_words(row),
        )
    return shown


def show_transfer(result: Transfer) -> None:
    """Print scores and cosines of the selected site as matrices, and the means of every site."""
    scores, cosines = result.at(*result.chosen)
    click.echo(line_label(" ".join(result.chosen)))
    main = only(scores, metric=result.metric)
    click.echo(f"{metric_name(result.metric)}, trained on (down) and tested on (across):")
    print_table(_matrix(result.names, main, ("value", "ci_low", "ci_high")))
    for space, rows in cosines.groupby("space", sort=False):
        click.echo(f"cosine, {space} features, with 95 % interval under permuted labels:")
        print_table(_matrix(result.names, rows, ("cosine", "null_low", "null_high")))
    print_table(_by_site(result))
    click.echo("*: selected by cross-validation; its scores are those above.")
    click.echo(line_label(transfer_answer(result)))
    for note in result.notes:
        click.echo(f"warning: {note}", err=True)


def _matrix(names: Sequence[str], rows: pd.DataFrame, columns: tuple[str, str, str]) -> Table:
    shown = Table("", box=None, pad_edge=False)
    for name in names:
        shown.add_column(Text(line_label(name)), justify="right", no_wrap=True)
    cells = {(row["train"], row["test"]): row for _, row in rows.iterrows()}
    for train in names:
        values = [format_number(*(cells[train, test][c] for c in columns)) for test in names]
        shown.add_row(Text(line_label(train)), *values)
    return shown


def _by_site(result: Transfer) -> Table:
    rows = only(result.scores, metric=result.metric)
    own = rows["train"] == rows["test"]
    shown = Table("site", "probe", box=None, pad_edge=False)
    for name in ("own test rows", "others'"):
        shown.add_column(name, justify="right", no_wrap=True)
    for site, probe in result.places():
        is_place = (rows["site"] == site) & (rows["probe"] == probe)
        means = [format_number(rows.loc[is_place & side, "value"].mean()) for side in (own, ~own)]
        mark = " *" if (site, probe) == result.chosen else ""
        shown.add_row(Text(line_label(site) + mark), Text(line_label(probe)), *means)
    return shown
