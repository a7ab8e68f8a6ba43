"""All figures of a run's interventions, in the order of the page, with their captions.

A caption has the replacement, the measure, the number of texts and the controls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from probekit.amounts import counted
from probekit.report.causes.cause_maps import head_map_of, token_maps
from probekit.report.causes.curves import (
    Panel,
    cause_curve,
    curve_lines_of,
    dose_figure,
    dose_panels,
    panels_height,
    refit_figure,
    refit_panels,
    steepest,
)
from probekit.report.causes.edits import (
    METHODS,
    RECOVERY,
    EditSet,
    edit_sets,
    interval_in_words,
    measure_title,
    n_in_words,
    place_in_words,
    value_in_words,
    where,
)
from probekit.report.figures.facets import MOST_PANELS
from probekit.report.figures.style import fixed
from probekit.report.maps.text_map import MOST_TEXTS
from probekit.report.pages.page import FigurePart, figure_json
from probekit.report.pages.parts import map_part
from probekit.report.sentences.answer import p_words
from probekit.report.texts import capitalised, class_label
from probekit.results.causes import CauseTables
from probekit.results.table import n_blocks

NOUNS = {
    ("patch", "counterfactual"): "patches",
    ("ablate", "mean"): "mean ablation",
    ("ablate", "zero"): "zero ablation",
    ("ablate", "resample"): "resampling ablation",
}
REPLACEMENTS = {
    "counterfactual": "activations of the counterfactual text",
    "mean": "mean activations",
    "zero": "zero",
    "resample": "activations of a random other text",
}
SMALL_ROW = 0.9  # rem, of maps without numbers in their cells
MOST_NAMED = 12  # values in the description of a figure
ENOUGH_GROUPS = 50
FEW_GROUPS = (
    f"With fewer than {ENOUGH_GROUPS} groups, skewed effects can raise the rate of false positives "
    "from 5 % to 7 %, extremely skewed ones to 15 %; intervals then contain the true value in 92 % "
    "and 88 % of data sets."
)


def cause_parts(tables: CauseTables, layers: dict[int, str] | None = None) -> list[FigurePart]:
    """Return the figures of a run's interventions; other measures, tokens and methods are folded.

    Args:
        tables: interventions of the run.
        layers: labels of the layer axis of the run's layer curve, by depth.
    """
    main, seen = first_measure(tables), set()
    edits: dict[str, list[FigurePart]] = {"curve": [], "tokens": [], "heads": []}
    for one in edit_sets(tables.effects):
        for kind, part in _edit_parts(one, tables, layers):
            # The first figure of each kind is open.
            is_open = one.measure == main and kind not in seen
            seen |= {kind} if is_open else set()
            edits[kind.split()[0]].append(replace(part, is_open=is_open))
    parts = [part for own in edits.values() for part in own]
    return [*parts, *_dose_parts(tables), *_refit_parts(tables, layers)]


def first_measure(tables: CauseTables) -> str:
    """Return the measure of the open figures: the first one that has rows; "" without rows."""
    measured = tables.effects["measure"].unique().tolist()
    return next((name for name in (*tables.record.measures, *measured) if name in measured), "")


def _edit_parts(
    one: EditSet, tables: CauseTables, layers: dict[int, str] | None
) -> Iterator[tuple[str, FigurePart]]:
    """Yield kind and figure of the patches or ablations of a set."""
    edits = NOUNS.get((one.do, one.replacement), one.do)
    place, caption = f"{edits} {where(tables, one.at)}", edit_caption(one, tables)
    title = capitalised(one.title)
    if one.shown == RECOVERY and one.measure != first_measure(tables):
        title = f"Recovery of {measure_title(one.measure)}"
    if one.at == "each":
        for part, figure in token_maps(one, tables.record):
            n_heads = one.of_heads["line"].nunique() if part.endswith(" heads") else 0
            rows = one.of_heads if n_heads else one.rows[one.rows["line"] == part]
            of = f" The heads with the largest values, of {n_heads}." if n_heads else ""
            words = f"{caption}{of}{_tokens(tables)} Framed: the largest absolute value."
            heading = f"{title} by layer and token · {part}, {edits}"
            description = edit_description(one, rows, f" by layer and token, {part}")
            yield f"tokens {part}", _resized(map_part(heading, figure, words, description))
        return
    parts = [(str(name), rows) for name, rows in one.of_heads.groupby("part", sort=False)]
    if not (rows := curve_lines_of(one)).empty:
        left = ", ".join(name for name, _ in parts)
        heads = f" Single heads of {left} have a map of their own." if left else ""
        yield (
            "curve",
            FigurePart(
                f"{title} by layer · {place}",
                figure_json(cause_curve(one, layers)),
                f"{caption} Bands or bars: 95 % intervals over groups.{heads}",
                edit_description(one, rows, " by layer"),
            ),
        )
    for name, rows in parts:
        heading = f"{title} by layer and head · {name}, {place}"
        words = f"{caption} Framed: the head with the largest absolute value."
        description = edit_description(one, rows, f" by layer and head, {name}")
        found = map_part(heading, head_map_of(one, name), words, description)
        yield f"heads {name}", _resized(found)


def _resized(part: FigurePart) -> FigurePart:
    """Return a map with lower rows if its cells have no numbers."""
    cells = part.figure["data"][0]["z"]
    if len(cells) * len(cells[0]) <= MOST_TEXTS:
        return part
    return replace(part, height=10 + SMALL_ROW * max(len(cells), 16))


def edit_caption(one: EditSet, tables: CauseTables) -> str:
    """Return the facts that the figures of a set of edits share."""
    measure = f"{measure_title(one.measure)} ({one.unit}{_answers(tables)})"
    quantity = f"Measure: change of the {measure} relative to the unedited text."
    if one.shown == RECOVERY:
        quantity = (
            f"Recovery of the {measure}: share of the difference between the counterfactual and "
            "the unedited text."
        )
    elif one.do == "patch":
        quantity += (
            " Recovery is undefined, because the interval of the difference between counterfactual "
            "and unedited text contains 0."
        )
    p, test = one.rows["p_best"].min(), "Not tested."
    if not pd.isna(p):
        few = f" {FEW_GROUPS}" if one.rows["groups"].min() < ENOUGH_GROUPS else ""
        test = (
            f"Control: the unedited text; smallest {p_words(float(p))}, adjusted for "
            f"{counted(one.n_edits, 'edit')}.{few}"
        )
    return (
        f"Replacement: {REPLACEMENTS[one.replacement]}, {where(tables, one.at)}. {quantity} "
        f"{sizes_in_words(one.rows)}. {test}"
    )


def _answers(tables: CauseTables) -> str:
    named = tables.record.answers
    words = " against ".join(named[name] for name in ("answer", "wrong") if name in named)
    return f"; {words}" if "answer" in named else ""


def _tokens(tables: CauseTables) -> str:
    record = tables.record
    if not record.tokens:
        return ""
    if all(record.same_tokens):
        return " All texts have these tokens."
    return " Tokens of the first text; in italics where other texts have another token."


def sizes_in_words(rows: pd.DataFrame) -> str:
    """Return the number of texts and groups; if rows differ in them, their range."""
    ends = rows[["n", "groups"]].agg(["min", "max"])
    low, high = (n_in_words(own) for _, own in ends.iterrows())
    return low if low == high else f"{low} to {high}"


def edit_description(one: EditSet, rows: pd.DataFrame, place: str) -> str:
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


def _dose_parts(tables: CauseTables) -> Iterator[FigurePart]:
    """Yield the dose-response curves of each method and choice of tokens."""
    for number, ((along, at), panels) in enumerate(dose_panels(tables)):
        shown = steepest(panels)
        named = []
        for title, rows in shown[:MOST_NAMED]:
            ends = rows.sort_values("by").iloc[[0, -1]]
            doses = [f"{fixed(row['effect'], 2)} at {row['by']:+g}" for _, row in ends.iterrows()]
            named.append(f"{title} {', '.join(doses).replace('-', '−')}")
        yield FigurePart(
            f"Dose-response · {METHODS[along]}, {where(tables, at)}",
            figure_json(dose_figure(shown)),
            dose_caption(along, at, shown, len(panels), tables),
            f"Change of the measure by dose. {'; '.join(named)}.",
            is_open=number == 0,
            height=panels_height(len(shown)),
        )


def dose_caption(
    along: str, at: str, panels: Sequence[Panel], n_all: int, tables: CauseTables
) -> str:
    """Return the caption of dose-response curves."""
    rows = pd.concat([own for _, own in panels])
    own = tables.verdicts
    own = own[own["site"].isin(rows["site"]) & own["along"].eq(along) & own["at"].eq(at)]
    record = tables.record
    towards = f" towards {class_label(record.classes[-1])}" if record.classes else ""
    measure = measure_title(record.measures[0]) if record.measures else "measure"
    size = n_in_words(record) if own.empty else sizes_in_words(own)
    folds = f" and {counted(record.folds, 'fold')}" if record.folds > 1 else ""
    known = rows.dropna(subset="other_loss").sort_values("other_loss")
    loss = ""
    if not known.empty:
        worst = interval_in_words(*known.iloc[-1][["other_loss", "other_low", "other_high"]])
        loss = f" Change of the loss on other texts: at most {worst} nats per token."
    few = len(panels) < n_all
    chosen = f" The {len(panels)} of {n_all} sites with the largest effects." * few
    return (
        "Edit: multiples of the standard deviation of the projection are added along the "
        f"direction ({METHODS[along]}), {where(tables, at)}. Measure: mean change of the {measure} "
        f"({rows['unit'].iloc[0]}{_answers(tables)}){towards}. {size}{folds}. Controls: "
        f"95 % of {record.draws:,} directions on permuted labels, which the test compares with "
        "(grey); 95 % of random directions with the features' covariance, not tested (dotted)."
        f"{loss}{chosen}"
    )


def _refit_parts(tables: CauseTables, layers: dict[int, str] | None) -> Iterator[FigurePart]:
    """Yield the accuracies of probes that were fitted again after erasure."""
    for number, ((along, at), panels) in enumerate(refit_panels(tables)):
        shown = panels[:MOST_PANELS]
        named = [
            f"{title}: {fixed(first['before'], 2)} before and {fixed(first['after'], 2)} after at "
            f"the first site, {fixed(last['before'], 2)} and {fixed(last['after'], 2)} at the last"
            for title, rows in shown
            for first, last in [(rows.iloc[0], rows.iloc[-1])]
        ]
        size = sizes_in_words(pd.concat([rows for _, rows in shown]))
        yield FigurePart(
            f"Accuracy after erasure · {METHODS[along]}, {where(tables, at)}",
            figure_json(refit_figure(shown, layers)),
            f"Edit: erasure ({METHODS[along]}), replaced by the mean, {where(tables, at)}. Probes "
            "are fitted again at this site and every later one. Measure: balanced accuracy "
            f"(share); bands: 95 % intervals over groups. {size}. Controls: the same probes "
            "without erasure, and chance.",
            f"Balanced accuracy before and after erasure. {'; '.join(named)}.",
            is_open=number == 0,
            height=panels_height(len(shown)),
        )
