"""The command that looks at weights."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import WholeNumber


@click.command()
@click.option("--model", required=True, help="`mini`, a hub name, a folder or a file of weights.")
@click.option("--tensor", help="What is drawn, e.g. wpe.weight.  [default: an overview of all]")
@click.option(
    "--column",
    "columns",
    type=WholeNumber(0),
    multiple=True,
    help="Drawn as a curve; repeatable.  [default, of wpe.weight: 150, 200, 250]",
)
@click.option(
    "--corner",
    type=WholeNumber(1, 2000),
    help="Rows and columns drawn of a matrix too large to be drawn in full.  [default: 300]",
)
@click.option("--n-head", type=WholeNumber(1), help="Where no config.json tells it.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The page to write.")
def weights(
    model: str,
    tensor: str | None,
    columns: tuple[int, ...],
    corner: int | None,
    n_head: int | None,
    out: Path,
) -> None:
    """Look at weights: all tensors of a model in a table, or one of them drawn."""
    from probekit.pipeline.look.weights import write_weights_page

    page = write_weights_page(
        model, out, tensor=tensor, columns=columns, corner=corner, n_head=n_head
    )
    click.echo(str(page))
