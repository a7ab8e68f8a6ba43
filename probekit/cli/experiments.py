"""`probekit experiments` and `probekit init`: bundled experiments and models, and a new one."""

from __future__ import annotations

import shlex
from pathlib import Path

import click


@click.command()
def experiments() -> None:
    """List the bundled experiments and the models that can be used by name."""
    from probekit.cli.show.catalogues import show_experiments, show_models
    from probekit.experiment.catalogue import bundled_experiments

    show_experiments(bundled_experiments())
    click.echo()
    show_models()


@click.command()
@click.argument("name", type=click.Path(path_type=Path))
def init(name: Path) -> None:
    """Start an experiment: write NAME.yaml with comments, sample data and the schema for editors.

    No existing file is overwritten.
    """
    from probekit.experiment.example import write_example

    yaml, data, schema = write_example(name)
    for path, purpose in (
        (yaml, "question, model, data and probes; the comments explain each key"),
        (data, "sample rows; replace them with your own"),
        (schema, "with it, editors complete keys and values"),
    ):
        click.echo(f"{path}: {purpose}")
    file = shlex.quote(str(yaml))
    click.echo(f"Next:\n  probekit validate {file}\n  probekit run {file}")
