"""The page of a logit lens: a map for each text, and what each layer gets right."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from probekit.report.figures.style import format_number
from probekit.report.maps.lens_map import MEASURES, MOST_TEXTS, lens_map, site_labels
from probekit.report.pages.analysis_page import AnalysisPage, Cells, PageSection, Picture
from probekit.report.texts.glyphs import line_label, token_label

NOTE = (
    "The final norm is applied anew at each layer, with the mean and scale that the residual "
    "stream has there, and then the unembedding. Nothing is fitted. What a layer seems to say in "
    "the vocabulary of the last one need not be what later layers read from it."
)
CAPTION = (
    "In a cell the likeliest next token if the network ended there, bold where it is the token "
    "that follows in the text. Point at a cell for more tokens, the rank of the one that follows, "
    "entropy and divergence from the output, KL(output | here). The last row is the output."
)
LEFT_OUT = (
    " There are too many cells to write in them: colours and the pointer alone tell what they hold."
)
LONGEST_HEADING = 100  # characters of a text


def lens_page(rows: pd.DataFrame, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a page of HTML with the map of each text; it asks no network.

    Args:
        rows: of `lens_rows`, with the number of the text as `prompt`.
        model: its name.
        facts: what the numbers rest on, by name.
    """
    return AnalysisPage(
        eyebrow=f"probekit · logit lens · {model}",
        title="What each layer would say next",
        answer=lens_answer(rows),
        notes=[NOTE],
        parts=[_part(number, of_text) for number, of_text in rows.groupby("prompt", sort=False)],
        facts=facts,
    ).html()


def _part(number: object, rows: pd.DataFrame) -> PageSection:
    tokens = rows.drop_duplicates("position")["token"]
    by_layer = lens_summary(rows)
    has_texts = len(rows) <= MOST_TEXTS
    picture = Picture(
        title="Likeliest next token by layer and position",
        views={measure.title: lens_map(rows, name) for name, measure in MEASURES.items()},
        caption=CAPTION + LEFT_OUT * (not has_texts),
        description=lens_description(rows),
        height=11 + 1.9 * len(by_layer),
        width=9 + len(tokens) * (4.2 if has_texts else 1),
    )
    table = Cells(
        "Each layer in numbers",
        ("layer", "follows in the text", "as the output", "median rank", "mean entropy", "mean KL"),
        [
            (
                row["layer"],
                f"{row['right']} of {row['n_next']}",
                f"{row['as_output']} of {row['n']}",
                "–" if pd.isna(row["rank"]) else f"{row['rank']:,.0f}",
                format_number(row["entropy"]),
                format_number(row["kl"]),
            )
            for _, row in by_layer.iterrows()
        ],
    )
    text = line_label("".join(tokens))
    heading = text if len(text) <= LONGEST_HEADING else f"{text[: LONGEST_HEADING - 1]}…"
    return PageSection(f"{number} · {heading}", pictures=[picture], tables=[table])


def lens_summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row a site, over the positions of one text or several.

    The columns are `layer`, its label; `right` of `n_next`, how often the likeliest token follows
    in the text; `as_output`, how often it is the network's own, that of the last site; the median
    `rank` of the token that follows; and the mean `entropy` and `kl`.
    """
    output = rows.groupby(["prompt", "position"])["token_1"].transform("last")
    right, as_output = rows["next_rank"].eq(1).fillna(False), rows["token_1"].eq(output)
    by_site = rows.assign(right=right, as_output=as_output).groupby("site", sort=False)
    summary = by_site.agg(
        right=("right", "sum"),
        n_next=("next_rank", "count"),
        as_output=("as_output", "sum"),
        n=("position", "size"),
        rank=("next_rank", "median"),
        entropy=("entropy", "mean"),
        kl=("kl", "mean"),
    )
    return summary.assign(layer=site_labels(rows))


def lens_answer(rows: pd.DataFrame) -> str:
    """Return what the maps show, in a sentence or two."""
    summary = lens_summary(rows)
    last = summary.iloc[-1]
    # The layers from which on half of the positions or more agree with the output.
    settled = (summary["as_output"] >= summary["n"] / 2)[::-1].cummin()
    since = summary["layer"][settled[::-1]].iloc[0]
    half = f"half of the {last['n']} positions or more"
    return (
        f"The network's likeliest token is the one that follows in the text at {last['right']} of "
        f"{last['n_next']} positions. "
        + (
            f"At no layer before the last does the lens read the network's own at {half}."
            if since == last["layer"]
            else f"From {_layer(since)} on, the lens reads the network's own at {half}."
        )
    )


def _layer(label: str) -> str:
    return "the embedding" if label == "embed" else f"layer {label}"


def lens_description(rows: pd.DataFrame) -> str:
    """Return, for who cannot see the map, what is said at the last position, layer by layer."""
    at_last = rows[rows["position"] == rows["position"].max()]
    told = [
        f"{label}: {token_label(row['token_1'])} {format_number(row['probability_1'])}"
        for label, (_, row) in zip(site_labels(at_last), at_last.iterrows(), strict=True)
    ]
    return "Likeliest next token by layer and position. At the last position " + "; ".join(told)
