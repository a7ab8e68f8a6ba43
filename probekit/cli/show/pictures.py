"""Results of lens, attribution and heads on stdout."""

from __future__ import annotations

import click
import pandas as pd
from rich.table import Table
from rich.text import Text

from probekit.activations.records import digest_weights
from probekit.analysis.logits import position_from_start
from probekit.cli.show.tables import print_table
from probekit.pipeline.look.lenses import ModelAndTokenizer
from probekit.provenance import versions
from probekit.report.figures.style import format_number
from probekit.report.maps.lens_map import site_labels
from probekit.report.maps.network_maps import SCORES, signed
from probekit.report.pages.attribution_page import (
    attribution_answer,
    attribution_detail,
    largest_rows,
)
from probekit.report.pages.heads_page import (
    COUNTED,
    UNITS,
    heads_answer,
    heads_text,
    known_head_rows,
)
from probekit.report.pages.lens_page import LEGEND, lens_accuracy, lens_answer
from probekit.report.texts import line_label, model_title, token_label
from probekit.results.network import AttributedLogit, ScoredHeads

MOST_HEADS = 5


def facts_for_page(network: ModelAndTokenizer, bos: bool) -> dict[str, str]:
    """Return model, digests, data type and versions for the footer of a page."""
    return {
        "model": model_title(network.source),
        "weights": digest_weights(network.model)[:16],
        "tokenizer": network.tokenizer.digest[:16],
        "beginning-of-text token": "yes" if bos else "no",
        "dtype": str(network.model.dtype).removeprefix("torch."),
    } | {name: version for name, version in versions().items() if name in ("probekit", "torch")}


def show_lens(rows: pd.DataFrame, position: int) -> None:
    """Print the predictions of every site at one position of each text, then a summary.

    Raises:
        ConfigError: a text has no such position.
    """
    texts = rows.drop_duplicates(["prompt", "position"]).groupby("prompt", sort=False)["token"]
    # Raises before anything is printed if a text does not have the position.
    places = {number: position_from_start(position, len(tokens)) for number, tokens in texts}
    for number, text in texts:
        tokens, place = text.tolist(), places[number]
        at_place = rows[(rows["prompt"] == number) & (rows["position"] == place)]
        read = line_label("".join(tokens[: place + 1]))
        click.echo(f"{number} at [{place}] {token_label(tokens[place])}: {read}")
        print_table(_lens_table(at_place))
    click.echo(LEGEND)
    click.echo(lens_answer(rows))
    click.echo(lens_accuracy(rows))


def _lens_table(rows: pd.DataFrame) -> Table:
    shown = Table("layer", box=None, pad_edge=False)
    for name in ("entropy", "KL", "rank of next"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("most probable tokens")
    for label, row in zip(site_labels(rows), rows.to_dict("records"), strict=True):
        ranks = range(1, sum(str(name).startswith("token_") for name in row) + 1)
        top = [f"{token_label(row[f'token_{r}'])} {row[f'probability_{r}']:.3f}" for r in ranks]
        rank = "–" if pd.isna(row["next_rank"]) else f"{row['next_rank']:,}"
        numbers = (format_number(row["entropy"]), format_number(row["kl"]), rank)
        shown.add_row(label, *numbers, Text("  ".join(top)))
    return shown


def show_attribution(result: AttributedLogit) -> None:
    """Print the largest contributions to a logit, then their sum."""
    shown = Table("component", box=None, pad_edge=False)
    shown.add_column("contribution", justify="right")
    for name, value in largest_rows(result):
        shown.add_row(Text(name), signed(value))
    print_table(shown)
    click.echo(attribution_answer(result))
    click.echo(attribution_detail(result))


def show_heads(result: ScoredHeads) -> None:
    """Print the heads with the highest scores, then the heads known from the literature."""
    click.echo(f"On {result.read}:")
    shown = Table("score", "highest", box=None, pad_edge=False)
    for name, score in SCORES.items():
        shown.add_row(
            score.title.lower(), heads_text(result, name, MOST_HEADS) or "not defined for any token"
        )
    print_table(shown)
    click.echo(UNITS)
    click.echo(heads_answer(result))
    click.echo(COUNTED)
    if result.known:
        known = Table("known for GPT-2 small", "head", "here", "rank", box=None, pad_edge=False)
        for row in known_head_rows(result):
            known.add_row(*row)
        print_table(known)
