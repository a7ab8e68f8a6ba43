"""Results of runs, validation and self-test on stdout; warnings on stderr."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pandas as pd
from rich.table import Table
from rich.text import Text

from probekit.amounts import counted
from probekit.cli.show.tables import print_table
from probekit.pipeline.experiment.validate import ValidationReport
from probekit.pipeline.selftest import CheckResult
from probekit.report.notebooks.run_result import RunResult
from probekit.report.sentences.answer import answer
from probekit.report.sentences.caveats import caveats
from probekit.report.sentences.tables import (
    RULE,
    ComparedScore,
    SiteRow,
    comparison_table,
    filled_columns,
    site_rows,
)
from probekit.report.texts import line_label
from probekit.results.record import load_record
from probekit.results.table import load_table, metric_name
from probekit.results.verdict import Verdict

_LEFT_OUT = ("cross-validated", "selectivity", "C")  # shown on the page only
_SHORT = {"control task": "control"}
_LEGEND = {
    "control task": "control: the same probe on random labels",
    "random weights": "random weights: the same probe on networks with random weights",
    "p": "p: association of predictions and labels, one-sided, adjusted for the maximum over all "
    "sites",
    "compression": "compression: code length without activations divided by that with them",
}


def show_results(result: RunResult) -> None:
    """Print the scores of each site, then the answer of the run and what it is compared with.

    There is a table of sites for each kind of probe and position; the selected site is marked.
    """
    record = load_record(result.folder / "run.json")
    v = record.verdict
    _show_sites(load_table(result.results), v)
    click.echo(f"\n{answer(v, record.question)}")
    rows = comparison_table(v, record.control)
    if rows:
        click.echo()
        print_table(_comparisons(rows, metric_name(v.metric)))
        click.echo(RULE)


def _show_sites(table: pd.DataFrame, v: Verdict) -> None:
    """Print the table of sites of each kind of probe and position, and a legend."""
    rows = site_rows(table, v)
    columns = [name for name in filled_columns(rows) if name not in _LEFT_OUT]
    blocks: dict[tuple[str, str], list[SiteRow]] = {}
    for row in rows:
        blocks.setdefault((row.probe, row.position), []).append(row)
    for number, (names, block) in enumerate(blocks.items()):
        several = [len(set(column)) > 1 for column in zip(*blocks, strict=True)]
        heading = " at ".join(name for name, differ in zip(names, several, strict=True) if differ)
        if heading:
            click.echo(f"{chr(10) * (number > 0)}{heading}")
        print_table(_block(block, columns))
    if rows:
        click.echo(_legend(v, rows, columns))


def _legend(v: Verdict, rows: Sequence[SiteRow], columns: Sequence[str]) -> str:
    """Return the legend of the columns, and of the mark of selected sites."""
    parts = [text for name, text in _LEGEND.items() if name in columns]
    if any(row.chosen for row in rows):
        by = " of at least one outer fold" if v.is_nested else ""
        parts.insert(0, f"*: selected by cross-validation{by}")
    main = metric_name(v.metric)
    return "; ".join([f"{main}: score on held-out rows with 95 % interval", *parts]) + "."


def _comparisons(rows: Sequence[ComparedScore], metric: str) -> Table:
    """Return the table of the scores that the selected probe is compared with."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("compared with")
    for title in (metric, "difference", "95 % interval", "p"):
        shown.add_column(title, justify="right", no_wrap=True)
    shown.add_column("")
    for one in rows:
        interval = one.interval.strip("[]").replace(", ", " to ")
        name = Text(line_label(one.name))
        p = f"{one.p} ({one.sided})" if one.sided else one.p
        shown.add_row(name, one.score, one.difference, interval, p, one.verdict)
    return shown


def _block(rows: Sequence[SiteRow], columns: Sequence[str]) -> Table:
    """Return the table of one kind of probe, with the interval of the main score."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("site")
    filled = [name for name in columns if any(name in row.cells for row in rows)]
    for name in filled:
        heads = (_SHORT.get(name, name), "95 % interval")[
            : 1 + (name == metric_name(rows[0].metric))
        ]
        for head in heads:
            shown.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = []
        for name in filled:
            value, below = row.cells.get(name, ("-", ""))
            is_main = name == metric_name(row.metric)
            cells += [value, below.strip("[]").replace(", ", " to ")] if is_main else [value]
        shown.add_row(Text(f"{_short(row.site)}{' *' if row.chosen else ''}"), *cells)
    return shown


def _short(site: str) -> str:
    """Return the name of a site; of several concatenated ones, the first, the last and the number.

    >>> _short("blocks.0.attn.hook_z + blocks.1.attn.hook_z + blocks.2.attn.hook_z")
    'blocks.0.attn.hook_z + … + blocks.2.attn.hook_z (3 sites)'
    """
    first, *others = line_label(site).split(" + ")
    if len(others) < 2:
        return line_label(site)
    return f"{first} + … + {others[-1]} ({len(others) + 1} sites)"


def show_warnings(result: RunResult) -> None:
    """Print the warnings on stderr."""
    record = load_record(result.folder / "run.json")
    if record.control.why_none:
        click.echo(record.control.why_none)
    for sentence in caveats(record.verdict, record):
        click.echo(f"warning: {sentence}", err=True)


def show_validation(validation: ValidationReport) -> None:
    """Print the findings and the estimated cost of the capture."""
    click.echo(str(validation))


def show_verdicts(verdicts: Sequence[CheckResult]) -> None:
    """Print a line for each check, then the number of checks and of failures."""
    shown = Table("check", "kind", "expected", "found", "ok", box=None, pad_edge=False)
    for one in verdicts:
        cells = (one.check, one.kind, one.expected, one.found, "yes" if one.ok else "NO")
        shown.add_row(*map(Text, cells))
    print_table(shown)
    n_bad = sum(not one.ok for one in verdicts)
    click.echo(f"{counted(len(verdicts), 'check')}, {n_bad} failed.")
