"""Patches of a pair of texts on stdout."""

from __future__ import annotations

import click
import pandas as pd
from rich.table import Table
from rich.text import Text

from probekit.cli.show.tables import print_table
from probekit.report.maps.network_maps import signed
from probekit.report.pages.causes.pair_page import (
    CAVEAT,
    pair_answer,
    pair_notes,
    patch_columns,
    patch_rows,
)
from probekit.report.texts import line_label, token_label
from probekit.results.network import PatchedPair


def show_pair(pair: PatchedPair, top: int) -> None:
    """Print the measure after both texts, the strongest patches, and what they show."""
    answer, wrong = token_label(pair.answer), token_label(pair.wrong)
    click.echo(f"Logit of {answer} minus logit of {wrong}:")
    texts = Table("", box=None, pad_edge=False, show_header=False)
    for name, tokens, value in (
        ("clean", pair.clean, pair.base),
        ("corrupt", pair.corrupt, pair.source),
    ):
        texts.add_row(name, signed(value), Text(line_label("".join(tokens))))
    print_table(texts)
    _show_strongest(pair, pair.of_positions, top)
    if len(pair.of_heads):
        _show_strongest(pair, pair.of_heads, top)
    click.echo(pair_answer(pair))
    for note in pair_notes(pair):
        click.echo(f"note: {note}", err=True)
    click.echo(CAVEAT)


def _show_strongest(pair: PatchedPair, rows: pd.DataFrame, top: int) -> None:
    first, *others = patch_columns(pair)
    shown = Table(first, box=None, pad_edge=False)
    for name in others:
        shown.add_column(name, justify="right", no_wrap=True)
    for name, *numbers in patch_rows(pair, rows, top):
        shown.add_row(Text(name), *numbers)
    click.echo()
    print_table(shown)
    click.echo()
