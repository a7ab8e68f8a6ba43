"""What the command line shows: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import pandas as pd
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from probekit.amounts import counted
from probekit.model.config import KNOWN_MODELS, GPT2Config
from probekit.model.parameters import count_parameters
from probekit.model.sites import SITES, site_names
from probekit.model.weights.sources import find_config
from probekit.pipeline.experiment.run import RunResult
from probekit.pipeline.experiment.validate import ValidationReport
from probekit.probes.selftest.checks import Verdict
from probekit.report.figures.style import format_number, metric_name
from probekit.report.sentences.differences import load_differences, rival_differences
from probekit.report.sentences.sites_table import SiteRow, filled_columns, site_rows
from probekit.report.sentences.warnings import warnings
from probekit.results.record import load_record
from probekit.results.table import load_table, main_metric
from probekit.watcher import Watcher

_SECONDS_BETWEEN_LINES = 10
_LEFT_OUT = ("cross-validated", "selectivity", "C")  # the page has them
_SHORT = {"control task": "control"}
_HEADS = {"error": "Error"}  # as of the errors that end a command


class _Rate(ProgressColumn):
    """How many are done in a second, or how many seconds one takes."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each")


class _Bars:
    """Progress bars, for a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def progress(self, step: str, done: float, total: int) -> None:
        if step not in self._tasks or done < self._bars.tasks[self._tasks[step]].completed:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._tasks[step], completed=done)

    def tell(self, message: str) -> None:
        self._bars.console.print(Text(message))


class _Lines:
    """Plain lines, for a file or a pipe: the end of a step, and one every ten seconds before."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._line = ""

    def progress(self, step: str, done: float, total: int) -> None:
        line = f"{step}: {done:,.12g} of {total:,}"
        is_due = done == total or time.monotonic() - self._last > _SECONDS_BETWEEN_LINES
        if is_due and line != self._line:
            self._last, self._line = time.monotonic(), line
            self.tell(line)

    def tell(self, message: str) -> None:
        click.echo(message, err=True)


@contextmanager
def watching() -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a terminal and prints lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        yield _Bars(bars)


def show_results(result: RunResult) -> None:
    """Print the main score per site with its company, a block for each kind of probe and position.

    The chosen site is marked.
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
        _print(_block(block, columns))
    if any(row.chosen for row in rows):
        click.echo("* chosen by cross-validation.")
    baselines = _baselines(table)
    if baselines:
        click.echo(f"Without the network: {baselines}.")


def _block(rows: Sequence[SiteRow], columns: Sequence[str]) -> Table:
    """Return the lines of one kind of probe, with the interval of the main score."""
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
        shown.add_row(Text(f"{row.site}{' *' if row.chosen else ''}"), *cells)
    return shown


def _baselines(table: pd.DataFrame) -> str:
    """Return what is guessed without activations, by the main metric."""
    rows = table[(table["site"] == "") & (table["split"] == "test")]
    rows = rows[rows["metric"] == main_metric(rows)]
    values: dict[str, dict[str, str]] = {}
    for row in rows.to_dict("records"):
        name = str(row["target"]).replace("_", " ")
        values.setdefault(name, {})[row["position"]] = format_number(row["value"])
    return ", ".join(f"{name} {_by_position(found)}" for name, found in values.items())


def _by_position(values: dict[str, str]) -> str:
    """Return the values at the positions of a sweep, once if they are the same.

    >>> _by_position({"word:last-1": "0.50", "word:last": "0.50"})
    '0.50'
    >>> _by_position({"word:last-1": "0.50", "word:last": "0.75"})
    '0.50 at word:last-1 and 0.75 at word:last'
    """
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return " and ".join(f"{value} at {position}" for position, value in values.items())


def show_warnings(result: RunResult) -> None:
    """Print, on stderr, what should be read before the numbers are quoted."""
    table = load_table(result.results)
    comparisons = rival_differences(table, load_differences(result.folder / "differences.csv"))
    for sentence in warnings(table, load_record(result.folder / "run.json"), comparisons):
        click.echo(f"warning: {sentence}", err=True)


def show_validation(validation: ValidationReport) -> None:
    """Print the findings, then what a capture will cost."""
    for finding in validation.findings:
        click.echo(f"{_HEADS.get(finding.level, finding.level)}: {finding.message}")
    if validation.n_rows:
        click.echo(
            f"{counted(validation.n_examples, 'example')}, {counted(validation.n_rows, 'row')} at "
            f"each of {counted(validation.n_sites, 'site')}, {validation.bytes / 1e6:,.1f} MB, "
            f"{_duration(validation.minutes)} of capture on this machine (probing comes on top)."
        )
    click.echo("ok" if validation.ok else "not ok")


def _duration(minutes: float) -> str:
    """Return a time as people say it.

    >>> _duration(0.004), _duration(0.5), _duration(3.25)
    ('less than a second', 'about 30 seconds', 'about 3.2 minutes')
    """
    seconds = round(60 * minutes)
    if seconds < 1:
        return "less than a second"
    return f"about {counted(seconds, 'second') if seconds < 120 else f'{minutes:.1f} minutes'}"


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print a line for each verdict, then how many there are and how many are bad."""
    shown = Table("check", "kind", "expected", "found", "ok", box=None, pad_edge=False)
    for one in verdicts:
        told = (one.check, one.kind, one.expected, one.found, "yes" if one.ok else "NO")
        shown.add_row(*map(Text, told))
    _print(shown)
    n_bad = sum(not one.ok for one in verdicts)
    click.echo(f"{counted(len(verdicts), 'check')}, {n_bad} failed.")


def show_models() -> None:
    """Print a line for each model known by name."""
    shown = Table(
        "model", "layers", "heads", "d_model", "parameters", "from", box=None, pad_edge=False
    )
    for name in KNOWN_MODELS:
        config = find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layer, config.n_head, config.n_embd)
        shown.add_row(name, *map(str, sizes), f"{count_parameters(config):,}", origin)
    _print(shown)
    click.echo("Also: org/name@revision on the hub, or the path of a folder.")


def show_sites(model: str) -> None:
    """Print the table of sites of a model."""
    config = find_config(model)
    shown = Table("site", "shape", "formula", box=None, pad_edge=False)
    for site in SITES:
        shape = " ".join(_axis(axis, config) for axis in site.axes)
        note = " (only when asked for)" if site.on_request else ""
        shown.add_row(Text(site.name), shape, Text(site.formula + note))
    _print(shown)
    last = config.n_layer - 1
    click.echo(f"{{l}} is 0 to {last}: {len(site_names(config.n_layer))} tensors.")


def _axis(axis: str, config: GPT2Config) -> str:
    return (
        f"{axis}={config.axis_sizes[axis]}" if axis in config.axis_sizes and axis != "1" else axis
    )


def _print(table: Table) -> None:
    # A pipe or a file has no width: nothing may be cut there.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
