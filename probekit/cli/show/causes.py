"""Printing the interventions of a run: answer, verdicts, warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.table import Table

from probekit.cli.show.tables import print_table
from probekit.report.causes.cause_answer import cause_answer, verdict_table
from probekit.report.causes.edits import directions_in
from probekit.report.notebooks.run_result import RunResult
from probekit.results.causes import CauseTables, has_causes


def show_causes(tables: CauseTables) -> None:
    """Print the answer, the table of verdicts and doubts, such as texts that were left out."""
    click.echo(f"\n{cause_answer(tables)}")
    table = verdict_table(directions_in(tables))
    rows = [*table.rows, *table.folded]
    if rows:
        click.echo()
        print_table(_as_table(["direction", *(name for name, _ in table.columns)], rows))
    for sentence in tables.record.warnings:
        click.echo(f"warning: {sentence}", err=True)
    for one in tables.record.left_out:
        click.echo(f"warning: Interventions leave out {one.reason}", err=True)


def show_causes_of(result: RunResult) -> None:
    """Print the interventions of a run, if it has any."""
    if has_causes(result.folder):
        show_causes(CauseTables.open(result.folder))


def _as_table(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name)
    for row in rows:
        table.add_row(*_row(row))
    return table


def _row(row: Mapping[str, Any]) -> list[str]:
    cells = [
        "" if cell is None else " ".join(filter(None, (cell["answer"], cell["effect"], cell["p"])))
        for cell in row["cells"]
    ]
    return [", ".join(filter(None, (row["site"], row["details"]))), *cells]
