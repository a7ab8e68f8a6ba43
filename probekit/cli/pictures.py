"""Commands that look into a model: lens, attribution, patch, attention, weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.cli.options import (
    ModelName,
    OutputFile,
    Texts,
    bos_option,
    chat_option,
    device_option,
    model_option,
    optional_texts_options,
    page_option,
    page_or_rows_option,
    texts_options,
    watching,
)
from probekit.pipeline.look.exports import (
    ATTENTION_FILES,
    FIGURE_FILES,
    PAGE_OR_ROWS,
    check_ending,
)

if TYPE_CHECKING:
    import pandas as pd

    from probekit.model.config import Bos
    from probekit.pipeline.look.lenses import ModelAndTokenizer

_SITES = click.option(
    "--site",
    "sites",
    multiple=True,
    metavar="SITE",
    help="Name or glob of sites; repeatable.  [default: residual stream before and after blocks]",
)
_POSITION = click.option(
    "--position", type=int, default=-1, help="Index of a token; negative values count from the end."
)


def _write(
    out: Path | None,
    page: Callable[..., str],
    result: Any,
    *,
    rows: pd.DataFrame,
    network: ModelAndTokenizer,
    bos: Bos,
    **more_facts: str,
) -> None:
    """Write the page of a result with the facts of its model, or the rows; without `out` nothing.

    The ending of the output file decides whether it gets the page or the rows.
    """
    from probekit.cli.show.looks import facts_for_page
    from probekit.pipeline.look.exports import write_page_or_rows

    if out is not None:
        facts = facts_for_page(network, bos) | more_facts
        write_page_or_rows(out, lambda: page(result, model=network.source, facts=facts), rows)
        click.echo(str(out))


@click.command()
@model_option
@texts_options
@bos_option()
@chat_option
@_SITES
@click.option("--top-k", type=int, default=5, help="Number of tokens shown per cell.")
@_POSITION
@device_option
@page_or_rows_option
def lens(
    model: str,
    sites: Texts,
    position: int,
    device: str,
    bos: Bos,
    out: Path | None,
    **options: Any,
) -> None:
    """Show what each layer would predict: the logit lens.

    The final norm and the unembedding are applied as if each layer were the last one. Prints the
    predictions at one position of each text; --out writes all positions.
    """
    from probekit.analysis.logits import SITES
    from probekit.cli.show.looks import show_lens, warn_of_bos
    from probekit.pipeline.look.lenses import ModelAndTokenizer, read_lens
    from probekit.report.pages.lens_page import lens_page

    network = ModelAndTokenizer.load(model, device)
    warn_of_bos(network.tokenizer, bos)
    with watching() as watcher:
        rows = read_lens(network, **options, bos=bos, sites=sites or SITES, watcher=watcher)
    show_lens(rows, position)
    _write(out, lens_page, rows, rows=rows, network=network, bos=bos)


@click.command()
@model_option
@click.option("--text", required=True, help="Input text.")
@click.option("--token", help="Token whose logit is decomposed.  [default: the most probable]")
@click.option("--minus", help="Token whose logit is subtracted.")
@click.option("--minus-mean", is_flag=True, help="Subtraction of the mean logit of all tokens.")
@_POSITION
@bos_option()
@device_option
@page_or_rows_option
def attribution(model: str, bos: Bos, device: str, out: Path | None, **options: Any) -> None:
    """Decompose a logit into contributions of heads and MLPs.

    With --minus, the difference of two logits is decomposed.
    """
    from probekit.cli.show.looks import show_attribution, warn_of_bos
    from probekit.pipeline.look.lenses import ModelAndTokenizer, attribute
    from probekit.report.pages.attribution_page import attribution_page

    network = ModelAndTokenizer.load(model, device)
    warn_of_bos(network.tokenizer, bos)
    result = attribute(network, **options, bos=bos)
    show_attribution(result)
    _write(out, attribution_page, result, rows=result.rows, network=network, bos=bos)


@click.command()
@model_option
@click.option("--clean", required=True, help="Base text.")
@click.option("--corrupt", required=True, help="Counterfactual text, with as many tokens.")
@click.option("--answer", required=True, help="Right token after the base text.")
@click.option("--wrong", required=True, help="Token whose logit is subtracted.")
@_SITES
@click.option("--heads", is_flag=True, help="Patches of each head at all tokens, too.")
@click.option(
    "--attribution", is_flag=True, help="Estimates from gradients; the --top largest are verified."
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    help="Number of patches in each table and, with --attribution, of verified estimates.",
)
@bos_option("both texts")
@device_option
@page_or_rows_option
def patch_command(
    model: str,
    sites: Texts,
    attribution: bool,
    top: int,
    bos: Bos,
    device: str,
    out: Path | None,
    **given: Any,
) -> None:
    """Patch activations of a corrupt text into a clean one.

    Prints the strongest effects on the logit difference; --out writes the maps of all patches.
    """
    from probekit.analysis.logits import SITES
    from probekit.cli.show.looks import show_pair, warn_of_bos
    from probekit.pipeline.look.lenses import ModelAndTokenizer, patch_pair
    from probekit.report.pages.pair_page import pair_page

    network = ModelAndTokenizer.load(model, device)
    warn_of_bos(network.tokenizer, bos)
    n_verified = top if attribution else None
    pair = patch_pair(network, **given, bos=bos, sites=sites or SITES, verify=n_verified)
    show_pair(pair, top)
    _write(out, pair_page, pair, rows=pair.rows, network=network, bos=bos)


@click.command()
@model_option
@optional_texts_options
@click.option("--layer", type=int, help="Layer to show.  [default: all]")
@click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="LAYER.HEAD",
    help="Head to show, such as 5.2; repeatable in a figure.  [default: all]",
)
@click.option("--scores", is_flag=True, help="Scores of every head, as a table.")
@click.option(
    "--random-repeats",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of repeated random sequences, for --scores.  [default without texts: 10]",
)
@click.option("--length", type=click.IntRange(min=1), default=50, help="Tokens of such a sequence.")
@click.option("--seed", type=int, default=0, help="Random seed of these sequences.")
@bos_option()
@device_option
@click.option(
    "--max-mb", type=click.FloatRange(0, min_open=True), default=25, help="Maximum MB of the page."
)
@click.option(
    "--out",
    type=OutputFile(*ATTENTION_FILES, ".csv"),
    help="Output file: .html (page), .pdf, .svg or .png (figure); .html or .csv for --scores.",
)
def attention(
    model: str,
    texts: Texts,
    layer: int | None,
    heads: Texts,
    scores: bool,
    bos: Bos,
    device: str,
    max_mb: float,
    out: Path | None,
    **repeats: Any,
) -> None:
    """Show attention: a page, head scores, or a figure for a paper.

    The page (.html) is for exploring the patterns of every head. The figure (.pdf, .svg, .png)
    shows each --head, or all heads of a --layer, in the width of one column. --scores prints
    previous, duplicate and first token, induction, entropy and distance of every head, on texts or
    on repeated random tokens.
    """
    if out is not None:
        check_ending(out, PAGE_OR_ROWS if scores else ATTENTION_FILES)
    is_figure = out is not None and out.suffix in FIGURE_FILES
    n_random = repeats.pop("random_repeats")
    has_choice = bool(heads) or layer is not None
    for problem, is_there in {
        "--scores covers every head. Leave out --layer and --head.": scores and has_choice,
        "--random-repeats requires --scores without texts.": n_random and (texts or not scores),
        f"Give --text or --file, and --out ({', '.join(ATTENTION_FILES)}), or --scores.": (
            not scores and not (texts and out)
        ),
        "A figure shows heads of one text. Give one --text, and --head 5.2 or --layer 5.": (
            is_figure and (len(texts) > 1 or not has_choice)
        ),
    }.items():
        if is_there:
            raise click.UsageError(problem)
    if is_figure:
        from probekit.report.figures.figure_files import check_engine

        check_engine()

    from probekit.cli.show.looks import show_heads, warn_of_bos
    from probekit.pipeline.look.attention import attention_figure, explore_attention
    from probekit.pipeline.look.lenses import ModelAndTokenizer, scored_heads
    from probekit.report.attention.figure import save_figure
    from probekit.report.pages.heads_page import heads_page

    network = ModelAndTokenizer.load(model, device)
    warn_of_bos(network.tokenizer, bos)
    if scores:
        with watching() as watcher:
            repeats |= {"n": n_random or 10, "bos": bos, "watcher": watcher}
            scored = scored_heads(network, texts, **repeats)
        show_heads(scored)
        facts = {"read": scored.read}
        _write(out, heads_page, scored, rows=scored.rows, network=network, bos=bos, **facts)
    if scores or out is None:
        return
    parts = (network.model, network.tokenizer)
    shown: dict[str, Any] = {"bos": bos, "layer": layer, "head": heads}
    if is_figure:
        save_figure(attention_figure(*parts, *texts, **shown), out)
    else:
        name = Path(model).resolve().name if Path(model).is_dir() else model
        explorer = explore_attention(*parts, texts, **shown, name=name, most_mb=max_mb)
        for sentence in filter(None, (explorer.estimate, explorer.opening)):
            click.echo(sentence, err=True)
        explorer.save(out)
    click.echo(str(out))


@click.command()
@click.option(
    "--model", type=ModelName(or_file=True), required=True, help="Model, or a file of weights."
)
@click.option("--tensor", help="Tensor to plot, e.g. wpe.weight.  [default: an overview of all]")
@click.option(
    "--column",
    "columns",
    type=click.IntRange(0),
    multiple=True,
    help="Column to plot as a curve; repeatable.  [default for wpe.weight: the 3 smoothest]",
)
@click.option(
    "--corner",
    type=click.IntRange(1, 2000),
    help="Rows and columns shown of a matrix too large to show in full.  [default: 300]",
)
@click.option(
    "--n-head", type=click.IntRange(1), help="Number of heads, if there is no config.json."
)
@page_option
def weights(model: str, out: Path, **options: Any) -> None:
    """Write a page about the weights of a model, or one tensor.

    The page is a table of all tensors, or has plots of one.
    """
    from probekit.pipeline.look.weights import write_weights_page

    page = write_weights_page(model, out, **options)
    click.echo(str(page))
