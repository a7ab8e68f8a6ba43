"""Named models, sites of a model, and bundled experiments on stdout."""

from __future__ import annotations

from collections.abc import Sequence

import click
import rich.table
from rich.text import Text

from probekit.cli.show.tables import print_table, show_table
from probekit.experiment.loader import BundledExperiment
from probekit.experiment.locations import bundled_folder
from probekit.model.config import ModelConfig, count_parameters
from probekit.model.families.table import find_config
from probekit.model.weights.sources import KNOWN_MODELS
from probekit.report.pages.table import Column, ResultTable


def show_models() -> None:
    """Print a line for each named model."""
    names = ("model", "layers", "heads", "d_model", "parameters", "from")
    rows = []
    for name in KNOWN_MODELS:
        config = find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layers, config.n_heads, config.d_model)
        rows.append((name, *map(str, sizes), f"{count_parameters(config):,}", origin))
    show_table(ResultTable("", [Column(name, "words") for name in names], rows))
    click.echo("Also: org/name@revision on the hub, or the path of a folder.")


def show_sites(model: str) -> None:
    """Print the table of sites of a model."""
    config = find_config(model)
    rows = []
    for site in config.sites.rows:
        shape = " ".join(_axis(axis, config) for axis in site.axes)
        note = " (only on request)" if site.on_request else ""
        rows.append((site.name, shape, site.formula + note))
    show_table(
        ResultTable("", [Column(name, "words") for name in ("site", "shape", "formula")], rows)
    )
    n_sites = len(config.sites.without_request)
    click.echo(f"{{l}} is 0 to {config.n_layers - 1}: {n_sites} tensors.")


def _axis(axis: str, config: ModelConfig) -> str:
    return (
        f"{axis}={config.axis_sizes[axis]}" if axis in config.axis_sizes and axis != "1" else axis
    )


def show_experiments(listed: Sequence[BundledExperiment]) -> None:
    """Print a row for each bundled experiment: name, question, and additional requirements."""
    shown = rich.table.Table("name", "question", "needs", box=None, pad_edge=False)
    for one in listed:
        shown.add_row(Text(one.name, no_wrap=True), Text(one.question), Text("\n".join(one.needs)))
    print_table(shown)
    if listed:
        click.echo(f"Run one by name: {listed[0].command}. The files are in {bundled_folder()}.")
    click.echo("Start your own: probekit init my_question.")
