"""`probekit attention`: the explorer of the attention of texts."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import NumberInRange, texts_options


@click.command()
@click.option("--model", required=True, help="`mini`, a hub name or a folder.")
@texts_options
@click.option("--layer", type=int, help="Only this layer.")
@click.option("--head", type=int, help="Only this head of each layer.")
@click.option("--bos/--no-bos", default=False, show_default=True, help="Begin with <|endoftext|>.")
@click.option("--device", default="cpu", help="Where the model computes, e.g. cuda.")
@click.option(
    "--max-mb",
    type=NumberInRange(0, min_open=True),
    default=25,
    show_default=True,
    help="What the page may have.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The page to write.")
def attention(
    model: str,
    texts: tuple[str, ...],
    layer: int | None,
    head: int | None,
    bos: bool,
    device: str,
    max_mb: float,
    out: Path,
) -> None:
    """Write a page to explore the attention of texts: every head, every weight."""
    from probekit.cli.terminal import watching
    from probekit.pipeline.look.attention import write_attention_page

    with watching() as watcher:
        page = write_attention_page(
            model,
            texts,
            out,
            bos=bos,
            layer=layer,
            head=head,
            device=device,
            most_mb=max_mb,
            watcher=watcher,
        )
    click.echo(str(page))
