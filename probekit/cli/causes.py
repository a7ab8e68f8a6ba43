"""`probekit cause`: the interventions of an experiment, without its probes."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import OutFolder, file_options


@click.command()
@file_options
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
@click.option(
    "--out",
    type=OutFolder(),
    default="runs",
    show_default=True,
    help="Results folder; the tables are written to PATH/NAME/KEY/causes.",
)
def cause_command(file: Path, overrides: tuple[str, ...], device: str, out: Path) -> None:
    """Run the interventions of an experiment alone, without its probes."""
    from probekit.experiment.loader import load_experiment

    experiment = load_experiment(file, overrides)

    from probekit.cli.show.progress import watching
    from probekit.cli.show.results import show_causes
    from probekit.pipeline.intervene.of_run import cause

    with watching() as watcher:
        tables = cause(experiment, out=out, device=device, watcher=watcher)
    show_causes(tables)
    click.echo(str(tables.run_dir / "causes.html"))
