"""What the command line shows: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from probekit.model.config import GPT2Config
from probekit.model.gpt2 import GPT2
from probekit.model.sites import SITES, site_names
from probekit.model.sources import KNOWN_MODELS, find_config
from probekit.pipeline.run import RunResult
from probekit.pipeline.validate import Validation
from probekit.probes.trial import Verdict
from probekit.report.record import load_record
from probekit.report.table import differs, load_table, selection
from probekit.report.words import warnings
from probekit.watcher import Watcher

_SECONDS_BETWEEN_LINES = 10
_PLACE = ("site", "head", "position")  # the columns that tell what a row was measured on


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
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        yield _Bars(bars)


def show_results(result: RunResult) -> None:
    """Print accuracy per site with its company, the chosen site marked."""
    table = result.table
    scores = table[(table["metric"] == "accuracy") & (table["split"] == "test")]
    best = result.record["best"]
    is_sweep = differs(scores["position"])
    shown = Table(box=None, pad_edge=False)
    for column in ("site", "accuracy", "95 % interval", "control", "random weights"):
        shown.add_column(
            column, justify="left" if column == "site" else "right", no_wrap=column != "site"
        )
    for row in scores[scores["target"] == "task"].to_dict("records"):
        place = {name: None if pd.isna(row[name]) else row[name] for name in _PLACE}
        at_place = [_equal(scores[name], value) for name, value in place.items()]
        beside = scores[np.logical_and.reduce(at_place)]
        chosen = best is not None and all(best[name] == place[name] for name in place)
        at = f" at {row['position']}" if is_sweep else ""
        shown.add_row(
            Text(f"{selection(row['site'], place['head'])}{at}{' *' if chosen else ''}"),
            _number(row["value"]),
            f"{_number(row['ci_low'])} to {_number(row['ci_high'])}",
            *(_value(beside, target) for target in ("control", "random_weights")),
        )
    _print(shown)
    words = ", ".join(
        f"{str(row['target']).replace('_', ' ')} {_number(row['value'])}"
        f"{' at ' + row['position'] if is_sweep else ''}"
        for row in scores[scores["site"].isna()].to_dict("records")
    )
    click.echo(f"* chosen by cross-validation. Without the network: {words}.")


def show_warnings(result: RunResult) -> None:
    """Print, on stderr, what should be read before the numbers are quoted."""
    for sentence in warnings(load_table(result.results), load_record(result.folder / "run.json")):
        click.echo(f"warning: {sentence}", err=True)


def show_validation(validation: Validation) -> None:
    """Print the findings, then what a capture will cost."""
    for finding in validation.findings:
        click.echo(f"{finding.level}: {finding.message}")
    if validation.n_rows:
        click.echo(
            f"{validation.n_examples:,} examples, {validation.n_rows:,} rows at each of "
            f"{validation.n_sites} sites, {validation.bytes / 1e6:,.1f} MB, about "
            f"{validation.minutes:.1f} minutes of capture on this machine (probing comes on top)."
        )
    click.echo("ok" if validation.ok else "not ok")


def show_verdicts(verdicts: Sequence[Verdict]) -> None:
    """Print a line for each verdict, then how many there are and how many are bad."""
    shown = Table("check", "kind", "expected", "found", "ok", box=None, pad_edge=False)
    for one in verdicts:
        told = (one.check, one.kind, one.expected, one.found, "yes" if one.ok else "NO")
        shown.add_row(*map(Text, told))
    _print(shown)
    n_bad = sum(not one.ok for one in verdicts)
    click.echo(f"{len(verdicts)} checks, {n_bad} failed.")


def show_models() -> None:
    """Print a line for each model known by name."""
    shown = Table(
        "model", "layers", "heads", "d_model", "parameters", "from", box=None, pad_edge=False
    )
    for name in KNOWN_MODELS:
        config = find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layer, config.n_head, config.n_embd)
        shown.add_row(name, *map(str, sizes), f"{_n_parameters(config):,}", origin)
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


def _n_parameters(config: GPT2Config) -> int:
    return sum(parameter.numel() for parameter in GPT2(config, seed=None).parameters())


def _equal(column: pd.Series[Any], value: Any) -> pd.Series[bool]:
    return column.isna() if value is None else column == value


def _value(rows: pd.DataFrame, target: str) -> str:
    values = rows.loc[rows["target"] == target, "value"]
    return _number(values.iloc[0]) if len(values) else "-"


def _number(value: Any) -> str:
    return "-" if value is None or pd.isna(value) else f"{float(value):.3f}"


def _print(table: Table) -> None:
    # A pipe or a file has no width: nothing may be cut there.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
