"""Captions of figures, and text alternatives for readers who cannot see them."""

from typing import Any, cast

import pandas as pd

from probekit.amounts import format_number
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import HEADLINE
from probekit.report.elements.style import LEVELS, LINES
from probekit.report.elements.texts import capitalised
from probekit.report.figures import layer_curve
from probekit.report.figures.line_labels import levels
from probekit.report.figures.maps import colour_words
from probekit.report.sentences.answer import nested_line, unit_of
from probekit.results.record import BY_WORD, Control
from probekit.results.scores import Scores
from probekit.results.table import differs, metric_name, row_tick
from probekit.results.verdict import Verdict

# Explanation of the control task, by the unit that gets one random label.
CONTROLS = {
    "word": (
        "The control task assigns a random label to each word at the probed position, or the last "
        "word before it (Hewitt and Liang 2019): a probe that scores well on it can memorise "
        "words. Task and control are compared on the test rows whose words, at the probed position "
        "and those that are labelled, occur in the training rows."
    ),
    "group": (
        "The control task assigns a random label to each group of rows (after Hewitt and Liang "
        "2019, who assign one to each word): a probe that scores well on it can memorise groups. "
        "The groups of test rows are new to it, so it may score at chance even if the probe "
        "memorises groups."
    ),
}
NULL_BAND = "Grey band: the central 95 % of the scores after the exchanges that give p"
# Beginning of a sentence on what is measured at an offset, by the same unit.
AT_OFFSETS = {"word": "Word identity and control use", "group": "Word identity uses"}


def caption(
    scores: Scores, v: Verdict, metric: str = "accuracy", control: Control = BY_WORD
) -> str:
    """Return the caption of a layer curve: rows, groups, intervals, probes and seed.

    `control` describes the control task.
    """
    measured = scores.measured(metric)
    task = measured.where(target="task")
    parts = layer_curve.panels(measured.sited)
    of_panels = [list(layer_curve.series_of(rows)) for _, rows in parts]
    banded = layer_curve.banded_series
    some_unbanded = any(len(banded(scores, series)) < len(series) for series in of_panels)
    line = "the line of the best validation score" if v.is_nested else "the chosen line"
    of_line = f", for {line} only; the table has those of the others" if some_unbanded else ""
    is_ranked = not scores.ranked.empty
    score = metric_name(v.metric)
    groups = "training" if measured.rows["split"].eq("online").all() else "test"
    # Each sentence, and whether it holds.
    sentences = {
        f"{main_name(v)} on the task minus that on the control task. "
        f"{CONTROLS[control.by]}": METRICS[metric].kind == "difference",
        METRICS[metric].explanation: bool(METRICS[metric].explanation),
        _measured_on(task.rows, metric, v.is_nested): True,
        f"One panel for each {layer_curve.panel_unit(measured.sited)}, with the others in grey; "
        "all panels share their axes. Horizontal lines: majority class and best other baseline.": (
            len(parts) > 1
        ),
        f"Bands: 95 % intervals for new {groups} groups{of_line}.": bool(
            task.rows["ci_low"].notna().any()
        ),
        f"The ring marks the site with the best cross-validated {score} on training rows among "
        "those drawn; test rows were not used for the selection.": is_ranked and not v.is_nested,
        nested_line(v): HEADLINE in set(measured.rows["target"]),
        "resid_pre of a block is resid_post of the block before it and is drawn there.": (
            bool(task.rows["site"].str.fullmatch(r"blocks\.[1-9]\d*\.hook_resid_pre").any())
        ),
        "Concatenated: one probe on the features of several sites; it is never selected, because "
        "it does not localise information.": not task.concatenated.empty,
        control.why_none: metric == v.metric,
        f"{NULL_BAND}{f' ({v.null})' if v.null else ''}.": bool(
            layer_curve.null_band(scores, measured.sited)
        ),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds and sentence)


def main_name(v: Verdict) -> str:
    """Return the title of the main metric with a capital first letter."""
    return capitalised(metric_name(v.metric))


def _measured_on(task: pd.DataFrame, metric: str, is_nested: bool) -> str:
    """Return the sentences about the rows, groups, seed and normalisation of a measured metric."""
    name = metric_name(metric)
    unit = unit_of(task["probe"].unique())
    n_rows, n_groups = spread(task, "n_test"), spread(task, "n_groups")
    n_train, seed = spread(task, "n_train"), spread(task, "seed")
    is_online = task["split"].eq("online").any()
    # Each sentence, and whether it holds.
    sentences = {
        f"{capitalised(name)} on {n_rows} held-out {unit} in {n_groups} groups, for probes fitted "
        f"on {'at least ' if is_nested else ''}{n_train} {unit} (seed {seed}).": not is_online,
        f"Measured on {n_rows} training rows "
        f"{'of all outer folds together, ' if is_nested else ''}"
        f"in {n_groups} groups (seed {seed}).": is_online,
        "Each row was first centred and divided by its own standard deviation, as by a layer norm "
        "without its affine part.": (task["view"] == "normalized").any(),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def map_caption(cells: pd.DataFrame, v: Verdict, control: Control = BY_WORD) -> str:
    """Return the caption of a map of these `map_cells`: rows, probes, colours and frame.

    `control` describes the control task.
    """
    metric, score = cells["metric"].iloc[0], metric_name(v.metric)
    is_difference = METRICS[metric].kind == "difference"
    # Each sentence, and whether it holds.
    sentences = {
        f"{main_name(v)} on the task minus that on the control task, which assigns a random "
        f"label to each {control.by} (Hewitt and Liang 2019).": is_difference,
        _measured_on(cells, metric, v.is_nested): True,
        "Each cell is a separate probe.": True,
        colour_words(cells): True,
        f"The frame marks the cell with the best cross-validated {score} on training rows among "
        "those drawn; test rows were not used for the selection.": cells["rank"].notna().any(),
        "No cell is framed, because each outer fold chose its own.": v.is_nested,
        f"All offsets have the same examples, folds and resamples. {AT_OFFSETS[control.by]} "
        "the token at the offset.": differs(cells["position"]),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def spread(rows: pd.DataFrame, column: str) -> str:
    """Return the range of a column as text; a single number if all values are equal.

    Without values it is "an unknown number of".
    """
    numbers = rows[column].dropna()
    if numbers.empty:
        return "an unknown number of"
    low, high = f"{numbers.min():,.0f}", f"{numbers.max():,.0f}"
    return low if low == high else f"{low} to {high}"


def description(scores: Scores, metric: str = "accuracy") -> str:
    """Return the text alternative of a layer curve: all values of all lines and levels."""
    measured, parts = scores.measured(metric), []
    for name, series in layer_curve.series_of(measured.sited):
        points: dict[str, list[str]] = {}  # by target
        for row in cast(list[dict[str, Any]], series.to_dict("records")):
            point = f"{row_tick(row, measured.blocks)} {format_number(row['value'])}"
            points.setdefault(row["target"], []).append(point)
        for target, style in LINES.items():
            title = f"{style.label} {name}".strip()
            parts += [f"{title}: {', '.join(points[target])}"] if target in points else []
    parts += [
        f"{LEVELS[name].label}: {format_number(row['value'])}" for name, row in levels(measured)
    ]
    return f"{metric_name(metric)} by layer. {'; '.join(parts)}."
