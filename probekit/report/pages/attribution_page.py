"""Page of a direct logit attribution: the contribution of each head and MLP to a logit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number, percent, signed
from probekit.report.elements import page, style, texts
from probekit.report.elements.table import ResultTable
from probekit.report.elements.tokens import HIGH, LOW, short_heading
from probekit.report.figures.maps import MOST_TEXTS, diverging, name_colours, rows_height, text_map
from probekit.results.network import MEAN, AttributedLogit

CAVEAT = "Direct effects only: an effect through later heads and MLPs counts for those."
METHOD = (
    "The output of each component is scaled by the final norm of this forward pass and multiplied "
    "by the unembedding. An MLP includes its bias; the attention bias is listed separately.",
)
OF_ONE_LOGIT = (
    "Shares are not given, because a logit alone is defined only up to a constant that all tokens "
    "share; `--minus` gives a logit difference."
)
MOST_NAMED = 10  # components in the description of the map
MOST_ROWS = 8  # components in the table of the largest, on the page and on the terminal
# Columns of an attribution map to the left of the heads, where a page shows them of wide maps.
OTHER_COLUMNS = {"attn_bias": "bias", "mlp": "MLP"}
NAMES = {
    "embed": "token embedding",
    "pos_embed": "position embedding",
    "final_bias": "bias of the final norm",
}


def strongest_parts(attribution: AttributedLogit) -> pd.DataFrame:
    """Return the components with their `name`, in descending order of absolute contribution."""
    parts = attribution.rows[["part", "layer", "head"]].itertuples(index=False)
    named = attribution.rows.assign(name=[part_name(*part) for part in parts])
    return named.sort_values("value", key=abs, ascending=False, kind="stable")


def attribution_answer(attribution: AttributedLogit) -> str:
    """Return which component raises the logit or logit difference most, and which lowers it most.

    Of a difference between two tokens, each of the two favours one of them.
    """
    parts, token = strongest_parts(attribution), texts.quote(attribution.token)
    above = f" above {MEAN}" if attribution.minus == MEAN else ""
    verbs, total = (f"raises the logit of {token}{above} most", "lowers it most"), "the logit"
    if attribution.minus:
        total = "the logit difference"
        if not above:
            verbs = (f"favours {token} most", f"favours {texts.quote(attribution.minus)} most")
    # The largest positive and the largest negative contribution, if there are any.
    signs = (parts["value"] > 0, parts["value"] < 0)
    clauses = [
        f"{row['name']} ({signed(row['value'])}) {verb}"
        for sign, verb in zip(signs, verbs, strict=True)
        for row in parts[sign].head(1).to_dict("records")
    ]
    named = ", ".join(clauses) or "No component contributes"
    return f"{named}; {total} is {signed(attribution.logit)}."


def attribution_detail(attribution: AttributedLogit) -> str:
    """Return probability and rank of the token; of a logit alone, also why it has no shares."""
    probability = format_number(attribution.probability)
    chance = "below 0.001" if probability == "0.000" else f"of {probability}"
    return (
        f"At position {attribution.position} the network gives {texts.quote(attribution.token)} a "
        f"probability {chance} (rank {attribution.rank:,})."
        f"{'' if attribution.minus else f' {OF_ONE_LOGIT}'}"
    )


def attribution_page(
    attribution: AttributedLogit, *, model: str, facts: Mapping[str, str]
) -> page.Page:
    """Return a page with the contributions as heat map, waterfall and table."""
    parts = strongest_parts(attribution)
    difference = abs(attribution.logit - float(parts["value"].sum()))
    exact = f"The contributions of the {len(parts)} components sum to the logit within"
    rows, total = attribution.rows, "logit difference" if attribution.minus else "logit"
    n_layers = int(rows["layer"].max()) + 1
    largest = parts[["name", "value"]].head(MOST_NAMED).itertuples(index=False)
    named = ", ".join(f"{name} {signed(value)}" for name, value in largest)
    in_order = "; ".join(f"{name} {signed(value)}" for name, value in step_rows(rows).items())
    by_head = page.FigurePart(
        "Contributions of heads and MLPs",
        page.figure_json(figure := attribution_map(rows, total)),
        "Contribution of each component to the logit. “bias” is the bias of the attention output.",
        f"Contribution of each head and MLP. Largest: {named}",
        height=6 + rows_height(n_layers),
        width=9 + 2.4 * len(figure.data[0].z[0]),
    )
    steps = page.FigurePart(
        "Cumulative logit",
        page.figure_json(attribution_steps(rows)),
        "Contributions in the order of the forward pass. Each bar starts where the previous one "
        "ends; the last is the logit.",
        f"Contributions in order: {in_order}",
        height=26,
        # Two bars for each layer, three for `NAMES`, and one for the logit.
        width=6 + 1.4 * (2 * n_layers + 4),
    )
    # The question that an attribution answers, with the end of the text.
    text = texts.line_label("".join(attribution.tokens[: attribution.position + 1]))
    shown = short_heading(text, keeps_end=True)
    token, minus = texts.quote(attribution.token), attribution.minus
    rather = f" rather than {texts.quote(minus)}" if minus and minus != MEAN else ""
    title = f"{len(parts):,} components, largest contribution first"
    cells = {"component": parts["name"], "contribution": parts["value"].map(format_number)}
    every = ResultTable.of(title, cells, is_sortable=True)
    first = page.Group("split wide", [by_head, largest_table(attribution)])
    return page.Page(
        eyebrow=["probekit", "direct logit attribution", texts.model_title(model)],
        title=f"Which components predict {token}{rather} after “{shown}”?",
        answer=attribution_answer(attribution),
        details=[page.Paragraph(attribution_detail(attribution))],
        sections=[
            page.PageSection("", [first, page.Paragraph(CAVEAT, "note")], "first"),
            page.PageSection("Cumulative logit", [steps]),
            page.PageSection("All components", [page.Fold(title, [every])]),
        ],
        method=(*METHOD, f"{exact} {difference:.0e}."),
        facts={"": facts},
        styles=page.WITH_MAPS,
    )


def largest_table(attribution: AttributedLogit) -> ResultTable:
    """Return the table of the largest contributions, the sum of the others, and the logit.

    If a logit difference is attributed, a third column has the share of each in it.
    """
    parts = strongest_parts(attribution)
    rest = parts["value"].iloc[MOST_ROWS:]
    rows = list(zip(parts["name"], parts["value"], strict=True))[:MOST_ROWS]
    if len(rest):
        rows.append((f"other {len(rest)} of {len(parts)} components", rest.sum()))
    total = f"the logit of {texts.token_label(attribution.token)}"
    if attribution.minus == MEAN:
        total += f" minus {MEAN}"
    elif attribution.minus:
        total += f" minus that of {texts.token_label(attribution.minus)}"
    rows.append((total, attribution.logit))
    names, values = zip(*rows, strict=True)
    cells = {"component": list(names), "contribution": list(map(signed, values))}
    if attribution.minus:
        logit = attribution.logit
        cells["share"] = [percent(value / logit) if logit else "–" for value in values]
    return ResultTable.of("Largest contributions", cells, has_title=True, is_sortable=True)


def part_name(part: str, layer: Any, head: Any) -> str:
    """Return the display name of a part.

    >>> part_name("head", 4, 11), part_name("mlp", 3, pd.NA), part_name("embed", pd.NA, pd.NA)
    ('L4H11', 'L3 MLP', 'token embedding')
    """
    if part == "head":
        return f"L{layer}H{head}"
    return NAMES[part] if part in NAMES else f"L{layer} {OTHER_COLUMNS[part]}"


def attribution_map(rows: pd.DataFrame, total: str = "logit") -> go.Figure:
    """Return the map of contributions of heads, attention biases and MLPs to a logit.

    Layers go down; a column for biases and one for MLPs, then heads go across.

    Args:
        rows: Rows of `probekit.analysis.logits.logit_attribution`.
        total: what the contributions sum to.
    """
    blocks = rows[rows["layer"].notna()]
    blocks = blocks.iloc[np.lexsort((blocks["part"] == "head", blocks["layer"].astype(int)))]
    columns = blocks["head"].astype("string").fillna(blocks["part"].map(OTHER_COLUMNS))
    values = blocks["value"]
    named = blocks[["part", "layer", "head", "value"]].itertuples(index=False)
    hover = [f"<b>{part_name(*part)}</b> {signed(value)}" for *part, value in named]
    shown, layers = [fixed(value, 2) for value in values], list(map(str, blocks["layer"].unique()))
    how: Any = {"across": list(dict.fromkeys(columns)), "down": layers, "title": "head"}
    # The page scrolls a wide map, so that numbers are readable in more cells than usual. With too
    # many, a browser would draw them slowly.
    how |= {"texts": shown, "most_texts": MOST_TEXTS * 4}
    # Each layer has one row for each column, in this order, so that a reshape gives the map. The
    # end is above 0, so that the scale has a width if all values are 0.
    figure = text_map(values, hover, diverging(values, 1e-9), **how)
    return name_colours(figure, f"added to the {total}")


def attribution_steps(rows: pd.DataFrame) -> go.Figure:
    """Return the waterfall chart of a logit: contributions in the order of the forward pass."""
    steps = step_rows(rows)
    named = [*steps.items(), ("logit", float(steps.sum()))]
    figure = go.Figure(layout={"template": style.TEMPLATE})
    figure.add_waterfall(
        x=[*steps.index, "logit"],
        y=[*steps, 0.0],  # plotly computes the bar of the total and ignores its 0
        measure=["relative"] * len(steps) + ["total"],
        hovertext=[f"<b>{name}</b> {signed(value)}" for name, value in named],
        hoverinfo="text",
        increasing={"marker": {"color": HIGH}},
        decreasing={"marker": {"color": LOW}},
        totals={"marker": {"color": "#6E7F8D"}},
        connector={"line": {"color": "#9aa1ab", "width": 1}},
    )
    figure.add_hline(y=0, line={"color": style.GREY, "width": 1.5})
    figure.update_xaxes(type="category", tickangle=-45)
    figure.update_yaxes(title_text="cumulative sum", side="right")  # opens at the logit
    return figure


def step_rows(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the contributions in the order of the forward pass, summed over each attention layer.

    >>> rows = pd.DataFrame({
    ...     "part": ["embed", "head", "head", "attn_bias", "mlp"], "value": [1.0, 2, 3, 4, 5],
    ...     "layer": [None, 0, 0, 0, 0], "head": [None, 0, 1, None, None],
    ... })
    >>> step_rows(rows).to_dict()
    {'token embedding': 1.0, 'L0 attn': 9.0, 'L0 MLP': 5.0}
    """
    kinds = rows["part"].replace({"head": "attn", "attn_bias": "attn", "mlp": "MLP"} | NAMES)
    layers = [f"L{layer:.0f} " if not pd.isna(layer) else "" for layer in rows["layer"]]
    return rows["value"].groupby(np.array(layers) + kinds.to_numpy(), sort=False).sum()
