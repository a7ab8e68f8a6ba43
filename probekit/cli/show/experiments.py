"""Table of the bundled experiments."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from probekit.cli.show.tables import print_table
from probekit.experiment.loader import BundledExperiment
from probekit.experiment.locations import bundled_folder


def show_experiments(listed: Sequence[BundledExperiment]) -> None:
    """Print a row for each bundled experiment: name, question, and additional requirements."""
    shown = Table("name", "question", "needs", box=None, pad_edge=False)
    for one in listed:
        shown.add_row(Text(one.name, no_wrap=True), Text(one.question), Text("\n".join(one.needs)))
    print_table(shown)
    if listed:
        click.echo(f"Run one by name: {listed[0].command}. The files are in {bundled_folder()}.")
    click.echo("Start your own: probekit init my_question.")
