"""The command that trains a small GPT-2."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import OutFolder


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="a.b=c", help="Overrides a key; repeatable."
)
@click.option("--device", default="cpu", help="Where the model computes, e.g. cuda.")
@click.option(
    "--out",
    type=OutFolder(),
    default="runs",
    show_default=True,
    help="Folder that gets NAME.",
)
def pretrain_command(file: Path, overrides: tuple[str, ...], device: str, out: Path) -> None:
    """Train a small GPT-2 from a recipe; a run that was stopped goes on where it was."""
    from probekit.experiment.loader import load_recipe

    recipe = load_recipe(file, overrides)

    from probekit.cli.show.progress import watching
    from probekit.pipeline.pretrain import pretrain as run_pretraining

    with watching() as watcher:
        result = run_pretraining(recipe, out=out, device=device, watcher=watcher)
    last = result.last
    click.echo(
        f"step {last.step:,}: held out {last.held_out_loss:.4f} nats per token, "
        f"{last.held_out_per_character:.4f} per character"
    )
    click.echo(str(result.model))
    click.echo(str(result.report))
