"""Page of attention head scores: heat maps, known heads of the model, and a table of all heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from probekit.report.figures.style import format_number
from probekit.report.maps.head_map import (
    SCORES,
    WEIGHTS,
    head_score_map,
    head_score_maps,
    scale_end,
)
from probekit.report.pages.analysis_page import AnalysisPage, Cells, PageSection, Picture
from probekit.results.network import ScoredHeads

NOTE = (
    "Each score is averaged over the tokens for which it is defined, then over texts. An attention "
    "pattern shows which tokens a head attends to, not what it does with their values."
)
SCALES = "The maps of attention weights have one colour scale; the others have their own."


def heads_page(scored: ScoredHeads, *, model: str, facts: Mapping[str, str]) -> str:
    """Return a self-contained HTML page with a heat map per score and a table of all heads."""
    parts = [
        PageSection("Maps", [SCALES], pictures=_pictures(scored)),
        PageSection("All heads", tables=[_table(scored.rows)]),
    ]
    if scored.known:
        known = Cells(
            "Known heads and their scores in this model",
            ("score", "head", "value", "rank"),
            known_head_rows(scored),
            is_open=True,
        )
        sentence = "Heads of GPT-2 small described in the literature; outlined in the maps."
        parts.insert(0, PageSection("Known heads", [sentence], tables=[known]))
    return AnalysisPage(
        eyebrow=f"probekit · heads · {model}",
        title="Attention head scores",
        answer=heads_answer(scored),
        notes=[NOTE],
        parts=parts,
        facts=facts,
    ).html()


def heads_text(scored: ScoredHeads, score: str, n: int) -> str:
    """Return the n heads with the highest score, as a phrase."""
    heads = scored.strongest(score, n).to_dict("records")
    return ", ".join(f"L{h['layer']}H{h['head']} {format_number(h['value'])}" for h in heads)


def known_head_rows(scored: ScoredHeads) -> list[tuple[str, str, str, str]]:
    """Return score name, head, value and rank among all heads for each known head."""
    return [row for score in scored.known for row in _known(scored, score)]


def _known(scored: ScoredHeads, score: str) -> Iterator[tuple[str, str, str, str]]:
    ranked = scored.strongest(score, len(scored.rows))
    heads = list(zip(ranked["layer"], ranked["head"], strict=True))
    for layer, head in scored.known[score]:
        name = SCORES[score].title.lower()
        if (layer, head) not in heads:
            yield name, f"L{layer}H{head}", "–", "undefined for all tokens"
            continue
        rank = heads.index((layer, head))
        value = format_number(ranked["value"].iloc[rank])
        yield name, f"L{layer}H{head}", value, f"{rank + 1} of {len(heads)}"


def heads_answer(scored: ScoredHeads) -> str:
    """Return the strongest head of each head type, as a sentence."""
    strongest = [
        f"{SCORES[score].title.lower()} {heads_text(scored, score, 1) or 'none'}"
        for score in WEIGHTS
    ]
    return f"Measured on {scored.read}. Strongest: {'; '.join(strongest)}."


def _pictures(scored: ScoredHeads) -> list[Picture]:
    """Return the row of maps of attention weights, and a map for each other score."""
    end = format_number(max(scale_end(scored.rows, score) for score in WEIGHTS))
    meanings = "; ".join(f"{SCORES[score].title}: {SCORES[score].meaning}" for score in WEIGHTS)
    outlined = " Outlined: known heads." if scored.known else ""
    highest = [
        f"{SCORES[score].title.lower()} {heads_text(scored, score, 3) or 'none'}"
        for score in WEIGHTS
    ]
    row = Picture(
        "Attention weights",
        {"": head_score_maps(scored.rows, scored.known)},
        f"{meanings}.{outlined} Colour scale: 0 to {end}.",
        f"Attention weights by layer and head. Highest: {'; '.join(highest)}.",
        height=_height(scored),
        width=9 + len(WEIGHTS) * 1.45 * (int(scored.rows["head"].max()) + 1),
    )
    return [row, *(_picture(scored, score) for score in SCORES if score not in WEIGHTS)]


def _height(scored: ScoredHeads) -> float:
    return 8 + 1.9 * (int(scored.rows["layer"].max()) + 1)


def _picture(scored: ScoredHeads, score: str) -> Picture:
    meaning, end = SCORES[score].meaning, format_number(scale_end(scored.rows, score))
    known = scored.known.get(score, ())
    n_heads = int(scored.rows["head"].max()) + 1
    return Picture(
        SCORES[score].title,
        {"": head_score_map(scored.rows, score, known)},
        f"{meaning[0].upper()}{meaning[1:]}{'; outlined: known heads' * bool(known)}. "
        f"Colour scale: 0 to {end}.",
        f"{SCORES[score].title}, {meaning}. Highest: {heads_text(scored, score, 10) or 'none'}.",
        height=_height(scored),
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
