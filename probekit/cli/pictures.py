"""Commands that look into a model: lens, attribution, patch, attention, weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.amounts import counted, format_number, signed
from probekit.cli import options
from probekit.cli.models import ModelName, model_option
from probekit.cli.options import OutputFile, Texts, later, together, watching
from probekit.pipeline.look.exports import ATTENTION_FILES, FIGURE_FILES, PAGE_OR_ROWS, check_ending

if TYPE_CHECKING:
    import pandas as pd

    from probekit import files, provenance
    from probekit.analysis import logits
    from probekit.cli import terminal
    from probekit.data import readers
    from probekit.model.config import Bos
    from probekit.model.text.tokenizer import Tokenizer
    from probekit.model.weights import state_dict
    from probekit.pipeline.look import exports, lenses
    from probekit.pipeline.look import weights as plots
    from probekit.report.elements import texts as labels
    from probekit.report.elements.page import Page
    from probekit.report.figures import figure_files
    from probekit.report.pages import attribution_page, heads_page, lens_page, pair_page
    from probekit.results import network as measured
globals().update(later(__file__))

MOST_HEADS = 5


texts_options = together(
    click.option("--text", "texts", multiple=True, help="Input text; repeatable."),
    click.option("--file", type=click.Path(path_type=Path), help="File with input texts."),
    click.option(
        "--format",
        help="Format of the file: txt (one text per line; default), csv, tsv, jsonl or parquet.",
    ),
    click.option("--column", help="Column with the texts.  [default: text]"),
)


def take_texts(given: dict[str, Any], *, required: bool = True) -> Texts:
    """Remove the values of `texts_options` from `given`, and return all texts, also of the file."""
    texts, file, *how = (given.pop(name) for name in ("texts", "file", "format", "column"))
    if file is None and any(how):
        raise click.UsageError("--format and --column require --file.")
    if required and not texts and file is None:
        raise click.UsageError("No input text. Give --text or --file.")
    return (*texts, *(() if file is None else readers.read_texts(file, *how)))


def bos_option(texts: str = "each text") -> Callable[..., Any]:
    """Return the option that adds a first token; `texts` names in its help what it is added to."""
    return click.option(
        "--bos/--no-bos",
        default=None,
        callback=lambda _context, _option, value: "auto" if value is None else value,
        help=f"Whether to prepend the beginning-of-text token to {texts}.  [default: as the "
        "model's own tokenizer does]",
    )


chat_option = click.option(
    "--chat",
    is_flag=True,
    help="Each text as the user's turn of the model's chat template; not with --bos.",
)


def with_paper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options of figures for a paper, as its argument `paper`."""
    names = ("width", "height", "font", "names")

    @wraps(function)
    def command(*args: Any, **given: Any) -> Any:
        paper = {name: given.pop(name) for name in names}
        is_changed = any(paper.values())
        if any(paper[name] != paper[name] for name in ("width", "height")):
            raise click.UsageError("--width and --height are numbers of inches, not NaN.")
        target = "doses" if "doses" in given else "out"
        is_drawn = getattr(given.get(target), "suffix", "") in FIGURE_FILES
        needed = f"--{target} x.pdf, .svg or .png"
        if "formats" in given:
            needed, is_drawn = "--figures", bool(given["formats"])
            paper["columns"] = given.pop("columns")  # `weights` has others
        elif "scores" in given:  # a figure of single heads is as wide as a column
            needed, is_drawn = f"--scores and {needed}", is_drawn and given["scores"]
        if is_changed and not is_drawn:
            raise click.UsageError(f"--width, --height, --font and --rename require {needed}.")
        return function(*args, paper=paper, **given)

    inches: Any = {"type": click.FloatRange(0.5, 40), "metavar": "INCHES"}
    return together(
        click.option("--width", **inches, help="Width of figures, such as 3.25 for a column."),
        click.option("--height", **inches, help="Height of figures."),
        click.option(
            "--font", default="", show_default=False, help="Font.  [default: a sans-serif one]"
        ),
        click.option(
            "--rename",
            "names",
            type=(str, str),
            multiple=True,
            metavar="OLD NEW",
            help="Name of a line, panel or axis in figures, and its replacement; repeatable.",
        ),
    )(command)


def page_or_rows_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the option of its output file, and those of figures for a paper."""
    how = "Output file: .html (page), .csv (rows), or .pdf, .svg, .png (figures)."
    return click.option("--out", type=OutputFile(*PAGE_OR_ROWS), help=how)(with_paper(function))


def figure_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the options that write all figures of its page."""
    return with_paper(
        together(
            click.option(
                "--figures",
                "formats",
                metavar="png,svg,pdf",
                callback=lambda *given: figure_files.read_formats(given[-1]) if given[-1] else (),
                help="File formats to export each figure to.",
            ),
            click.option(
                "--columns",
                type=click.IntRange(1, 2),
                default=2,
                help="Width of --figures in columns of a paper.",
            ),
        )(function)
    )


def draw_figures(
    drawn: Callable[[], Any], folder: Path, formats: Sequence[str], paper: dict[str, Any]
) -> None:
    """Write figures, or those of a page, to `figures` in a folder; without formats nothing."""
    if formats:
        folder /= "figures"
        if folder.is_file():
            raise click.UsageError(f"{folder} is a file, not a folder. Move or rename it.")
        inside, how = files.inside(folder), figure_files.Paper(**paper)
        parts = drawn()
        parts = parts if isinstance(parts, list) else figure_files.figures_of(parts)
        written = figure_files.write_figures(parts, inside, formats, how)
        click.echo(f"{counted(len(written), 'figure')} in {folder}", err=True)


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
    warn_of_bos(network.tokenizer, bos)
    return network


def warn_of_bos(tokenizer: Tokenizer, bos: Bos) -> None:
    """Print a warning if a choice of beginning-of-text differs from the tokenizer's own."""
    if doubt := tokenizer.doubt_of_bos(bos):
        click.echo(f"warning: {doubt}", err=True)


def _write(
    out: Path | None,
    page: Callable[..., Page],
    result: Any,
    *,
    rows: pd.DataFrame,
    network: lenses.ModelAndTokenizer,
    bos: Bos,
    paper: dict[str, Any],
    **more_facts: str,
) -> None:
    """Write the page of a result with the facts of its model, its figures or the rows.

    The ending of the output file decides which; without `out` nothing is written.
    """
    if out is not None:
        facts = {
            "model": labels.model_title(network.source),
            "weights": state_dict.digest_weights(network.model)[:16],
            "tokenizer": network.tokenizer.digest[:16],
            "beginning-of-text token": "yes" if network.tokenizer.has_bos(bos) else "no",
            "dtype": str(network.model.dtype).removeprefix("torch."),
            **{name: provenance.versions()[name] for name in ("probekit", "torch")},
        }
        made = partial(page, result, model=network.source, facts=facts | more_facts)
        click.echo("\n".join(map(str, exports.write_page_or_rows(out, made, rows, paper))))


@click.command()
@model_option
@texts_options
@bos_option()
@chat_option
@_SITES
@click.option("--top-k", type=int, default=5, help="Number of tokens shown per cell.")
@_POSITION
@options.device_option
@page_or_rows_option
def lens(
    model: str,
    sites: Texts,
    position: int,
    device: str,
    bos: Bos,
    out: Path | None,
    paper: dict[str, Any],
    **given: Any,
) -> None:
    """Show what each layer would predict: the logit lens.

    The final norm and the unembedding are applied as if each layer were the last one. Prints the
    predictions at one position of each text; --out writes all positions.
    """
    texts, sites = take_texts(given), sites or logits.SITES
    network = _load(model, device, bos)
    with watching() as watcher:
        rows = lenses.read_lens(network, texts, **given, bos=bos, sites=sites, watcher=watcher)
    _show_lens(rows, position)
    _write(out, lens_page.lens_page, rows, rows=rows, network=network, bos=bos, paper=paper)


def _show_lens(rows: pd.DataFrame, position: int) -> None:
    """Print the predictions of every site at one position of each text, then a summary.

    Args:
        rows: rows of `read_lens`, which have the positions of each text in order.
        position: index of a token; negative values count from the end.

    Raises:
        ConfigError: a text has no such position.
    """
    n_top = sum(str(column).startswith("token_") for column in rows.columns)
    by_text = rows.drop_duplicates(["prompt", "position"]).groupby("prompt", sort=False)["token"]
    # Raises before anything is printed if a text does not have the position.
    places = {n: logits.position_from_start(position, len(tokens)) for n, tokens in by_text}
    for number, of_text in by_text:
        tokens, place = of_text.tolist(), places[number]
        beginning = labels.line_label("".join(tokens[: place + 1]))
        terminal.echo(f"{number} at [{place}] {labels.token_label(tokens[place])}: {beginning}")
        at_place = rows[(rows["prompt"] == number) & (rows["position"] == place)]
        of_sites, lines = lens_page.site_labels(at_place), []
        is_last = at_place["next_rank"].isna()
        for label, last, row in zip(of_sites, is_last, at_place.to_dict("records"), strict=True):
            top = [
                f"{labels.token_label(row[f'token_{rank}'])} {row[f'probability_{rank}']:.3f}"
                for rank in range(1, n_top + 1)
            ]
            next_rank = "–" if last else f"{row['next_rank']:,}"
            numbers = (format_number(row["entropy"]), format_number(row["kl"]), next_rank)
            lines.append((label, *numbers, "  ".join(top)))
        best = terminal.words("most probable tokens")
        columns = ["layer", "entropy", "KL", "rank of next", *best]
        terminal.show_rows(columns, lines)
    for sentence in (lens_page.LEGEND, lens_page.lens_answer(rows), lens_page.lens_accuracy(rows)):
        terminal.echo(sentence)


@click.command()
@model_option
@click.option("--text", required=True, help="Input text.")
@click.option("--token", help="Token whose logit is decomposed.  [default: the most probable]")
@click.option("--minus", help="Token whose logit is subtracted.")
@click.option("--minus-mean", is_flag=True, help="Subtraction of the mean logit of all tokens.")
@_POSITION
@bos_option()
@options.device_option
@page_or_rows_option
def attribution(
    model: str, bos: Bos, device: str, out: Path | None, paper: dict[str, Any], **given: Any
) -> None:
    """Decompose a logit into contributions of heads and MLPs.

    With --minus, the difference of two logits is decomposed.
    """
    network = _load(model, device, bos)
    result = lenses.attribute(network, **given, bos=bos)
    page = attribution_page.attribution_page
    terminal.show_table(attribution_page.largest_table(result))
    terminal.echo(attribution_page.attribution_answer(result))
    terminal.echo(attribution_page.attribution_detail(result))
    _write(out, page, result, rows=result.rows, network=network, bos=bos, paper=paper)


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
@options.device_option
@page_or_rows_option
def patch_command(
    model: str,
    sites: Texts,
    attribution: bool,
    top: int,
    bos: Bos,
    device: str,
    out: Path | None,
    paper: dict[str, Any],
    **given: Any,
) -> None:
    """Patch activations of a corrupt text into a clean one.

    Prints the strongest effects on the logit difference; --out writes the maps of all patches.
    """
    network = _load(model, device, bos)
    n_verified, sites = top if attribution else None, sites or logits.SITES
    pair = lenses.patch_pair(network, **given, bos=bos, sites=sites, verify=n_verified)
    right, other = labels.token_label(pair.answer), labels.token_label(pair.wrong)
    terminal.echo(f"Logit of {right} minus logit of {other}:")
    texts = [
        ("clean", signed(pair.base), "".join(pair.clean)),
        ("corrupt", signed(pair.source), "".join(pair.corrupt)),
    ]
    columns = ("text", "difference", *terminal.words(""))
    terminal.show_rows(columns, texts)
    for rows in (pair.of_positions, pair.of_heads):
        if not rows.empty:
            terminal.echo()
            terminal.show_table(pair_page.strongest_patches(pair, rows, top))
            terminal.echo()
    terminal.echo(pair_page.pair_answer(pair))
    for note in pair_page.pair_notes(pair):
        terminal.echo(f"note: {note}", err=True)
    terminal.echo(pair_page.CAVEAT)
    _write(out, pair_page.pair_page, pair, rows=pair.rows, network=network, bos=bos, paper=paper)


@click.command()
@model_option
@texts_options
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
@options.device_option
@click.option(
    "--max-mb", type=click.FloatRange(0, min_open=True), default=25, help="Maximum MB of the page."
)
@click.option(
    "--out",
    type=OutputFile(*ATTENTION_FILES, ".csv"),
    help="Output file: .html (page), .pdf, .svg or .png (figure); for --scores also .csv.",
)
@with_paper
def attention(
    model: str,
    layer: int | None,
    heads: Texts,
    scores: bool,
    bos: Bos,
    device: str,
    max_mb: float,
    out: Path | None,
    paper: dict[str, Any],
    **repeats: Any,
) -> None:
    """Show attention: a page, head scores, or a figure for a paper.

    The page (.html) is for exploring the patterns of every head. The figure (.pdf, .svg, .png)
    shows each --head, or all heads of a --layer, in the width of one column. --scores prints
    previous, duplicate and first token, induction, entropy and distance of every head, on texts or
    on repeated random tokens.
    """
    texts = take_texts(repeats, required=False)
    if out is not None:
        check_ending(out, PAGE_OR_ROWS if scores else ATTENTION_FILES)
    is_figure = out is not None and out.suffix in FIGURE_FILES and not scores
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
    network = _load(model, device, bos)
    if scores:
        with watching() as watcher:
            scored = lenses.scored_heads(
                network, texts, n=n_random or 10, **repeats, bos=bos, watcher=watcher
            )
        _show_heads(scored)
        rows, page = scored.rows, heads_page.heads_page
        facts: dict[str, Any] = {"paper": paper, "read": scored.read}
        _write(out, page, scored, rows=rows, network=network, bos=bos, **facts)
    if scores or out is None:
        return
    parts = (network.model, network.tokenizer)
    if is_figure:
        figure = probekit.attention_figure(*parts, *texts, bos=bos, layer=layer, head=heads)
        figure.write_image(out)
    else:
        name = Path(model).resolve().name if Path(model).is_dir() else model
        explorer = probekit.explore_attention(
            *parts, texts, bos=bos, layer=layer, head=heads, name=name, most_mb=max_mb
        )
        for sentence in filter(None, (explorer.estimate, explorer.opening)):
            click.echo(sentence, err=True)
        explorer.save(out)
    click.echo(str(out))


def _show_heads(result: measured.ScoredHeads) -> None:
    """Print the heads with the highest scores, then the heads known from the literature."""
    terminal.echo(f"On {result.read}:")
    highest = []
    for name, score in measured.HEAD_TEXTS.items():
        heads = heads_page.heads_text(result, name, MOST_HEADS) or "not defined for any token"
        highest.append((score.title.lower(), heads))
    terminal.show_rows(terminal.words("score", "highest"), highest)
    for sentence in (heads_page.UNITS, heads_page.heads_answer(result), heads_page.COUNTED):
        terminal.echo(sentence)
    if result.known:
        columns = terminal.words("known for GPT-2 small", "head", "here", "rank")
        terminal.show_table(replace(heads_page.known_heads_table(result), columns=columns))


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
@click.option(
    "--out", type=OutputFile(*ATTENTION_FILES), required=True, help="Output page or figure."
)
@with_paper
def weights(model: str, out: Path, **given: Any) -> None:
    """Write a page about the weights of a model, or one tensor.

    The page is a table of all tensors, or has plots of one. --out x.pdf, .svg or .png writes its
    figures.
    """
    click.echo(str(plots.write_weights_page(model, out, **given)))
