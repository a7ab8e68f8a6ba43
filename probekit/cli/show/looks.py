"""Lens, attribution, heads, patches, models, sites and experiments on stdout."""

from __future__ import annotations

from dataclasses import replace

import click
import pandas as pd

from probekit.analysis.logits import position_from_start
from probekit.cli.show.tables import show_table
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.look.lenses import ModelAndTokenizer
from probekit.provenance import versions
from probekit.report.figures.style import format_number
from probekit.report.maps.lens_map import site_labels
from probekit.report.maps.network_maps import SCORES, signed
from probekit.report.pages.attribution_page import (
    attribution_answer,
    attribution_detail,
    largest_table,
)
from probekit.report.pages.causes.pair_page import (
    CAVEAT,
    pair_answer,
    pair_notes,
    strongest_patches,
)
from probekit.report.pages.heads_page import (
    COUNTED,
    UNITS,
    heads_answer,
    heads_text,
    known_heads_table,
)
from probekit.report.pages.lens_page import LEGEND, lens_accuracy, lens_answer
from probekit.report.pages.table import Column, ResultTable
from probekit.report.texts import line_label, model_title, token_label
from probekit.results.network import AttributedLogit, PatchedPair, ScoredHeads

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
        show_table(_lens_table(at_place))
    click.echo(LEGEND)
    click.echo(lens_answer(rows))
    click.echo(lens_accuracy(rows))


def _lens_table(rows: pd.DataFrame) -> ResultTable:
    cells = []
    for label, row in zip(site_labels(rows), rows.to_dict("records"), strict=True):
        ranks = range(1, sum(str(name).startswith("token_") for name in row) + 1)
        top = [f"{token_label(row[f'token_{r}'])} {row[f'probability_{r}']:.3f}" for r in ranks]
        rank = "–" if pd.isna(row["next_rank"]) else f"{row['next_rank']:,}"
        numbers = (format_number(row["entropy"]), format_number(row["kl"]), rank)
        cells.append((label, *numbers, "  ".join(top)))
    most_probable = Column("most probable tokens", "words")
    return ResultTable("", ("layer", "entropy", "KL", "rank of next", most_probable), cells)


def show_attribution(result: AttributedLogit) -> None:
    """Print the largest contributions to a logit, then their sum."""
    show_table(largest_table(result))
    click.echo(attribution_answer(result))
    click.echo(attribution_detail(result))


def show_heads(result: ScoredHeads) -> None:
    """Print the heads with the highest scores, then the heads known from the literature."""
    click.echo(f"On {result.read}:")
    highest = [
        (score.title.lower(), heads_text(result, name, MOST_HEADS) or "not defined for any token")
        for name, score in SCORES.items()
    ]
    show_table(ResultTable("", ("score", Column("highest", "words")), highest))
    click.echo(UNITS)
    click.echo(heads_answer(result))
    click.echo(COUNTED)
    if result.known:
        names = ("known for GPT-2 small", "head", "here", "rank")
        columns = [Column(name, "words") for name in names]
        show_table(replace(known_heads_table(result), columns=columns))


def show_pair(pair: PatchedPair, top: int) -> None:
    """Print the measure after both texts, the strongest patches, and what they show."""
    answer, wrong = token_label(pair.answer), token_label(pair.wrong)
    click.echo(f"Logit of {answer} minus logit of {wrong}:")
    texts = [
        (name, signed(value), "".join(tokens))
        for name, tokens, value in (
            ("clean", pair.clean, pair.base),
            ("corrupt", pair.corrupt, pair.source),
        )
    ]
    show_table(ResultTable("", [Column("", "words")] * 3, texts), has_heads=False)
    for rows in filter(len, (pair.of_positions, pair.of_heads)):
        click.echo()
        show_table(strongest_patches(pair, rows, top))
        click.echo()
    click.echo(pair_answer(pair))
    for note in pair_notes(pair):
        click.echo(f"note: {note}", err=True)
    click.echo(CAVEAT)
