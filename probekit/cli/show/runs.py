"""Results of runs, validation and self-test on stdout; warnings on stderr."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pandas as pd
from rich.table import Table
from rich.text import Text

from probekit.amounts import counted
from probekit.cli.show.tables import print_table
from probekit.pipeline.experiment.run import RunResult
from probekit.pipeline.experiment.validate import ValidationReport
from probekit.probes.selftest.checks import Verdict
from probekit.probes.targets import BASELINES, TARGETS
from probekit.report.figures.style import format_number
from probekit.report.sentences.choice import nested_sentence
from probekit.report.sentences.sites_table import SiteRow, filled_columns, site_rows
from probekit.report.sentences.warnings import warnings
from probekit.report.texts.glyphs import line_label
from probekit.results.differences import load_differences, rival_differences
from probekit.results.metrics import metric_name
from probekit.results.record import load_record
from probekit.results.selection import headline_row, is_nested, main_metric
from probekit.results.table import differs, load_table

_LEFT_OUT = ("cross-validated", "selectivity", "C")  # shown on the page only
_SHORT = {"control task": "control"}
_HEADS = {"error": "Error"}  # same spelling as errors that end a command


def show_results(result: RunResult) -> None:
    """Print the main score of each site with controls and baselines, by kind of probe and position.

    The selected site is marked.
    """
    table = load_table(result.results)
    rows = site_rows(table)
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
    if any(row.chosen for row in rows):
        by = " of at least one outer fold" if is_nested(table) else ""
        click.echo(f"* selected by cross-validation{by}.")
    headline = headline_row(table)
    if headline is not None:
        value = format_number(headline["value"], headline["ci_low"], headline["ci_high"])
        click.echo(nested_sentence(table))
        click.echo(f"Test {metric_name(headline['metric'])} of these choices: {value}.")
    baselines = _baselines(table)
    if baselines:
        click.echo(f"Baselines without the network: {baselines}.")


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
        shown.add_row(Text(f"{line_label(row.site)}{' *' if row.chosen else ''}"), *cells)
    return shown


def _baselines(table: pd.DataFrame) -> str:
    """Return the baseline scores of the main metric as text."""
    rows = table[table["target"].isin(BASELINES) & (table["split"] == "test")]
    # In a sweep, baselines without a position belong to the nested choice.
    if differs(rows["position"]):
        rows = rows[rows["position"] != ""]
    rows = rows[rows["metric"] == main_metric(rows)]
    values: dict[str, dict[str, str]] = {}
    for row in rows.to_dict("records"):
        name = TARGETS[str(row["target"])].title
        values.setdefault(name, {})[row["position"]] = format_number(row["value"])
    return ", ".join(f"{name} {_by_position(scores)}" for name, scores in values.items())


def _by_position(values: dict[str, str]) -> str:
    """Return the values at the positions of a sweep; a single value if they are all equal.

    >>> _by_position({"word:last-1": "0.50", "word:last": "0.50"})
    '0.50'
    >>> _by_position({"word:last-1": "0.50", "word:last": "0.75"})
    '0.50 at word:last-1 and 0.75 at word:last'
    """
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return " and ".join(f"{value} at {position}" for position, value in values.items())


def show_warnings(result: RunResult) -> None:
    """Print the warnings on stderr."""
    table = load_table(result.results)
    comparisons = rival_differences(table, load_differences(result.folder / "differences.csv"))
    record = load_record(result.folder / "run.json")
    if record.control.why_none:
        click.echo(record.control.why_none)
    for sentence in warnings(table, record, comparisons):
        click.echo(f"warning: {sentence}", err=True)


def show_validation(validation: ValidationReport) -> None:
    """Print the findings and the estimated cost of the capture."""
    for finding in validation.findings:
        click.echo(f"{_HEADS.get(finding.level, finding.level)}: {finding.message}")
    if validation.n_rows:
        click.echo(
            f"{counted(validation.n_examples, 'example')}, {counted(validation.n_rows, 'row')} at "
            f"each of {counted(validation.n_sites, 'site')}, {validation.bytes / 1e6:,.1f} MB, "
            f"{_duration(validation.minutes)} to capture on this machine, plus probing."
        )
    click.echo("ok" if validation.ok else "not ok")


def _duration(minutes: float) -> str:
    """Return a duration in words.

    >>> _duration(0.004), _duration(0.5), _duration(3.25)
    ('less than a second', 'about 30 seconds', 'about 3.2 minutes')
    """
    seconds = round(60 * minutes)
    if seconds < 1:
        return "less than a second"
    return f"about {counted(seconds, 'second') if seconds < 120 else f'{minutes:.1f} minutes'}"


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print a line for each check, then the number of checks and of failures."""
    shown = Table("check", "kind", "expected", "found", "ok", box=None, pad_edge=False)
    for one in verdicts:
        cells = (one.check, one.kind, one.expected, one.found, "yes" if one.ok else "NO")
        shown.add_row(*map(Text, cells))
    print_table(shown)
    n_bad = sum(not one.ok for one in verdicts)
    click.echo(f"{counted(len(verdicts), 'check')}, {n_bad} failed.")
