"""Page of a logit lens: a heat map of predictions per text, and summary statistics by layer."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, format_number
from probekit.model.sites.catalogue import component_of, layer_of
from probekit.report.elements import page, style, texts
from probekit.report.elements.table import ResultTable
from probekit.report.elements.tokens import LONGEST_TEXT, short_heading, short_label
from probekit.report.figures.line_labels import LineLabel, label_at_end, label_lines
from probekit.report.figures.maps import Colours, changes_of, rows_height, text_map, thin_ticks

QUESTION = "From which layer on does the network predict its next token?"
CAVEAT = "The tokens that the lens reads at a layer are not necessarily what later layers use."
METHOD = (
    "The final norm (with the mean and variance of the residual stream at that layer) and the "
    "unembedding are applied to the residual stream at each layer. Nothing is fitted.",
    "KL is the Kullback-Leibler divergence of the prediction at a layer from the network's output, "
    "in nats. The final prediction is that of the last site on the page.",
)
LEGEND = (
    "entropy, and KL divergence from the final prediction, in nats; rank of next: rank of the next "
    "token of the text."
)
CAPTION = (
    "Most likely next token if the network ended at that layer; bold: it is the next token of the "
    "text. The last row is the network's output."
)
MOST_WIDE, MOST_BESIDE = 7, 10  # tokens of a text with wide cells, or next to the curve
MOST_IN_PAGE = 22  # tokens of a text whose map is not wider than the page
SHORT = 7  # characters that fit into a narrow cell
LEFT_OUT = " There are too many cells to show their tokens; hover over a cell to see them."
MOST_LAYERS = 16  # in an open table
MOST_TICKS = 10  # named on the layer axis
BY_LAYER = "Most likely token by layer"
IS_OUTPUT = 1e-4  # nats; mean divergence below which a site is the output of the network
MOST_TEXTS = 2_000  # cells; with more, a browser draws their texts slowly
# Column of the summary, label of its line, column of its number of positions, and dash.
_LINES = (
    ("as_output", "equals the final prediction", "n", "solid"),
    ("right", "equals the next token of the text", "n_next", "dot"),
)
# Quantity that the colour of a cell shows: title of the colour bar, and column of the lens rows.
MEASURES = {
    "probability": ("probability of the token in the cell", "probability_1"),
    "rank": ("rank of the token that follows in the text", "next_rank"),
    "entropy": ("entropy, nats", "entropy"),
    "kl": ("KL divergence from the output, nats", "kl"),
}


def lens_page(rows: pd.DataFrame, *, model: str, facts: Mapping[str, str]) -> page.Page:
    """Return a page with a heat map for each text.

    Args:
        rows: result of `lens_rows`, with the number of the text as `prompt`.
        model: display name of the model.
        facts: provenance of the numbers, by name.
    """
    of_texts = list(rows.groupby("prompt", sort=False))
    # The section with the numbers of the answer: curve and table by layer.
    summary = lens_summary(rows)
    n, n_next = summary[["n", "n_next"]].iloc[0]
    curve = page.FigurePart(
        title="Agreement with the final prediction by layer",
        figure=page.figure_json(lens_curve(summary)),
        caption=f"Share of {counted(n, 'position')} at which the most likely token of a layer is "
        f"the final one, and share of {n_next:,} with a next token in the text at which it is that "
        "token.",
        description="Agreement with the final prediction by layer. "
        + "; ".join(map("{layer}: {as_output} of {n}".format_map, summary.to_dict("records"))),
        height=19,
        width=0,  # with None, analysis.css would not limit the width to 62rem
    )
    table, is_one = _table(summary), len(of_texts) == 1
    numbers: list[page.Item] = [curve, table]
    if is_one or len(summary) > MOST_LAYERS:  # the map would be below the first screen
        numbers = [curve, page.Fold(BY_LAYER, [replace(table, has_title=False)])]
    # The table of a single text would repeat the one of all texts.
    sections = [_of_text(*text, has_table=not is_one) for text in of_texts]
    eyebrow = ["probekit", "logit lens", texts.model_title(model)]
    if is_one:  # its map is the first figure
        of_text = sections.pop()
        eyebrow.append(of_text.title)
        numbers = [*of_text.items, page.Group("rows", numbers)]
    is_long = is_one and rows["position"].nunique() > MOST_BESIDE
    first = page.Group("rows" if is_long else "split", numbers)
    return page.Page(
        eyebrow=eyebrow,
        title=QUESTION,
        answer=lens_answer(rows),
        details=[page.Paragraph(lens_accuracy(rows))],
        sections=[
            page.PageSection("", [first, page.Paragraph(CAVEAT, "note")], "first"),
            *sections,
        ],
        method=METHOD,
        facts={"": facts},
        styles=page.WITH_MAPS,
    )


def _of_text(number: object, rows: pd.DataFrame, *, has_table: bool) -> page.PageSection:
    """Return the section of one text: its map and, if it `has_table`, its table by layer."""
    tokens = rows.drop_duplicates("position")["token"]
    by_layer = lens_summary(rows)
    has_texts = len(rows) <= MOST_TEXTS
    views = {title: lens_map(rows, name) for name, (title, _) in MEASURES.items()}
    # The text alternative of the map: the prediction of each layer at the last position.
    at_last = rows[rows["position"] == rows["position"].max()]
    predictions = "; ".join(
        f"{label}: {texts.token_label(row['token_1'])} {format_number(row['probability_1'])}"
        for label, (_, row) in zip(site_labels(at_last), at_last.iterrows(), strict=True)
    )
    picture = page.FigurePart(
        title="Most likely next token by layer and position",
        figure=page.figure_json(next(iter(views.values()))),
        caption=CAPTION if has_texts else CAPTION + LEFT_OUT,
        description="Most likely next token by layer and position. At the last position "
        + predictions,
        height=10 + rows_height(len(by_layer)),
        # 4.2 rem for the longest texts, 3 for short ones.
        width=9 + len(tokens) * (0.6 * (_most(len(tokens)) - 2) if has_texts else 1),
        views=changes_of(views),
    )
    # Of a single text the end is kept, after which the answer predicts.
    heading = short_heading(texts.line_label("".join(tokens)), keeps_end=not has_table)
    table = [page.Fold(BY_LAYER, [_table(by_layer, has_title=False)])] if has_table else []
    title = f"{number} · {heading}" if has_table else heading
    return page.PageSection(title, [picture, *table])


def _table(summary: pd.DataFrame, *, has_title: bool = True) -> ResultTable:
    """Return the rows of `lens_summary` as a table."""
    text = summary.astype(str)
    columns = {
        "layer": summary["layer"],
        "equals the final prediction": text["as_output"] + " of " + text["n"],
        "equals the next token": text["right"] + " of " + text["n_next"],
        "median rank of the next token": [
            "–" if pd.isna(rank) else f"{rank:,.0f}" for rank in summary["rank"]
        ],
        "entropy (nats)": summary["entropy"].map("{:.2f}".format),
        "KL (nats)": summary["kl"].map("{:.2f}".format),
    }
    return ResultTable.of(BY_LAYER, columns, has_title=has_title, is_sortable=True)


def lens_summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per site, summarised over the positions of one or several texts.

    The columns are:

        layer      label of the site
        n          number of positions, the same at each site
        n_next     number of these that have a next token in the text
        right      number of positions at which the most likely token is the next token
        as_output  number of positions at which it is the token predicted at the last site
        rank       median rank of the next token
        entropy    mean entropy
        kl         mean Kullback-Leibler divergence
    """
    # For each row the token predicted at the last site, at its text and position. The rows of a
    # position are in forward order.
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
    """Return the layer from which on the lens agrees with the last prediction, as a sentence.

    It is the first layer from which on, without exception, at least half of the positions agree; of
    a single text also that of its last position. If a last site is not the output of the network,
    its prediction is that of a layer.
    """
    clauses, summary = [], lens_summary(rows)
    n, final = int(summary["n"].iloc[0]), _final(summary.iloc[-1], "token")
    if len(rows["prompt"].unique()) == 1:
        at_last = rows[rows["position"] == rows["position"].max()]
        since, _ = _settled(lens_summary(at_last))
        token = texts.quote(at_last.iloc[-1]["token_1"])
        of_layer = "" if final == "final token" else f", the {final},"
        clauses.append(f"{token}{of_layer} is predicted after the text {since}")
    if n > 1:
        since, count = _settled(summary)
        of_all = "" if since.startswith("only") else f" ({count} of {n})"
        clauses.append(f"at least half of the positions have their {final} {since}{of_all}")
    return texts.capitalised(f"{'; '.join(clauses)}.")


def _settled(summary: pd.DataFrame) -> tuple[str, int]:
    """Return from which layer on at least half of the positions agree, and how many do there."""
    # Whether at least half agree at a layer and at all later ones; at the last one, all agree.
    settled = (summary["as_output"] >= summary["n"] / 2)[::-1].cummin()[::-1]
    first = int(settled.to_numpy().argmax())
    layer = _layer(summary["layer"].iloc[first])
    since = f"only at {layer}" if first == len(summary) - 1 else f"from {layer} on"
    return since, int(summary["as_output"].iloc[first])


def lens_accuracy(rows: pd.DataFrame) -> str:
    """Return how often the final prediction is the next token of the text, as a sentence."""
    last = lens_summary(rows).iloc[-1]
    if not last["n_next"]:
        return "The texts have one token each, so there is no next token to compare with."
    return (
        f"The {_final(last, 'prediction')} is the next token of the text at {last['right']} of "
        f"{counted(int(last['n_next']), 'position')}."
    )


def _final(last: pd.Series, what: str) -> str:
    """Return the name of the last prediction; only without divergence it is the network's."""
    return f"final {what}" if last["kl"] < IS_OUTPUT else f"{what} of {_layer(last['layer'])}"


def _layer(label: str) -> str:
    return "the embedding" if label == "embed" else f"layer {label}"


def lens_map(rows: pd.DataFrame, measure: str = "probability") -> go.Figure:
    """Return the map of a logit lens: sites down, tokens across, most probable next token in cells.

    A token is bold if it is the one that follows in the text.

    Args:
        rows: Rows of one text, from `probekit.analysis.logits.lens_rows`: one for each site and
            position, all positions of the first site first.
        measure: A key of `MEASURES`, shown as colour.
    """
    title, column = MEASURES[measure]
    sites, tokens = site_labels(rows), rows.drop_duplicates("position")["token"]
    values = rows[column].to_numpy(dtype=float, na_value=np.nan)
    values = np.log10(values) if measure == "rank" else values
    # Scales end at 1 or above it, so that they have a width if all values are 0 or undefined.
    high = 1.0 if measure == "probability" else np.nanmax(values, initial=1.0)
    colours = Colours(0.0, high, style.MAGNITUDES, is_diverging=False)
    cells = rows.to_dict("records")
    most, hover = _most(len(tokens)), [_hover(row) for row in cells]
    shown = [_cell(row, most) for row in cells]
    # Plotly would draw a title over the cells, because the colour bar is above.
    across = [style.plotly_text(short_label(token, most)) for token in tokens]
    how: Any = {"texts": shown, "most_texts": MOST_TEXTS, "title": ""}
    figure = text_map(values, hover, colours, across=across, down=sites, **how)
    # A map wider than the page opens at its right end, where the last token is.
    x, side = (0, "left") if len(tokens) <= MOST_IN_PAGE else (1, "right")
    figure.update_yaxes(side=side)
    colorbar = {"title": {"text": title, "side": "top"}, "x": x, "xanchor": side, "y": 1}
    colorbar |= {"yanchor": "bottom", "orientation": "h", "lenmode": "pixels", "len": 240}
    if measure == "rank":  # the values are logarithms, labelled with the ranks
        colorbar |= {"tickvals": [*range(7)], "ticktext": [f"{10**power:,}" for power in range(7)]}
    return thin_ticks(figure.update_traces(colorbar=colorbar, selector={"type": "heatmap"}))


def site_labels(rows: pd.DataFrame) -> list[str]:
    """Return the axis labels of the sites.

    >>> sites = ["blocks.0.hook_resid_pre", "blocks.0.hook_attn_out", "blocks.0.hook_resid_post"]
    >>> site_labels(pd.DataFrame({"site": sites}))
    ['embed', '0 attn_out', '0']
    """
    return [_site_label(site) for site in rows["site"].unique()]


def _site_label(site: str) -> str:
    layer, component = layer_of(site), component_of(site)
    if component == "resid_post":
        return str(layer)
    if (layer, component) == (0, "resid_pre"):
        return "embed"
    return component if layer is None else f"{layer} {component}"


def _most(n_tokens: int) -> int:
    """Return the number of characters that fit into a cell of a map of so many tokens."""
    return LONGEST_TEXT if n_tokens <= MOST_WIDE else SHORT


def _cell(row: dict[Hashable, Any], most: int) -> str:
    text = style.plotly_text(short_label(row["token_1"], most))
    return f"<b>{text}</b>" if row["next_rank"] == 1 else text


def _hover(row: dict[Hashable, Any]) -> str:
    """Return the hover text of a cell: its tokens, the next token of the text, entropy and KL."""

    def named(token_column: str, probability_column: str) -> str:
        token, p = style.plotly_text(texts.token_label(row[token_column])), row[probability_column]
        return f"{token} {format_number(p) if p >= 0.001 else f'{p:.1e}'}"

    here = style.plotly_text(texts.token_label(row["token"]))
    lines = [f"<b>{_site_label(row['site'])}</b> at [{row['position']}] {here}"]
    ranks = takewhile(lambda rank: f"token_{rank}" in row, count(1))
    lines += [f"{rank}. {named(f'token_{rank}', f'probability_{rank}')}" for rank in ranks]
    if not pd.isna(row["next_rank"]):
        following = named("next_token", "next_probability")
        lines.append(f"follows: {following}, rank {row['next_rank']:,}")
    lines.append(f"entropy {row['entropy']:.2f} nats, KL from the output {row['kl']:.2f} nats")
    return "<br>".join(lines)


def lens_curve(summary: pd.DataFrame) -> go.Figure:
    """Return the curve of `lens_summary`: shares of positions by layer, labelled at their ends."""
    figure = go.Figure(layout={"template": style.TEMPLATE})
    labels: list[LineLabel] = []
    for (name, label, total, dash), colour in zip(_LINES, style.SERIES_COLOURS[1:], strict=False):
        hover = [
            f"<b>{row['layer']}</b><br>{label} at {row[name]:,} of {row[total]:,} positions"
            for _, row in summary.iterrows()
        ]
        look = {"mode": "lines+markers", "line": {"color": colour, "dash": dash, "width": 2.5}}
        x, share = list(range(len(summary))), (summary[name] / summary[total]).astype(float)
        figure.add_scatter(x=x, y=(100 * share).tolist(), hovertext=hover, hoverinfo="text", **look)
        labels += label_at_end(figure.data[-1], label)
    step = 1 + len(summary) // MOST_TICKS
    figure.update_xaxes(
        title_text="layer",
        tickvals=list(range(len(summary))),
        # Names are one line below the numbers, so that they do not overlap them.
        ticktext=[
            f"<br>{text}" if not text.isdigit() else "" if int(text) % step else text
            for text in summary["layer"]
        ],
        tickangle=0,
        range=[-0.3, len(summary) - 0.9],  # to 0.1 after the last point, at len(summary) - 1
    )
    figure.update_yaxes(title_text="share of positions", range=[-3, 105], ticksuffix=" %")
    label_lines(figure, labels)
    return figure
