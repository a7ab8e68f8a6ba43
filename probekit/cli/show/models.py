"""Tables of the named models and of the sites of a model."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from probekit.cli.show.tables import print_table
from probekit.model.config import KNOWN_MODELS, GPT2Config
from probekit.model.parameters import count_parameters
from probekit.model.sites import SITES, site_names
from probekit.model.weights.sources import find_config


def show_models() -> None:
    """Print a line for each named model."""
    shown = Table(
        "model", "layers", "heads", "d_model", "parameters", "from", box=None, pad_edge=False
    )
    for name in KNOWN_MODELS:
        config = find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layer, config.n_head, config.n_embd)
        shown.add_row(name, *map(str, sizes), f"{count_parameters(config):,}", origin)
    print_table(shown)
    click.echo("Also: org/name@revision on the hub, or the path of a folder.")


def show_sites(model: str) -> None:
    """Print the table of sites of a model."""
    config = find_config(model)
    shown = Table("site", "shape", "formula", box=None, pad_edge=False)
    for site in SITES:
        shape = " ".join(_axis(axis, config) for axis in site.axes)
        note = " (only on request)" if site.on_request else ""
        shown.add_row(Text(site.name), shape, Text(site.formula + note))
    print_table(shown)
    last = config.n_layer - 1
    click.echo(f"{{l}} is 0 to {last}: {len(site_names(config.n_layer))} tensors.")


def _axis(axis: str, config: GPT2Config) -> str:
    return (
        f"{axis}={config.axis_sizes[axis]}" if axis in config.axis_sizes and axis != "1" else axis
    )
