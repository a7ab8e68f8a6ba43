"""Lens, attribution, heads, patches, predictions, models, sites and experiments on stdout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click
import pandas as pd
from rich.style import Style
from rich.text import Text

from probekit.amounts import format_number, signed
from probekit.analysis.logits import position_from_start
from probekit.cli.show.terminal import echo, show_table, words
from probekit.experiment.bundled import bundled_folder
from probekit.experiment.loader import BundledExperiment
from probekit.model.config import Bos, ModelConfig, count_parameters
from probekit.model.families.table import find_config
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.sources import KNOWN_MODELS
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.look.lenses import ModelAndTokenizer
from probekit.probes.saved_probe import SavedProbe
from probekit.progress import Console
from probekit.provenance import versions
from probekit.report.elements.table import Column, ResultTable
from probekit.report.elements.texts import line_label, model_title, token_label
from probekit.report.elements.tokens import NUMBER, Paint, Palette
from probekit.report.pages.attribution_page import (
    attribution_answer,
    attribution_detail,
    largest_table,
)
from probekit.report.pages.heads_page import (
    COUNTED,
    UNITS,
    heads_answer,
    heads_text,
    known_heads_table,
)
from probekit.report.pages.lens_page import LEGEND, lens_accuracy, lens_answer, site_labels
from probekit.report.pages.pair_page import CAVEAT, pair_answer, pair_notes, strongest_patches
from probekit.results.network import (
    HEAD_TEXTS,
    AttributedLogit,
    PatchedPair,
    Per,
    ScoredHeads,
    TextReading,
    tidy_rows,
)

MOST_HEADS = 5
# Columns of predictions, in order; free text is the last one.
_COLUMNS = ("number", "position", "label", "score", "alarm", "token", "text")
_WITH_SHADES = ("256", "truecolor")  # with 16 colours, pale shades cannot be distinguished


def warn_of_bos(tokenizer: Tokenizer, bos: Bos) -> None:
    """Print a warning if a choice of beginning-of-text differs from the tokenizer's own."""
    if doubt := tokenizer.doubt_of_bos(bos):
        click.echo(f"warning: {doubt}", err=True)


def facts_for_page(network: ModelAndTokenizer, bos: Bos) -> dict[str, str]:
    """Return model, digests, data type and versions for the footer of a page."""
    return {
        "model": model_title(network.source),
        "weights": digest_weights(network.model)[:16],
        "tokenizer": network.tokenizer.digest[:16],
        "beginning-of-text token": "yes" if network.tokenizer.has_bos(bos) else "no",
        "dtype": str(network.model.dtype).removeprefix("torch."),
    } | {name: version for name, version in versions().items() if name in ("probekit", "torch")}


def show_lens(rows: pd.DataFrame, position: int) -> None:
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
    places = {number: position_from_start(position, len(tokens)) for number, tokens in by_text}
    for number, of_text in by_text:
        tokens, place = of_text.tolist(), places[number]
        beginning = line_label("".join(tokens[: place + 1]))
        echo(f"{number} at [{place}] {token_label(tokens[place])}: {beginning}")
        at_place = rows[(rows["prompt"] == number) & (rows["position"] == place)]
        lines = []
        for label, row in zip(site_labels(at_place), at_place.to_dict("records"), strict=True):
            top = [
                f"{token_label(row[f'token_{rank}'])} {row[f'probability_{rank}']:.3f}"
                for rank in range(1, n_top + 1)
            ]
            next_rank = "–" if pd.isna(row["next_rank"]) else f"{row['next_rank']:,}"
            numbers = (format_number(row["entropy"]), format_number(row["kl"]), next_rank)
            lines.append((label, *numbers, "  ".join(top)))
        columns = ["layer", "entropy", "KL", "rank of next", *words("most probable tokens")]
        show_table(ResultTable("", columns, lines))
    echo(LEGEND)
    echo(lens_answer(rows))
    echo(lens_accuracy(rows))


def show_attribution(result: AttributedLogit) -> None:
    """Print the largest contributions, the components with the logit, and the token's rank."""
    show_table(largest_table(result))
    echo(attribution_answer(result))
    echo(attribution_detail(result))


def show_heads(result: ScoredHeads) -> None:
    """Print the heads with the highest scores, then the heads known from the literature."""
    echo(f"On {result.read}:")
    highest = [
        (score.title.lower(), heads_text(result, name, MOST_HEADS) or "not defined for any token")
        for name, score in HEAD_TEXTS.items()
    ]
    show_table(ResultTable("", words("score", "highest"), highest))
    echo(UNITS)
    echo(heads_answer(result))
    echo(COUNTED)
    if result.known:
        columns = words("known for GPT-2 small", "head", "here", "rank")
        show_table(replace(known_heads_table(result), columns=columns))


def show_pair(pair: PatchedPair, top: int) -> None:
    """Print the measure after both texts, the strongest patches, and what they show."""
    answer, wrong = token_label(pair.answer), token_label(pair.wrong)
    echo(f"Logit of {answer} minus logit of {wrong}:")
    texts = [
        ("clean", signed(pair.base), "".join(pair.clean)),
        ("corrupt", signed(pair.source), "".join(pair.corrupt)),
    ]
    show_table(ResultTable("", ("text", "difference", *words("")), texts))
    for rows in (pair.of_positions, pair.of_heads):
        if rows.empty:
            continue
        echo()
        show_table(strongest_patches(pair, rows, top))
        echo()
    echo(pair_answer(pair))
    for note in pair_notes(pair):
        echo(f"note: {note}", err=True)
    echo(CAVEAT)


def show_answers(readings: Sequence[TextReading], probe: SavedProbe, per: Per) -> None:
    """Print a label and a score for each text or token; there must be at least one text.

    On a terminal with at least 256 colours, tokens are coloured by their score. Otherwise the
    output is tab-separated columns with a header.
    """
    console = Console()
    has_shades = console.color_system in _WITH_SHADES and not console.no_color
    if not (console.is_terminal and has_shades):
        rows = tidy_rows(readings, probe.classes, per)
        names = [name for name in _COLUMNS if any(name in row for row in rows)]
        click.echo("\t".join(names))
        for row in rows:
            click.echo("\t".join(_cell(name, row.get(name)) for name in names))
        return
    palette = Palette.of(readings, probe.classes)
    for number, reading in enumerate(readings, start=1):
        line = Text().append(f"{number} ", "dim")
        show = _tokens_line if per == "token" else _text_line
        console.print(line.append_text(show(reading, palette)), overflow="fold")
    console.print(_legend(palette))


def _cell(column: str, value: object) -> str:
    """Return a value as the text of its column; "-" without a value."""
    if value is None:
        return "-"
    if column == "token":
        return token_label(str(value))
    return f"{value:.4f}" if isinstance(value, float) else line_label(str(value))


def _tokens_line(reading: TextReading, palette: Palette) -> Text:
    """Return the tokens of a text in the colours of their scores; of many classes, with labels."""
    line = Text()
    for token, answer in zip(reading.tokens, reading.answers, strict=True):
        line.append(line_label(token), _style(palette.paint(answer)))
        if len(palette.classes) > 2:
            line.append(f"/{line_label(answer.label or '')}", "dim")
        if "\n" in token:
            line.append("\n")
    return line


def _text_line(reading: TextReading, palette: Palette) -> Text:
    """Return the answer for a text in the colour of its score, "-" without any, and the text."""
    line = Text()
    if reading.answer is None:
        line.append("-")
    else:
        line.append(f" {line_label(reading.answer.text)} ", _style(palette.paint(reading.answer)))
    return line.append(f" {line_label(reading.text)}")


def _style(paint: Paint) -> Style:
    return Style(color="#000000", bgcolor=paint.on_white)


def _legend(palette: Palette) -> Text:
    """Return the legend of the colours."""
    line = Text()
    if not palette.classes:
        line.append(" number ", _style(Paint(NUMBER, 1.0)))
        return line.append(f" {format_number(palette.low)} to {format_number(palette.high)}", "dim")
    for name in palette.classes:
        line.append(f" {line_label(name)} ", _style(Paint(palette.hue(name), 1.0))).append(" ")
    if len(palette.classes) == 2:
        line.append(f"palest at score 0, strongest from ±{format_number(palette.high)}", "dim")
    return line


def show_models() -> None:
    """Print a line for each named model."""
    rows = []
    for name in KNOWN_MODELS:
        config = find_config(name)
        origin = "ships with probekit" if name == "mini" else "the hub"
        sizes = (config.n_layers, config.n_heads, config.d_model)
        rows.append((name, *map(str, sizes), f"{count_parameters(config):,}", origin))
    columns = words("model", "layers", "heads", "d_model", "parameters", "from")
    show_table(ResultTable("", columns, rows))
    echo("Also: org/name@revision on the hub, or the path of a folder.")


def show_sites(model: str) -> None:
    """Print the table of sites of a model."""
    config = find_config(model)
    rows, columns = [], (Column("site", form="code"), *words("shape", "formula"))
    for site in config.sites.rows:
        shape = " ".join(_axis(axis, config) for axis in site.axes)
        note = " (only on request)" if site.on_request else ""
        rows.append((site.name, shape, site.formula + note))
    show_table(ResultTable("", columns, rows))
    n_sites = len(config.sites.without_request)
    echo(f"{{l}} is 0 to {config.n_layers - 1}: {n_sites:,} tensors.")


def _axis(axis: str, config: ModelConfig) -> str:
    """Return an axis with its size, if it has a fixed one: `d_model=64`, `pos`, `1`."""
    has_size = axis in config.axis_sizes and axis != "1"
    return f"{axis}={config.axis_sizes[axis]}" if has_size else axis


def show_experiments(listed: Sequence[BundledExperiment]) -> None:
    """Print a row for each bundled experiment: name, question, and additional requirements."""
    rows = [(bundled.name, bundled.question, "; ".join(bundled.needs)) for bundled in listed]
    columns = (Column("name", "words", "code"), *words("question", "needs"))
    show_table(ResultTable("", columns, rows))
    if listed:
        echo(f"Run one by name: {listed[0].command}. The files are in {bundled_folder()}.")
    echo("Start your own: probekit init my_question.")
