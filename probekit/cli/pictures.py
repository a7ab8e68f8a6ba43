"""Commands that look into a model: lens, attribution, patch, attention, weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.cli import options
from probekit.cli.later import later
from probekit.cli.options import ModelName, OutputFile, Texts, watching
from probekit.pipeline.look.exports import ATTENTION_FILES, FIGURE_FILES, PAGE_OR_ROWS, check_ending

if TYPE_CHECKING:
    import pandas as pd

    from probekit.analysis import logits
    from probekit.cli.show import looks
    from probekit.model.config import Bos
    from probekit.pipeline.look import exports, lenses
    from probekit.pipeline.look import weights as plots
    from probekit.report.figures import figure_files
    from probekit.report.pages import attribution_page, heads_page, lens_page, pair_page
globals().update(later(__file__))

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


def _load(model: str, device: str, bos: Bos) -> lenses.ModelAndTokenizer:
    """Return a model with its tokenizer; a choice of beginning-of-text other than its own warns."""
    network = lenses.ModelAndTokenizer.load(model, device)
    looks.warn_of_bos(network.tokenizer, bos)
    return network


def _write(
    out: Path | None,
    page: Callable[..., str],
    result: Any,
    *,
    rows: pd.DataFrame,
    network: lenses.ModelAndTokenizer,
    bos: Bos,
    **more_facts: str,
) -> None:
    """Write the page of a result with the facts of its model, or the rows; without `out` nothing.

    The ending of the output file decides whether it gets the page or the rows.
    """
    if out is not None:
        facts = looks.facts_for_page(network, bos) | more_facts
        made = partial(page, result, model=network.source, facts=facts)
        exports.write_page_or_rows(out, made, rows)
        click.echo(str(out))


@click.command()
@options.model_option
@options.texts_options
@options.bos_option()
@options.chat_option
@_SITES
@click.option("--top-k", type=int, default=5, help="Number of tokens shown per cell.")
@_POSITION
@options.device_option
@options.page_or_rows_option
def lens(
    model: str, sites: Texts, position: int, device: str, bos: Bos, out: Path | None, **given: Any
) -> None:
    """Show what each layer would predict: the logit lens.

    The final norm and the unembedding are applied as if each layer were the last one. Prints the
    predictions at one position of each text; --out writes all positions.
    """
    network = _load(model, device, bos)
    sites = sites or logits.SITES
    with watching() as watcher:
        rows = lenses.read_lens(network, **given, bos=bos, sites=sites, watcher=watcher)
    looks.show_lens(rows, position)
    _write(out, lens_page.lens_page, rows, rows=rows, network=network, bos=bos)


@click.command()
@options.model_option
@click.option("--text", required=True, help="Input text.")
@click.option("--token", help="Token whose logit is decomposed.  [default: the most probable]")
@click.option("--minus", help="Token whose logit is subtracted.")
@click.option("--minus-mean", is_flag=True, help="Subtraction of the mean logit of all tokens.")
@_POSITION
@options.bos_option()
@options.device_option
@options.page_or_rows_option
def attribution(model: str, bos: Bos, device: str, out: Path | None, **given: Any) -> None:
    """Decompose a logit into contributions of heads and MLPs.

    With --minus, the difference of two logits is decomposed.
    """
    network = _load(model, device, bos)
    result = lenses.attribute(network, **given, bos=bos)
    looks.show_attribution(result)
    page = attribution_page.attribution_page
    _write(out, page, result, rows=result.rows, network=network, bos=bos)


@click.command()
@options.model_option
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
@options.bos_option("both texts")
@options.device_option
@options.page_or_rows_option
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
    network = _load(model, device, bos)
    n_verified, sites = top if attribution else None, sites or logits.SITES
    pair = lenses.patch_pair(network, **given, bos=bos, sites=sites, verify=n_verified)
    looks.show_pair(pair, top)
    _write(out, pair_page.pair_page, pair, rows=pair.rows, network=network, bos=bos)


@click.command()
@options.model_option
@options.optional_texts_options
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
@options.bos_option()
@options.device_option
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
        figure_files.check_engine()
    network = _load(model, device, bos)
    if scores:
        with watching() as watcher:
            repeats |= {"n": n_random or 10, "bos": bos, "watcher": watcher}
            scored = lenses.scored_heads(network, texts, **repeats)
        looks.show_heads(scored)
        facts = {"read": scored.read}
        page = heads_page.heads_page
        _write(out, page, scored, rows=scored.rows, network=network, bos=bos, **facts)
    if scores or out is None:
        return
    parts = (network.model, network.tokenizer)
    shown: dict[str, Any] = {"bos": bos, "layer": layer, "head": heads}
    if is_figure:
        drawing = out, probekit.attention_figure(*parts, *texts, **shown)
        figure_files.write_drawings([drawing], figure_files.CSS_PIXELS)
    else:
        name = Path(model).resolve().name if Path(model).is_dir() else model
        explorer = probekit.explore_attention(*parts, texts, **shown, name=name, most_mb=max_mb)
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
@options.page_option
def weights(model: str, out: Path, **given: Any) -> None:
    """Write a page about the weights of a model, or one tensor.

    The page is a table of all tensors, or has plots of one.
    """
    click.echo(str(plots.write_weights_page(model, out, **given)))
