"""Page of a logit lens: a heat map of predictions per text, and summary statistics by layer."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from probekit.report.figures.style import format_number
from probekit.report.maps.lens_map import MEASURES, MOST_TEXTS, lens_map, site_labels
from probekit.report.pages.analysis_page import AnalysisPage, Cells, PageSection, Picture
from probekit.report.texts.glyphs import line_label, token_label

NOTE = (
    "The final norm (with the mean and variance of the residual stream at that layer) and the "
    "unembedding are applied to the residual stream at each layer. Nothing is fitted. The tokens "
    "that the lens reads at a layer are not necessarily what later layers use."
)
CAPTION = (
    "Each cell shows the most likely next token if the network ended at that layer, in bold if it "
    "is the next token of the text. Hover over a cell for more tokens, the rank of the next token, "
    "the entropy, and KL(output | layer). The last row is the model's output."
)
LEFT_OUT = " There are too many cells to show their tokens; hover over a cell to see them."
LONGEST_HEADING = 100  # characters of a text


def lens_page(rows: pd.DataFrame, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a self-contained HTML page with a heat map for each text.

    Args:
        rows: result of `lens_rows`, with the number of the text as `prompt`.
        model: display name of the model.
        facts: provenance of the numbers, by name.
    """
    return AnalysisPage(
        eyebrow=f"probekit · logit lens · {model}",
        title="Next-token prediction at each layer",
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
        title="Most likely next token by layer and position",
        views={measure.title: lens_map(rows, name) for name, measure in MEASURES.items()},
        caption=CAPTION + LEFT_OUT * (not has_texts),
        description=lens_description(rows),
        height=11 + 1.9 * len(by_layer),
        width=9 + len(tokens) * (4.2 if has_texts else 1),
    )
    table = Cells(
        "Statistics by layer",
        ("layer", "correct", "agrees with output", "median rank", "mean entropy", "mean KL"),
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
    """Return one row per site, summarised over the positions of one or several texts.

    The columns are:

        layer      label of the site
        n          number of positions
        n_next     number of positions that have a next token in the text
        right      number of these at which the most likely token is the next token
        as_output  number of positions at which it is the token predicted at the last site
        rank       median rank of the next token
        entropy    mean entropy
        kl         mean Kullback-Leibler divergence
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
    """Return the model's next-token accuracy, and the layer from which the lens agrees with it."""
    summary = lens_summary(rows)
    last = summary.iloc[-1]
    # Sites after which, without exception, at least half of the positions agree with the output.
    settled = (summary["as_output"] >= summary["n"] / 2)[::-1].cummin()
    since = summary["layer"][settled[::-1]].iloc[0]
    half = f"at least half of the {last['n']} positions"
    return (
        f"The model predicts the next token of the text at {last['right']} of "
        f"{last['n_next']} positions. "
        + (
            f"At no layer before the last does the lens agree with the model on {half}."
            if since == last["layer"]
            else f"From {_layer(since)} on, the lens agrees with the model on {half}."
        )
    )


def _layer(label: str) -> str:
    return "the embedding" if label == "embed" else f"layer {label}"


def lens_description(rows: pd.DataFrame) -> str:
    """Return the text alternative of the map: the prediction of each layer at the last position."""
    at_last = rows[rows["position"] == rows["position"].max()]
    predictions = "; ".join(
        f"{label}: {token_label(row['token_1'])} {format_number(row['probability_1'])}"
        for label, (_, row) in zip(site_labels(at_last), at_last.iterrows(), strict=True)
    )
    return f"Most likely next token by layer and position. At the last position {predictions}"
