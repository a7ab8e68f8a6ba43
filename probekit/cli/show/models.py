"""Tables of the named models and of the sites of a model."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from probekit.cli.show.tables import print_table
from probekit.model.config import ModelConfig
from probekit.model.families.table import find_config
from probekit.model.parameters import count_parameters
from probekit.model.weights.sources import KNOWN_MODELS


def show_models() -> None:
    """Print a line for each named model."""
    shown = Table(
        "model", "layers", "heads", "d_model", "parameters", "from", box=None, pad_edge=False
    )
    for name in KNOWN_MODELS:
        config = find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layers, config.n_heads, config.d_model)
        shown.add_row(name, *map(str, sizes), f"{count_parameters(config):,}", origin)
    print_table(shown)
    click.echo("Also: org/name@revision on the hub, or the path of a folder.")


def show_sites(model: str) -> None:
    """Print the table of sites of a model."""
    config = find_config(model)
    shown = Table("site", "shape", "formula", box=None, pad_edge=False)
    for site in config.sites.rows:
        shape = " ".join(_axis(axis, config) for axis in site.axes)
        note = " (only on request)" if site.on_request else ""
        shown.add_row(Text(site.name), shape, Text(site.formula + note))
    print_table(shown)
    n_sites = len(config.sites.without_request)
    click.echo(f"{{l}} is 0 to {config.n_layers - 1}: {n_sites} tensors.")


def _axis(axis: str, config: ModelConfig) -> str:
    return (
        f"{axis}={config.axis_sizes[axis]}" if axis in config.axis_sizes and axis != "1" else axis
    )
