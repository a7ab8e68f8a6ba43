"""The page of head scores: a map for each, the strongest heads, and what is known of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from probekit.report.figures.style import format_number
from probekit.report.maps.head_map import SCORES, head_score_map, scale_end
from probekit.report.pages.analysis_page import AnalysisPage, Cells, PageSection, Picture
from probekit.results.network import ScoredHeads

NOTE = (
    "Each score is a mean over the tokens that can have it, then over texts. A pattern says where "
    "a head looks, not what it does with what is there."
)
SCALES = "Each map has colours of its own, from 0 to its highest value."
# Scores of which a high one says what a head is for.
TELLING = ("previous_token", "duplicate_token", "induction", "first_token")


def heads_page(found: ScoredHeads, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a page of HTML with a map for each score and a table of all; it asks no network."""
    parts = [
        PageSection("Maps", [SCALES], pictures=[_picture(found, score) for score in SCORES]),
        PageSection("All heads", tables=[_table(found.rows)]),
    ]
    if found.known:
        known = Cells(
            "Known heads and their scores here",
            ("score", "head", "here", "rank"),
            known_head_rows(found),
            is_open=True,
        )
        sentence = "The heads that the literature names for GPT-2 small, framed in the maps."
        parts.insert(0, PageSection("Known answers", [sentence], tables=[known]))
    return AnalysisPage(
        eyebrow=f"probekit · heads · {model}",
        title="Where the heads look",
        answer=heads_answer(found),
        notes=[NOTE],
        parts=parts,
        facts=facts,
    ).html()


def heads_text(found: ScoredHeads, score: str, n: int) -> str:
    """Return the n strongest heads of a score in words."""
    heads = found.strongest(score, n).to_dict("records")
    return ", ".join(f"L{h['layer']}H{h['head']} {format_number(h['value'])}" for h in heads)


def known_head_rows(found: ScoredHeads) -> list[tuple[str, str, str, str]]:
    """Return score, head, value and rank among all heads of the heads that are known."""
    return [row for score in found.known for row in _known(found, score)]


def _known(found: ScoredHeads, score: str) -> Iterator[tuple[str, str, str, str]]:
    ordered = found.strongest(score, len(found.rows))
    places = list(zip(ordered["layer"], ordered["head"], strict=True))
    for layer, head in found.known[score]:
        name = SCORES[score].title.lower()
        if (layer, head) not in places:
            yield name, f"L{layer}H{head}", "–", "no token could have it"
            continue
        rank = places.index((layer, head))
        value = format_number(ordered["value"].iloc[rank])
        yield name, f"L{layer}H{head}", value, f"{rank + 1} of {len(places)}"


def heads_answer(found: ScoredHeads) -> str:
    """Return the strongest head of each telling score, in words."""
    told = [
        f"{SCORES[score].title.lower()} {heads_text(found, score, 1) or 'in none'}"
        for score in TELLING
    ]
    return f"On {found.read}. Strongest: {'; '.join(told)}."


def _picture(found: ScoredHeads, score: str) -> Picture:
    meaning, end = SCORES[score].meaning, format_number(scale_end(found.rows, score))
    known = found.known.get(score, ())
    n_heads = int(found.rows["head"].max()) + 1
    return Picture(
        SCORES[score].title,
        {"": head_score_map(found.rows, score, known)},
        f"{meaning[0].upper()}{meaning[1:]}{'; framed: known heads' * bool(known)}. "
        f"Colours go from 0 to {end}.",
        f"{SCORES[score].title}, {meaning}. The highest: {heads_text(found, score, 10) or 'none'}.",
        height=8 + 1.9 * (int(found.rows["layer"].max()) + 1),
        width=9 + 2.6 * n_heads,
    )


def _table(rows: pd.DataFrame) -> Cells:
    by_head = rows.set_index(["layer", "head"])
    wide = pd.DataFrame({name: by_head.loc[by_head["score"] == name, "value"] for name in SCORES})
    return Cells(
        f"{len(wide)} heads",
        ("head", *(score.title.lower() for score in SCORES.values())),
        [
            (f"L{layer}H{head}", *("–" if pd.isna(v) else format_number(v) for v in values))
            for (layer, head), values in zip(wide.index, wide.to_numpy(), strict=True)
        ],
    )
