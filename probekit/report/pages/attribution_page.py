"""The page of a logit taken apart: which heads and MLPs write a token."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from probekit.report.figures.style import format_number
from probekit.report.maps.attribution_map import (
    attribution_map,
    attribution_steps,
    part_name,
    signed,
    step_rows,
)
from probekit.report.pages.analysis_page import AnalysisPage, Cells, PageSection, Picture
from probekit.report.texts.glyphs import line_label, token_label
from probekit.results.network import MEAN, AttributedLogit

NOTE = (
    "Direct effects only: what a part adds to the residual stream, read by the unembedding under "
    "the scale that the final norm has in this run. What a part does through later heads and MLPs "
    "stands under those. An MLP includes its bias; the bias of attention is a part of its own."
)
MOST_NAMED = 5
LONGEST_HEADING = 100  # characters of the text


def attribution_title(found: AttributedLogit) -> str:
    """Return whose logit it is, in words.

    >>> attribution_title(AttributedLogit(("a",), 0, " b", " c", 1.0, 0.5, 1, pd.DataFrame()))
    'the logit of ␣b less that of ␣c'
    """
    whose = f"the logit of {token_label(found.token)}"
    if not found.minus:
        return whose
    less = MEAN if found.minus == MEAN else f"that of {token_label(found.minus)}"
    return f"{whose} less {less}"


def strongest_parts(found: AttributedLogit) -> pd.DataFrame:
    """Return the parts with their `name`, sorted by absolute value, the largest first."""
    parts = zip(found.rows["part"], found.rows["layer"], found.rows["head"], strict=True)
    named = found.rows.assign(name=[part_name(*part) for part in parts])
    return named.sort_values("value", key=abs, ascending=False, kind="stable")


def largest_parts(found: AttributedLogit, n: int) -> str:
    """Return the n largest parts in words."""
    named = strongest_parts(found).head(n)
    pairs = zip(named["name"], named["value"], strict=True)
    return ", ".join(f"{name} {signed(value)}" for name, value in pairs)


def attribution_answer(found: AttributedLogit) -> str:
    """Return the result in sentences."""
    rounding = abs(found.logit - float(found.rows["value"].sum()))
    title = attribution_title(found)
    return (
        f"At position {found.position} the network gives {token_label(found.token)} a "
        f"probability of {format_number(found.probability)}, rank {found.rank:,}. "
        f"{title[0].upper()}{title[1:]} is {signed(found.logit)}: its "
        f"{len(found.rows)} parts sum to it within {rounding:.0e}. "
        f"The largest: {largest_parts(found, MOST_NAMED)}."
    )


def attribution_page(found: AttributedLogit, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a page of HTML with the parts as map, steps and table; it asks no network."""
    read = line_label("".join(found.tokens[: found.position + 1]))
    shown = read if len(read) <= LONGEST_HEADING else f"…{read[-LONGEST_HEADING:]}"
    n_layers = int(found.rows["layer"].max()) + 1
    n_columns = int(found.rows["head"].max()) + 3
    return AnalysisPage(
        eyebrow=f"probekit · direct logit attribution · {model}",
        title=f"What adds up to {attribution_title(found)}",
        answer=attribution_answer(found),
        notes=[NOTE],
        parts=[
            PageSection(
                f"After “{shown}”",
                pictures=[
                    Picture(
                        "Heads and MLPs",
                        {"": attribution_map(found.rows)},
                        "What each part adds: towards the token above 0, away from it below. "
                        "“bias” is that of the attention's output.",
                        "What each head and MLP adds. The largest: "
                        + largest_parts(found, 2 * MOST_NAMED),
                        height=8 + 1.9 * n_layers,
                        width=9 + 2.9 * n_columns,
                    ),
                    Picture(
                        "The way to the logit",
                        {"": attribution_steps(found.rows)},
                        "Each bar begins where the one before it ended; the last is the logit.",
                        "What is added in turn: "
                        + "; ".join(f"{n} {signed(v)}" for n, v in step_rows(found.rows).items()),
                        height=26,
                        width=6 + 1.4 * (2 * n_layers + 4),
                    ),
                ],
                tables=[_table(found)],
            )
        ],
        facts=facts,
    ).html()


def _table(found: AttributedLogit) -> Cells:
    parts = strongest_parts(found)
    rows = [
        (name, format_number(value))
        for name, value in zip(parts["name"], parts["value"], strict=True)
    ]
    return Cells(f"All {len(rows)} parts, the largest first", ("part", "adds"), rows)
