"""`probekit pretrain`: training a small GPT-2."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import OutFolder


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", multiple=True, metavar="a.b=c", help="Override of a key; repeatable."
)
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
@click.option(
    "--out",
    type=OutFolder(),
    default="runs",
    show_default=True,
    help="Results folder; the run is written to PATH/NAME.",
)
def pretrain_command(file: Path, overrides: tuple[str, ...], device: str, out: Path) -> None:
    """Train a small GPT-2 from a recipe; an interrupted run resumes where it stopped."""
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
    click.echo(str(result.log))
    click.echo(str(result.figure))
