"""The commands that draw a model's insides: lens, attribution, heads, attention, weights."""

from __future__ import annotations

from pathlib import Path

import click

from probekit.cli.options import (
    ModelName,
    NumberInRange,
    OutputFile,
    WholeNumber,
    optional_texts_options,
    texts_options,
)
from probekit.pipeline.look.endings import PAGE_OR_ROWS

_MODEL = click.option(
    "--model", type=ModelName(), required=True, help="`mini`, a hub name or a folder."
)
_BOS = click.option(
    "--bos/--no-bos", default=False, show_default=True, help="Begin with <|endoftext|>."
)
_DEVICE = click.option("--device", default="cpu", help="Where the model computes, e.g. cuda.")
_OUT = click.option(
    "--out", type=OutputFile(*PAGE_OR_ROWS), help="A .html (page) or .csv (rows) to write."
)
_POSITION = click.option(
    "--position", type=int, default=-1, show_default=True, help="A token; below 0 from the end."
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
    help="Name or glob; repeatable.  [default: the residual stream after each block]",
)
@click.option("--top-k", type=int, default=5, show_default=True, help="Tokens named in a cell.")
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
    """Say what each layer would predict if the network ended there: the logit lens.

    Prints what is said at one position of each text; --out writes all positions.
    """
    from probekit.analysis.logit_lens import SITES
    from probekit.cli.show.pictures import facts_for_page, show_lens
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
@click.option("--text", required=True, help="What is read.")
@click.option(
    "--token", help="Whose logit, with the space before a word.  [default: the likeliest]"
)
@click.option("--minus", help="A token whose logit is taken off.")
@click.option("--minus-mean", is_flag=True, help="Take off the mean logit of all tokens.")
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
    """Take a logit, or a difference of two, apart: what each head and MLP adds to it."""
    from probekit.cli.show.pictures import facts_for_page, show_attribution
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
    type=WholeNumber(min=1),
    metavar="N",
    help="Read N sequences of random tokens that come twice.  [default without texts: 10]",
)
@click.option(
    "--length",
    type=WholeNumber(min=1),
    default=50,
    show_default=True,
    help="Of a repeat, in tokens.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random tokens.")
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
    from probekit.cli.show.pictures import facts_for_page, show_heads
    from probekit.cli.show.progress import watching
    from probekit.pipeline.look.exports import write_page_or_rows
    from probekit.pipeline.look.heads import score_random_repeats, score_texts
    from probekit.pipeline.look.lenses import ModelAndTokenizer
    from probekit.report.pages.heads_page import heads_page

    if texts and random_repeats is not None:
        raise click.UsageError("Give texts or --random-repeats, not both: they are other scores.")
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
@click.option("--layer", type=int, help="Only this layer.")
@click.option("--head", type=int, help="Only this head of each layer.")
@_BOS
@_DEVICE
@click.option(
    "--max-mb",
    type=NumberInRange(0, min_open=True),
    default=25,
    show_default=True,
    help="What the page may have.",
)
@click.option("--out", type=OutputFile(), required=True, help="The page to write.")
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
    help="`mini`, a hub name, a folder or a file of weights.",
)
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
@click.option("--out", type=OutputFile(), required=True, help="The page to write.")
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
