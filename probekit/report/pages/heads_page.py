"""Page of attention head scores: heat maps, known heads of the model, and a table of all heads."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import counted, format_number, joined_names
from probekit.report.elements import page, style
from probekit.report.elements.table import ResultTable
from probekit.report.elements.texts import capitalised, model_title
from probekit.report.figures import maps
from probekit.results.network import HEAD_TEXTS, ScoredHeads

QUESTION = "Which heads are previous-token or induction heads?"
CAVEAT = "An attention pattern shows which tokens a head attends to, not what it does with them."
UNITS = "Entropy in nats, distance in tokens; all other scores are shares of the attention weight."
METHOD = ("Each score is averaged over the tokens for which it is defined, then over texts.", UNITS)
# Scores whose high values identify a type of head.
HEAD_TYPES = ("previous_token", "induction", "duplicate_token", "first_token")
MOSTLY = 0.5  # share of its attention weight from which on a head counts for a type
COUNTED = "A head counts if it gives at least half of its attention weight to these tokens."
LEAST_WRITTEN = 0.1  # of the scores in a row of maps, whose cells are small
# Scores that are mean attention weights, and can be compared on one scale.
WEIGHTS = ("previous_token", "duplicate_token", "induction", "first_token")


def heads_page(scored: ScoredHeads, *, model: str, facts: Mapping[str, str]) -> page.Page:
    """Return a page with a heat map per score and a table of all heads."""
    by_head = scored.rows.set_index(["layer", "head"])
    columns = {
        text.title.lower(): by_head.loc[by_head["score"] == name, "value"]
        for name, text in HEAD_TEXTS.items()
    }
    wide = pd.DataFrame(columns).map(_number)
    heads = [f"L{layer}H{head}" for layer, head in wide.index]
    title = f"{len(wide):,} heads"
    table = ResultTable.of(title, {"head": heads, **wide}, is_sortable=True)
    weights, *others = head_figures(scored)
    first = page.Group("rows", [weights, _highest(scored), page.Paragraph(CAVEAT, "note")])
    known = [page.Group("rows", [known_heads_table(scored)])] if scored.known else []
    return page.Page(
        eyebrow=["probekit", "heads", model_title(model)],
        title=QUESTION,
        answer=heads_answer(scored),
        details=[page.Paragraph(f"{COUNTED} Measured on {scored.read}.")],
        sections=[
            page.PageSection("", [first], "first"),
            page.PageSection("Other scores", [page.Group("rows", others)]),
            *([page.PageSection("Known heads", known)] if known else []),
            page.PageSection("All heads", [page.Fold(table.title, [table])]),
        ],
        method=METHOD,
        facts={"": facts},
        styles=page.WITH_MAPS,
    )


def _highest(scored: ScoredHeads) -> ResultTable:
    """Return the table of the highest head of each score, and how far it is from the others."""
    rows = []
    for score, text in HEAD_TEXTS.items():
        name = text.title.lower() + text.unit
        ranked = scored.strongest(score, len(scored.rows))
        if ranked.empty:
            rows.append((name, "–", "undefined for all tokens", "–", "–", "–", "–"))
            continue
        highest, *others = ranked.head(2).to_dict("records")
        following = (_name(others[0]), format_number(others[0]["value"])) if others else ("–", "–")
        value, spread = format_number(highest["value"]), _number(highest["sd"])
        median = format_number(ranked["value"].median())
        rows.append((name, _name(highest), value, spread, *following, median))
    names = ("score", "head", "value", "sd over texts", "next head", "value", "median of all heads")
    return ResultTable("Highest head of each score", names, rows, has_title=True, is_sortable=True)


def _number(value: float) -> str:
    return "–" if pd.isna(value) else format_number(value)


def _name(head: Mapping[Hashable, Any]) -> str:
    return f"L{head['layer']}H{head['head']}"


def heads_text(scored: ScoredHeads, score: str, n: int) -> str:
    """Return the n heads with the highest score, as a phrase; "" if it is not defined."""
    heads = scored.strongest(score, n).to_dict("records")
    return ", ".join(f"{_name(head)} {format_number(head['value'])}" for head in heads)


def known_heads_table(scored: ScoredHeads) -> ResultTable:
    """Return the table of known heads: score, head, value and rank among all heads."""
    rows = []
    for score, known in scored.known.items():
        ranked = scored.strongest(score, len(scored.rows)).set_index(["layer", "head"])["value"]
        for layer, head in known:
            value, place = "–", "undefined for all tokens"
            if (layer, head) in ranked.index:
                value = format_number(ranked[layer, head])
                place = f"{list(ranked.index).index((layer, head)) + 1:,} of {len(ranked):,}"
            rows.append((HEAD_TEXTS[score].title.lower(), f"L{layer}H{head}", value, place))
    title = "Heads of GPT-2 small described in the literature, outlined in the maps"
    columns = ("score", "head", "value", "rank")
    return ResultTable(title, columns, rows, has_title=True, is_sortable=True)


def heads_answer(scored: ScoredHeads) -> str:
    """Return the number of heads of each type and the highest one, as a sentence.

    Types without a defined score are left out.
    """
    clauses = list[str]()
    for score in HEAD_TYPES:
        ranked, kind = scored.strongest(score, len(scored.rows)), score.replace("_", "-")
        if ranked.empty:
            continue
        top, n = ranked.to_dict("records")[0], int((ranked["value"] >= MOSTLY).sum())
        named = f"{counted(n, f'{kind} head')} (" + "highest " * (n > 1 and not clauses)
        named = named if n else f"no {kind} head (highest "
        clauses.append(f"{named}{_name(top)}, {top['value']:.2f})")
    if not clauses:
        return "No score that identifies a type of head is defined for these texts."
    return f"{capitalised(joined_names(clauses))}."


def head_figures(scored: ScoredHeads) -> Iterator[page.FigurePart]:
    """Yield the row of maps of attention weights, then a map for each other score.

    Other scores have a colour scale of their own.
    """
    n_layers, n_heads = (int(scored.rows[name].max()) + 1 for name in ("layer", "head"))
    end = max(scale_end(scored.rows, score) for score in WEIGHTS)
    drawn, meanings, highest = {}, [], []
    for score in WEIGHTS:
        title, top = HEAD_TEXTS[score].title, scored.strongest(score, 1)
        framed = scored.known.get(score) or zip(top["layer"], top["head"], strict=True)
        drawn[title] = head_score_map(scored.rows, score, [*framed], end)
        meanings.append(f"{title}: {HEAD_TEXTS[score].meaning}")
        highest.append(f"{title.lower()} {heads_text(scored, score, 3) or 'none'}")
    outlined = f"Outlined: {'known heads, or else ' * bool(scored.known)}the highest."
    yield page.FigurePart(
        "Attention weights",
        page.figure_json(maps.map_row(drawn)),
        f"{outlined} Values below {LEAST_WRITTEN} are not written. {'; '.join(meanings)}.",
        f"Attention weights by layer and head. Highest: {'; '.join(highest)}.",
        height=8 + maps.rows_height(n_layers),
        width=9 + len(WEIGHTS) * max(7, 1.45 * n_heads),
    )
    for score, text in HEAD_TEXTS.items():
        if score in WEIGHTS:
            continue
        known = scored.known.get(score, ())
        yield page.FigurePart(
            text.title,
            page.figure_json(head_score_map(scored.rows, score, known)),
            f"{capitalised(text.meaning)}{'; outlined: known heads' if known else ''}.",
            f"{text.title}, {text.meaning}. Highest: {heads_text(scored, score, 10) or 'none'}.",
            height=8 + maps.rows_height(n_layers),
            width=9 + 2.6 * n_heads,
        )


def head_score_map(
    rows: pd.DataFrame, score: str, framed: Sequence[tuple[int, int]] = (), end: float | None = None
) -> go.Figure:
    """Return the map of a head score by layer (down) and head (across).

    Args:
        rows: Rows of `probekit.analysis.heads.score_heads`: those of all heads of all layers.
        score: A key of `HEAD_TEXTS`.
        framed: Heads to frame, as (layer, head).
        end: Upper end of the colour scale, which starts at 0; by default `scale_end`.
    """
    scored = rows[rows["score"] == score].sort_values(["layer", "head"])
    name, hover = HEAD_TEXTS[score].title.lower(), []
    for row in scored.to_dict("records"):
        spread = "" if np.isnan(row["sd"]) else f" ± {format_number(row['sd'])} (sd)"
        result = f"{format_number(row['value'])}{spread}, {counted(row['n'], 'text')}"
        result = result if row["n"] else "no token could have it"
        hover.append(f"<b>{_name(row)}</b><br>{name}: {result}")
    colours = maps.Colours(0.0, end or scale_end(rows, score), style.MAGNITUDES, is_diverging=False)
    across, down = (list(map(str, scored[name].unique())) for name in ("head", "layer"))
    # The page scrolls a wide map, so that numbers are readable in more cells than usual. With too
    # many, a browser would draw them slowly.
    how: Any = {"title": "head", "most_texts": maps.MOST_TEXTS * 10}
    if end is not None:  # one of several maps in a row, with cells as wide as three characters
        shown = scored["value"].map(lambda value: f"{value:.2f}".removeprefix("0")[:3])
        how["texts"] = list(shown.where(scored["value"] >= LEAST_WRITTEN, ""))
    figure = maps.text_map(scored["value"], hover, colours, across=across, down=down, **how)
    for layer, head in framed:  # their numbers are indices, because all heads are in the map
        maps.frame_cell(figure, column=head, row=layer)
    return figure


def scale_end(rows: pd.DataFrame, score: str) -> float:
    """Return the upper end of the colour scale: the highest score, but at least `LEAST_RANGE`.

    >>> rows = pd.DataFrame({"score": ["induction"] * 2, "value": [0.02, 0.31]})
    >>> scale_end(rows, "induction"), scale_end(rows, "entropy")
    (0.31, 0.05)
    """
    values = rows.loc[rows["score"] == score, "value"]
    return float(max([maps.LEAST_RANGE, *values.dropna()]))
