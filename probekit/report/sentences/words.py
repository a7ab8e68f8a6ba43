"""What the figures show, in sentences: captions, and descriptions for who cannot see them."""

from __future__ import annotations

import pandas as pd

from probekit.probes.kinds.registry import KINDS
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.facets import panels
from probekit.report.figures.layer_curve import banded_series, measured_rows, series_of
from probekit.report.figures.learning_curve import growth_lines
from probekit.report.figures.levels import levels
from probekit.report.figures.sparse import sparse_rows
from probekit.report.figures.style import LEVELS, LINES, format_number
from probekit.report.maps.maps import chosen_cell, map_cells, map_colours
from probekit.results.metrics import metric_name
from probekit.results.record import ControlBy
from probekit.results.selection import chosen_row, main_metric, selection
from probekit.results.table import concatenated, differs, n_blocks, only, placed, tick

MOST_NAMES = 12  # cells named in the description of a map

# What the control task is, by what gets one random label in it.
CONTROLS = {
    "word": (
        "The control task gives each word, at the probed position or the last before it, a random "
        "label (Hewitt and Liang 2019): a probe that scores well on it can learn words by heart. "
        "Where the task's test words or groups are new and the control's words are not, "
        "selectivity can be negative."
    ),
    "group": (
        "The control task gives each group of rows a random label (after Hewitt and Liang 2019, "
        "who give one to each word): a probe that scores well on it can learn groups by heart. "
        "Groups of test rows are new to it, so that it may stay at chance whatever the probe can "
        "learn by heart."
    ),
}
AT_OFFSETS = {"word": "Word identity and control go", "group": "Word identity goes"}


def caption(table: pd.DataFrame, metric: str = "accuracy", control_by: ControlBy = "word") -> str:
    """Return what a layer curve of the metric shows: rows, groups, intervals, probes, seed.

    `control_by` is what gets one random label in the control task.
    """
    measured = measured_rows(table, metric)
    task = only(measured, target="task")
    sentences = {
        f"{_main_name(table)} on the task minus that on the control task. "
        f"{CONTROLS[control_by]}": METRICS[metric].kind == "difference",
        METRICS[metric].explanation: bool(METRICS[metric].explanation),
        _measured_on(task, metric): True,
        **_drawn(table, measured),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def _drawn(table: pd.DataFrame, measured: pd.DataFrame) -> dict[str, bool]:
    """Return what bands, rings and lines of a layer curve mean, and whether there are any."""
    task = only(measured, target="task")
    parts = panels(placed(measured))
    all_series = [list(series_of(rows)) for _, rows in parts]
    some_banded = any(len(banded_series(table, own)) < len(own) for own in all_series)
    chosen = chosen_row(table)
    score = "score" if chosen is None else metric_name(chosen["metric"])
    groups = "training" if measured["split"].eq("online").all() else "test"
    has_company = bool(measured["target"].isin(["control", "random_weights"]).any())
    return {
        "One panel for each kind of site; all have the same ranges.": len(parts) > 1,
        f"Bands: 95 % percentile intervals from resampling the {groups} groups"
        f"{', of the chosen line; those of the others stand in the table' * some_banded}.": (
            bool(task["ci_low"].notna().any())
        ),
        "Control task and random weights are those of the chosen kind of probe, "
        f"{'' if chosen is None else chosen['probe']}.": (
            chosen is not None and has_company and differs(task["probe"])
        ),
        f"The ring marks, of the sites drawn, the one of the highest cross-validated {score} on "
        "training rows; test rows had no say in it.": chosen is not None,
        "resid_pre of a block is resid_post of the block before it and is drawn there.": (
            bool(task["site"].str.fullmatch(r"blocks\.[1-9]\d*\.hook_resid_pre").any())
        ),
        "Sites joined: one probe on the features of several sites side by side; it stands at no "
        "layer and is never the one chosen.": not concatenated(task).empty,
    }


def _main_name(table: pd.DataFrame) -> str:
    name = metric_name(main_metric(only(table, split="test")))
    return name[0].upper() + name[1:]


def _measured_on(task: pd.DataFrame, metric: str) -> str:
    """Return on which rows the metric was measured, and in which view of them."""
    name = metric_name(metric)
    unit = unit_of(task)
    n_rows, n_groups = _spread(task, "n_test"), _spread(task, "n_groups")
    seed = _spread(task, "seed")
    is_online = task["split"].eq("online").any()
    sentences = {
        f"{name[0].upper()}{name[1:]} on {n_rows} held-out {unit} of {n_groups} groups, by probes "
        f"fitted on {_spread(task, 'n_train')} {unit} (seed {seed}).": (not is_online),
        f"Measured on {n_rows} training rows of {n_groups} groups (seed {seed}).": is_online,
        "Each row was centred and divided by its own standard deviation first, as by a layer norm "
        "without its affine part.": (task["view"] == "normalized").any(),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def map_caption(
    table: pd.DataFrame, metric: str = "accuracy", control_by: ControlBy = "word"
) -> str:
    """Return what a map of the metric shows: rows, probes, colours, what is framed.

    `control_by` is what gets one random label in the control task.
    """
    cells = map_cells(table, metric)
    score = metric_name(main_metric(table))
    is_difference = METRICS[metric].kind == "difference"
    sentences = {
        f"{_main_name(table)} on the task minus that on the control task, which gives each "
        f"{control_by} a random label (Hewitt and Liang 2019).": is_difference,
        _measured_on(cells, metric): True,
        "Each cell is a probe of its own.": True,
        colour_words(cells, metric): True,
        f"The frame marks, of the cells drawn, the one of the highest cross-validated {score} on "
        "training rows; test rows had no say in it.": chosen_cell(table, cells) is not None,
        f"All offsets have the same examples, folds and resamples. {AT_OFFSETS[control_by]} by "
        "the token at the offset.": differs(cells["position"]),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def colour_words(cells: pd.DataFrame, metric: str) -> str:
    """Return where the colours of a map of these cells begin and end."""
    shown = map_colours(cells, metric)
    low, high = format_number(shown.low), format_number(shown.high)
    fact = METRICS[metric]
    least = f"no {fact.title}" if fact.kind == "difference" else LEVELS[fact.reference].label
    if shown.is_diverging:
        return f"Colours go from {low} to {high}, with 0 in the middle."
    if METRICS[metric].lower_is_better:
        return f"Colours go from {high} to {low}; lower is better."
    return f"Colours go from {low}, {least}, to {high}; what lies below has the colour of {low}."


def map_description(table: pd.DataFrame, metric: str = "accuracy") -> str:
    """Return a map of the metric in words: its range, and its highest cells."""
    cells = map_cells(table, metric).sort_values("value", ascending=False, kind="stable")
    several = differs(cells["position"])
    named = [
        f"{selection(cell['site'], cell['head'])}{f' at {cell.position}' * several} "
        f"{format_number(cell['value'])}"
        for _, cell in cells.head(MOST_NAMES).iterrows()
    ]
    across = "position" if several else "head"
    low, high = (format_number(value) for value in (cells["value"].min(), cells["value"].max()))
    return (
        f"{metric_name(metric)} by layer and {across}, {len(cells)} cells from {low} to {high}. "
        f"Highest: {', '.join(named)}."
    )


def unit_of(task: pd.DataFrame) -> str:
    """Return what counts once in the scores of the probes that some rows are about.

    >>> unit_of(pd.DataFrame({"probe": ["structural_depth:64"]}))
    'sentences'
    """
    tasks = {KINDS[kind].task for kind in task["probe"].str.split(":").str[0] if kind in KINDS}
    return {"tree": "sentences", "text": "texts"}.get(min(tasks, default=""), "rows")


def _spread(rows: pd.DataFrame, column: str) -> str:
    """Return the number that the column holds, or its smallest and largest."""
    numbers = rows[column].dropna()
    if numbers.empty:
        return "an unknown number of"
    low, high = f"{numbers.min():,.0f}", f"{numbers.max():,.0f}"
    return low if low == high else f"{low} to {high}"


def description(table: pd.DataFrame, metric: str = "accuracy") -> str:
    """Return the figure of the metric in words, for those who cannot see it."""
    measured = measured_rows(table, metric)
    rows = placed(measured)
    blocks = n_blocks(rows)
    parts = []
    for name, series in series_of(rows):
        for target, style in LINES.items():
            points = [
                f"{tick(row['depth'], blocks)} {format_number(row['value'])}"
                for _, row in only(series, target=target).iterrows()
            ]
            title = f"{style.label} {name}".strip()
            parts += [f"{title}: {', '.join(points)}"] if points else []
    parts += [f"{LEVELS[name].label}: {row['value']:.3f}" for name, row in levels(measured)]
    return f"{metric_name(metric)} by layer. {'; '.join(parts)}."


def sparse_caption(table: pd.DataFrame) -> str:
    """Return what the curve of k-sparse probes shows."""
    rows = sparse_rows(table)
    return (
        f"{_main_name(table)} of logistic probes on only the k features that tell the classes "
        "apart best on the training rows, each k chosen and fitted anew. The sites of the highest "
        "cross-validated score are drawn; the best has its 95 % interval as a band, and its "
        "control task. All features: the best other probe at that site. "
        f"Measured on {_spread(rows, 'n_test')} held-out rows of {_spread(rows, 'n_groups')} "
        "groups."
    )


def sparse_description(table: pd.DataFrame) -> str:
    """Return the curve of k-sparse probes in words."""
    rows = only(sparse_rows(table), target="task", metric=main_metric(table))
    parts = [
        f"{selection(points['site'].iloc[0], points['head'].iloc[0])}: "
        + ", ".join(f"{row['k']:.0f} {format_number(row['value'])}" for _, row in points.iterrows())
        for _, points in rows.groupby("rank")
    ]
    return f"{_main_name(table)} by number of features. {'; '.join(parts)}."


def growth_caption(table: pd.DataFrame) -> str:
    """Return what the learning curves show."""
    chosen = chosen_row(table)
    (_, rows), *_ = growth_lines(table)
    site = "" if chosen is None else selection(chosen["site"], chosen["head"])
    return (
        f"{_main_name(table)} at {site} on {_spread(rows, 'n_test')} held-out rows of "
        f"{_spread(rows, 'n_groups')} groups, after fitting on whole groups of training rows, the "
        "smaller samples within the larger, at the penalty chosen on all. The band is the 95 % "
        "interval of the chosen probe. Baselines know all training rows."
    )


def growth_description(table: pd.DataFrame) -> str:
    """Return the learning curves in words."""
    parts = [
        f"{name}: "
        + ", ".join(
            f"{row['n_train']:,.0f} rows {format_number(row['value'])}"
            for _, row in rows.iterrows()
        )
        for name, rows in growth_lines(table)
    ]
    return f"{_main_name(table)} by number of training rows. {'; '.join(parts)}."
