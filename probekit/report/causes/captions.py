"""Captions of figures of interventions: replacement, measure, number of texts, controls."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from probekit.amounts import counted
from probekit.report.causes.curves import curve_lines_of
from probekit.report.causes.directions import where
from probekit.report.causes.edits import (
    METHODS,
    RECOVERY,
    EditSet,
    interval_in_words,
    measure_title,
    n_in_words,
    place_in_words,
    value_in_words,
)
from probekit.report.causes.panels import Panel
from probekit.report.figures.style import fixed
from probekit.report.sentences.score_words import p_words
from probekit.report.texts import capitalised, class_label
from probekit.results.causes.tables import CauseTables
from probekit.results.table import n_blocks

REPLACEMENTS = {
    "counterfactual": "activations of the counterfactual text",
    "mean": "mean activations",
    "zero": "zero",
    "resample": "activations of a random other text",
}
MOST_NAMED = 12  # values in the description of a figure
ENOUGH_GROUPS = 50
FEW_GROUPS = (
    f"With fewer than {ENOUGH_GROUPS} groups, skewed effects can raise the rate of false positives "
    "from 5 % to 7 %, extremely skewed ones to 15 %; intervals then contain the true value in 92 % "
    "and 88 % of data sets."
)


def edit_caption(one: EditSet, tables: CauseTables) -> str:
    """Return the facts that the figures of a set of edits share."""
    return " ".join(
        [
            f"Replacement: {REPLACEMENTS[one.replacement]}, {where(tables, one.at)}.",
            _quantity(one, tables),
            f"{sizes_in_words(one.rows)}. {_test(one)}",
        ]
    )


def _quantity(one: EditSet, tables: CauseTables) -> str:
    measure = f"{measure_title(one.measure)} ({one.unit}{_answers(tables)})"
    if one.shown == RECOVERY:
        return (
            f"Recovery of the {measure}: share of the difference between the counterfactual and "
            "the unedited text."
        )
    reason = ""
    if one.do == "patch":
        reason = (
            " Recovery is undefined, because the interval of the difference between counterfactual "
            "and unedited text contains 0."
        )
    return f"Measure: change of the {measure} relative to the unedited text.{reason}"


def _answers(tables: CauseTables) -> str:
    named = tables.record.answers
    if {"answer", "wrong"} <= named.keys():
        return f"; {named['answer']} against {named['wrong']}"
    return f"; {named['answer']}" if "answer" in named else ""


def _test(one: EditSet) -> str:
    p = one.rows["p_best"].min()
    if pd.isna(p):
        return "Not tested."
    few = f" {FEW_GROUPS}" if one.rows["groups"].min() < ENOUGH_GROUPS else ""
    return (
        f"Control: the unedited text; smallest {p_words(float(p))}, adjusted for "
        f"{counted(one.n_edits, 'edit')}.{few}"
    )


def sizes_in_words(rows: pd.DataFrame) -> str:
    """Return the number of texts and groups; if rows differ in them, their range."""
    ends = rows[["n", "groups"]].agg(["min", "max"])
    low, high = (n_in_words(own) for _, own in ends.iterrows())
    return low if low == high else f"{low} to {high}"


def curve_caption(one: EditSet, tables: CauseTables) -> str:
    """Return the caption of a causal curve."""
    left = one.of_heads["part"].unique()
    heads = f" Single heads of {', '.join(left)} have a map of their own." if len(left) else ""
    return f"{edit_caption(one, tables)} Bands or bars: 95 % intervals over groups.{heads}"


def token_caption(one: EditSet, tables: CauseTables, n_heads: int = 0) -> str:
    """Return the caption of a map of layers and tokens; `n_heads` is not 0 for heads."""
    record = tables.record
    tokens = ""
    if record.tokens:
        tokens = " Tokens of the first text; in italics where other texts have another token."
        tokens = tokens if not all(record.same_tokens) else " All texts have these tokens."
    of = f" The heads with the largest values, of {n_heads}." if n_heads else ""
    return f"{edit_caption(one, tables)}{of}{tokens} Framed: the largest absolute value."


def head_caption(one: EditSet, tables: CauseTables) -> str:
    """Return the caption of a map of heads."""
    return f"{edit_caption(one, tables)} Framed: the head with the largest absolute value."


def edit_description(one: EditSet, rows: pd.DataFrame, place: str = "") -> str:
    """Return the largest values of a figure as text."""
    blocks = n_blocks(rows)
    largest = rows.reindex(rows["value"].abs().nlargest(MOST_NAMED).index)
    named = [
        place_in_words(row, blocks)
        + (f" at position {row['position']:.0f}" if one.at == "each" else "")
        + f" {value_in_words(row)}"
        for _, row in largest.iterrows()
    ]
    return f"{capitalised(one.title)}{place}, largest first. {'; '.join(named)}."


def curve_description(one: EditSet) -> str:
    """Return the largest values of a causal curve as text."""
    return edit_description(one, curve_lines_of(one), " by layer")


def dose_caption(
    along: str, at: str, panels: Sequence[Panel], n_all: int, tables: CauseTables
) -> str:
    """Return the caption of dose-response curves."""
    rows = pd.concat([panel.rows for panel in panels])
    own = tables.verdicts
    own = own[own["site"].isin(rows["site"]) & own["along"].eq(along) & own["at"].eq(at)]
    record = tables.record
    towards = f" towards {class_label(record.classes[-1])}" if record.classes else ""
    measure = measure_title(record.measures[0]) if record.measures else "measure"
    size = n_in_words(record) if own.empty else sizes_in_words(own)
    folds = f" and {counted(record.folds, 'fold')}" if record.folds > 1 else ""
    chosen = f" The {len(panels)} of {n_all} sites with the largest effects." * (
        len(panels) < n_all
    )
    return (
        "Edit: multiples of the standard deviation of the projection are added along the "
        f"direction ({METHODS[along]}), {where(tables, at)}. Measure: mean change of the {measure} "
        f"({rows['unit'].iloc[0]}{_answers(tables)}){towards}. {size}{folds}. Controls: "
        f"95 % of {record.draws:,} directions on permuted labels, which the test compares with "
        "(grey); 95 % of random directions with the features' covariance, not tested (dotted)."
        f"{_other_loss(rows)}{chosen}"
    )


def _other_loss(rows: pd.DataFrame) -> str:
    known = rows.dropna(subset="other_loss")
    if known.empty:
        return ""
    worst = known.sort_values("other_loss").iloc[-1]
    loss = interval_in_words(worst["other_loss"], worst["other_low"], worst["other_high"])
    return f" Change of the loss on other texts: at most {loss} nats per token."


def dose_description(panels: Sequence[Panel]) -> str:
    """Return the effect of the extreme doses as text."""
    named = []
    for panel in panels[:MOST_NAMED]:
        ends = panel.rows.sort_values("by").iloc[[0, -1]]
        doses = [
            f"{fixed(row['effect'], 2)} at {row['by']:+g}".replace("-", "−")
            for _, row in ends.iterrows()
        ]
        named.append(f"{panel.title} {', '.join(doses)}")
    return f"Change of the measure by dose. {'; '.join(named)}."


def refit_caption(along: str, at: str, panels: Sequence[Panel], tables: CauseTables) -> str:
    """Return the caption of probes that were fitted again after erasure."""
    rows = pd.concat([panel.rows for panel in panels])
    return (
        f"Edit: erasure ({METHODS[along]}), replaced by the mean, {where(tables, at)}. Probes are "
        "fitted again at this site and every later one. Measure: balanced accuracy (share); bands: "
        f"95 % intervals over groups. {sizes_in_words(rows)}. Controls: the same probes "
        "without erasure, and chance."
    )


def refit_description(panels: Sequence[Panel]) -> str:
    """Return the accuracies at the first and last site as text."""
    named = [
        f"{panel.title}: {fixed(first['before'], 2)} before and {fixed(first['after'], 2)} after "
        f"at the first site, {fixed(last['before'], 2)} and {fixed(last['after'], 2)} at the last"
        for panel in panels
        for first, last in [(panel.rows.iloc[0], panel.rows.iloc[-1])]
    ]
    return f"Balanced accuracy before and after erasure. {'; '.join(named)}."
