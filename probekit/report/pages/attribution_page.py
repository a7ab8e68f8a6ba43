"""The page of a logit taken apart: which heads and MLPs write a token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

NOTE = (
    "Direct effects only: what a part adds to the residual stream, read by the unembedding under "
    "the scale that the final norm has in this run. What a part does through later heads and MLPs "
    "stands under those. An MLP includes its bias; the bias of attention is a part of its own."
)
MEAN = "the mean of all tokens"
MOST_NAMED = 5
LONGEST_HEADING = 100  # characters of the text


@dataclass(frozen=True, eq=False)
class AttributedLogit:
    """A logit of one text with its parts.

    Attributes:
        tokens: of the text.
        position: where the logit stands, counted from 0.
        token: whose logit.
        minus: the token whose logit is taken off it, `MEAN`, or nothing.
        logit: as the network gives it.
        probability: of the token.
        rank: of the token, 1 for the likeliest.
        rows: one a part, with `part`, `layer`, `head` and `value`.
    """

    tokens: tuple[str, ...]
    position: int
    token: str
    minus: str
    logit: float
    probability: float
    rank: int
    rows: pd.DataFrame

    @property
    def title(self) -> str:
        """Whose logit, in words.

        >>> AttributedLogit(("a",), 0, " b", " c", 1.0, 0.5, 1, pd.DataFrame()).title
        'the logit of ␣b less that of ␣c'
        """
        whose = f"the logit of {token_label(self.token)}"
        if not self.minus:
            return whose
        less = MEAN if self.minus == MEAN else f"that of {token_label(self.minus)}"
        return f"{whose} less {less}"

    @property
    def strongest(self) -> pd.DataFrame:
        """The parts by how much they add or take away, with their `name`."""
        parts = zip(self.rows["part"], self.rows["layer"], self.rows["head"], strict=True)
        named = self.rows.assign(name=[part_name(*part) for part in parts])
        return named.sort_values("value", key=abs, ascending=False, kind="stable")

    def largest(self, n: int) -> str:
        """Return the n largest parts in words."""
        named = self.strongest.head(n)
        pairs = zip(named["name"], named["value"], strict=True)
        return ", ".join(f"{name} {signed(value)}" for name, value in pairs)

    @property
    def answer(self) -> str:
        """What was found, in sentences."""
        rounding = abs(self.logit - float(self.rows["value"].sum()))
        return (
            f"At position {self.position} the network gives {token_label(self.token)} a "
            f"probability of {format_number(self.probability)}, rank {self.rank:,}. "
            f"{self.title[0].upper()}{self.title[1:]} is {signed(self.logit)}: its "
            f"{len(self.rows)} parts sum to it within {rounding:.0e}. "
            f"The largest: {self.largest(MOST_NAMED)}."
        )


def attribution_page(found: AttributedLogit, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a page of HTML with the parts as map, steps and table; it asks no network."""
    read = line_label("".join(found.tokens[: found.position + 1]))
    shown = read if len(read) <= LONGEST_HEADING else f"…{read[-LONGEST_HEADING:]}"
    n_layers = int(found.rows["layer"].max()) + 1
    n_columns = int(found.rows["head"].max()) + 3
    return AnalysisPage(
        eyebrow=f"probekit · direct logit attribution · {model}",
        title=f"What adds up to {found.title}",
        answer=found.answer,
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
                        + found.largest(2 * MOST_NAMED),
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
    rows = [
        (name, format_number(value))
        for name, value in zip(found.strongest["name"], found.strongest["value"], strict=True)
    ]
    return Cells(f"All {len(rows)} parts, the largest first", ("part", "adds"), rows)
