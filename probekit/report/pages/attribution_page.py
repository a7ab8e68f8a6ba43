"""Page of a direct logit attribution: the contribution of each head and MLP to a logit."""

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
    "Direct effects only: the output of each component, scaled by the final norm of this forward "
    "pass and multiplied by the unembedding. Indirect effects through later heads and MLPs count "
    "for those heads and MLPs. An MLP includes its bias; the attention bias is listed separately."
)
MOST_NAMED = 5
LONGEST_HEADING = 100  # characters of the text


def attribution_title(attribution: AttributedLogit) -> str:
    """Return the name of the attributed logit or logit difference.

    >>> attribution_title(AttributedLogit(("a",), 0, " b", " c", 1.0, 0.5, 1, pd.DataFrame()))
    'the logit of ␣b minus that of ␣c'
    """
    logit = f"the logit of {token_label(attribution.token)}"
    if not attribution.minus:
        return logit
    is_mean = attribution.minus == MEAN
    subtracted = MEAN if is_mean else f"that of {token_label(attribution.minus)}"
    return f"{logit} minus {subtracted}"


def strongest_parts(attribution: AttributedLogit) -> pd.DataFrame:
    """Return the components with their `name`, in descending order of absolute contribution."""
    parts = zip(
        attribution.rows["part"], attribution.rows["layer"], attribution.rows["head"], strict=True
    )
    named = attribution.rows.assign(name=[part_name(*part) for part in parts])
    return named.sort_values("value", key=abs, ascending=False, kind="stable")


def largest_parts(attribution: AttributedLogit, n: int) -> str:
    """Return the n components with the largest absolute contributions, as a phrase."""
    named = strongest_parts(attribution).head(n)
    pairs = zip(named["name"], named["value"], strict=True)
    return ", ".join(f"{name} {signed(value)}" for name, value in pairs)


def attribution_answer(attribution: AttributedLogit) -> str:
    """Return the probability, rank, logit and largest contributions of the token, in sentences."""
    rounding = abs(attribution.logit - float(attribution.rows["value"].sum()))
    title = attribution_title(attribution)
    return (
        f"At position {attribution.position} the model assigns {token_label(attribution.token)} a "
        f"probability of {format_number(attribution.probability)} (rank {attribution.rank:,}). "
        f"{title[0].upper()}{title[1:]} is {signed(attribution.logit)}; the contributions of the "
        f"{len(attribution.rows)} components sum to it within {rounding:.0e}. "
        f"Largest contributions: {largest_parts(attribution, MOST_NAMED)}."
    )


def attribution_page(attribution: AttributedLogit, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a self-contained HTML page with the contributions as heat map, waterfall and table."""
    text = line_label("".join(attribution.tokens[: attribution.position + 1]))
    shown = text if len(text) <= LONGEST_HEADING else f"…{text[-LONGEST_HEADING:]}"
    n_layers = int(attribution.rows["layer"].max()) + 1
    n_columns = int(attribution.rows["head"].max()) + 3
    return AnalysisPage(
        eyebrow=f"probekit · direct logit attribution · {model}",
        title=f"Contributions to {attribution_title(attribution)}",
        answer=attribution_answer(attribution),
        notes=[NOTE],
        parts=[
            PageSection(
                f"After “{shown}”",
                pictures=[
                    Picture(
                        "Heads and MLPs",
                        {"": attribution_map(attribution.rows)},
                        "Contribution of each component to the logit. “bias” is the bias of the "
                        "attention output.",
                        "Contribution of each head and MLP. Largest: "
                        + largest_parts(attribution, 2 * MOST_NAMED),
                        height=8 + 1.9 * n_layers,
                        width=9 + 2.9 * n_columns,
                    ),
                    Picture(
                        "Cumulative logit",
                        {"": attribution_steps(attribution.rows)},
                        "Each bar starts where the previous one ends; the last is the logit.",
                        "Contributions in order: "
                        + "; ".join(
                            f"{n} {signed(v)}" for n, v in step_rows(attribution.rows).items()
                        ),
                        height=26,
                        width=6 + 1.4 * (2 * n_layers + 4),
                    ),
                ],
                tables=[_table(attribution)],
            )
        ],
        facts=facts,
    ).html()


def _table(attribution: AttributedLogit) -> Cells:
    parts = strongest_parts(attribution)
    rows = [
        (name, format_number(value))
        for name, value in zip(parts["name"], parts["value"], strict=True)
    ]
    title = f"All {len(rows)} components, largest contribution first"
    return Cells(title, ("component", "contribution"), rows)
