"""What lens, attribution and heads found, on stdout."""

from __future__ import annotations

import click
import pandas as pd
from rich.table import Table
from rich.text import Text

from probekit.activations.identity import digest_weights
from probekit.analysis.attribution import position_from_start
from probekit.cli.show.tables import print_table
from probekit.pipeline.look.lenses import ModelAndTokenizer
from probekit.provenance import versions
from probekit.report.figures.style import format_number
from probekit.report.maps.attribution_map import signed
from probekit.report.maps.head_map import SCORES
from probekit.report.maps.lens_map import site_labels
from probekit.report.pages.attribution_page import (
    attribution_answer,
    attribution_title,
    strongest_parts,
)
from probekit.report.pages.heads_page import heads_text, known_head_rows
from probekit.report.pages.lens_page import lens_answer
from probekit.report.texts.glyphs import line_label, token_label
from probekit.results.network import AttributedLogit, ScoredHeads

MOST_PARTS = 12
MOST_HEADS = 5


def facts_for_page(network: ModelAndTokenizer, bos: bool) -> dict[str, str]:
    """Return what the numbers of a page rest on."""
    return {
        "model": network.source,
        "weights": digest_weights(network.model)[:16],
        "tokenizer": network.tokenizer.digest[:16],
        "<|endoftext|> before the text": "yes" if bos else "no",
        "dtype": str(network.model.dtype).removeprefix("torch."),
    } | {name: version for name, version in versions().items() if name in ("probekit", "torch")}


def show_lens(rows: pd.DataFrame, position: int) -> None:
    """Print for each text what every site says at one position, then what the lens shows.

    Raises:
        ConfigError: a text has no such position.
    """
    texts = rows.drop_duplicates(["prompt", "position"]).groupby("prompt", sort=False)["token"]
    # A text that lacks the position is refused before anything is printed.
    places = {number: position_from_start(position, len(tokens)) for number, tokens in texts}
    for number, text in texts:
        tokens, place = text.tolist(), places[number]
        here = rows[(rows["prompt"] == number) & (rows["position"] == place)]
        read = line_label("".join(tokens[: place + 1]))
        click.echo(f"{number} at [{place}] {token_label(tokens[place])}: {read}")
        print_table(_lens_table(here))
    click.echo(lens_answer(rows))


def _lens_table(rows: pd.DataFrame) -> Table:
    shown = Table("layer", box=None, pad_edge=False)
    for name in ("entropy", "KL", "rank of next"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("likeliest tokens")
    for label, row in zip(site_labels(rows), rows.to_dict("records"), strict=True):
        ranks = range(1, sum(str(name).startswith("token_") for name in row) + 1)
        told = [f"{token_label(row[f'token_{r}'])} {row[f'probability_{r}']:.3f}" for r in ranks]
        rank = "–" if pd.isna(row["next_rank"]) else f"{row['next_rank']:,}"
        numbers = (format_number(row["entropy"]), format_number(row["kl"]), rank)
        shown.add_row(label, *numbers, Text("  ".join(told)))
    return shown


def show_attribution(found: AttributedLogit) -> None:
    """Print the largest parts of a logit, then what they sum to."""
    shown = Table("part", box=None, pad_edge=False)
    shown.add_column("adds", justify="right")
    named = strongest_parts(found)
    for name, value in zip(named["name"][:MOST_PARTS], named["value"][:MOST_PARTS], strict=True):
        shown.add_row(name, signed(value))
    others = named["value"][MOST_PARTS:]
    if len(others):
        shown.add_row(f"{len(others)} other parts", signed(others.sum()))
    shown.add_row(Text(attribution_title(found)), signed(found.logit))
    print_table(shown)
    click.echo(attribution_answer(found))


def show_heads(found: ScoredHeads) -> None:
    """Print the strongest heads of each score, then those that are known for the model."""
    click.echo(f"On {found.read}:")
    shown = Table("score", "highest", box=None, pad_edge=False)
    for name, score in SCORES.items():
        shown.add_row(
            score.title.lower(), heads_text(found, name, MOST_HEADS) or "no token could have it"
        )
    print_table(shown)
    if found.known:
        known = Table("known for GPT-2 small", "head", "here", "rank", box=None, pad_edge=False)
        for row in known_head_rows(found):
            known.add_row(*row)
        print_table(known)
