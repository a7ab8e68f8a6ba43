"""Commands that visualise a model: lens, attribution, heads, attention, weights."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import (
    IntegerInRange,
    ModelName,
    NumberInRange,
    OutputFile,
    optional_texts_options,
    texts_options,
)
from probekit.pipeline.look.endings import PAGE_OR_ROWS

_MODEL = click.option(
    "--model", type=ModelName(), required=True, help="Model: `mini`, a hub name or a folder."
)
_BOS = click.option(
    "--bos/--no-bos",
    default=False,
    show_default=True,
    help="Whether to prepend the beginning-of-text token to each text.",
)
_DEVICE = click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
_OUT = click.option(
    "--out", type=OutputFile(*PAGE_OR_ROWS), help="Output file: .html (page) or .csv (rows)."
)
_POSITION = click.option(
    "--position",
    type=int,
    default=-1,
    show_default=True,
    help="Index of a token; negative values count from the end.",
)


@click.command()
@_MODEL
@texts_options
@_BOS
@click.option(
    "--site",
    "sites",
    multiple=True,
    metavar="SITE",
    help="Name or glob of sites; repeatable.  [default: the residual stream after each block]",
)
@click.option(
    "--top-k", type=int, default=5, show_default=True, help="Number of tokens shown per cell."
)
@_POSITION
@_DEVICE
@_OUT
def lens(
    model: str,
    texts: tuple[str, ...],
    bos: bool,
    sites: tuple[str, ...],
    top_k: int,
    position: int,
    device: str,
    out: Path | None,
) -> None:
    """Show what each layer would predict if it were the last one: the logit lens.

    Prints the predictions at one position of each text; --out writes all positions.
    """
    from probekit.analysis.logits import SITES
    from probekit.cli.show.looks import facts_for_page, show_lens
    from probekit.cli.show.progress import watching
    from probekit.pipeline.look.exports import write_page_or_rows
    from probekit.pipeline.look.lenses import ModelAndTokenizer, read_lens
    from probekit.report.pages.lens_page import lens_page

    network = ModelAndTokenizer.load(model, device)
    with watching() as watcher:
        rows = read_lens(
            network, texts, bos=bos, sites=sites or SITES, top_k=top_k, watcher=watcher
        )
    show_lens(rows, position)
    if out is not None:
        facts = facts_for_page(network, bos)
        write_page_or_rows(out, lambda: lens_page(rows, model=model, facts=facts), rows)
        click.echo(str(out))


@click.command()
@_MODEL
@click.option("--text", required=True, help="Input text.")
@click.option(
    "--token",
    help="Token whose logit is decomposed, with the space before a word.  [default: the most "
    "probable one]",
)
@click.option("--minus", help="Token whose logit is subtracted.")
@click.option("--minus-mean", is_flag=True, help="Subtraction of the mean logit of all tokens.")
@_POSITION
@_BOS
@_DEVICE
@_OUT
def attribution(
    model: str,
    text: str,
    token: str | None,
    minus: str | None,
    minus_mean: bool,
    position: int,
    bos: bool,
    device: str,
    out: Path | None,
) -> None:
    """Decompose a logit, or a difference of two, into contributions of heads and MLPs."""
    from probekit.cli.show.looks import facts_for_page, show_attribution
    from probekit.pipeline.look.exports import write_page_or_rows
    from probekit.pipeline.look.lenses import ModelAndTokenizer, attribute
    from probekit.report.pages.attribution_page import attribution_page

    network = ModelAndTokenizer.load(model, device)
    found = attribute(
        network, text, token, bos=bos, minus=minus, minus_mean=minus_mean, position=position
    )
    show_attribution(found)
    if out is not None:
        facts = facts_for_page(network, bos)
        write_page_or_rows(
            out, lambda: attribution_page(found, model=model, facts=facts), found.rows
        )
        click.echo(str(out))


@click.command()
@_MODEL
@optional_texts_options
@click.option(
    "--random-repeats",
    type=IntegerInRange(min=1),
    metavar="N",
    help="Number of sequences of repeated random tokens.  [default without texts: 10]",
)
@click.option(
    "--length",
    type=IntegerInRange(min=1),
    default=50,
    show_default=True,
    help="Length of the repeated sequence in tokens.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed for the random tokens."
)
@_BOS
@_DEVICE
@_OUT
def heads(
    model: str,
    texts: tuple[str, ...],
    random_repeats: int | None,
    length: int,
    seed: int,
    bos: bool,
    device: str,
    out: Path | None,
) -> None:
    """Score every head: previous token, duplicate token, induction, first token, entropy."""
    from probekit.cli.show.looks import facts_for_page, show_heads
    from probekit.cli.show.progress import watching
    from probekit.pipeline.look.exports import write_page_or_rows
    from probekit.pipeline.look.heads import score_random_repeats, score_texts
    from probekit.pipeline.look.lenses import ModelAndTokenizer
    from probekit.report.pages.heads_page import heads_page

    if texts and random_repeats is not None:
        raise click.UsageError("Give texts or --random-repeats, not both.")
    network = ModelAndTokenizer.load(model, device)
    with watching() as watcher:
        if texts:
            found = score_texts(network, texts, bos=bos, watcher=watcher)
        else:
            found = score_random_repeats(
                network, random_repeats or 10, length=length, seed=seed, bos=bos, watcher=watcher
            )
    show_heads(found)
    if out is not None:
        facts = facts_for_page(network, bos) | {"read": found.read}
        write_page_or_rows(out, lambda: heads_page(found, model=model, facts=facts), found.rows)
        click.echo(str(out))


@click.command()
@_MODEL
@texts_options
@click.option("--layer", type=int, help="Layer to show.  [default: all]")
@click.option("--head", type=int, help="Head to show of each layer.  [default: all]")
@_BOS
@_DEVICE
@click.option(
    "--max-mb",
    type=NumberInRange(0, min_open=True),
    default=25,
    show_default=True,
    help="Maximum size of the page in MB.",
)
@click.option("--out", type=OutputFile(), required=True, help="Output page.")
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
    """Write a page for exploring the attention patterns of texts, for every head."""
    from probekit.cli.show.progress import watching
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


@click.command()
@click.option(
    "--model",
    type=ModelName(or_file=True),
    required=True,
    help="Model: `mini`, a hub name, a folder or a file of weights.",
)
@click.option("--tensor", help="Tensor to plot, e.g. wpe.weight.  [default: an overview of all]")
@click.option(
    "--column",
    "columns",
    type=IntegerInRange(0),
    multiple=True,
    help="Column to plot as a curve; repeatable.  [default for wpe.weight: 150, 200, 250]",
)
@click.option(
    "--corner",
    type=IntegerInRange(1, 2000),
    help="Number of rows and columns shown of a matrix too large to show in full.  [default: 300]",
)
@click.option(
    "--n-head", type=IntegerInRange(1), help="Number of heads, if there is no config.json."
)
@click.option("--out", type=OutputFile(), required=True, help="Output page.")
def weights(
    model: str,
    tensor: str | None,
    columns: tuple[int, ...],
    corner: int | None,
    n_head: int | None,
    out: Path,
) -> None:
    """Write a page about weights: a table of all tensors of a model, or plots of one tensor."""
    from probekit.pipeline.look.weights import write_weights_page

    page = write_weights_page(
        model, out, tensor=tensor, columns=columns, corner=corner, n_head=n_head
    )
    click.echo(str(page))
