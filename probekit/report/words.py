"""What the numbers say, in sentences: the answer, the warnings, captions, descriptions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from probekit.report.figures import levels, measured_rows, series_names, series_of
from probekit.report.maps import chosen_cell, map_cells, map_colours
from probekit.report.record import RunRecord
from probekit.report.style import LEVELS, LINES, METRICS, format_number
from probekit.report.table import (
    EMBED_DEPTH,
    chosen_row,
    concatenated,
    differs,
    n_blocks,
    only,
    placed,
    ranked_rows,
    same_features,
    selection,
    tick,
)

NAMES = {
    "control": "control task",
    "word_identity": "the words alone",
    "random_weights": "a random network",
    "majority": "the majority label",
    "concatenated": "several sites side by side",
}

# A rival that reaches the interval of the task takes the point from the result.
RIVALS = {
    "control": (
        "The control task reaches {rival} there, and the interval of the task is {task}: a probe "
        "can learn words by heart at this position."
    ),
    "majority": (
        "Always guessing the most frequent label gives {rival}, and the interval of the task is "
        "{task}: the probe may have found nothing."
    ),
    "random_weights": (
        "A network with random weights reaches {rival} there, and the interval of the trained one "
        "is {task}: the result may not rest on what the network has learnt."
    ),
    "word_identity": (
        "Knowing the word alone gives {rival}, and the interval of the task is {task}: the result "
        "may not need the context."
    ),
    "embedding": (
        "The embedding gives {rival} already, and the interval of the chosen site is {task}: the "
        "layers may add nothing."
    ),
}
MOST_NAMES = 12  # in a list of sites or cells
WORDS_DO_NOT_HELP = " Here that does not help: knowing the word alone gives {rival}."


def answer(table: pd.DataFrame) -> str:
    """Return the result in words: the chosen site, its accuracy, and that of all its company."""
    chosen = chosen_row(table)
    if chosen is None:
        return "No layer was chosen: the results hold no cross-validation of the task."
    company = company_of(chosen, table)
    task = company.pop("task", None)
    place = _place(chosen, table)
    if task is None:
        return f"Chosen by cross-validation: {place}, which has no test row."
    beside = [
        f"{words} {format_number(company[name]['value'])}"
        for name, words in NAMES.items()
        if name in company
    ]
    return " ".join(
        [
            f"Chosen: {place}, by cross-validated accuracy on training rows "
            f"{format_number(chosen['value'])}{_next(table)}: accuracy",
            format_number(task["value"], task["ci_low"], task["ci_high"]),
            f"on {task['n_test']:,.0f} held-out rows of {task['n_groups']:,.0f} groups.",
            f"Beside it: {'; '.join(beside)}." if beside else "It was measured without company.",
        ]
    )


def _next(table: pd.DataFrame) -> str:
    """Return the site that came second, by its depth and the series it belongs to, if any did."""
    ranked = ranked_rows(table)
    second = ranked.assign(series=series_names(ranked)).iloc[1:2]
    return "".join(
        f" (next: {' '.join(filter(None, [_depth(row, table), row['series']]))}, "
        f"{format_number(row['value'])})"
        for _, row in second.iterrows()
    )


def _place(row: pd.Series, table: pd.DataFrame) -> str:
    several = differs(placed(table)["position"])
    position = f" at {row['position']}" if several else ""
    return f"{_depth(row, table)} ({selection(row['site'], row['head'])}{position})"


def _depth(row: pd.Series, table: pd.DataFrame) -> str:
    name = tick(row["depth"], n_blocks(placed(table)))
    return {"embed": "the embedding", "final norm": "the final norm"}.get(name, f"block {name}")


def company_of(row: pd.Series, table: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the test accuracy rows that belong beside a placed row, by target.

    "embedding" is the task's row at the embedding on the same line, unless `row` stands there;
    "concatenated" is the best of several sites side by side.
    """
    measured = only(table, metric="accuracy", split="test", run=row["run"], dataset=row["dataset"])
    # The baselines know nothing of sites; they may know of positions, since those choose the words.
    measured = measured[measured["position"].isin(["", row["position"]])]
    rows = placed(measured)
    joined = only(concatenated(measured), target="task", probe=row["probe"])
    start = rows[(rows["depth"] == EMBED_DEPTH) & (row["depth"] != EMBED_DEPTH)]
    company = [
        same_features(rows, row),
        measured[measured["site"] == ""],
        only(start, target="task", line=row["line"], probe=row["probe"]).assign(target="embedding"),
        joined.nlargest(1, "value").assign(target="concatenated"),
    ]
    return {str(member["target"]): member for _, member in pd.concat(company).iterrows()}


def warnings(table: pd.DataFrame, record: RunRecord) -> list[str]:
    """Return a sentence for each reason to doubt the result at the chosen site."""
    return [
        *_rivals(table),
        *_edge_of_grid(table, record.C_grid),
        *_unconverged(table),
        *(finding.message for finding in record.data.findings if finding.level != "info"),
        *_other_choice(table, record),
        *record.warnings,
    ]


def _rivals(table: pd.DataFrame) -> list[str]:
    chosen = chosen_row(table)
    company = {} if chosen is None else company_of(chosen, table)
    if "task" not in company:
        return []
    task = company["task"]
    shown = format_number(task["value"], task["ci_low"], task["ci_high"])
    rivals = {name: row for name, row in company.items() if row["value"] >= task["ci_low"]}
    told = {
        name: sentence.format(rival=format_number(rivals[name]["value"]), task=shown)
        for name, sentence in RIVALS.items()
        if name in rivals
    }
    if "control" in told and "word_identity" in company and "word_identity" not in rivals:
        value = format_number(company["word_identity"]["value"])
        told["control"] += WORDS_DO_NOT_HELP.format(rival=value)
    return list(told.values())


def _edge_of_grid(table: pd.DataFrame, grid: list[float]) -> list[str]:
    chosen = chosen_row(table)
    if chosen is None or len(grid) < 2:
        return []
    return [
        f"C is {chosen['C']:g} at the chosen site, the {name} of those offered: "
        "a wider grid (probe.C) may move the numbers."
        for name, end in {"smallest": min(grid), "largest": max(grid)}.items()
        if math.isclose(chosen["C"], end)
    ]


def _unconverged(table: pd.DataFrame) -> list[str]:
    fits = only(table, metric="accuracy")
    fits = fits[fits["converged"].notna()]
    stopped = fits[~fits["converged"].astype(bool)]
    if stopped.empty:
        return []
    sites = _some(list(stopped["site"].unique()))
    return [
        f"{len(stopped)} of {len(fits)} accuracies rest on fits that stopped before they "
        f"converged, at {sites}: they may still move. Raise probe.max_iter or lower the largest "
        "probe.C."
    ]


def _some(names: Sequence[str]) -> str:
    """Return the first of the names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _other_choice(table: pd.DataFrame, record: RunRecord) -> list[str]:
    chosen = chosen_row(table)
    if record.best is None or chosen is None:
        return []
    named = selection(record.best.site, record.best.head)
    found = selection(chosen["site"], chosen["head"])
    if named == found:
        return []
    return [
        f"run.json names {named} as the chosen site, the cross-validation in results.csv says "
        f"{found}; this page goes by the latter."
    ]


def caption(table: pd.DataFrame, metric: str = "accuracy") -> str:
    """Return what a layer curve of the metric shows: rows, groups, intervals, probes, seed."""
    measured = measured_rows(table, metric)
    task = only(measured, target="task")
    sentences = {
        "Accuracy on the task minus that on the control task. "
        "The control task gives each word, at the probed position or the last before it, a random "
        "label (Hewitt and Liang 2019): a probe that scores well on it can learn words by heart. "
        "Where the task's test words or groups are new and the control's words are not, "
        "selectivity can be negative.": metric == "selectivity",
        _measured_on(task, metric): True,
        "Bands: 95 % percentile intervals from resampling the test groups.": (
            task["ci_low"].notna().any()
        ),
        "The ring marks, of the sites drawn, the one of the highest cross-validated accuracy on "
        "training rows; test rows had no say in it.": chosen_row(table) is not None,
        "resid_pre of a block is resid_post of the block before it and is drawn there.": (
            task["site"].str.fullmatch(r"blocks\.[1-9]\d*\.hook_resid_pre").any()
        ),
        "Sites joined: one probe on the features of several sites side by side; it stands at no "
        "layer and is never the one chosen.": not concatenated(task).empty,
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def _measured_on(task: pd.DataFrame, metric: str) -> str:
    """Return on which rows the metric was measured, and in which view of them."""
    sentences = {
        f"{METRICS[metric].capitalize()} on {_spread(task, 'n_test')} held-out rows of "
        f"{_spread(task, 'n_groups')} groups, by probes fitted on {_spread(task, 'n_train')} rows "
        f"(seed {_spread(task, 'seed')}).": True,
        "Each row was centred and divided by its own standard deviation first, as by a layer norm "
        "without its affine part.": (task["view"] == "normalized").any(),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


def map_caption(table: pd.DataFrame, metric: str = "accuracy") -> str:
    """Return what a map of the metric shows: rows, probes, colours, what is framed."""
    cells = map_cells(table, metric)
    shown = map_colours(cells, metric)
    low, high = format_number(shown.low), format_number(shown.high)
    least = "no selectivity" if metric == "selectivity" else "chance"
    sentences = {
        "Accuracy on the task minus that on the control task, which gives each word a random label "
        "(Hewitt and Liang 2019).": metric == "selectivity",
        _measured_on(cells, metric): True,
        "Each cell is a probe of its own.": True,
        f"Colours go from {low} to {high}, with 0 in the middle.": shown.is_diverging,
        f"Colours go from {low}, {least}, to {high}; what lies below has the colour of {low}.": (
            not shown.is_diverging
        ),
        "The frame marks, of the cells drawn, the one of the highest cross-validated accuracy on "
        "training rows; test rows had no say in it.": chosen_cell(table, cells) is not None,
        "All offsets have the same examples, folds and resamples. Word identity and control go by "
        "the token at the offset.": differs(cells["position"]),
    }
    return " ".join(sentence for sentence, holds in sentences.items() if holds)


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
        f"{METRICS[metric]} by layer and {across}, {len(cells)} cells from {low} to {high}. "
        f"Highest: {', '.join(named)}."
    )


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
    return f"{METRICS[metric]} by layer. {'; '.join(parts)}."
